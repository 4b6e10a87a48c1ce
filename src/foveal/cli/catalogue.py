"""What there is, by name.

Lists of what foveal itself brings are in ``catalogue.json``, so that a command shows them without importing PyTorch.
``uv run python docs/tables.py`` writes the file. If a plugin or an installed package may add something, the registries
are asked.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from foveal.data.place import Layout, Place, Status, status
from foveal.errors import unknown
from foveal.files import write_text
from foveal.plugins import GROUP, plugin_names

FILE = Path(__file__).with_name("catalogue.json")
QUICK = ("recipes", "tables", "zoo")  # listed without PyTorch, and so not stored


@dataclass(frozen=True)
class Dataset:
    """What ``foveal data`` says of a dataset."""

    name: str
    summary: str
    place: Place | None

    def status(self, root: Path | None) -> Status:
        """What training would find below ``root``."""
        return status(self.place, root)


def listed(kind: str) -> dict[str, str]:
    """Names of a kind of ``LISTS``, with a line on each."""
    if kind in QUICK or _extended():
        return LISTS[kind]()
    return _stored()[kind]


def listed_datasets(name: str | None = None) -> list[Dataset]:
    """All datasets, or the one called ``name``."""
    if _extended():
        from foveal.data import dataset, datasets

        entries = [dataset(name)] if name else datasets().values()
        return [Dataset(entry.name, entry.summary, entry.place) for entry in entries]
    summaries, places = _stored()["data"], _stored()["places"]
    if name and name not in summaries:
        raise unknown("dataset", name, summaries)
    names = [name] if name else summaries
    return [Dataset(name, summaries[name], _place(places[name])) for name in names]


def write() -> None:
    """Write ``catalogue.json``."""
    write_text(FILE, json.dumps(current(), indent=1, ensure_ascii=False) + "\n")


def current() -> dict[str, dict[str, Any]]:
    """What ``catalogue.json`` holds, from the registries."""
    from foveal.data import datasets

    lists = {kind: make() for kind, make in LISTS.items() if kind not in QUICK}
    places = {name: None if entry.place is None else asdict(entry.place) for name, entry in datasets().items()}
    return json.loads(json.dumps({**lists, "places": places}))


@cache
def _stored() -> dict[str, dict[str, Any]]:
    return json.loads(FILE.read_text(encoding="utf-8"))


def _extended() -> bool:
    """Whether modules of the user or of installed packages may add names."""
    return bool(
        plugin_names() or metadata.entry_points(group=GROUP) or metadata.entry_points(group=f"{GROUP}.mechanisms")
    )


def _place(stored: dict[str, Any] | None) -> Place | None:
    if stored is None:
        return None
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in stored.items()}
    layouts = tuple(Layout(layout["name"], tuple(layout["needs"])) for layout in stored["layouts"])
    also = tuple(place for other in stored["also"] if (place := _place(other)))
    return Place(**values | {"layouts": layouts, "also": also})


def _recipes() -> dict[str, str]:
    from foveal.recipe import available

    return dict.fromkeys(available(), "")


def _tables() -> dict[str, str]:
    from foveal.recipe.grids import grids

    return {name: f"{len(grid.cells()):3} cells  {grid.about}".rstrip() for name, grid in grids().items()}


def _zoo() -> dict[str, str]:
    from foveal.runs.zoo import cards

    return {name: card.line() for name, card in cards().items()}


def _tasks() -> dict[str, str]:
    from foveal import registry

    return {name: task.summary for name, task in registry.tasks.items().items()}


def _models() -> dict[str, str]:
    from foveal.models import list_models
    from foveal.models.registry import summary

    return {name: summary(name) for name in list_models()}


def _data() -> dict[str, str]:
    from foveal.data import datasets

    return {name: entry.summary for name, entry in datasets().items()}


def _mechanisms() -> dict[str, str]:
    from foveal.attention import mechanisms

    return mechanisms()


def _losses() -> dict[str, str]:
    from foveal import registry

    losses = registry.attention_losses.items().items()
    return {name: (loss.__doc__ or "").strip().split("\n")[0] for name, loss in losses}


def _metrics() -> dict[str, str]:
    from foveal import registry

    return {key: info.heading for key, info in registry.metrics.items().items()}


LISTS: dict[str, Callable[[], dict[str, str]]] = {
    "recipes": _recipes,
    "tables": _tables,
    "tasks": _tasks,
    "models": _models,
    "zoo": _zoo,
    "data": _data,
    "mechanisms": _mechanisms,
    "losses": _losses,
    "metrics": _metrics,
}
