from __future__ import annotations

import builtins
import math

import pytest
import torch
from coco_reference import evaluate, mean

from foveal.errors import UserError
from foveal.measure import BoxAP, box_ap, box_scores

CLASSES = 3


def scene(seed, images=5, extra=True):
    """Detections and targets: moved true boxes, false ones, crowds and difficult objects, of all sizes."""
    draw = torch.Generator().manual_seed(seed)

    def rand(*shape):
        return torch.rand(*shape, generator=draw)

    detections, targets = [], []
    for _ in range(images):
        count = int(6 * rand(1))
        corner, side = 150 * rand(count, 2), 10 + 130 * rand(count, 2) ** 2
        boxes = torch.cat([corner, corner + side], 1).round(decimals=1)
        labels = 1 + (CLASSES * rand(count)).long()
        target = {"boxes": boxes, "labels": labels}
        if extra:
            kind = rand(count)
            target |= {"iscrowd": kind < 0.15, "difficult": kind > 0.8}
        targets.append(target)
        moved = boxes + (8 * rand(count, 4) - 4) * (rand(count, 1) < 0.8)
        other = 150 * rand(3, 2)
        guesses = torch.cat([moved, boxes[:1], torch.cat([other, other + 20 + 60 * rand(3, 2)], 1)])
        names = torch.cat([labels, labels[:1], 1 + (CLASSES * rand(3)).long()])
        keep = guesses[:, 2:] > guesses[:, :2]
        guesses, names = guesses[keep.all(1)], names[keep.all(1)]
        detections.append({"boxes": guesses, "labels": names, "scores": rand(len(guesses))})
    return detections, targets


def plain(detections, targets):
    found = [
        list(zip(d["scores"].tolist(), d["labels"].tolist(), d["boxes"].tolist(), strict=True)) for d in detections
    ]
    none = torch.zeros(0, dtype=torch.bool)
    true = []
    for target in targets:
        marks = (target.get(key, none.new_zeros(len(target["labels"]))) for key in ("iscrowd", "difficult"))
        columns = (target["labels"].tolist(), target["boxes"].tolist(), *(mark.tolist() for mark in marks))
        true.append(list(zip(*columns, strict=True)))
    return found, true


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("extra", [False, True])
def test_is_that_of_the_definition(seed, extra):
    detections, targets = scene(seed, extra=extra)
    table, scores = evaluate(*plain(detections, targets), CLASSES), box_scores(detections, targets, CLASSES)

    def expected(size="all", overlap=None, label=None):
        return mean(
            value
            for (name, n, kind), value in table.items()
            if name == size and overlap in (None, n) and label in (None, kind)
        )

    assert scores.ap == pytest.approx(expected(), abs=1e-6)
    assert scores.ap50 == pytest.approx(expected(overlap=0), abs=1e-6)
    assert scores.ap75 == pytest.approx(expected(overlap=5), abs=1e-6)
    for label in range(1, CLASSES + 1):
        assert float(scores.by_class[label - 1]) == pytest.approx(expected(label=label), abs=1e-6, nan_ok=True)
    for size, value in scores.by_size.items():
        assert value == pytest.approx(expected(size), abs=1e-6, nan_ok=True)


def one(box, label=1, score=0.9):
    return {"boxes": torch.tensor([box]), "labels": torch.tensor([label]), "scores": torch.tensor([score])}


def nothing():
    return {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64), "scores": torch.zeros(0)}


BOX = [10.0, 10.0, 50.0, 60.0]


def test_degenerate_cases():
    assert box_ap([one(BOX)], [one(BOX)], 2) == 1
    assert box_ap([nothing()], [one(BOX)], 2) == 0
    assert box_ap([one(BOX, label=2)], [one(BOX)], 2) == 0
    assert box_ap([one(BOX)], [nothing()], 2).isnan()
    assert box_ap([nothing()], [nothing()], 2).isnan()
    assert box_ap([nothing(), one(BOX)], [nothing(), one(BOX)], 2) == 1  # an empty image changes nothing
    assert box_scores([one(BOX)], [one(BOX)], 2).by_class.isnan().tolist() == [False, True]


def test_difficult_objects_are_neither_right_nor_wrong():
    hard = one(BOX) | {"difficult": torch.tensor([True])}
    other = one([60.0, 10.0, 90.0, 70.0])
    both = {key: torch.cat([hard[key], other[key]]) for key in ("boxes", "labels", "scores")}
    marks = {"difficult": torch.tensor([True, False])}
    assert box_ap([other], [both | marks], 1) == 1  # not found: no harm
    assert box_ap([both], [both | marks], 1) == 1  # found: no harm either
    assert box_ap([other], [both], 1) == pytest.approx(51 / 101)


def test_the_order_of_images_does_not_matter():
    detections, targets = scene(3)
    assert box_ap(detections[::-1], targets[::-1], CLASSES) == pytest.approx(
        float(box_ap(detections, targets, CLASSES))
    )


def test_the_metric_adds_up_images():
    detections, targets = scene(1)
    metric = BoxAP(CLASSES)
    metric.update(detections[:2], targets[:2])
    metric.update(detections[2:], targets[2:])
    expected = box_scores(detections, targets, CLASSES)
    assert float(metric.compute()) == pytest.approx(expected.ap)
    assert metric.scores.by_size == pytest.approx(expected.by_size, nan_ok=True)
    metric.reset()
    assert math.isnan(float(metric.compute()))


def test_bad_input():
    with pytest.raises(UserError, match="1 images with detections and 2 with true boxes"):
        box_ap([nothing()], [nothing(), nothing()], 1)
    with pytest.raises(UserError, match="expected 1 to 1"):
        box_ap([one(BOX, label=2)], [one(BOX)], 1)
    with pytest.raises(UserError, match="as many labels"):
        box_ap([one(BOX) | {"labels": torch.tensor([1, 1])}], [one(BOX)], 1)
    for box in ([3, 3, 3, 9], [9, 3, 3, 9], [0, 0, math.nan, 9]):
        with pytest.raises(UserError, match="image 0: expected true boxes"):
            box_ap([nothing()], [one(box)], 1)


def test_without_faster_coco_eval(monkeypatch):
    real = builtins.__import__

    def missing(name, *args, **kwargs):
        if name.startswith("faster_coco_eval"):
            raise ModuleNotFoundError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(UserError, match=r"install foveal\[detect\]"):
        box_ap([one(BOX)], [one(BOX)], 1)
