"""Names of datasets, where their files are expected and how to get them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from foveal.errors import DataError, unknown
from foveal.plugins import load_plugins


class Source(Protocol):
    """What a task needs to know of a dataset."""

    name: str
    queries: list[str]
    answers: list[str]
    multilabel: bool
    embedded: bool

    def describe(self) -> str:
        """One line on what the data is."""

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
    ) -> Iterable[dict[str, torch.Tensor]]:
        """Batches of ``split`` for one epoch; ``len()`` of it is the number of batches."""


@dataclass(frozen=True)
class Entry:
    """A dataset by name.

    Attributes:
        name: as in a recipe's ``data.name``.
        summary: one line.
        options: the dataclass that a recipe's ``data`` section fills in.
        build: ``build(options, root)`` makes the source; ``root`` is the folder of real datasets or None.
        expected: files or folders below that root that must be there, in the plain case.
        how: where to get them.
    """

    name: str
    summary: str
    options: type
    build: Callable[[Any, Path | None], Source]
    expected: tuple[str, ...] = ()
    how: str = ""

    def missing(self, root: Path | None) -> list[str]:
        """Expected files that are not below ``root``; a trailing ``*`` stands for any ending."""
        if root is None:
            return list(self.expected)
        return [e for e in self.expected if not any(root.glob(e))]


_ENTRIES: dict[str, Entry] = {}


def register_data(entry: Entry) -> None:
    """Make a dataset known to recipes and to ``foveal data``."""
    _ENTRIES[entry.name] = entry


def datasets() -> dict[str, Entry]:
    """All datasets by name."""
    load_plugins()
    return dict(_ENTRIES)


def dataset(name: str) -> Entry:
    """The dataset called ``name``."""
    known = datasets()
    if name not in known:
        raise unknown("dataset", name, known)
    return known[name]


def data_root(given: str | Path | None = None) -> Path | None:
    """The folder of real datasets: ``given``, else ``FOVEAL_DATA``, else None."""
    chosen = given or os.environ.get("FOVEAL_DATA")
    if not chosen:
        return None
    root = Path(chosen).expanduser()
    if not root.is_dir():
        raise DataError(
            f"the data folder {root} does not exist; set FOVEAL_DATA or --data to the folder with the datasets"
        )
    return root
