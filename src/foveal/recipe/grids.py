"""The recipes that come with foveal: tables, their cells, and recipes that belong to no table.

A cell is known by its name (``hattnet/table1/mref-soft``) and by the one it had before (``hattnet/mref-soft``). How a
table is written: :mod:`foveal.recipe.grid`.
"""

from __future__ import annotations

import difflib
import functools
from pathlib import Path
from typing import Any

from foveal.errors import UnknownNameError, UserError
from foveal.recipe.files import read_mapping
from foveal.recipe.grid import Grid, is_grid, shown_cells, unknown_cell
from foveal.recipe.grid_file import locate, read_grid, shipped_files

__all__ = [
    "Grid",
    "cell_names",
    "conclusions",
    "find_cell",
    "former_names",
    "grids",
    "own_grid",
    "plain_recipes",
    "shipped",
]


@functools.cache
def grids() -> dict[str, Grid]:
    """The tables that come with foveal, by name."""
    return {name: grid for name in shipped_files() if (grid := _grid(name)) is not None}


@functools.cache
def _grid(name: str) -> Grid | None:
    path = shipped_files().get(name)
    return read_grid(name, path) if path is not None and is_grid(read_mapping(path)) else None


def plain_recipes() -> list[str]:
    """The recipes that come with foveal and are no cell of a table."""
    return [name for name in shipped_files() if name not in grids()]


def cell_names() -> list[str]:
    """The names of all recipes that come with foveal, table by table; those outside tables are among them."""
    return [
        recipe
        for name in shipped_files()
        for recipe in ([name] if name not in grids() else map(grids()[name].full_name, grids()[name].cells()))
    ]


@functools.cache
def former_names() -> dict[str, str]:
    """Former names of recipes with what they are called now."""
    cells = [(grid, cell) for grid in grids().values() for cell in grid.cells()]
    return {former: grid.full_name(cell) for grid, cell in cells if (former := grid.former_name(cell)) is not None}


def shipped(name: str) -> tuple[dict[str, Any], str | None]:
    """The mapping of a recipe that comes with foveal, whether it is a cell or stands alone.

    Returns:
        The mapping, of which ``extends`` is still to be followed, and a hint for the user if the name is a former one.
    """
    if name in shipped_files() and _grid(name) is None:
        recipe = read_mapping(shipped_files()[name])
        locate(recipe, shipped_files()[name].parent)
        return recipe, None
    grid, cell, hint = find_cell(name)
    return grid.raw(cell), hint


def find_cell(name: str) -> tuple[Grid, str, str | None]:
    """A cell of a table that comes with foveal, by its name or a former one.

    Returns:
        The table, the cell's short name, and a hint for the user if the name is a former one.
    """
    table, _, cell = name.rpartition("/")
    grid = _grid(table)
    if grid is not None and cell in grid.cells():
        return grid, cell, None
    if name in former_names():
        now = former_names()[name]
        table, _, cell = now.rpartition("/")
        return grids()[table], cell, f"{name} is now called {now}"
    if name in grids():
        raise UserError(f"{name} is a table; name one of its cells: {shown_cells(grids()[name])}")
    raise unknown_recipe(name) if grid is None else unknown_cell(grid, cell)


def own_grid(path: Path) -> Grid:
    """The table in a file of one's own."""
    if not is_grid(read_mapping(path)):
        raise UserError(f"{path} is one recipe, not a table: it has no settings, columns, rows or cells")
    return read_grid(str(path), path)


def conclusions(table: str) -> tuple[str, ...]:
    """What the paper of a table finds; nothing if the table is unknown, as one whose file was moved."""
    if table in grids():
        return grids()[table].conclusions
    try:
        return own_grid(Path(table)).conclusions
    except UserError:
        return ()


def unknown_recipe(name: str) -> UnknownNameError:
    """The error for a name that no recipe has, with a few that look like it."""
    known = {recipe: recipe for recipe in [*cell_names(), *grids()]} | former_names()
    close = difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.6)
    close = close or [recipe for recipe in cell_names() if recipe.endswith((f"/{name}", f"-{name}"))]
    if close:
        suggestions = list(dict.fromkeys(known[match] for match in close))[:3]
        return UnknownNameError(f"unknown recipe {name!r}; did you mean {' or '.join(map(repr, suggestions))}?")
    return UnknownNameError(f"unknown recipe {name!r}; `foveal list recipes` names all; your own is a file in .yaml")
