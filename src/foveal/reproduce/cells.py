"""The cells of a table, each with its seeds."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from foveal.errors import UserError, unknown
from foveal.recipe import Recipe, load
from foveal.recipe.grids import Grid, grids, own_grid
from foveal.runs import RunFolder


@dataclass(frozen=True)
class Cell:
    """One run of one cell: a recipe with its seed, the folder it lies in, and the changes that the user made to it."""

    recipe: Recipe
    out: Path
    overrides: tuple[str, ...] = ()

    @property
    def done(self) -> bool:
        """Whether it is finished."""
        return RunFolder(self.out).finished

    def __str__(self) -> str:
        return f"{self.recipe.name} seed {self.recipe.seed}"


def find_table(name: str) -> Grid:
    """The table called ``name``: one that comes with foveal, or a YAML file of one's own."""
    if name.endswith((".yaml", ".yml")):
        return own_grid(Path(name))
    known = grids()
    if name not in known:
        raise unknown("table", name, known)
    return known[name]


def cells(
    table: str, seeds: int, out: Path, overrides: Iterable[str] = (), first_seed: int = 0, only: Sequence[str] = ()
) -> list[Cell]:
    """All runs of a table, seed by seed, each in the folder that ``foveal train CELL`` would take.

    Args:
        table: its name.
        seeds: runs of every cell.
        out: folder of all runs.
        overrides: ``key=value`` changes to every cell.
        first_seed: seed of the first run of a cell.
        only: patterns of the names of cells, such as ``mref-*``; all cells if there are none.
    """
    if seeds < 1 or first_seed < 0:
        raise UserError(f"--seeds {seeds} --first-seed {first_seed}: expected at least one, from 0 on")
    grid = find_table(table)
    known = list(grid.cells())
    for pattern in only:
        if not fnmatch.filter(known, pattern):
            raise unknown(f"cell of {table}", pattern, known)
    chosen = [cell for cell in known if not only or any(fnmatch.fnmatchcase(cell, pattern) for pattern in only)]
    names = [grid.full_name(cell) for cell in chosen]
    numbers = range(first_seed, first_seed + seeds)
    changes = tuple(overrides)
    recipes = [load(name, [*changes, f"seed={seed}"]) for seed in numbers for name in names]
    return [Cell(recipe, run_path(recipe, out), changes) for recipe in recipes]


def run_path(recipe: Recipe, out: Path = Path("runs")) -> Path:
    """The folder of a recipe's run unless the user names one: ``runs/RECIPE/seedN``."""
    parts = [part.removesuffix(".yaml").removesuffix(".yml") for part in Path(recipe.name).parts]
    inside = [part for part in parts if part not in ("..", ".", "/", "\\")]
    return out.joinpath(*inside, f"seed{recipe.seed}")
