"""Reading and checking a file with a table of recipes; how it is written: :mod:`foveal.recipe.grid`."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from importlib import resources
from pathlib import Path
from typing import Any

from foveal.errors import UserError, unknown
from foveal.recipe.files import read_mapping
from foveal.recipe.grid import Grid, Heading, unknown_cell
from foveal.typed import check_names, convert

SUFFIXES = (".yaml", ".yml")
INHERITED = ("settings", "columns", "rows", "cells", "published", "conclusions")
KEYS = ("about", "formerly", "extends", *INHERITED)
FILLED_IN = {"name": "name", "cell": "place in the table", "published": "published numbers"}  # by the table itself
KEY = re.compile(r"(?!.*\.ya?ml$)\w[\w.+-]*", re.ASCII)


@functools.cache
def shipped_files() -> dict[str, Path]:
    """The YAML files that come with foveal, by name; those that start with an underscore are only building blocks."""
    root = Path(str(resources.files("foveal") / "recipes"))
    paths = [path for path in root.rglob("*.yaml") if not path.name.startswith("_")]
    return dict(sorted((path.relative_to(root).with_suffix("").as_posix(), path) for path in paths))


def read_grid(name: str, path: Path) -> Grid:
    """The table in a file."""
    raw = _inherited(path)
    about, formerly = (_text(raw.get(key), f"{path}: {key}") for key in ("about", "formerly"))
    grid = Grid(
        name=name,
        path=path,
        about=about or "",
        formerly=formerly,
        settings=_changes(raw.get("settings"), f"{path}: settings"),
        columns=_headings(raw.get("columns"), f"{path}: columns"),
        rows=_headings(raw.get("rows"), f"{path}: rows"),
        changes={key: _changes(value, f"{path}: cells.{key}") for key, value in _section(raw, "cells", path).items()},
        conclusions=convert(tuple[str, ...], raw.get("conclusions") or [], f"{path}: conclusions"),
    )
    _text(grid.settings.get("title"), f"{path}: settings.title")
    if not grid.rows:
        raise UserError(f"{path}: rows: a table has at least one row")
    _check_cells(grid)
    return replace(grid, published=_published(_section(raw, "published", path), grid))


def _inherited(path: Path, extended: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The keys of a file, with those that it takes from the table it extends."""
    if path.resolve() in extended:
        raise UserError(f"{path} extends itself")
    raw = read_mapping(path)
    check_names(raw, KEYS, str(path))
    locate(raw.get("settings"), path.parent)
    for section in (raw.get("columns"), raw.get("rows"), raw.get("cells")):
        for part in section.values() if isinstance(section, dict) else ():
            locate(part, path.parent)
    base = raw.get("extends")
    if base is None:
        return raw
    if not isinstance(base, str):
        raise UserError(f"{path}: extends names one table, or one file beside it, got {base!r}")
    if not base.endswith(SUFFIXES) and base not in shipped_files():
        raise UserError(f"{path}: extends: {unknown('table', base, shipped_files())}")
    below = path.parent / base if base.endswith(SUFFIXES) else shipped_files()[base]
    theirs = _inherited(below, (*extended, path.resolve()))
    return {key: theirs[key] for key in INHERITED if key in theirs} | raw


def locate(recipe: Any, folder: Path) -> None:
    """Make the file that ``extends`` names absolute, for whoever takes this mapping over from another folder."""
    if isinstance(recipe, dict) and isinstance(base := recipe.get("extends"), str) and base.endswith(SUFFIXES):
        recipe["extends"] = str(folder.absolute() / base)


def _section(raw: Mapping[str, Any], key: str, path: Path) -> dict[str, Any]:
    section = raw.get(key)
    if section is None:
        return {}
    if not isinstance(section, dict):
        raise UserError(f"{path}: {key}: expected a section with keys, got {section!r}")
    return section


def _headings(section: Any, where: str) -> dict[str, Heading]:
    if section is None:
        return {}
    if not isinstance(section, dict):
        raise UserError(f"{where}: expected a section with one key each, got {section!r}")
    headings = {}
    for key, value in section.items():
        at = f"{where}.{key}"
        if not KEY.fullmatch(key):
            raise UserError(
                f"{at}: the key becomes part of a name; use letters, digits, - and _, and `title` for the rest"
            )
        changes = _changes(value, at)
        title = _text(changes.pop("title", None), f"{at}.title")
        headings[key] = Heading(title or key, changes, _text(changes.pop("formerly", None), f"{at}.formerly"))
    return headings


def _changes(value: Any, where: str) -> dict[str, Any]:
    """Recipe keys of a part of the table, in a mapping of its own."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise UserError(f"{where}: expected a section with recipe keys, got {value!r}")
    for key, meaning in FILLED_IN.items():
        if key in value:
            more = "; it goes below `published` of the table" if key == "published" else ""
            raise UserError(f"{where}.{key}: the {meaning} of a cell cannot be set here{more}")
    return dict(value)


def _text(value: Any, where: str) -> str | None:
    if value is not None and not isinstance(value, str):
        raise UserError(f"{where}: expected a text, got {value!r}; quotes make it one")
    return value


def _check_cells(grid: Grid) -> None:
    columns = list(grid.columns) or [""]
    cells = grid.cells()
    if len(cells) < len(grid.rows) * len(columns):
        names = [f"{column}-{row}" for row in grid.rows for column in columns]
        twice = next(name for name in names if names.count(name) > 1)
        raise UserError(f"{grid.path}: two cells are called {twice!r} (column-row); rename a row or a column")
    for pattern in grid.changes:
        if not any(fnmatchcase(cell, pattern) for cell in cells):
            raise UserError(f"{grid.path}: cells: {unknown_cell(grid, pattern)}")


def _published(section: Mapping[str, Any], grid: Grid) -> dict[str, dict[str, tuple[float | None, ...]]]:
    where = f"{grid.path}: published"
    published: dict[str, dict[str, tuple[float | None, ...]]] = {}
    for metric, rows in section.items():
        if not isinstance(rows, dict):
            raise UserError(f"{where}.{metric}: expected rows with their numbers, got {rows!r}")
        check_names(rows, grid.rows, f"{where}.{metric}")
        published[metric] = {
            row: _numbers(values, max(1, len(grid.columns)), f"{where}.{metric}.{row}") for row, values in rows.items()
        }
    return published


def _numbers(values: Any, columns: int, where: str) -> tuple[float | None, ...]:
    numbers = values if isinstance(values, list) else [values]
    if len(numbers) != columns:
        expected = f"{columns} numbers, one a column" if columns > 1 else "one number"
        raise UserError(f"{where}: expected {expected}, got {len(numbers)}")
    converted = tuple(convert(float | None, number, where) for number in numbers)
    if not all(number is None or math.isfinite(number) for number in converted):
        raise UserError(f"{where}: expected finite numbers, got {values}")
    return converted
