"""Datasets by name, and what every source of data offers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from foveal import registry
from foveal.data.place import Place, Status, status
from foveal.data.problems import Problem, Progress
from foveal.errors import UserError


class Source(Protocol):
    """What every task may ask of a dataset.

    Attributes:
        name: as in a recipe's ``data.name``.
        title: what people call it, such as "VOC 2012"; for a folder of the user's own, the name of that folder.
        embedded: whether it needs no download.
        root: the folder of real datasets, or None.
    """

    name: str
    title: str
    embedded: bool
    root: Path | None

    def describe(self) -> str:
        """One line on what the data is."""

    def about(self) -> dict[str, Any]:
        """Plain values (JSON) that a trained model and its report need when the data is no longer there.

        - ``answers``: names of the classes, and ``multilabel``: whether several hold at once;
        - ``queries``: what can be asked about, where there is such a thing;
        - ``size``: side of the images, and ``view``: how an image file is brought to that size;
        - ``question``: for a person, perhaps with ``{query}`` in it, and ``asked``: the same to follow "asked for";
        - ``colours``: "#rrggbb" of every answer, only where the answers are colours;
        - ``vocabulary`` and ``form``, for texts.
        """

    def loader(
        self,
        split: str,
        batch: int,
        *,
        epoch: int = 0,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
        device: torch.device,
        masks: bool = False,
    ) -> Iterable[dict[str, torch.Tensor]]:
        """Batches of ``split`` for one epoch; ``len()`` of it is the number of batches.

        With ``masks`` every batch has ``mask`` bool (N, H, W), where the object is; an error if the dataset has none.
        """


@dataclass(frozen=True)
class Entry:
    """A dataset by name.

    Attributes:
        name: as in a recipe's ``data.name``.
        summary: one line.
        options: the dataclass that a recipe's ``data`` section fills in.
        build: ``build(options, root)`` makes the source; ``root`` is the folder of real datasets or None.
        place: where its files are; None if it needs none.
        check: ``check(options, root, progress)`` reads every file and yields the problems. By default the source's own
            method ``check(progress)`` does, if it has one, else all its batches are read.
    """

    name: str
    summary: str
    options: type
    build: Callable[[Any, Path | None], Source]
    place: Place | None = None
    check: Callable[[Any, Path | None, Progress], Iterator[Problem]] | None = None

    def __post_init__(self) -> None:
        params = getattr(self.options, "__dataclass_params__", None)
        if params is not None and not params.frozen:
            raise UserError(f"the options of dataset {self.name} must be a frozen dataclass, got {self.options!r}")

    def status(self, root: Path | None) -> Status:
        """What training would find below ``root``."""
        return status(self.place, root)


def register_data(entry: Entry) -> Entry:
    """Make a dataset known to recipes and to ``foveal data``."""
    return registry.datasets.register(entry.name, entry)


def datasets() -> dict[str, Entry]:
    """All datasets by name."""
    return registry.datasets.items()


def dataset(name: str) -> Entry:
    """The dataset called ``name``."""
    return registry.datasets.get(name)
