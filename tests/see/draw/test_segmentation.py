from __future__ import annotations

import pytest
import torch
from PIL import Image

from foveal.errors import UserError
from foveal.see import painted, segmentation
from foveal.see.draw.segmentation import legend

NAMES, COLOURS = ["sky", "sea", "a class with a rather long name"], ["#0000ff", "#00ff00", "#ff0000"]
IMAGE = torch.full((3, 40, 60), 100, dtype=torch.uint8)
LABELS = torch.zeros(40, 60, dtype=torch.int64)
LABELS[:, 30:] = 1
LABELS[:5] = 255


def colours(picture):
    return {colour for _, colour in picture.getcolors(maxcolors=100_000)}


def rgb(colour):
    return tuple(int(colour[i : i + 2], 16) for i in (1, 3, 5))


def test_classes_are_painted_in_their_colours():
    picture = painted(IMAGE, LABELS, COLOURS, alpha=0.5)
    assert picture.size == (60, 40)
    assert picture.getpixel((3, 20)) == (50, 50, 178)
    assert picture.getpixel((50, 20)) == (50, 178, 50)
    assert picture.getpixel((3, 2)) == (100, 100, 100)  # no class
    assert colours(painted(IMAGE, LABELS, COLOURS, alpha=0)) == {(100, 100, 100)}


def test_bad_input():
    with pytest.raises(UserError, match="class of every pixel"):
        painted(IMAGE, LABELS[:, :10], COLOURS)
    with pytest.raises(UserError, match="class of every pixel"):
        painted(IMAGE, LABELS.float(), COLOURS)
    with pytest.raises(UserError, match="opacity"):
        painted(IMAGE, LABELS, COLOURS, alpha=2)
    with pytest.raises(UserError, match="one of each"):
        segmentation(IMAGE, {"truth": LABELS}, NAMES, COLOURS[:2])


def test_panels_side_by_side_with_a_legend():
    one = segmentation(IMAGE, {"truth": LABELS}, NAMES, COLOURS, size=120)
    two = segmentation(
        IMAGE, {"truth": LABELS, "a": LABELS}, NAMES, COLOURS, size=120, panels={"extra": Image.new("RGB", (60, 40))}
    )
    assert two.width > 1.8 * one.width
    shown = colours(one)
    assert {rgb("#0000ff"), rgb("#00ff00")} <= shown  # swatches
    assert rgb("#ff0000") not in shown  # a class that is not there is not in the legend


def test_many_panels_are_in_several_rows():
    panels = {f"layer {number}": Image.new("RGB", (60, 40)) for number in range(6)}
    few, many = (
        segmentation(IMAGE, {"truth": LABELS}, NAMES, COLOURS, size=120, panels=dict(list(panels.items())[:count]))
        for count in (2, 6)
    )
    assert many.width == few.width  # four beside each other
    assert many.height > 1.6 * few.height


def test_a_legend_has_as_many_lines_as_it_needs():
    wide, narrow = (legend(range(3), NAMES, COLOURS, across) for across in (600, 90))
    assert narrow.height > wide.height
    assert set(map(rgb, COLOURS)) <= colours(narrow)
