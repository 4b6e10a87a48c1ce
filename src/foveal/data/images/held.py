"""Images that are decoded once and held on the training device, where batches are made from them.

What evaluation sees, and images that are augmented as ``small`` or ``none``, are held at the size that the model sees.
To be cropped from as by ``large`` or ``crop`` they are held whole, concatenated, and the crops of a batch are resized
together: two matrix products with the weights of a bilinear filter, which is as wide as one pixel of the coarser of the
two grids, as in torchvision's resize with antialiasing. The products are of integers of so few bits that float32 (also
TF32) adds them up without error, in any order. A sample hence never depends on its batch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial

import torch
from PIL import Image
from torch import Tensor

from foveal.data.batches import CPU, Batch, Batches, EpochBatches
from foveal.data.images.augment import crop_and_flip, crops, resized_crops, shifts
from foveal.data.images.keeping import keeping, objects_in
from foveal.data.images.labelled import LabelledImages, WholeImages
from foveal.data.images.reading import read_image

ONE = 2**11  # what the weights of a filter add up to; integers up to this are exact even in TF32
FINE = 2**3  # steps of a grey level that are kept between the two products


class HeldImages:
    """Gathers batches of images that lie on the device already, augmented there.

    Args:
        samples: of one split; whole images are always augmented.
        side: of the images that the model sees.
        seed: of a training epoch; None for no augmentation.
        augment, flip, keep: as in :class:`~foveal.data.images.classification.ImageOptions`.
        masks: whether batches carry the masks of the samples, which are augmented like the images.
    """

    def __init__(
        self,
        samples: LabelledImages,
        *,
        side: int,
        seed: int | None,
        augment: str,
        flip: bool,
        masks: bool = False,
        keep: float | None = None,
    ) -> None:
        self.samples, self.masks = samples, samples.masks if masks else None
        self.side, self.seed, self.augment, self.flip, self.keep = side, seed, augment, flip, keep

    def __call__(self, index: Tensor) -> Batch:
        """The samples with these numbers as one batch."""
        batch = {"image": self._image(index), **self.samples.labels_of(index), "index": index}
        return batch if self.masks is None else batch | {"mask": self._mask(index, self.masks)}

    # The random numbers of the whole epoch are drawn at once, because a step would wait for each of its own.

    @cached_property
    def _shifts(self) -> Tensor | None:
        """What ``small`` does to each image in this epoch; None if they are not augmented so."""
        if self.seed is None or not isinstance(self.samples.images, Tensor):
            return None
        number = torch.arange(len(self.samples))
        return shifts(number, self.side, self.seed, self.flip).to(self.samples.images.device)

    @cached_property
    def _crops(self) -> tuple[Tensor, tuple[int, int]]:
        """The part of each whole image that is seen in this epoch, and a rectangle that holds every part."""
        images = self.samples.images
        assert isinstance(images, WholeImages)
        assert self.seed is not None
        number, size, boxes = torch.arange(len(self.samples)), images.size.cpu(), self.samples.boxes

        def draw(seed: int) -> Tensor:
            if self.augment == "crop":
                return crops(number, size, self.side, seed, self.flip)
            return resized_crops(number, size, seed, self.flip)

        if self.keep is None or boxes is None:
            part = draw(self.seed)
        else:
            objects = objects_in(boxes, self.samples.labels.cpu(), size)
            part = keeping(draw, self.seed, size, objects, self.keep)
        height, width = part[:, 2:4].amax(0).tolist()
        return part.to(images.size.device), (height, width)

    def _image(self, index: Tensor) -> Tensor:
        images = self.samples.images
        if isinstance(images, WholeImages):
            part, room = self._crops
            return resized_parts(images, index, part[index], self.side, room)
        assert isinstance(images, Tensor)
        return images[index] if self._shifts is None else crop_and_flip(images[index], self._shifts[index])

    def _mask(self, index: Tensor, masks: Tensor) -> Tensor:
        if self._shifts is None:
            return masks[index]
        return crop_and_flip(masks[index][:, None].to(torch.uint8), self._shifts[index])[:, 0].bool()


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
    sums = down @ pixels.flatten(2).float()
    sums = (sums * (FINE / ONE)).round().view(count, side, most_columns, 3)
    sums = sums.permute(0, 3, 1, 2).flatten(1, 2) @ across.mT  # (N, 3S, S)
    return (sums / (FINE * ONE)).round().clamp(0, 255).to(torch.uint8).view(count, 3, side, side)


def filters(length: Tensor, room: int, side: int) -> Tensor:
    """Weights with which pixels along one side of a part add up to those of the resized part.

    Args:
        length: pixels of each part, int64 (N, 1).
        room: how many pixels there are, R; those beyond ``length`` have weight 0.
        side: pixels of the resized part, S.

    Returns:
        integers that add up to about ``ONE``, float (N, S, R).
    """
    scale = length / side
    centre = (torch.arange(side, device=length.device) + 0.5) * scale
    pixel = torch.arange(room, device=length.device)
    distance = (pixel + 0.5 - centre[:, :, None]).abs() / scale.clamp(min=1)[:, :, None]
    weight = (2**16 * (1 - distance)).round().clamp(min=0) * (pixel < length[:, :, None])  # integers, for an exact sum
    return (ONE * weight / weight.sum(2, keepdim=True)).round()


def decode(
    files: LabelledImages, view: Callable[[Image.Image], Tensor], workers: int, whole: bool
) -> dict[str, Tensor]:
    """All image files, decoded by ``workers`` processes.

    Args:
        files: of one split.
        view: makes the pixels of an image.
        workers: how many processes, 0 for this one.
        whole: whether images have different sizes.

    Returns:
        pixels uint8 (N, 3, S, S); of ``whole`` images pixels and size, as in
        :class:`~foveal.data.images.labelled.WholeImages`.
    """
    batches = Batches(EpochBatches(len(files), 64), partial(_decoded, files, view, whole), CPU, workers=workers)
    # A copy, because what comes from another process lies in shared memory, of which there may be little.
    parts = [{name: values.clone() for name, values in batch.items()} for batch in batches]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _decoded(files: LabelledImages, view: Callable[[Image.Image], Tensor], whole: bool, index: Tensor) -> Batch:
    images = [view(read_image(files.file(n))) for n in index.tolist()]
    if not whole:
        return {"pixels": torch.stack(images)}
    size = torch.tensor([image.shape[:2] for image in images])
    return {"pixels": torch.cat([image.flatten(0, 1) for image in images]), "size": size}
