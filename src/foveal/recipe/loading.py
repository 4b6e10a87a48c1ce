"""Read, override and validate a recipe."""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from foveal import registry
from foveal.errors import RenamedWarning, UserError
from foveal.recipe.files import REPLACED, merged, parse_yaml, read_mapping
from foveal.recipe.grid import is_grid
from foveal.recipe.grids import cell_names, own_grid, shipped
from foveal.recipe.old import upgraded
from foveal.recipe.optim import inherited, parse_optim
from foveal.recipe.schema import VERSION, Cell, LossOptions, MeasureOptions, Recipe, Train, plain
from foveal.typed import check_names, convert, join, parse

OWN = {"train": Train, "published": dict[str, float], "cell": Cell | None}  # sections that every task has


def available() -> list[str]:
    """Names of the recipes that come with foveal."""
    return cell_names()


def load(name: str | Path, overrides: Iterable[str] = ()) -> Recipe:
    """Read, override and validate a recipe.

    Args:
        name: a recipe that comes with foveal, a path to a YAML file, or a cell of one's own table (``mine.yaml/row``).
        overrides: ``key=value`` strings with dotted keys; values are YAML.

    >>> load("hattnet/table1/mref-soft", ["train.epochs=3", "data.digits=embedded"]).train.epochs
    3
    """
    if not isinstance(name, str | Path):
        raise UserError(f"load needs the name of a recipe or the path of a YAML file, got {name!r}")
    if isinstance(overrides, str):
        raise UserError(f"overrides must be a list, such as [{overrides!r}]")
    raw = upgraded(read(name))
    raw.setdefault("name", str(name))
    overrides = list(overrides)
    optimiser = [text for key, _, text in (override.partition("=") for override in overrides) if key == "optim.name"]
    if optimiser and isinstance(raw.get("optim"), dict):
        raw["optim"] = inherited(raw["optim"], optimiser[-1])
    for override in overrides:
        override_key(raw, override)
    return _parsed(raw, str(name))


def complete(recipe: Recipe) -> Recipe:
    """The recipe with what its task fills in where it leaves something open."""
    return registry.tasks.get(recipe.task).complete(recipe)


def read(name: str | Path, extended: tuple[str, ...] = ()) -> dict[str, Any]:
    """The merged mapping of a recipe, by name or file."""
    path = Path(name)
    identity = str(path.resolve()) if path.suffix in (".yaml", ".yml") else str(name)
    if identity in extended:
        raise UserError(f"{name} extends itself")
    if path.suffix in (".yaml", ".yml"):
        raw = read_mapping(path)
        if is_grid(raw):
            cell = next(iter(own_grid(path).cells()))
            raise UserError(f"{path} is a table; `foveal reproduce {path}` runs all of it, {path}/{cell} is a cell")
    elif path.parent.suffix in (".yaml", ".yml"):
        raw = own_grid(path.parent).raw(path.name)
    else:
        raw, hint = shipped(str(name))
        if hint is not None:
            warnings.warn(hint, RenamedWarning, stacklevel=3)
    return _extended(raw, path.parent, (*extended, identity))


def _extended(raw: dict[str, Any], folder: Path, extended: tuple[str, ...]) -> dict[str, Any]:
    base = raw.pop("extends", None)
    if base is None:
        return raw
    if not isinstance(base, str):
        raise UserError(f"{extended[-1]}: extends names one recipe, or one recipe file beside it, got {base!r}")
    beside = base.endswith((".yaml", ".yml"))
    below = read(folder / base if beside else base, extended)
    for key in ("name", "cell", "published"):  # of that recipe, not of this one
        below.pop(key, None)
    if below.get("version") == 1 and raw.get("version", 1) == 1:
        return merged(below, raw)
    below = upgraded(below)
    return merged(below, upgraded(raw, below))


def _parsed(raw: dict[str, Any], name: str) -> Recipe:
    version = raw.get("version", VERSION)
    if isinstance(version, int) and version > VERSION:
        raise UserError(
            f"recipe {name} has format version {version}, this foveal reads up to {VERSION}; upgrade foveal"
        )
    task_name = raw.get("task")
    if not isinstance(task_name, str) or not task_name:
        raise UserError(f"recipe {name}: task is missing; known: {', '.join(registry.tasks.names())}")
    usual = {"loss": LossOptions, "measure": MeasureOptions}
    sections: Mapping[str, type] = usual | dict(registry.tasks.get(task_name).sections)
    plain_fields = {"version": int, "name": str, "title": str, "task": str, "seed": int}
    named = {"data": dict[str, Any], "model": dict[str, Any]}
    _check_owner(raw, sections, "", task_name)
    check_names(raw, [*plain_fields, *named, "optim", *OWN, *sections], "")
    hints = plain_fields | {key: hint for key, hint in (named | OWN).items() if raw.get(key) is not None}
    values: dict[str, Any] = {key: convert(hint, raw[key], key) for key, hint in hints.items() if key in raw}
    for key in named:
        values[key] = plain(values.get(key, {}))  # null takes an option away
        if not isinstance(values[key].get("name"), str):
            raise UserError(f"recipe {name}: {key}.name is missing")
    values["optim"] = parse_optim({} if raw.get("optim") is None else raw["optim"])
    parsed = {key: _section(kind, raw.get(key), key, task_name) for key, kind in sections.items()}
    values |= {key: parsed.pop(key) for key in usual}
    recipe = Recipe(**values | {"version": VERSION}, sections=parsed)
    recipe.title = recipe.title or recipe.model["name"]
    return recipe


def _section(kind: type, raw: Any, key: str, task: str) -> Any:
    """A section of the task; null is an empty one."""
    if isinstance(raw, Mapping):
        _check_owner(raw, getattr(kind, "__dataclass_fields__", ()), key, task)
    return parse(kind, {} if raw is None else raw, key)


def _check_owner(raw: Mapping[str, Any], known: Collection[str], section: str, task: str) -> None:
    """Raise for a key that this task does not have and another one has."""
    for key in raw:
        if key not in known:
            owners = [name for name, other in registry.tasks.items().items() if key in _task_keys(other, section)]
            if owners:
                raise UserError(
                    f"{join(section, key)} is for task {' and '.join(owners)}; leave it out with task {task}"
                )


def _task_keys(task: Any, section: str) -> Collection[str]:
    """The sections that a task declares, or the keys of one of them."""
    return getattr(task.sections.get(section), "__dataclass_fields__", ()) if section else task.sections


def override_key(raw: dict[str, Any], override: str) -> None:
    """Set one key of a mapping by ``key=value``; sections on the way to a dotted key are made."""
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise UserError(f"override {override!r}: expected key=value, for example train.epochs=3")
    try:
        value = parse_yaml(text)
    except yaml.YAMLError as error:
        raise UserError(f"override {override!r}: {text!r} is not a YAML value") from error
    *path, last = key.split(".")
    section = raw
    for part in path:
        inner = section.get(part)
        if part in REPLACED and isinstance(inner, str):  # the short form of a section with that name
            inner = {REPLACED[part]: inner}
        section[part] = {} if inner is None else inner
        section = section[part]
        if not isinstance(section, dict):
            raise UserError(f"override {override!r}: {part!r} is a value, not a section")
    section[last] = value


def mechanism_options(words: Iterable[str]) -> dict[str, Any]:
    """Options of a mechanism on a command line, ``key=value``; digits that begin with 0 stay a text.

    >>> mechanism_options(["terms=0010", "heads=4", "modulated=true"])
    {'terms': '0010', 'heads': 4, 'modulated': True}
    """
    options: dict[str, Any] = {}
    for word in words:
        if not word.partition("=")[0].isidentifier() or "=" not in word:
            raise UserError(f"{word!r}: expected an option of the mechanism as key=value, for example reduction=8")
        override_key(options, re.sub(r"=(0\d+)$", r"='\1'", word))
    return options
