"""Is one recipe better than another? Runs of the same seed are compared in pairs."""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from foveal.errors import DataError, UserError, unknown
from foveal.metric_info import MetricInfo, metric_info
from foveal.recipe.grids import former_names
from foveal.runs import Group, grouped, read_runs
from foveal.runs.folder import finite


@dataclass(frozen=True)
class Comparison:
    """Difference of two recipes over seeds.

    Attributes:
        seeds: how many pairs.
        difference: mean of second − first.
        low, high: its 95 % confidence interval.
        p: of Student's paired t-test, two-sided: how often equal recipes would differ this much.
        info: the metric.
    """

    seeds: int
    difference: float
    low: float
    high: float
    p: float
    info: MetricInfo = field(default_factory=lambda: MetricInfo("accuracy", "Accuracy"))


def paired(first: Sequence[float], second: Sequence[float]) -> Comparison:
    """Compare values of two recipes that belong together one by one.

    >>> found = paired([0.61, 0.63, 0.60], [0.64, 0.65, 0.62])
    >>> f"{found.difference:.3f} [{found.low:.3f}, {found.high:.3f}], p = {found.p:.3f}"
    '0.023 [0.009, 0.038], p = 0.020'
    """
    from scipy.special import stdtr, stdtrit  # of Student's t; scipy.stats would take a second to import

    if len(first) != len(second):
        raise UserError(f"one has {len(first)} seeds, the other {len(second)}; run both with the same --seeds")
    if len(first) < 2:
        raise UserError("one seed says nothing about the spread; run both with --seeds 2 or more")
    differences = [b - a for a, b in zip(first, second, strict=True)]
    mean = statistics.fmean(differences)
    if len(set(differences)) == 1:  # no spread, of which a t-test can say nothing
        return Comparison(len(differences), mean, mean, mean, float(mean == 0))
    error, freedom = statistics.stdev(differences) / math.sqrt(len(differences)), len(differences) - 1
    half = float(stdtrit(freedom, 0.975)) * error
    p = 2 * float(stdtr(freedom, -abs(mean) / error))
    return Comparison(len(differences), mean, mean - half, mean + half, p)


def compare(path: Path, first: str, second: str, metric: str | None = None) -> Comparison:
    """Compare two recipes in a file that ``foveal reproduce --csv`` wrote.

    Args:
        path: the file.
        first: name of a recipe, perhaps a former one.
        second: that of another.
        metric: what to compare; the first metric of the first recipe if left out.
    """
    rows = _rows(path)
    first, second = (former_names().get(name, name) for name in (first, second))
    metric = metric or next((row["metric"] for row in rows if row["recipe"] == first), "accuracy")
    one, other = (_values(rows, recipe, metric, path) for recipe in (first, second))
    if one.keys() != other.keys():
        raise UserError(
            f"{first} has seeds {', '.join(map(str, one))}, {second} has {', '.join(map(str, other))}; "
            "run both with the same --seeds and --first-seed"
        )
    stored = next(row for row in rows if row["metric"] == metric)
    known = {"unit": stored["unit"], "better": stored["better"] or None} if "unit" in stored else None
    pairs = paired([one[seed] for seed in one], [other[seed] for seed in one])
    return replace(pairs, info=metric_info(metric, known))


def compare_runs(folders: Sequence[Path]) -> dict[str, list[Group]]:
    """Finished runs of one or several folders, by dataset and then by recipe, those of an earlier folder first.

    Raises:
        UserError: there are no two recipes on the same dataset.
    """
    datasets: dict[str, list[Group]] = {}
    for folder in folders:
        for (_, _, dataset), groups in grouped(read_runs(folder, samples=False)).items():
            finished = [group for group in groups if group.finished]
            names = {group.name for group in datasets.get(dataset, [])}
            named = [replace(g, name=f"{g.name} in {folder}") if g.name in names else g for g in finished]
            datasets.setdefault(dataset, []).extend(named)
    comparable = {dataset: groups for dataset, groups in datasets.items() if len(groups) > 1}
    if not comparable:
        seen = "; ".join(f"{g.name} on {dataset}" for dataset, groups in datasets.items() for g in groups)
        raise UserError(f"nothing to compare: give finished runs of two recipes on the same data, got {seen or 'none'}")
    return comparable


def paired_groups(first: Group, second: Group, metric: str) -> Comparison | None:
    """Compare runs of the same seed; None if fewer than two pairs have the metric."""
    one, other = (
        {run.seed: value for run in group.finished if finite(value := run.part("metrics").get(metric))}
        for group in (first, second)
    )
    seeds = [seed for seed in one if seed in other]
    if len(seeds) < 2:
        return None
    return replace(paired([one[seed] for seed in seeds], [other[seed] for seed in seeds]), info=first.info(metric))


Row = dict[str, str]


def _rows(path: Path) -> list[Row]:
    try:
        with open(path, newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        if rows and not {"recipe", "metric", "values"} <= rows[0].keys():
            raise KeyError("no columns recipe, metric and values")
        return rows
    except (OSError, UnicodeDecodeError, csv.Error, AttributeError, KeyError) as error:
        raise DataError(f"{path} is not a file of `foveal reproduce --csv` ({error!r})") from error


def _values(rows: Sequence[Row], recipe: str, metric: str, path: Path) -> dict[int, float]:
    """Values of a metric by seed."""
    known = {row["recipe"]: row for row in rows if row["metric"] == metric}
    if not known and rows:
        raise unknown("metric", metric, {row["metric"] for row in rows})
    if recipe not in known:
        other = [row["metric"] for row in rows if row["recipe"] == recipe and "/" not in row["metric"]]
        if other:
            raise UserError(f"{recipe} has no {metric}; it has {', '.join(other)}: choose one with --metric")
        raise unknown("recipe", recipe, known)
    try:
        values = [float(value) for value in known[recipe]["values"].split()]
        seeds = (known[recipe].get("run_seeds") or " ".join(map(str, range(len(values))))).split()
        return {int(seed): value for seed, value in zip(seeds, values, strict=True)}
    except (ValueError, AttributeError) as error:
        raise DataError(f"{path} is not a file of `foveal reproduce --csv` ({error!r})") from error
