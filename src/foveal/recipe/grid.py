"""Tables of recipes: rows × columns of one YAML file, with what each of them changes.

A cell is a recipe, called ``TABLE/COLUMN-ROW``, or ``TABLE/ROW`` where the table has one column or none::

    about: the authors' data sizes, optimiser and schedule
    formerly: hattnet/{column}-{row}      # what the cells were called before; also in a row, column or cell
    settings: {extends: _paper.yaml}      # what all cells share
    columns:
      mref: {title: MREF, data: {name: mref}}
      mbg: {title: MBG, data: {name: mbg}}
    rows:
      soft: {title: SOFT, model: {name: soft}}
      stn: {title: STN, model: {name: stn}}
    cells:                                # what is changed in some cells alone, * for any text
      "*-stn": {optim: {lr: 0.0005}}
    published:                            # metric, row, one number a column (null: none)
      accuracy:
        soft: [0.8294, 0.5377]
    conclusions: [what the paper finds]   # shown beside charts of what the cells cost

Later parts win: settings, column, row, cells. The title of a cell is its row's, or ``settings.title``, in which
``{row}`` and ``{column}`` stand for theirs. ``extends: other.yaml`` (or the name of a table) takes settings, columns,
rows, cells, published numbers and conclusions from there, each as a whole, unless this file has its own.
"""

from __future__ import annotations

import copy
import difflib
import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from foveal.errors import UnknownNameError
from foveal.recipe.files import merged


@dataclass(frozen=True)
class Heading:
    """A row or column: its title in the table and the recipe keys that it changes."""

    title: str
    changes: Mapping[str, Any]
    formerly: str | None = None


@dataclass(frozen=True)
class Grid:
    """A table of recipes.

    Attributes:
        name: ``hattnet/table1``, or the path of a file of one's own.
        path: the file.
        about: what distinguishes this table, in a few words.
        settings: recipe keys that all cells share; ``extends`` may be among them.
        columns: by key, in order; none where the table has rows alone.
        rows: by key, in order.
        changes: recipe keys by the cells that they are for; ``*`` stands for any text.
        published: metric, row and one number for each column.
        formerly: what cells were called before, with ``{row}`` and ``{column}``.
        conclusions: what the paper finds, a sentence each.
    """

    name: str
    path: Path
    about: str
    settings: Mapping[str, Any]
    columns: Mapping[str, Heading]
    rows: Mapping[str, Heading]
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    published: Mapping[str, Mapping[str, tuple[float | None, ...]]] = field(default_factory=dict)
    formerly: str | None = None
    conclusions: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        """Where the file lies."""
        return self.path.parent

    def cells(self) -> dict[str, tuple[str, str]]:
        """The short name of each cell (``mref-soft``) with its row and column, row by row; no column is ``""``."""
        columns = list(self.columns) or [""]
        short = len(columns) == 1
        return {row if short else f"{column}-{row}": (row, column) for row in self.rows for column in columns}

    def full_name(self, cell: str) -> str:
        """What a cell is called everywhere else: ``hattnet/table1/mref-soft``."""
        return f"{self.name}/{cell}"

    def titles(self, cell: str) -> tuple[str, str]:
        """The titles of a cell's row and column; an empty one where there are no columns."""
        row, column = self._position(cell)
        return self.rows[row].title, self.columns[column].title if column else ""

    def numbers(self, cell: str) -> dict[str, float]:
        """What is published for a cell, by metric."""
        row, column = self._position(cell)
        place = list(self.columns).index(column) if column else 0
        values = {metric: rows[row][place] for metric, rows in self.published.items() if row in rows}
        return {metric: value for metric, value in values.items() if value is not None}

    def former_name(self, cell: str) -> str | None:
        """What a cell was called before, if it was called otherwise."""
        row, column = self._position(cell)
        levels = [changes.get("formerly") for changes in self._changes(cell)]
        levels += [self.rows[row].formerly, self.columns[column].formerly if column else None, self.formerly]
        template = next((level for level in levels if level), None)
        return template and template.replace("{row}", row).replace("{column}", column)

    def raw(self, cell: str) -> dict[str, Any]:
        """The recipe of a cell as a mapping of its own; ``extends`` of the settings is still to be followed."""
        row, column = self._position(cell)
        row_title, column_title = self.titles(cell)
        title = self.settings.get("title", "{row}").replace("{row}", row_title).replace("{column}", column_title)
        parts = [
            self.settings,
            self.columns[column].changes if column else {},
            self.rows[row].changes,
            {"title": title},
        ]
        recipe: dict[str, Any] = functools.reduce(merged, [*parts, *self._changes(cell)], {"version": 2})
        recipe.pop("formerly", None)
        place = [list(self.rows).index(row), list(self.columns).index(column) if column else 0]
        recipe["name"] = self.full_name(cell)
        recipe["published"] = self.numbers(cell)
        recipe["cell"] = {"table": self.name, "row": row_title, "column": column_title, "place": place}
        return copy.deepcopy(recipe)

    def _position(self, cell: str) -> tuple[str, str]:
        cells = self.cells()
        if cell not in cells:
            raise unknown_cell(self, cell)
        return cells[cell]

    def _changes(self, cell: str) -> list[Mapping[str, Any]]:
        return [changes for pattern, changes in self.changes.items() if fnmatchcase(cell, pattern)]


def is_grid(raw: Mapping[str, Any]) -> bool:
    """Whether a file holds a table, not one recipe; one that extends another table may leave out its rows."""
    return any(key in raw for key in ("settings", "columns", "rows", "cells"))


def unknown_cell(grid: Grid, cell: str) -> UnknownNameError:
    """The error for a cell that a table does not have."""
    close = difflib.get_close_matches(cell.lower(), grid.cells(), n=3, cutoff=0.6)
    suggestions = " or ".join(repr(grid.full_name(match)) for match in close)
    advice = f"did you mean {suggestions}?" if close else f"its cells are {shown_cells(grid)}"
    return UnknownNameError(f"table {grid.name} has no cell {cell!r}; {advice}")


def shown_cells(grid: Grid) -> str:
    """The cells of a table in a few words: ``hattnet/table1/{mref,mdist}-{soft,hard}``."""
    rows, columns = _braced(grid.rows), _braced(grid.columns)
    return grid.full_name(f"{columns}-{rows}" if len(grid.columns) > 1 else rows)


def _braced(keys: Iterable[str], most: int = 12) -> str:
    names = list(keys)
    shown = ",".join(names[:most]) + (",…" if len(names) > most else "")
    return shown if len(names) == 1 else f"{{{shown}}}"
