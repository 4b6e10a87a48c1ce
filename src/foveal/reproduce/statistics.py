"""The one test that comparisons use: Student's paired t-test, with Holm's correction where many stand together.

Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6 (1979).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from foveal.errors import UserError
from foveal.metric_info import MetricInfo

FEW = 3  # so many tests may stand together uncorrected


@dataclass(frozen=True)
class Comparison:
    """Difference of two recipes over seeds.

    Attributes:
        seeds: how many pairs.
        difference: mean of second − first.
        low, high: its 95 % confidence interval, of this test alone.
        p: of Student's paired t-test, two-sided: how often equal recipes would differ this much.
        info: the metric.
        holm: p corrected for the tests beside it, if it is one of many; see :func:`together`.
    """

    seeds: int
    difference: float
    low: float
    high: float
    p: float
    info: MetricInfo = field(default_factory=lambda: MetricInfo("accuracy", "Accuracy"))
    holm: float | None = None


def paired(first: Sequence[float], second: Sequence[float]) -> Comparison:
    """Compare values of two recipes that belong together one by one.

    >>> found = paired([0.61, 0.63, 0.60], [0.64, 0.65, 0.62])
    >>> f"{found.difference:.3f} [{found.low:.3f}, {found.high:.3f}], p = {found.p:.3f}"
    '0.023 [0.009, 0.038], p = 0.020'
    """
    from scipy.special import stdtr, stdtrit  # scipy.stats has the test itself, but takes a second to import

    if len(first) != len(second):
        raise UserError(f"one has {len(first)} seeds, the other {len(second)}; run both with the same --seeds")
    if len(first) < 2:
        raise UserError("one seed says nothing about the spread; run both with --seeds 2 or more")
    differences = [b - a for a, b in zip(first, second, strict=True)]
    mean = statistics.fmean(differences)
    if max(differences) - min(differences) < 1e-9:  # no spread, of which a t-test can say nothing
        return Comparison(len(differences), mean, mean, mean, float(abs(mean) < 1e-9))
    free, error = len(differences) - 1, statistics.stdev(differences) / math.sqrt(len(differences))
    margin = float(stdtrit(free, 0.975)) * error
    return Comparison(len(differences), mean, mean - margin, mean + margin, float(2 * stdtr(free, -abs(mean) / error)))


def holm(values: Sequence[float]) -> list[float]:
    """Holm's corrected p-values, in the order given.

    The smallest is multiplied by the number of tests, the next by one less, and so on; none falls below the one before.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    corrected, least = [0.0] * len(values), 0.0
    for rank, place in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        least = corrected[place] = max(least, min(1.0, (len(values) - rank) * values[place]))
    return corrected


def together(tests: Sequence[Comparison]) -> list[Comparison]:
    """Tests that are shown side by side: with Holm's correction over all of them if there are more than three."""
    if len(tests) <= FEW:
        return list(tests)
    return [replace(test, holm=p) for test, p in zip(tests, holm([test.p for test in tests]), strict=True)]
