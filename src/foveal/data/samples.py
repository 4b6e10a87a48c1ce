"""Labelled images before they are read: files or pixels with their labels, and how they are divided into splits."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from foveal.data._random import uniform
from foveal.errors import UserError

SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class WholeImages:
    """Images of different sizes side by side.

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
class Samples:
    """Labelled images of one split.

    Attributes:
        images: pixels uint8 (N, 3, H, W), whole images to be cropped from, or the files' paths as one array of bytes
            (N,). An array is shared by worker processes, where a list of a million paths would be copied into each.
        labels: class int64 (N,), or 0 and 1 for each class float (N, K) where an image may have several.
        valid: bool (N, K), false where the official evaluation leaves a label out; None if it counts all.
    """

    images: Tensor | WholeImages | np.ndarray[Any, np.dtype[np.bytes_]]
    labels: Tensor
    valid: Tensor | None = None

    @classmethod
    def of_files(cls, files: Sequence[Path], labels: Tensor, valid: Tensor | None = None) -> Samples:
        """Samples whose images are files."""
        return cls(np.array([os.fsencode(file) for file in files], dtype=np.bytes_), labels, valid)

    def __len__(self) -> int:
        return len(self.labels)

    def file(self, n: int) -> Path:
        """Path of the ``n``-th image, which must be a file."""
        assert isinstance(self.images, np.ndarray)
        return Path(os.fsdecode(bytes(self.images[n])))

    def labels_of(self, n: int | Tensor) -> dict[str, Tensor]:
        """Label and, where the dataset has it, valid of the ``n``-th samples."""
        label = {"label": self.labels[n]}
        return label if self.valid is None else label | {"valid": self.valid[n]}

    def take(self, chosen: Tensor) -> Samples:
        """Those samples for which the bool tensor ``chosen`` (N,) is true, in order."""
        assert not isinstance(self.images, WholeImages)  # files are divided before they are decoded
        images = self.images[chosen] if isinstance(self.images, Tensor) else self.images[chosen.numpy()]
        return Samples(images, self.labels[chosen], None if self.valid is None else self.valid[chosen])


@dataclass(frozen=True)
class Found:
    """What a reader found in a folder.

    Attributes:
        answers: names of the classes.
        splits: the samples of ``train`` and of other splits.
        boxes: reads where things are in the images to be tested on, float (N, M, 5): class, or -1 for no thing, and x0,
            y0, x1, y1 from the middle of the image in units of its short side. None if the dataset does not say.
    """

    answers: list[str]
    splits: dict[str, Samples]
    boxes: Callable[[], Tensor] | None = None


def part_of(samples: Samples, fraction: float, seed: int, stream: int = 0) -> Tensor:
    """A random part of the samples: the same fraction of every class, or of all where an image has several classes.

    Returns:
        bool (N,), a function of the labels, ``seed`` and ``stream`` alone.
    """
    label, place = _shuffled(samples, seed, stream)
    return place < (label.bincount() * fraction).round()[label]


def _shuffled(samples: Samples, seed: int, stream: int) -> tuple[Tensor, Tensor]:
    """Class of every sample, 0 for all where an image has several, and its place in a random order of that class."""
    count = len(samples)
    label = samples.labels if samples.labels.ndim == 1 else torch.zeros(count, dtype=torch.int64)
    order = uniform(seed, stream, torch.arange(count)).argsort(stable=True)
    order = order[label[order].argsort(stable=True)]  # class by class, shuffled within each
    sizes = label.bincount()
    place = torch.empty(count, dtype=torch.int64)
    place[order] = torch.arange(count) - (sizes.cumsum(0) - sizes)[label[order]]
    return label, place


def some_of_each(samples: Samples, counts: tuple[int, int], seed: int) -> tuple[Samples, Samples]:
    """So many training and test samples of each class, drawn at random and disjoint."""
    train, test = counts
    if min(counts) < 1 or samples.labels.ndim != 1:
        raise UserError(f"data.per_class={list(counts)}: expected two numbers of at least 1, and one class an image")
    label, place = _shuffled(samples, seed, SPLITS.index("test"))
    fewest = int(label.bincount().min())
    if fewest < train + test:
        raise UserError(f"data.per_class={list(counts)}: a class has {fewest} images only")
    return samples.take((place >= test) & (place < test + train)), samples.take(place < test)


def complete(splits: dict[str, Samples], val_fraction: float, test_fraction: float, seed: int) -> dict[str, Samples]:
    """Training, validation and test samples from whichever splits are official.

    Without an official ``test`` the official ``val`` is the test split, as in the papers that report on it, or, if
    there is none either, ``test_fraction`` of the training samples. Without a ``val`` to choose models by,
    ``val_fraction`` of the training samples become it; with 0 the test samples do, as in papers that do so.
    """
    train, val, test = (splits.get(split) for split in SPLITS)
    assert train is not None
    if test is None:
        val, test = None, val
    if test is None:
        train, test = _cut(train, test_fraction, seed, "test")
    if val is None:
        train, val = _cut(train, val_fraction, seed, "val") if val_fraction else (train, test)
    return {"train": train, "val": val, "test": test}


def _cut(samples: Samples, fraction: float, seed: int, split: str) -> tuple[Samples, Samples]:
    chosen = part_of(samples, fraction, seed, SPLITS.index(split))
    if not 0 < int(chosen.sum()) < len(samples):
        raise UserError(
            f"data.{split}_fraction={fraction}: {int(chosen.sum())} of {len(samples)} training images would be left "
            f"for {split}; use another fraction or add images"
        )
    return samples.take(~chosen), samples.take(chosen)
