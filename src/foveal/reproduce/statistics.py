"""The tests that comparisons use: Student's paired t-test, and Welch's where runs are not pairs; Holm's correction.

Welch, "The generalization of 'Student's' problem when several different population variances are involved", Biometrika
34 (1947). Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6 (1979).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from foveal.errors import UserError
from foveal.metric_info import MetricInfo

FEW = 3  # so many tests may stand together uncorrected
NO_SPREAD = 1e-9  # of equal differences, which as floats are not quite equal


@dataclass(frozen=True)
class Comparison:
    """Difference of two recipes over seeds.

    Attributes:
        seeds: how many pairs; of runs that are not pairs, how many the first recipe has.
        difference: mean of second − first.
        interval: its 95 % confidence interval, of this test alone; None if the differences do not vary. That says
            nothing of their spread: values of results files are rounded.
        p: of the t-test, two-sided: how often equal recipes would differ this much; None if there is no interval.
        others: how many runs the second recipe has, if they are not pairs.
        info: the metric.
        holm: p corrected for the tests beside it, if it is one of many; see :func:`together`.
        older: recipes of the two whose row is marked as of older code.
    """

    seeds: int
    difference: float
    interval: tuple[float, float] | None
    p: float | None
    others: int | None = None
    info: MetricInfo = field(default_factory=lambda: MetricInfo("accuracy", "Accuracy"))
    holm: float | None = None
    older: tuple[str, ...] = ()


def paired(first: Sequence[float], second: Sequence[float]) -> Comparison:
    """Compare values of two recipes that belong together one by one.

    >>> found = paired([0.61, 0.63, 0.60], [0.64, 0.65, 0.62])
    >>> f"{found.difference:.3f} [{found.interval[0]:.3f}, {found.interval[1]:.3f}], p = {found.p:.3f}"
    '0.023 [0.009, 0.038], p = 0.020'
    """
    if len(first) != len(second):
        raise UserError(f"one has {len(first)} seeds, the other {len(second)}; run both with the same --seeds")
    differences = [b - a for a, b in zip(first, second, strict=True)]
    error = _error(differences)
    return _student(len(differences), statistics.fmean(differences), error, len(differences) - 1)


def unpaired(first: Sequence[float], second: Sequence[float]) -> Comparison:
    """Compare values of two recipes that are not pairs, by Welch's t-test.

    >>> found = unpaired([0.61, 0.63, 0.60], [0.64, 0.65, 0.62, 0.66])
    >>> f"{found.difference:.3f} [{found.interval[0]:.3f}, {found.interval[1]:.3f}], p = {found.p:.3f}"
    '0.029 [-0.003, 0.061], p = 0.066'
    """
    errors = [_error(values) for values in (first, second)]
    error, difference = math.hypot(*errors), statistics.fmean(second) - statistics.fmean(first)
    shares = [(e / error) ** 4 / (len(v) - 1) if error else 0.0 for e, v in zip(errors, (first, second), strict=True)]
    return replace(_student(len(first), difference, error, 1 / sum(shares) if error else 1.0), others=len(second))


def _error(values: Sequence[float]) -> float:
    """Standard error of the mean; 0 if the values do not vary."""
    if len(values) < 2:
        raise UserError("one seed says nothing about the spread; run both with --seeds 2 or more")
    if max(values) - min(values) < NO_SPREAD:
        return 0.0
    return statistics.stdev(values) / math.sqrt(len(values))


def _student(seeds: int, difference: float, error: float, free: float) -> Comparison:
    """Interval and p of a difference with this standard error, by Student's distribution."""
    from scipy.special import stdtr, stdtrit  # scipy.stats has the tests themselves, but takes a second to import

    if error == 0:
        return Comparison(seeds, difference, None, None)
    margin = float(stdtrit(free, 0.975)) * error
    interval = difference - margin, difference + margin
    return Comparison(seeds, difference, interval, float(2 * stdtr(free, -abs(difference) / error)))


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
    """Tests that are shown side by side: with Holm's correction over all that have a p if these are more than three."""
    values = [test.p for test in tests if test.p is not None]
    if len(values) <= FEW:
        return list(tests)
    corrected = iter(holm(values))
    return [test if test.p is None else replace(test, holm=next(corrected)) for test in tests]
