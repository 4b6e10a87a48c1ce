"""Images and their masks, scaled, cropped and mirrored together, a batch at a time on the device where they lie.

An image is sampled bilinearly and its mask at the nearest pixel, both straight from the whole image. Beyond its border
there is the mean colour, and pixels that do not count. How a training image is changed depends only on (seed, epoch,
number of the image). In validation and test an image is seen whole, on a canvas whose sides are the next multiples of
32: its result then does not depend on the batch it is in.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from foveal.data._random import uniform
from foveal.data.batches import EpochBatches
from foveal.data.images.labelled import WholeImages
from foveal.data.images.masks import IGNORED

MULTIPLE = 32  # of the sides of a canvas
SCALE, ROW, COLUMN, FLIP = range(4)  # streams of random numbers


@dataclass(frozen=True)
class MaskedImages:
    """Images of any sizes and their masks, concatenated.

    Attributes:
        images: the images.
        labels: class of every pixel, uint8 (P,), in the order of ``images.pixels``.
    """

    images: WholeImages
    labels: Tensor

    @classmethod
    def of(cls, pixels: Tensor, labels: Tensor, size: Tensor) -> MaskedImages:
        """Pixels uint8 (P, 3), labels uint8 (P,), and height and width of each image, int64 (N, 2)."""
        return cls(WholeImages.of(pixels, size), labels)

    def __len__(self) -> int:
        return len(self.images.size)

    def to(self, device: torch.device) -> MaskedImages:
        """The same on ``device``."""
        return MaskedImages(self.images.to(device), self.labels.to(device))


def random_views(
    sample: Tensor, size: Tensor, crop: tuple[int, int], scale: tuple[float, float], flip: bool, seed: int
) -> Tensor:
    """How training images are scaled, where they are cropped, and which are mirrored.

    Args:
        sample: number of each image, int64 (N,).
        size: its height and width, int64 (N, 2).
        crop: height and width of the crop.
        scale: least and greatest factor, between which it is uniform.
        flip: whether to mirror every other image.
        seed: of the epoch.

    Returns:
        float64 (N, 4): factor, first row and column of the crop in the scaled image, 1 if it is mirrored. An image that
        is smaller than the crop is at a random place in it.
    """
    factor = scale[0] + (scale[1] - scale[0]) * uniform(seed, SCALE, sample)
    room = size * factor[:, None] - torch.tensor(crop)
    corner = torch.stack([uniform(seed, stream, sample) for stream in (ROW, COLUMN)], 1)
    mirrored = (uniform(seed, FLIP, sample) < 0.5) & flip
    return torch.cat([factor[:, None], (corner * room).round(), mirrored[:, None].double()], 1)


def plain_views(count: int) -> Tensor:
    """The views of ``count`` images as they are, float64 (N, 4)."""
    return torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64).repeat(count, 1)


def cropped(
    pairs: MaskedImages, index: Tensor, view: Tensor, crop: tuple[int, int], fill: Tensor, *, scaled: bool = True
) -> tuple[Tensor, Tensor]:
    """A crop of each image of a batch and of its mask.

    Args:
        pairs: of which the batch is taken.
        index: number of each image of the batch, int64 (N,).
        view: of each of them, from :func:`random_views`, (N, 4).
        crop: height H and width W of the crops.
        fill: colour beyond the border, uint8 (3,).
        scaled: whether any factor is not 1; if none is, pixels are copied, which is faster.

    Returns:
        uint8 (N, 3, H, W), channels last, and classes uint8 (N, H, W).
    """
    images, device = pairs.images, index.device
    factor, top, left, mirrored = view.float()[:, :, None].unbind(1)  # (N, 1) each
    height, width = images.size[index][:, :, None].unbind(1)
    row, column = (torch.arange(side, device=device) for side in crop)
    column = torch.where(mirrored > 0, crop[1] - 1 - column, column)
    down = Positions((row + 0.5 + top) / factor - 0.5, height)  # (N, H)
    across = Positions((column + 0.5 + left) / factor - 0.5, width)  # (N, W)
    first = images.first[index][:, None, None]

    def at(rows: Tensor, columns: Tensor) -> Tensor:
        """Numbers of pixels, (N, H, W)."""
        return first + rows[:, :, None] * width[:, :, None] + columns[:, None]

    nearest = at(down.nearest, across.nearest)
    pixels = images.pixels[nearest]
    if scaled:
        total = torch.zeros(pixels.shape, device=device)
        for rows, row_weight in down.neighbours():
            for columns, column_weight in across.neighbours():
                weight = row_weight[:, :, None] * column_weight[:, None]
                total.addcmul_(images.pixels[at(rows, columns)].float(), weight[..., None])
        pixels = total.round().to(torch.uint8)
    inside = down.inside[:, :, None] & across.inside[:, None]
    image = torch.where(inside[..., None], pixels, fill)
    label = torch.where(inside, pairs.labels[nearest], IGNORED)
    return image.permute(0, 3, 1, 2), label


class Positions:
    """Positions along one side of some images.

    Args:
        along: (N, S), 0 at the centre of the first pixel.
        length: pixels of each image, int64 (N, 1).

    Attributes:
        nearest: number of the nearest pixel, int64 (N, S).
        inside: whether the position is in the image, bool (N, S).
    """

    def __init__(self, along: Tensor, length: Tensor) -> None:
        self.along, self.last = along, length - 1
        nearest = (along + 0.5).floor().long()
        self.nearest, self.inside = self._clamped(nearest), (nearest >= 0) & (nearest < length)

    def neighbours(self) -> list[tuple[Tensor, Tensor]]:
        """Number and weight of the pixels before and after each position, (N, S) each."""
        floor = self.along.floor()
        before, weight = floor.long(), self.along - floor
        return [(self._clamped(before), 1 - weight), (self._clamped(before + 1), weight)]

    def _clamped(self, number: Tensor) -> Tensor:
        return number.clamp(torch.zeros_like(self.last), self.last)


def canvases(size: Tensor) -> Tensor:
    """Height and width of each image's canvas, int64 (N, 2), from those of the images."""
    return (size + MULTIPLE - 1) // MULTIPLE * MULTIPLE


class CanvasBatches(EpochBatches):
    """Batches of images with canvases of one size, each image exactly once.

    Args:
        canvas: height and width of each image's canvas, int64 (N, 2).
        batch: samples per batch and process; fewer if there are few images, so that every process has some.
        rank, world: this process and the number of processes.

    >>> canvas = torch.tensor([[32, 64], [64, 32], [32, 64], [32, 64]])
    >>> [batch.tolist() for batch in CanvasBatches(canvas, 2)]
    [[0, 2], [3], [1]]
    """

    def __init__(self, canvas: Tensor, batch: int, rank: int = 0, world: int = 1) -> None:
        super().__init__(len(canvas), batch, None, rank, world)
        kinds, kind = canvas.unique(dim=0, return_inverse=True)
        groups = (kind == number for number in range(len(kinds)))
        batches = [part for group in groups for part in group.nonzero()[:, 0].split(self.batch)]
        self.batches = batches[rank::world]

    def __len__(self) -> int:
        return len(self.batches)

    def on(self, device: torch.device) -> Iterator[Tensor]:
        """The numbers of the images of each batch, on ``device``."""
        return (numbers.to(device) for numbers in self.batches)
