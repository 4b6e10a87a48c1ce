"""The file of rows that ``foveal reproduce --csv`` writes: runs are added to it, seed by seed.

So a table can be made in several sittings: a row keeps the seeds that it has, as long as the others are made with the
same settings on the same hardware, or if it is to be completed on another one.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import itertools
import shlex
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import filelock

from foveal.errors import DataError, RunError
from foveal.files import cache_folder, write_text
from foveal.metric_info import metric_info
from foveal.reproduce.cells import Cell
from foveal.reproduce.provenance import SHOWN, settings
from foveal.reproduce.summary import COLUMNS

Row = dict[str, Any]
Values = dict[int, float]  # of a metric by seed
SETTINGS = (*SHOWN, "settings", "overrides")
MACHINE = ("hardware", "torch")


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


def values_of(row: Mapping[str, Any]) -> list[float]:
    """Values of a row, one a run."""
    return [float(value) for value in row["values"].split()]


def seed_values(row: Mapping[str, Any]) -> Values:
    """Values of a row by seed; empty if it does not say which seeds it has."""
    seeds = (row.get("run_seeds") or "").split()
    return {int(seed): value for seed, value in zip(seeds, values_of(row), strict=True)} if seeds else {}


def write_csv(path: Path, rows: Sequence[Row], anywhere: bool = False) -> list[Row]:
    """Add ``rows`` to the file.

    Rows of other recipes that are in it stay. Of the same recipe, seeds that are not among the new ones stay if they
    were made with the same settings on the same hardware with the same torch, with ``anywhere`` on any; others are
    replaced.

    Returns:
        The rows of these recipes as they are in the file now.
    """
    if not rows:
        return []
    with _alone(path):
        return _add(path, rows, anywhere)


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """No row is lost if two processes of a user on one machine add to the file; the lock is not beside the results."""
    name = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16]
    folder = cache_folder() / "locks"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(folder / f"{name}.lock").acquire()
    except OSError as error:
        raise RunError(f"cannot lock {path} in {folder}: {error.strerror or error}; set FOVEAL_CACHE") from error
    with lock:
        yield


def _add(path: Path, rows: Sequence[Row], anywhere: bool) -> list[Row]:
    earlier = read_csv(path) if path.exists() else []
    new: dict[Any, list[Row]] = {}
    for row in rows:
        new.setdefault(_recipe(row), []).append(row)
    others = [row for row in earlier if _recipe(row) not in new]
    known = {_key(row): row for row in earlier if _recipe(row) in new}
    added = []
    for row in rows:
        before = known.pop(_key(row), None)
        added.append(row if before is None else _joined(row, before, _stays(before, new[_recipe(row)], anywhere)))
    for before in known.values():  # metrics that no new run has, such as those of wrong answers where none is wrong
        if values := _stays(before, new[_recipe(before)], anywhere):
            added.append(before | _statistics(values, before.get("published") or ""))
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


def runs_of(rows: Iterable[Mapping[str, Any]]) -> set[tuple[str, str]]:
    """Recipe and seed of all runs in rows, or the place of the run where a row does not say which seeds it has."""
    return {
        (row["recipe"], run)
        for row in rows
        for run in (row.get("run_seeds") or "").split() or [f"run {n}" for n in range(len(values_of(row)))]
    }


def shown(rows: Iterable[Mapping[str, Any]], recipes: Sequence[str], titles: Mapping[str, str]) -> list[Row]:
    """Rows of some recipes in a file, in the form and order of :func:`~foveal.reproduce.summary.summarise`.

    The file has no titles of metrics: those of a task that is unknown here are in ``titles``.
    """
    numbers: dict[str, int] = {}
    found: list[tuple[tuple[bool, int, int], Row]] = []
    for row in rows:
        if row["recipe"] in recipes:
            metric, published = row["metric"], row.get("published") or ""
            place = "/" in metric, numbers.setdefault(metric, len(numbers)), recipes.index(row["recipe"])
            title = titles.get(metric) or metric_info(metric.partition("/")[0]).title
            about = {"title": title, "embedded": str(row["embedded"]) == "True"}
            found.append((place, {**row, **about, "published": published and float(published)}))
    return [row for _, row in sorted(found, key=lambda pair: pair[0])]


def _recipe(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row.get("table"), row.get("recipe")


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return *_recipe(row), row.get("metric")


def _stays(earlier: Row, new: Sequence[Row], anywhere: bool) -> Values:
    """Values of a row that stay beside the new rows of its recipe: of seeds that these do not have."""
    if earlier.get("older") or not earlier.get("run_seeds"):
        return {}
    columns = SETTINGS if anywhere else (*MACHINE, *SETTINGS)
    if any((earlier.get(column) or "") != str(new[0][column]) for column in columns):
        return {}
    replaced = {seed for row in new for seed in seed_values(row)}
    return {seed: value for seed, value in seed_values(earlier).items() if seed not in replaced}


def _joined(new: Row, earlier: Row, kept: Values) -> Row:
    """The row ``new`` with the values of an earlier one that stay."""
    if not kept:
        return new
    values = dict(sorted((kept | seed_values(new)).items()))
    shares = len(kept), len(values) - len(kept)
    return (
        new
        | _statistics(values, new["published"])
        | {name: round(_weighted((earlier[name], new[name]), shares), 1) for name in ("epochs", "seconds")}
        | {name: _both(earlier[name], new[name]) for name in (*MACHINE, "revision", "jobs")}
    )


def _statistics(values: Values, published: Any) -> Row:
    mean, numbers = statistics.mean(values.values()), list(values.values())
    return {
        "mean": round(mean, 4),
        "std": round(statistics.stdev(numbers), 4) if len(numbers) > 1 else "",
        "difference": "" if published == "" else round(mean - float(published), 4),
        "seeds": len(values),
        "values": " ".join(f"{value:.4f}" for value in numbers),
        "run_seeds": " ".join(map(str, values)),
    }


def _weighted(values: Iterable[Any], shares: tuple[int, int]) -> float:
    return sum(float(value) * share for value, share in zip(values, shares, strict=True)) / sum(shares)


def _both(*texts: str) -> str:
    """The parts of texts that are joined by semicolons, each once."""
    parts = itertools.chain(*(str(text).split("; ") for text in texts if text))
    return "; ".join(dict.fromkeys(parts))
