"""Image files that are decoded once and held on the training device, where batches are made from them.

What evaluation sees, and images that are augmented as ``small`` or ``none``, are held at the size that the model sees.
To be cropped from as by ``large`` or ``crop`` they are held whole, side by side, and the parts of a batch are resized
together: two matrix products with the weights of a bilinear filter, which is as wide as one pixel of the coarser of the
two grids, as in torchvision's resize with antialiasing. The products are of whole numbers of so few bits that float32
(also TF32) adds them up without error, in whatever order. A sample hence never depends on its batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from foveal.data.augment import crop_and_flip, crops, resized_crops, shifts
from foveal.data.batches import EpochBatches, read_batches
from foveal.data.samples import Samples, WholeImages

ONE = 2**11  # what the weights of a filter add up to; whole numbers up to this are exact even in TF32
FINE = 2**3  # steps of a grey level that are kept between the two products


class HeldImages:
    """Batches of images that lie on the device already; augmented there if ``seed`` is that of a training epoch.

    Args:
        samples: of one split; whole images are always augmented.
        batches: which samples are in each batch.
        side: of the images that the model sees.
        seed: of the epoch.
        augment, flip: as in :class:`~foveal.data.images.ImageOptions`.
    """

    def __init__(
        self, samples: Samples, batches: EpochBatches, *, side: int, seed: int | None, augment: str, flip: bool
    ) -> None:
        self.samples, self.batches = samples, batches
        self.side, self.seed, self.augment, self.flip = side, seed, augment, flip

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        view = self._view()
        for index in self.batches.on(self.samples.labels.device):
            yield {"image": view(index), **self.samples.labels_of(index), "index": index}

    def _view(self) -> Callable[[Tensor], Tensor]:
        """How the samples of given numbers look in this epoch.

        Random numbers are those of the whole epoch at once, for a step would wait for each of its own.
        """
        images, sample = self.samples.images, torch.arange(len(self.samples))
        if isinstance(images, WholeImages):
            assert self.seed is not None
            size = images.size.cpu()
            if self.augment == "crop":
                part = crops(sample, size, self.side, self.seed, self.flip)
            else:
                part = resized_crops(sample, size, self.seed, self.flip)
            height, width = part[:, 2:4].amax(0).tolist()
            part = part.to(images.size.device)
            return lambda index: resized_parts(images, index, part[index], self.side, (height, width))
        assert isinstance(images, Tensor)
        if self.seed is None:
            return lambda index: images[index]
        moves = shifts(sample, self.side, self.seed, self.flip).to(images.device)
        return lambda index: crop_and_flip(images[index], moves[index])


def resized_parts(images: WholeImages, index: Tensor, part: Tensor, side: int, room: tuple[int, int]) -> Tensor:
    """A part of each image of a batch, mirrored or not, and resized to a square.

    Args:
        images: of which the batch is taken.
        index: number of each image of the batch, int64 (N,).
        part: first row and column, height and width of its part, and 1 if it is mirrored, int64 (N, 5).
        side: side S of the square.
        room: height R and width C of a rectangle that holds every part; the result does not depend on it.

    Returns:
        uint8 (N, 3, S, S).
    """
    count, (most_rows, most_columns) = len(index), room
    top, left, height, width, mirrored = part[:, :, None].unbind(1)  # (N, 1) each
    row = torch.arange(most_rows, device=part.device).minimum(height - 1)  # beyond the part, its border again
    column = torch.arange(most_columns, device=part.device).minimum(width - 1)
    column = torch.where(mirrored.bool(), width - 1 - column, column)
    rows = images.first[index, None] + (top + row) * images.size[index, 1:]
    pixels = images.pixels[rows[:, :, None] + (left + column)[:, None]]  # (N, R, C, 3)
    down, across = filters(height, most_rows, side), filters(width, most_columns, side)
    made = down @ pixels.flatten(2).float()
    made = (made * (FINE / ONE)).round().view(count, side, most_columns, 3)
    made = made.permute(0, 3, 1, 2).flatten(1, 2) @ across.mT  # (N, 3S, S)
    return (made / (FINE * ONE)).round().clamp(0, 255).to(torch.uint8).view(count, 3, side, side)


def filters(length: Tensor, room: int, side: int) -> Tensor:
    """Weights with which pixels along one side of a part add up to those of the resized part.

    Args:
        length: pixels of each part, int64 (N, 1).
        room: how many pixels there are, R; those beyond ``length`` have weight 0.
        side: pixels of the resized part, S.

    Returns:
        whole numbers that add up to about ``ONE``, float (N, S, R).
    """
    scale = length / side
    centre = (torch.arange(side, device=length.device) + 0.5) * scale
    pixel = torch.arange(room, device=length.device)
    distance = (pixel + 0.5 - centre[:, :, None]).abs() / scale.clamp(min=1)[:, :, None]
    weight = (2**16 * (1 - distance)).round().clamp(min=0) * (pixel < length[:, :, None])  # whole, for an exact sum
    return (ONE * weight / weight.sum(2, keepdim=True)).round()


def decode(data: Dataset[dict[str, Any]], workers: int, whole: bool) -> dict[str, Tensor]:
    """All images of ``data``, read by so many processes.

    Returns:
        pixels uint8 (N, 3, S, S); of ``whole`` images pixels and size, as in
        :class:`~foveal.data.samples.WholeImages`.
    """
    order: dict[str, Any] = {"shuffle": None, "rank": 0, "world": 1, "device": torch.device("cpu")}
    batches = read_batches(data, 64, workers=workers, collate=_side_by_side if whole else _stacked, **order)
    # A copy, since what comes from another process lies in shared memory, of which there may be little.
    found = [{name: value.clone() for name, value in batch.items()} for batch in batches]
    return {name: torch.cat([batch[name] for batch in found]) for name in found[0]}


def _stacked(samples: list[dict[str, Any]]) -> dict[str, Tensor]:
    return {"pixels": torch.stack([sample["image"] for sample in samples])}


def _side_by_side(samples: list[dict[str, Any]]) -> dict[str, Tensor]:
    size = torch.tensor([sample["image"].shape[:2] for sample in samples])
    return {"pixels": torch.cat([sample["image"].flatten(0, 1) for sample in samples]), "size": size}
