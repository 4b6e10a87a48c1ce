"""COCO's average precision of boxes, one box after the other: slow, and straight from its definition."""

from __future__ import annotations

import math

OVERLAPS = [0.5 + 0.05 * n for n in range(10)]
RANGES = {"all": (0, 1e10), "small": (0, 32**2), "medium": (32**2, 96**2), "large": (96**2, 1e10)}


def overlap(found, true, crowd):
    """Intersection over union; over the area of the detection for a crowd."""
    width = min(found[2], true[2]) - max(found[0], true[0])
    height = min(found[3], true[3]) - max(found[1], true[1])
    if width <= 0 or height <= 0:
        return 0.0
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (found, true)]
    return width * height / (areas[0] if crowd else sum(areas) - width * height)


def matches(found, true, least, limits):
    """(score, right) of each detection that counts, and how many true boxes count; of one image and class.

    Args:
        found: (score, box), the surest first.
        true: (box, crowd, difficult).
        least: overlap.
        limits: least and greatest area.
    """

    def outside(box):
        area = (box[2] - box[0]) * (box[3] - box[1])
        return area < limits[0] or area > limits[1]

    ignored = [crowd or difficult or outside(box) for box, crowd, difficult in true]
    taken, rows = set(), []
    for score, box in found:
        best, chosen = min(least, 1 - 1e-10), None
        for k in sorted(range(len(true)), key=lambda k: ignored[k]):  # those that count first
            if k in taken and not true[k][1]:
                continue
            if chosen is not None and not ignored[chosen] and ignored[k]:
                break
            value = overlap(box, true[k][0], true[k][1])
            if value >= best:
                best, chosen = value, k
        if chosen is not None:
            taken.add(chosen)
        skipped = ignored[chosen] if chosen is not None else outside(box)
        if not skipped:
            rows.append((score, chosen is not None))
    return rows, ignored.count(False)


def average_precision(rows, count):
    """Mean over 101 recalls of the best precision at that recall or more; nan without true boxes."""
    if not count:
        return math.nan
    rows = sorted(rows, key=lambda row: -row[0])
    points, right = [], 0
    for n, (_, hit) in enumerate(rows, 1):
        right += hit
        points.append((right / count, right / n))
    total = 0.0
    for step in range(101):
        total += max((precision for recall, precision in points if recall >= step / 100 - 1e-12), default=0.0)
    return total / 101


def evaluate(detections, targets, classes):
    """AP by size, overlap and class."""
    table = {}
    for name, limits in RANGES.items():
        for n, least in enumerate(OVERLAPS):
            for label in range(1, classes + 1):
                rows, count = [], 0
                for found, true in zip(detections, targets, strict=True):
                    mine = sorted((row for row in found if row[1] == label), key=lambda row: -row[0])[:100]
                    ours = [(box, crowd, hard) for kind, box, crowd, hard in true if kind == label]
                    part, counted = matches([(score, box) for score, _, box in mine], ours, least, limits)
                    rows, count = rows + part, count + counted
                table[name, n, label] = average_precision(rows, count)
    return table


def mean(values):
    values = [value for value in values if not math.isnan(value)]
    return sum(values) / len(values) if values else math.nan
