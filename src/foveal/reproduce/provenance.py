"""What a row of results was made with, and whether today's recipe would make it so again."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import MISSING, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from foveal.errors import UserError
from foveal.recipe import Recipe, Train, load
from foveal.reproduce.cells import Cell
from foveal.runs.folder import comparable
from foveal.runs.groups import HARDWARE, NO_SETTINGS, flat

SHOWN = {  # columns that say a setting in full
    "precision": "train.precision",
    "compile": "train.compile",
    "batch": "train.batch",
    "limit": "train.epochs",
    "optimiser": "optim.name",
    "lr": "optim.lr",
}

MADE_WITH = ("hardware", "torch", *SHOWN, "settings", "overrides", "revision", "jobs", "older")


def settings(recipe: Recipe) -> dict[str, str]:
    """The settings of a recipe that a row names, and a hash of all that differ from their defaults (``settings``).

    Seeds, hardware and titles are no settings.
    """
    recipe, kinds = comparable(recipe), dict[str, str]()
    fresh = replace(
        Recipe(train=Train(), optim=_unset(recipe.optim, "optim", kinds)),
        loss=_unset(recipe.loss, "loss", kinds),
        measure=_unset(recipe.measure, "measure", kinds),
        sections={name: _unset(section, name, kinds) for name, section in recipe.sections.items()},
    )
    usual, here = (dict(flat(yaml.safe_load(one.dump()))) for one in (fresh, recipe))
    own = kinds | {
        key: value
        for key, value in here.items()
        if usual.get(key) != value
        and key not in HARDWARE | {"seed", "title"}
        and key.partition(".")[0] not in NO_SETTINGS
        and not key.startswith("train.loggers")
    }
    digest = hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()[:8]
    return {column: here[key] for column, key in SHOWN.items()} | {"settings": digest}


def _unset(section: Any, path: str, kinds: dict[str, str]) -> Any:
    """A section of a recipe, and the parts that it has, with their defaults.

    So an option that is new, and left at its default, is no other setting. ``kinds`` gets the parts that the section
    has not by default, such as a schedule: that they are there is a setting.
    """
    fresh = copy(section)  # a schedule may refuse to be made of defaults alone
    for item in fields(section):
        part, place = getattr(section, item.name), f"{path}.{item.name}"
        default = item.default if item.default_factory is MISSING else item.default_factory()
        if is_dataclass(part):
            if type(part) is not type(default):
                kinds[place] = type(part).__name__
            default = _unset(part, place, kinds)
        setattr(fresh, item.name, None if default is MISSING else default)
    return fresh


def made_with(ran: Sequence[Cell]) -> dict[str, str]:
    """Columns of a row on how its runs were made; where they differ, each value stands once."""
    about = [_json(cell.out / "environment.json") for cell in ran]
    packages = [one.get("packages") or {} for one in about]
    jobs = [_json(cell.out / "run.json").get("jobs") for cell in ran]
    return {
        "hardware": _once((one["gpu"] or "CPU") if "gpu" in one else None for one in about),
        "torch": _once(versions.get("torch") for versions in packages),
        **settings(ran[0].recipe),
        "overrides": shlex.join(ran[0].overrides),
        "revision": _once(one.get("revision") or has.get("foveal") for one, has in zip(about, packages, strict=True)),
        "jobs": _once(jobs),
        "older": "",
    }


def differences(row: Mapping[str, str]) -> list[str]:
    """What today's recipe sets otherwise than a row of results says it was made; empty columns are not known.

    Args:
        row: of a file of ``foveal reproduce --csv``.
    """
    try:
        today = _today(row["recipe"], row.get("overrides") or "")
    except UserError as error:
        return [f"the recipe no longer loads: {error}"]
    changed = [f"{key} {row[c]}, now {today[c]}" for c, key in SHOWN.items() if row.get(c) and row[c] != today[c]]
    if not changed and row.get("settings") and row["settings"] != today["settings"]:
        return ["other settings of the recipe"]
    return changed


@cache
def _today(recipe: str, overrides: str) -> dict[str, str]:
    return settings(load(recipe, shlex.split(overrides)))


def _once(values: Any) -> str:
    return "; ".join(dict.fromkeys(str(value) for value in values if value is not None))


def _json(path: Path) -> dict[str, Any]:
    """A file of a run; empty if it is missing or damaged."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
