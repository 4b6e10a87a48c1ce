"""Curves of several models side by side: pixel precision and recall, accuracy by scale, training.

Each function returns an HTML ``<figure>`` with inline SVG, or an empty string when there is nothing to draw. Models
keep the order given; colours are those of :func:`foveal.see.svg.slots` unless given.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from foveal.errors import UserError
from foveal.see.svg import Axis, Line, chart, finite, nice, slots

Numbers = Sequence[float | None]
Epochs = Mapping[str, Sequence[Sequence[Mapping[str, Any]]]]


def precision_recall(
    curves: Mapping[str, tuple[Numbers, Numbers]],
    *,
    even: float | None = None,
    colours: Mapping[str, int] | None = None,
) -> str:
    """Draw pixel precision against recall as the threshold on the attention map falls.

    Args:
        curves: title of each model to (precision, recall), a fraction a threshold.
        even: precision of attention that is the same everywhere, i.e. the mean area of the target.
        colours: slot of each title, see :func:`foveal.see.svg.slots`.

    >>> drawn = precision_recall({"SOFT": ([0.5, 0.2], [0.1, 0.9])})
    >>> "recall, % of the target" in drawn
    True
    """
    slot, lines, highest = colours or slots(curves), [], even or 0.0
    for title in curves:
        precision, recall = curves[title]
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
        note += f" The pale line is attention spread evenly, {100 * even:.1f} %."
    x, y = Axis("recall, % of the target", 1, percent=True), Axis("precision, %", nice(highest), percent=True)
    return chart("Attention on the target, pixel by pixel", lines, x, y, note=note)


def scale_accuracy(
    edges: Sequence[float], accuracy: Mapping[str, Numbers], *, colours: Mapping[str, int] | None = None
) -> str:
    """Draw accuracy by the scale of the target.

    Args:
        edges: borders of the bins, one more than there are bins.
        accuracy: title of each model to its accuracy in every bin; None for an empty bin.
        colours: slot of each title, see :func:`foveal.see.svg.slots`.

    >>> drawn = scale_accuracy([0.5, 1, 2], {"SOFT": [0.5, None], "HARD": [0.4, 0.6]})
    >>> drawn.count("<circle")
    3
    """
    slot = colours or slots(accuracy)
    for title, values in accuracy.items():
        if len(values) != len(edges) - 1:
            raise UserError(f"{title}: {len(values)} accuracies for {len(edges) - 1} bins; expected one a bin")
    middles = [(low + high) / 2 for low, high in itertools.pairwise(edges)]
    lines = [Line(title, middles, accuracy[title], slot[title], dots=True) for title in accuracy]
    lines = [line for line in lines if any(map(finite, line.y))]
    if not lines:
        return ""
    x = Axis("scale of the target", edges[-1], start=edges[0], ticks=edges)
    return chart(
        "Accuracy by scale", lines, x, Axis("accuracy, %", 1, percent=True), note="A flat line is robust to scale."
    )


def training(epochs: Epochs, *, colours: Mapping[str, int] | None = None) -> list[str]:
    """Draw loss and validation score by epoch; one line a run, so several seeds show their spread.

    Args:
        epochs: title of each model to its runs, each the rows of ``metrics.jsonl``.
        colours: slot of each title, see :func:`foveal.see.svg.slots`.

    Returns:
        A figure for the losses and one for the score, those that have data.

    >>> run = [{"epoch": 0, "train/loss": 1.5, "val/accuracy": 0.3}, {"epoch": 1, "train/loss": 1.2}]
    >>> len(training({"SOFT": [run]}))
    2
    """
    rows = [row for runs in epochs.values() for run in runs for row in run]
    last = max((float(row["epoch"]) for row in rows if finite(row.get("epoch"))), default=0.0)
    x = Axis("epoch", nice(last))
    slot = colours or slots(epochs)
    val = _by_epoch(epochs, "val/loss", slot)
    train = _by_epoch(epochs, "train/loss", slot, faint=bool(val))
    figures = []
    if val or train:
        values = sorted(v for line in val + train for v in line.y if v is not None)
        highest = values[math.ceil(0.98 * len(values)) - 1]
        note = "Strong lines: validation; pale lines: training." if val and train else ""
        figures.append(chart("Loss while training", train + val, x, Axis("loss", nice(highest)), note=note))
    keys = dict.fromkeys(key for row in rows for key in row if key.startswith("val/") and not key.endswith("loss"))
    score = "val/accuracy" if "val/accuracy" in keys else next(iter(keys), None)
    if score and (lines := _by_epoch(epochs, score, slot)):
        highest = max(v for line in lines for v in line.y if v is not None)
        name, percent = score.removeprefix("val/").replace("_", " "), highest <= 1
        y = Axis(f"{name}, %" if percent else name, 1 if score == "val/accuracy" else nice(highest), percent=percent)
        figures.append(chart(f"Validation {name} while training", lines, x, y))
    return figures


def _by_epoch(epochs: Epochs, key: str, slot: Mapping[str, int], *, faint: bool = False) -> list[Line]:
    lines = []
    for title in epochs:
        for run in epochs[title]:
            points = [(row["epoch"], row[key]) for row in run if finite(row.get("epoch")) and finite(row.get(key))]
            if points:
                lines.append(Line(title, [e for e, _ in points], [v for _, v in points], slot[title], faint=faint))
    return lines
