"""What accuracy costs: models as points, and the front of those that no cheaper model beats."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from foveal.errors import UserError
from foveal.see.draw._inputs import finite
from foveal.see.draw.chart import Axis, Line, chart, in_digits, nice, slots


@dataclass(frozen=True)
class Tradeoff:
    """A model with its value and its cost.

    Attributes:
        name: of the model.
        group: models of one group share a colour.
        value: higher is better.
        cost: lower is better.
    """

    name: str
    group: str
    value: float
    cost: float


def front(points: Iterable[Tradeoff]) -> list[Tradeoff]:
    """Those that no other point beats in value at the same or a lower cost, cheapest first.

    >>> points = [Tradeoff("a", "", 0.5, 1), Tradeoff("b", "", 0.4, 2), Tradeoff("c", "", 0.6, 3)]
    >>> [point.name for point in front(points)]
    ['a', 'c']
    """
    best: list[Tradeoff] = []
    for point in sorted(points, key=lambda point: (point.cost, -point.value)):
        if not best or point.value > best[-1].value:
            best.append(point)
    return best


def tradeoffs(
    results: Sequence[Mapping[str, str]], costs: Sequence[Mapping[str, str]], metric: str, cost: str
) -> list[Tradeoff]:
    """Join the results of a table with what its models cost.

    Args:
        results: rows of a file of ``foveal reproduce --csv``: recipe, model, dataset, metric and mean.
        costs: rows of a file of ``benchmarks/atlas.py``: recipe, and a column ``cost``.
        metric: of which the value is taken.
        cost: the column with the cost.

    Returns:
        A point for each model that is in both; the group is the column of the table.
    """
    if costs and cost not in costs[0]:
        raise UserError(f"the costs have no column {cost!r}; they have {', '.join(costs[0])}")
    by_recipe = {row["recipe"]: row[cost] for row in costs}
    chosen = [row for row in results if row["metric"] == metric and by_recipe.get(row["recipe"])]
    return [
        Tradeoff(row["model"], row["dataset"], float(row["mean"]), float(by_recipe[row["recipe"]])) for row in chosen
    ]


def pareto(
    points: Sequence[Tradeoff],
    *,
    value: str,
    cost: str,
    percent: bool = True,
    colours: Mapping[str, int] | None = None,
    note: str = "",
) -> str:
    """Draw values against costs, with a line along the front; the models on it are named in the picture and below it.

    Args:
        points: the models.
        value: what the value is, such as "mean IoU, %".
        cost: what the cost is, such as "GFLOPs of an image".
        percent: whether values are fractions shown times 100.
        colours: slot of each group, see :func:`foveal.see.draw.chart.slots`.
        note: what else stands below, such as what a paper concludes.

    Returns:
        An HTML ``<figure>`` with inline SVG; empty when there is nothing to draw.

    >>> figure = pareto([Tradeoff("0010", "deformable", 0.56, 21.0)], value="mean IoU, %", cost="GFLOPs")
    >>> "0010, deformable (56.0 at 21)" in figure
    True
    """
    points = [point for point in points if finite(point.value) and finite(point.cost)]
    if not points:
        return ""

    def described(point: Tradeoff) -> str:
        return f"{_name(point)} ({(100 if percent else 1) * point.value:.1f} at {in_digits(point.cost)})"

    groups = list(dict.fromkeys(point.group for point in points))
    slot, lines = colours or slots(groups), []
    for group in groups:
        members = [point for point in points if point.group == group]
        tips = [described(point) for point in members]
        lines.append(Line(group, *_places(members), slot=slot[group], joined=False, tips=tips))
    best = front(points)
    lines.append(Line("front", *_places(best), slot=-1, faint=True, labels=[point.name for point in best]))
    lowest, highest, margin = _ends([point.value for point in points])
    cheapest, dearest, beside = _ends([point.cost for point in points])
    apart = cheapest < dearest / 2  # costs that are close together need the whole width
    across = Axis(cost, nice(dearest)) if apart else Axis(cost, dearest + beside, start=cheapest - beside)
    text = f"Nothing cheaper is better than {'; '.join(map(described, best))}."
    return chart(
        f"{value} against {cost}",
        lines,
        across,
        Axis(value, highest + margin, percent=percent, start=lowest - margin),
        note=f"{text} {note}".strip(),
    )


def _ends(numbers: Sequence[float]) -> tuple[float, float, float]:
    """The least, the greatest, and the margin beyond them."""
    lowest, highest = min(numbers), max(numbers)
    return lowest, highest, 0.1 * (highest - lowest) or 0.05 * abs(highest) or 1.0


def _places(points: Sequence[Tradeoff]) -> tuple[list[float], list[float]]:
    return [point.cost for point in points], [point.value for point in points]


def _name(point: Tradeoff) -> str:
    return ", ".join(part for part in (point.name, point.group) if part)
