"""Curves of several models side by side: pixel precision and recall, accuracy by scale, training.

Each function returns an HTML ``<figure>`` with inline SVG, or an empty string when there is nothing to draw. Models keep
their order and colour in all of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from foveal.errors import UserError
from foveal.see.svg import Axis, Line, chart, nice, slots

Numbers = Sequence[float | None]


def precision_recall(curves: Mapping[str, tuple[Numbers, Numbers]], *, even: float | None = None) -> str:
    """Draw pixel precision against recall as the threshold on the attention map falls.

    Args:
        curves: title of each model to (precision, recall), a fraction a threshold.
        even: precision of attention that is the same everywhere, i.e. the mean area of the target.

    >>> drawn = precision_recall({"SOFT": ([0.5, 0.2], [0.1, 0.9])})
    >>> "recall of the target's pixels, %" in drawn
    True
    """
    colours, lines, highest = slots(curves), [], even or 0.0
    for title in colours:
        precision, recall = curves[title]
        if len(precision) != len(recall):
            raise UserError(f"{title}: {len(precision)} precisions and {len(recall)} recalls; expected as many of each")
        points = sorted((r, p) for p, r in zip(precision, recall, strict=True) if _finite(p) and _finite(r))
        if points:
            lines.append(Line(title, [r for r, _ in points], [p for _, p in points], colours[title]))
            highest = max(highest, *(p for _, p in points))
    if not lines:
        return ""
    note = "Higher is better: more of what the model attends to belongs to the target."
    if even is not None:
        lines.append(Line("even attention", [0, 1], [even, even], faint=True))
        note += f" The pale line is attention spread evenly, {100 * even:.1f} %."
    x, y = Axis("recall of the target's pixels, %", 1, percent=True), Axis("precision, %", nice(highest), percent=True)
    return chart("Attention on the target, pixel by pixel", lines, x, y, note=note)


def scale_accuracy(edges: Sequence[float], accuracy: Mapping[str, Numbers]) -> str:
    """Draw accuracy by the scale of the target.

    Args:
        edges: borders of the bins, one more than there are bins.
        accuracy: title of each model to its accuracy in every bin; None for an empty bin.

    >>> drawn = scale_accuracy([0.5, 1, 2], {"SOFT": [0.5, None], "HARD": [0.4, 0.6]})
    >>> drawn.count("<circle")
    3
    """
    colours = slots(accuracy)
    for title, values in accuracy.items():
        if len(values) != len(edges) - 1:
            raise UserError(f"{title}: {len(values)} accuracies for {len(edges) - 1} bins; expected one a bin")
    middles = [(low + high) / 2 for low, high in zip(edges, edges[1:], strict=False)]
    lines = [Line(title, middles, accuracy[title], colours[title], dots=True) for title in colours]
    lines = [line for line in lines if any(map(_finite, line.y))]
    if not lines:
        return ""
    x = Axis("scale of the target", edges[-1], start=edges[0], ticks=edges)
    return chart("Accuracy by scale", lines, x, Axis("accuracy, %", 1, percent=True), note="A flat line is robust to scale.")


def training(epochs: Mapping[str, Sequence[Sequence[Mapping[str, Any]]]]) -> list[str]:
    """Draw loss and validation score by epoch; one line a run, so several seeds show their spread.

    Args:
        epochs: title of each model to its runs, each the rows of ``metrics.jsonl``.

    Returns:
        A figure for the losses and one for the score, those that have data.

    >>> run = [{"epoch": 0, "train/loss": 1.5, "val/accuracy": 0.3}, {"epoch": 1, "train/loss": 1.2, "val/accuracy": 0.4}]
    >>> len(training({"SOFT": [run]}))
    2
    """
    rows = [row for runs in epochs.values() for run in runs for row in run]
    last = max((float(row["epoch"]) for row in rows if _finite(row.get("epoch"))), default=0.0)
    x = Axis("epoch", nice(last))
    val = [line for line in _by_epoch(epochs, "val/loss")]
    train = _by_epoch(epochs, "train/loss", faint=bool(val))
    figures = []
    if val or train:
        values = sorted(v for line in val + train for v in line.y if v is not None)
        highest = values[math.ceil(0.98 * len(values)) - 1]
        note = "Strong lines: validation; pale lines: training." if val and train else ""
        figures.append(chart("Loss while training", train + val, x, Axis("loss", nice(highest)), note=note))
    keys = dict.fromkeys(key for row in rows for key in row if key.startswith("val/") and not key.endswith("loss"))
    score = "val/accuracy" if "val/accuracy" in keys else next(iter(keys), None)
    if score and (lines := _by_epoch(epochs, score)):
        highest = max(v for line in lines for v in line.y if v is not None)
        name, percent = score.removeprefix("val/").replace("_", " "), highest <= 1
        y = Axis(f"{name}, %" if percent else name, 1 if score == "val/accuracy" else nice(highest), percent=percent)
        figures.append(chart(f"Validation {name} while training", lines, x, y))
    return figures


def _by_epoch(epochs: Mapping[str, Sequence[Sequence[Mapping[str, Any]]]], key: str, faint: bool = False) -> list[Line]:
    colours, lines = slots(epochs), []
    for title in colours:
        for run in epochs[title]:
            points = [(row["epoch"], row[key]) for row in run if _finite(row.get("epoch")) and _finite(row.get(key))]
            if points:
                lines.append(Line(title, [e for e, _ in points], [v for _, v in points], colours[title], faint=faint))
    return lines


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
