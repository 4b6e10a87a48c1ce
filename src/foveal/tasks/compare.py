"""Is one recipe better than another? Runs of the same seed are compared in pairs."""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from foveal.errors import DataError, UserError, unknown


@dataclass(frozen=True)
class Comparison:
    """Difference of two recipes over seeds.

    Attributes:
        seeds: how many pairs.
        difference: mean of second − first.
        low, high: its 95 % confidence interval.
        p: of Student's paired t-test, two-sided: how often equal recipes would differ this much.
    """

    seeds: int
    difference: float
    low: float
    high: float
    p: float


def paired(first: Sequence[float], second: Sequence[float]) -> Comparison:
    """Compare values of two recipes that belong together one by one.

    >>> found = paired([0.61, 0.63, 0.60], [0.64, 0.65, 0.62])
    >>> f"{found.difference:.3f} [{found.low:.3f}, {found.high:.3f}], p = {found.p:.3f}"
    '0.023 [0.009, 0.038], p = 0.020'
    """
    from scipy.stats import t

    if len(first) != len(second):
        raise UserError(f"one has {len(first)} seeds, the other {len(second)}; run both with the same --seeds")
    if len(first) < 2:
        raise UserError("one seed says nothing about the spread; run both with --seeds 2 or more")
    apart = [b - a for a, b in zip(first, second, strict=True)]
    mean, error = statistics.mean(apart), statistics.stdev(apart) / math.sqrt(len(apart))
    half = float(t.ppf(0.975, len(apart) - 1)) * error
    p = 2 * float(t.sf(abs(mean) / error, len(apart) - 1)) if error else float(mean == 0)
    return Comparison(len(apart), mean, mean - half, mean + half, p)


def compare(path: Path, first: str, second: str, metric: str = "accuracy") -> Comparison:
    """Compare two recipes in a file that ``foveal reproduce --csv`` wrote."""
    one, other = (read_values(path, recipe, metric) for recipe in (first, second))
    if one.keys() != other.keys():
        raise UserError(
            f"{first} has seeds {', '.join(map(str, one))}, {second} has {', '.join(map(str, other))}; "
            "run both with the same --seeds and --first-seed"
        )
    return paired([one[seed] for seed in one], [other[seed] for seed in one])


def read_values(path: Path, recipe: str, metric: str) -> dict[int, float]:
    """Values of a metric by seed."""
    try:
        with open(path, newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        known = {row["recipe"]: row for row in rows if row["metric"] == metric}
        if not known and rows:
            raise unknown("metric", metric, {row["metric"] for row in rows})
        if recipe not in known:
            other = [row["metric"] for row in rows if row["recipe"] == recipe and "/" not in row["metric"]]
            if other:
                raise UserError(f"{recipe} has no {metric}; it has {', '.join(other)}: choose one with --metric")
            raise unknown("recipe", recipe, known)
        values = [float(value) for value in known[recipe]["values"].split()]
        named = (known[recipe].get("run_seeds") or " ".join(map(str, range(len(values))))).split()
        return {int(seed): value for seed, value in zip(named, values, strict=True)}
    except (OSError, UnicodeDecodeError, csv.Error, AttributeError, KeyError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise DataError(f"{path} is not a file of `foveal reproduce --csv` ({error!r})") from error
