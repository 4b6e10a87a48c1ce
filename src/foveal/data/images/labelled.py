"""Labelled images before they are batched: files or pixels, with their labels."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class WholeImages:
    """Images of different sizes, concatenated.

    Attributes:
        pixels: uint8 (P, 3), those of each image row by row, and one image after the other.
        size: height and width of each image, int64 (N, 2).
        first: number of its first pixel, int64 (N,).
    """

    pixels: Tensor
    size: Tensor
    first: Tensor

    @classmethod
    def of(cls, pixels: Tensor, size: Tensor) -> WholeImages:
        """Images of these sizes."""
        count = size.prod(1)
        return cls(pixels, size, count.cumsum(0) - count)

    def to(self, device: torch.device) -> WholeImages:
        """The same on ``device``."""
        return WholeImages(self.pixels.to(device), self.size.to(device), self.first.to(device))


@dataclass(frozen=True)
class LabelledImages:
    """Labelled images of one split.

    Attributes:
        images: pixels uint8 (N, 3, H, W), whole images to be cropped from, or the files' paths as one array of bytes
            (N,). An array is shared by worker processes, where a list of a million paths would be copied into each.
        labels: class int64 (N,), or 0 and 1 for each class float (N, K) where an image may have several.
        valid: bool (N, K), false where the official evaluation leaves a label out; None if it counts all.
        masks: bool (N, H, W), where the labelled object is; None if the dataset does not say. Only with pixels.
        boxes: of objects (N, M, 5), as in :class:`ImageSet`; None unless crops have to keep them in view.
    """

    images: Tensor | WholeImages | np.ndarray[Any, np.dtype[np.bytes_]]
    labels: Tensor
    valid: Tensor | None = None
    masks: Tensor | None = None
    boxes: Tensor | None = None

    @classmethod
    def of_files(cls, files: Sequence[Path], labels: Tensor, valid: Tensor | None = None) -> LabelledImages:
        """Labelled image files."""
        return cls(np.array([os.fsencode(file) for file in files], dtype=np.bytes_), labels, valid)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def are_files(self) -> bool:
        """Whether the images are still files."""
        return isinstance(self.images, np.ndarray)

    def file(self, n: int) -> Path:
        """Path of the ``n``-th image, which must be a file."""
        assert isinstance(self.images, np.ndarray)
        return Path(os.fsdecode(bytes(self.images[n])))

    def labels_of(self, n: int | Tensor) -> dict[str, Tensor]:
        """Label and, where the dataset has it, valid of the ``n``-th samples."""
        label = {"label": self.labels[n]}
        return label if self.valid is None else label | {"valid": self.valid[n]}

    def take(self, chosen: Tensor) -> LabelledImages:
        """Those samples for which the bool tensor ``chosen`` (N,) is true, in order."""
        assert not isinstance(self.images, WholeImages)  # files are divided before they are decoded
        images = self.images[chosen] if isinstance(self.images, Tensor) else self.images[chosen.numpy()]
        more = (None if values is None else values[chosen] for values in (self.valid, self.masks, self.boxes))
        return LabelledImages(images, self.labels[chosen], *more)


@dataclass(frozen=True)
class ImageSet:
    """What a reader finds in the folder of a dataset.

    Attributes:
        answers: names of the classes.
        splits: the samples of ``train`` and of other official splits.
        boxes: reads where objects are in the images of a split, float (N, M, 5): class, or -1 for no object, and x0,
            y0, x1, y1 from the middle of the image in units of its short side. None if the dataset does not say.
    """

    answers: list[str]
    splits: dict[str, LabelledImages]
    boxes: Callable[[str], Tensor] | None = None


def from_middle(box: tuple[float, float, float, float], width: float, height: float) -> list[float]:
    """A box in pixels from the top left, in the units of :attr:`ImageSet.boxes`.

    >>> from_middle((0, 0, 200, 100), width=200, height=100)
    [-1.0, -0.5, 1.0, 0.5]
    """
    middle = (width / 2, height / 2) * 2
    return [(end - half) / min(width, height) for end, half in zip(box, middle, strict=True)]
