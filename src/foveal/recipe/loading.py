"""Read, override and validate a recipe."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from foveal import registry
from foveal.errors import RenamedWarning, UserError
from foveal.recipe.files import merged, parse_yaml, read_mapping
from foveal.recipe.grid import is_grid
from foveal.recipe.grids import cell_names, own_grid, shipped
from foveal.recipe.old import upgraded
from foveal.recipe.optim import parse_optim
from foveal.recipe.schema import VERSION, Cell, Recipe, Train, plain
from foveal.typed import check_names, convert, parse

SHORT_FORMS = {"schedule": "name", "average": "kind"}  # keys of ``optim`` whose value may be a name alone
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
    raw = upgraded(read(name), str(name))
    raw.setdefault("name", str(name))
    for override in overrides:
        _override(raw, override)
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
    return merged(upgraded(below, base), upgraded(raw, extended[-1]))


def _parsed(raw: dict[str, Any], name: str) -> Recipe:
    version = raw.get("version", VERSION)
    if isinstance(version, int) and version > VERSION:
        raise UserError(
            f"recipe {name} has format version {version}, this foveal reads up to {VERSION}; upgrade foveal"
        )
    task_name = raw.get("task")
    if not isinstance(task_name, str) or not task_name:
        raise UserError(f"recipe {name}: task is missing; known: {', '.join(registry.tasks.names())}")
    sections: Mapping[str, type] = registry.tasks.get(task_name).sections
    plain_fields = {"version": int, "name": str, "title": str, "task": str, "seed": int}
    named = {"data": dict[str, Any], "model": dict[str, Any]}
    check_names(raw, [*plain_fields, *named, "optim", *OWN, *sections], "")
    values: dict[str, Any] = {
        key: convert(hint, raw[key], key) for key, hint in (plain_fields | named | OWN).items() if key in raw
    }
    for key in named:
        values[key] = plain(values.get(key, {}))  # null takes an option away
        if not isinstance(values[key].get("name"), str):
            raise UserError(f"recipe {name}: {key}.name is missing")
    values["optim"] = parse_optim(raw.get("optim") or {})
    parsed = {key: _section(kind, raw.get(key), key, task_name) for key, kind in sections.items()}
    values |= {key: parsed.pop(key) for key in ("loss", "measure")}
    recipe = Recipe(**values | {"version": VERSION}, sections=parsed)
    recipe.title = recipe.title or recipe.model["name"]
    return recipe


def _section(kind: type, raw: Any, key: str, task: str) -> Any:
    """A section of the task; a key that another task has is named as such."""
    if isinstance(raw, Mapping):
        for name in raw:
            if name in getattr(kind, "__dataclass_fields__", ()):
                continue
            if owners := [other for other, owner in registry.tasks.items().items() if _has(owner, key, name)]:
                raise UserError(f"{key}.{name} is for task {' and '.join(owners)}; leave it out with task {task}")
    return parse(kind, {} if raw is None else raw, key)


def _has(task: Any, section: str, key: str) -> bool:
    return key in getattr(task.sections.get(section), "__dataclass_fields__", ())


def _override(raw: dict[str, Any], override: str) -> None:
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
        if part in SHORT_FORMS and isinstance(inner, str):
            inner = {SHORT_FORMS[part]: inner}
        section[part] = {} if inner is None else inner
        section = section[part]
        if not isinstance(section, dict):
            raise UserError(f"override {override!r}: {part!r} is a value, not a section")
    section[last] = value
