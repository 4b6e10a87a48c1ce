"""How samples are divided into training, validation and test splits where none are official."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from foveal.data._random import uniform
from foveal.data.images.labelled import LabelledImages
from foveal.errors import UserError

SPLITS = ("train", "val", "test")
T = TypeVar("T")
Cut = Callable[[Any, float, int, str], tuple[Any, Any]]


# Images: the same part of every class --------------------------------------------


def complete(
    splits: Mapping[str, Any], val_fraction: float, test_fraction: float, seed: int, cut: Cut | None = None
) -> dict[str, Any]:
    """Training, validation and test images from those splits that are official.

    Without an official ``test`` the official ``val`` is the test split, as in the papers that report on it, or, if
    there is none either, ``test_fraction`` of the training images. Without a ``val`` to choose models by,
    ``val_fraction`` of the training images become it; with 0 the test images do, as in some papers.

    Args:
        splits: :class:`~foveal.data.images.labelled.LabelledImages` by split, or what ``cut`` takes.
        val_fraction: part of the training images for validation, or 0.
        test_fraction: part of the training images for testing.
        seed: of what is chosen.
        cut: divides samples in two; by default the same fraction of every class.
    """
    cut = cut or _cut
    train, val, test = (splits.get(split) for split in SPLITS)
    assert train is not None
    if test is None:
        val, test = None, val
    if test is None:
        train, test = cut(train, test_fraction, seed, "test")
    if val is None:
        train, val = cut(train, val_fraction, seed, "val") if val_fraction else (train, test)
    return {"train": train, "val": val, "test": test}


def mapped(splits: Mapping[str, Any], function: Callable[[str, Any], Any]) -> dict[str, Any]:
    """``function(split, samples)`` of each; where validation and test are the same samples, they still are."""
    test = function("test", splits["test"])
    val = test if splits["val"] is splits["test"] else function("val", splits["val"])
    return {"train": function("train", splits["train"]), "val": val, "test": test}


def _cut(samples: LabelledImages, fraction: float, seed: int, split: str) -> tuple[LabelledImages, LabelledImages]:
    chosen = part_of(samples, fraction, seed, SPLITS.index(split))
    _check_part(int(chosen.sum()), len(samples), fraction, split)
    return samples.take(~chosen), samples.take(chosen)


def part_of(samples: LabelledImages, fraction: float, seed: int, stream: int = 0) -> Tensor:
    """A random part of the samples: the same fraction of every class, or of all where an image has several classes.

    Returns:
        bool (N,), a function of the labels, ``seed`` and ``stream`` alone.
    """
    label, position = _shuffled(samples, seed, stream)
    return position < (label.bincount() * fraction).round()[label]


def some_of_each(samples: LabelledImages, counts: tuple[int, int], seed: int) -> tuple[LabelledImages, LabelledImages]:
    """Random, disjoint training and test samples: ``counts`` of each class."""
    train, test = counts
    if min(counts) < 1 or samples.labels.ndim != 1:
        raise UserError(f"data.per_class={list(counts)}: expected two numbers of at least 1, and one class an image")
    label, position = _shuffled(samples, seed, SPLITS.index("test"))
    fewest = int(label.bincount().min())
    if fewest < train + test:
        raise UserError(f"data.per_class={list(counts)}: a class has {fewest} images only")
    return samples.take((position >= test) & (position < test + train)), samples.take(position < test)


def _shuffled(samples: LabelledImages, seed: int, stream: int) -> tuple[Tensor, Tensor]:
    """Class of every sample, 0 for all where an image has several, and its position in a random order of that class."""
    count = len(samples)
    label = samples.labels if samples.labels.ndim == 1 else torch.zeros(count, dtype=torch.int64)
    order = uniform(seed, stream, torch.arange(count)).argsort(stable=True)
    order = order[label[order].argsort(stable=True)]  # class by class, shuffled within each
    sizes = label.bincount()
    position = torch.empty(count, dtype=torch.int64)
    position[order] = torch.arange(count) - (sizes.cumsum(0) - sizes)[label[order]]
    return label, position


# Images of which each has many labels: any part of them --------------------------


class Divisible(Protocol):
    """Samples of which some can be taken."""

    def __len__(self) -> int: ...

    def take(self, chosen: Tensor) -> Any:
        """Those with these numbers."""


def divide(splits: Mapping[str, Any], val_fraction: float, test_fraction: float, seed: int) -> dict[str, Any]:
    """:func:`complete` for images that have many labels each: any part of them is cut off."""
    return complete(splits, val_fraction, test_fraction, seed, _part_of_all)


def _part_of_all(samples: Divisible, fraction: float, seed: int, split: str) -> tuple[Any, Any]:
    order = uniform(seed, SPLITS.index(split), torch.arange(len(samples))).argsort(stable=True)
    count = round(fraction * len(samples))
    _check_part(count, len(samples), fraction, split)
    return samples.take(order[count:].sort().values), samples.take(order[:count].sort().values)


def _check_part(count: int, images: int, fraction: float, split: str) -> None:
    if not 0 < count < images:
        raise UserError(
            f"data.{split}_fraction={fraction}: {count} of {images} training images would be left for {split}; use "
            "another fraction or add images"
        )


# Texts: streams of unknown length, divided one by one ------------------------------


def complete_streams(
    splits: dict[str, Callable[[], Iterator[T]]], val_fraction: float, test_fraction: float, seed: int
) -> dict[str, Callable[[], Iterator[T]]]:
    """The same for functions that read samples one by one; without ``val`` the test samples serve."""
    fractions = {"test": 0.0 if "test" in splits else test_fraction, "val": 0.0 if "val" in splits else val_fraction}
    if "test" not in splits and not test_fraction:
        raise UserError("data.test_fraction=0 leaves nothing to test on: no test texts are official")
    complete = dict(splits)
    if any(fractions.values()):
        for split in ("train", *(split for split, fraction in fractions.items() if fraction)):
            complete[split] = partial(_part, splits["train"], split, fractions["test"], fractions["val"], seed)
    return complete


def _part(read: Callable[[], Iterator[T]], part: str, test: float, val: float, seed: int) -> Iterator[T]:
    """Those samples that fall to ``part``, which depends on their number and the seed alone."""
    block = 1 << 14
    for i, sample in enumerate(read()):
        if i % block == 0:
            draws = uniform(seed, 0, torch.arange(i, i + block)).tolist()
        draw = draws[i % block]
        if part == ("test" if draw < test else "val" if draw < test + val else "train"):
            yield sample
