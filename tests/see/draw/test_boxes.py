from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from foveal.errors import UserError
from foveal.see import Found, boxes, detections
from foveal.see.draw.boxes import class_colour

NAMES = ["cat", "a dog with a rather long name"]
IMAGE = torch.full((3, 60, 100), 100, dtype=torch.uint8)
FOUND = Found(torch.tensor([[20.0, 25, 70, 50], [60, 30, 95, 58]]), torch.tensor([1, 2]), torch.tensor([0.9, 0.4]))


def test_frames_are_where_the_boxes_are():
    picture = boxes(IMAGE, FOUND, NAMES)
    assert picture.size == (100, 60)
    for x, y in ((20, 40), (69, 27), (40, 49)):  # left, right and bottom
        assert picture.getpixel((x, y)) == class_colour(1)
    assert picture.getpixel((40, 40)) == (100, 100, 100)  # inside
    assert picture.getpixel((94, 45)) == class_colour(2)
    larger = boxes(IMAGE, FOUND, NAMES, size=200)
    assert larger.size == (200, 120)
    assert larger.getpixel((41, 80)) == class_colour(1)


def test_the_surest_are_drawn_last():
    """Where two frames cross, that of the greater score is seen."""
    picture = boxes(IMAGE, FOUND, NAMES)
    assert picture.getpixel((69, 31)) == class_colour(1)
    other = boxes(IMAGE, FOUND._replace(scores=torch.tensor([0.4, 0.9])), NAMES)
    assert other.getpixel((69, 31)) == class_colour(2)


@pytest.mark.parametrize("box", [[0.0, 0, 100, 60], [95.0, 50, 100, 60], [0.0, 0, 1, 1], [30.0, 30, 30.4, 30.2]])
def test_boxes_at_the_border(box):
    picture = boxes(IMAGE, Found(torch.tensor([box]), torch.tensor([2])), NAMES)
    assert picture.size == (100, 60)


def test_nothing_found():
    nothing = Found(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64), torch.zeros(0))
    assert {colour for _, colour in boxes(IMAGE, nothing, NAMES).getcolors()} == {(100, 100, 100)}


def test_panels():
    one, two = (detections(IMAGE, dict.fromkeys(titles, FOUND), NAMES, size=120) for titles in (["a"], ["a", "b"]))
    assert two.width > 1.8 * one.width


def test_neighbouring_classes_have_different_colours():
    colours = [class_colour(label) for label in range(1, 40)]
    for first, second in pairwise(colours):
        assert sum(abs(a - b) for a, b in zip(first, second, strict=True)) > 120


def test_bad_input():
    with pytest.raises(UserError, match=r"expected \(2, 4\)"):
        boxes(IMAGE, FOUND._replace(boxes=torch.zeros(3, 4)), NAMES)
    with pytest.raises(UserError, match="expected 1 to 2, the classes"):
        boxes(IMAGE, FOUND._replace(labels=torch.tensor([0, 1])), NAMES)
    with pytest.raises(UserError, match="nothing to draw"):
        detections(IMAGE, {}, NAMES)
