"""The file of rows that ``foveal reproduce --csv`` writes: runs are added to it, seed by seed.

So a table can be made in several sittings, and on several machines: a row keeps the seeds that it has, as long as the
others are made with the same settings on the same hardware.
"""

from __future__ import annotations

import csv
import hashlib
import io
import itertools
import shlex
import statistics
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import filelock

from foveal.errors import DataError
from foveal.files import write_text
from foveal.reproduce.cells import Cell
from foveal.reproduce.provenance import SHOWN, settings
from foveal.reproduce.summary import COLUMNS

Row = dict[str, Any]
Values = dict[int, float]  # of a metric by seed
SETTINGS = (*SHOWN, "settings", "overrides")
ALIKE = ("hardware", "torch", *SETTINGS)  # of rows whose seeds may stand together


def read_csv(path: Path) -> list[Row]:
    """All rows of the file."""
    try:
        with open(path, newline="", encoding="utf-8") as file:
            rows: list[Row] = list(csv.DictReader(file))
        if rows and not {"recipe", "metric", "values"} <= rows[0].keys():
            raise KeyError("no columns recipe, metric and values")
        return rows
    except (OSError, UnicodeDecodeError, csv.Error, AttributeError, KeyError) as error:
        raise not_rows(path, error) from error


def not_rows(path: Path, error: Exception) -> DataError:
    """The error for a file of something else."""
    return DataError(f"{path} is not a file of `foveal reproduce --csv` ({error!r})")


def seed_values(row: Mapping[str, Any]) -> Values:
    """Values of a row by seed."""
    values = [float(value) for value in row["values"].split()]
    seeds = (row.get("run_seeds") or " ".join(map(str, range(len(values))))).split()
    return {int(seed): value for seed, value in zip(seeds, values, strict=True)}


def write_csv(path: Path, rows: Sequence[Row]) -> list[Row]:
    """Add ``rows`` to the file.

    Rows of other recipes that are in it stay. Of the same recipe, seeds that are not among the new ones stay if they
    were made with the same settings on the same hardware; others are replaced.

    Returns:
        The rows of these recipes as they are in the file now.
    """
    if not rows:
        return []
    with _alone(path):
        return _add(path, rows)


def _alone(path: Path) -> filelock.BaseFileLock:
    """A lock, so that no row is lost if two processes add to the file; it lies elsewhere, not beside the results."""
    name = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16]
    return filelock.FileLock(Path(tempfile.gettempdir()) / f"foveal-{name}.lock")


def _add(path: Path, rows: Sequence[Row]) -> list[Row]:
    earlier = read_csv(path) if path.exists() else []
    recipes = {(row["table"], row["recipe"]) for row in rows}
    others = [row for row in earlier if (row.get("table"), row.get("recipe")) not in recipes]
    known = {_key(row): row for row in earlier}
    added = [_together(known.get(_key(row)), row) for row in rows]
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(others + added)
    write_text(path, text.getvalue(), "Free some space or choose another --csv; the same command resumes")
    return added


def recorded(cells: Iterable[Cell], rows: Iterable[Row]) -> list[Cell]:
    """The cells whose seeds are in rows that were made with the settings which the cells have today."""
    known = {
        (row["recipe"], *(str(row.get(column) or "") for column in SETTINGS), seed)
        for row in rows
        if not row.get("older")
        for seed in (row.get("run_seeds") or "").split()
    }
    made = ((cell, settings(cell.recipe) | {"overrides": shlex.join(cell.overrides)}) for cell in cells)
    return [
        cell
        for cell, values in made
        if (cell.recipe.name, *(values[column] for column in SETTINGS), str(cell.recipe.seed)) in known
    ]


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row.get("table"), row.get("recipe"), row.get("metric")


def _together(earlier: Row | None, new: Row) -> Row:
    """The row ``new`` with those seeds of an earlier one that it does not have."""
    if earlier is None or earlier.get("older") or not earlier.get("run_seeds"):
        return new
    if any((earlier.get(column) or "") != str(new[column]) for column in ALIKE):
        return new
    kept = {seed: value for seed, value in seed_values(earlier).items() if seed not in seed_values(new)}
    if not kept:
        return new
    values = dict(sorted((kept | seed_values(new)).items()))
    mean, numbers = statistics.mean(values.values()), list(values.values())
    shares = len(kept), len(values) - len(kept)
    return new | {
        "mean": round(mean, 4),
        "std": round(statistics.stdev(numbers), 4),
        "difference": "" if new["published"] == "" else round(mean - new["published"], 4),
        "seeds": len(values),
        "values": " ".join(f"{value:.4f}" for value in numbers),
        "run_seeds": " ".join(map(str, values)),
        **{name: round(_weighted((earlier[name], new[name]), shares), 1) for name in ("epochs", "seconds")},
        **{name: _joined(earlier[name], new[name]) for name in ("revision", "jobs")},
    }


def _weighted(values: Iterable[Any], shares: tuple[int, int]) -> float:
    return sum(float(value) * share for value, share in zip(values, shares, strict=True)) / sum(shares)


def _joined(*texts: str) -> str:
    """The parts of texts that are joined by semicolons, each once."""
    parts = itertools.chain(*(str(text).split("; ") for text in texts if text))
    return "; ".join(dict.fromkeys(parts))
