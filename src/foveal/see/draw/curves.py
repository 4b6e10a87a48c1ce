"""Curves of several models side by side: pixel precision and recall, accuracy by scale, relation recall, training.

Each function returns an HTML ``<figure>`` with inline SVG, or an empty string when there is nothing to draw. Models
keep the order given and have a colour by their place in it, unless ``colours`` says otherwise.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from foveal.errors import UserError
from foveal.see.draw._inputs import finite
from foveal.see.draw.chart import Axis, Line, chart, nice, slots

if TYPE_CHECKING:
    from foveal.measure.info import MetricInfo

Numbers = Sequence[float | None]
Epochs = Mapping[str, Sequence[Sequence[Mapping[str, Any]]]]
"""Title of each model to its runs, each the rows of a journal, one per epoch."""


def precision_recall(
    curves: Mapping[str, tuple[Numbers, Numbers]],
    *,
    even: float | None = None,
    colours: Mapping[str, int] | None = None,
) -> str:
    """Draw pixel precision against recall as the threshold on the attention map falls.

    Args:
        curves: title of each model to (precision, recall), fractions, one per threshold.
        even: precision of attention that is the same everywhere, i.e. the mean area of the target.
        colours: slot of each title, see :func:`foveal.see.draw.chart.slots`.

    >>> figure = precision_recall({"SOFT": ([0.5, 0.2], [0.1, 0.9])})
    >>> "recall, % of the target" in figure
    True
    """
    slot, lines, highest = colours or slots(curves), [], even or 0.0
    for title, (precision, recall) in curves.items():
        if len(precision) != len(recall):
            raise UserError(f"{title}: {len(precision)} precisions and {len(recall)} recalls; expected as many of each")
        points = sorted((r, p) for p, r in zip(precision, recall, strict=True) if finite(p) and finite(r))
        if points:
            lines.append(Line(title, [r for r, _ in points], [p for _, p in points], slot[title]))
            highest = max(highest, *(p for _, p in points))
    if not lines:
        return ""
    note = "Higher is better: more of what the model attends to belongs to the target."
    if even is not None:
        lines.append(Line("even attention", [0, 1], [even, even], -1, faint=True))
        note += f" The pale line is attention spread evenly, {100 * even:.1f} %."
    x, y = Axis("recall, % of the target", 1, percent=True), Axis("precision, %", nice(highest), percent=True)
    return chart("Attention on the target, pixel by pixel", lines, x, y, note=note)


def scale_accuracy(
    edges: Sequence[float], accuracy: Mapping[str, Numbers], *, colours: Mapping[str, int] | None = None
) -> str:
    """Draw accuracy by the scale of the target.

    Args:
        edges: borders of the bins, one more than there are bins.
        accuracy: title of each model to its accuracy in every bin; None for an empty bin.
        colours: slot of each title, see :func:`foveal.see.draw.chart.slots`.

    >>> figure = scale_accuracy([0.5, 1, 2], {"SOFT": [0.5, None], "HARD": [0.4, 0.6]})
    >>> figure.count("<circle")
    3
    """
    slot = colours or slots(accuracy)
    for title, values in accuracy.items():
        if len(values) != len(edges) - 1:
            raise UserError(f"{title}: {len(values)} accuracies for {len(edges) - 1} bins; expected one per bin")
    middles = [(low + high) / 2 for low, high in itertools.pairwise(edges)]
    lines = [
        Line(title, middles, values, slot[title], dots=True)
        for title, values in accuracy.items()
        if any(map(finite, values))
    ]
    if not lines:
        return ""
    x, y = Axis("scale of the target", edges[-1], start=edges[0], ticks=edges), Axis("accuracy, %", 1, percent=True)
    return chart("Accuracy by scale", lines, x, y, note="A flat line is robust to scale.")


def relation_recall(
    recall: Mapping[str, Mapping[int, float]],
    published: Mapping[str, Mapping[int, float]] | None = None,
    *,
    colours: Mapping[str, int] | None = None,
) -> str:
    """Draw relation recall against the number of pairs that are looked at, and below it what a paper reports.

    Args:
        recall: title of each model to its recall by number of pairs.
        published: the same of a paper; drawn paler, in the colours of the models.
        colours: slot of each title, see :func:`foveal.see.draw.chart.slots`.

    >>> relation_recall({"FAN": {1000: 0.2, 2000: 0.5}}, {"FAN": {1000: 0.3, 2000: 0.4}}).count("<title>FAN")
    2
    """
    slot, papers = colours or slots(recall), published or {}
    lines = [
        Line(
            title if values is recall else f"{title}, published", ks, [points[k] for k in ks], slot[title], True, faint
        )
        for values, faint in ((papers, True), (recall, False))
        for title, points in values.items()
        if (ks := sorted(k for k, value in points.items() if finite(value)))
    ]
    if not any(not line.faint for line in lines):
        return ""
    ticks = sorted({int(k) for line in lines for k in line.x})
    x = Axis("pairs looked at, those ranked highest first", max(ticks), ticks=ticks)
    y = Axis("relations found, %", 1, percent=True)
    note = "Pale lines: what the paper reports." if any(line.faint for line in lines) else ""
    return chart("Relation recall", lines, x, y, note=note)


def training(
    epochs: Epochs,
    *,
    info: Callable[[str], MetricInfo] | None = None,
    colours: Mapping[str, int] | None = None,
) -> list[str]:
    """Draw the loss and every validation score by epoch; one line per run, so several seeds show their spread.

    Args:
        epochs: title of each model to its runs, each the rows of ``metrics.jsonl``; its epochs count from 0, those
            drawn from 1.
        info: the :class:`~foveal.measure.info.MetricInfo` of a metric, by its key; by default what is registered.
        colours: slot of each title, see :func:`foveal.see.draw.chart.slots`.

    Returns:
        A figure for the losses and one for each score, those that have data.

    >>> run = [{"epoch": 0, "train/loss": 1.5, "val/accuracy": 0.3}, {"epoch": 1, "train/loss": 1.2}]
    >>> len(training({"SOFT": [run]}))
    2
    """
    from foveal.measure.info import metric_info

    rows = [row for runs in epochs.values() for run in runs for row in run]
    slot = colours or slots(epochs)
    x = _epoch_axis([row["epoch"] for row in rows if finite(row.get("epoch"))])
    figures = [_losses(epochs, slot, x)]
    keys = dict.fromkeys(
        key for row in rows for key in row if key.startswith("val/") and not key.startswith("val/loss")
    )
    figures += [_score(epochs, key, (info or metric_info)(key.removeprefix("val/")), slot, x) for key in keys]
    return [figure for figure in figures if figure]


def _epoch_axis(epochs: Sequence[float]) -> Axis:
    """From the first epoch, 1, to the last, with whole numbers.

    >>> _epoch_axis([0, 1, 2]).ticks, _epoch_axis(range(40)).ticks, _epoch_axis([0]).ticks
    ([1, 2, 3], [1, 8, 16, 24, 32, 40], [1])
    """
    last = round(max(epochs, default=0)) + 1
    step = max(1, round(nice(last / 6)))
    return Axis("epoch", max(last, 2), start=1, ticks=sorted({1, *range(step, last + 1, step)}))


def _losses(epochs: Epochs, slot: Mapping[str, int], x: Axis) -> str:
    val = _by_epoch(epochs, "val/loss", slot)
    train = _by_epoch(epochs, "train/loss", slot, faint=bool(val))
    values = sorted(value for line in val + train for value in line.y if value is not None)
    if not values:
        return ""
    low, high = values[0], values[math.ceil(0.98 * len(values)) - 1]  # a few wild epochs do not set the scale
    y = Axis("loss", nice(high), start=-nice(-low) if low < 0 else 0.0)
    note = "Strong lines: validation; pale lines: training." if val and train else ""
    return chart("Loss while training", train + val, x, y, note=note)


def _score(epochs: Epochs, key: str, info: MetricInfo, slot: Mapping[str, int], x: Axis) -> str:
    lines = _by_epoch(epochs, key, slot)
    values = [value for line in lines for value in line.y if value is not None]
    if not values:
        return ""
    percent = info.unit == "%"
    y = Axis(info.heading, axis_end(values, info), percent=percent, start=-nice(-min(values)) if min(values) < 0 else 0)
    return chart(f"{info.title} in validation", lines, x, y)


def axis_end(values: Sequence[float], info: MetricInfo) -> float:
    """Where the scale of a metric ends: the whole for a percentage above a half, else the next round number."""
    highest = max(values, default=1.0)
    return 1.0 if info.unit == "%" and 0.5 < highest <= 1 else nice(highest)


def _by_epoch(epochs: Epochs, key: str, slot: Mapping[str, int], *, faint: bool = False) -> list[Line]:
    lines = []
    for title, runs in epochs.items():
        for run in runs:
            points = [(row["epoch"] + 1, row[key]) for row in run if finite(row.get("epoch")) and finite(row.get(key))]
            if points:
                lines.append(Line(title, [e for e, _ in points], [v for _, v in points], slot[title], faint=faint))
    return lines
