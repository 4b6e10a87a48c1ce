"""Boxes that are checked, and objects that are packed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from foveal.data.images.boxed import read_sized, undecided
from foveal.data.images.boxes import COUNTS, CROWD, DIFFICULT, Annotated, Objects, Thing, checked
from foveal.data.problems import collecting
from foveal.errors import DataError

SOURCE = Path("boxes.json")


def image(*things, relations=(), size=(40, 30)):
    return Annotated(Path("a.jpg"), size, list(things), list(relations))


def test_boxes_are_cut_off_at_the_border():
    kept = checked(image(Thing((-5, -3, 10, 12), 1), Thing((30, 20, 99, 99), 2)), SOURCE)
    assert [thing.box for thing in kept.things] == [(0, 0, 10, 12), (30, 20, 40, 30)]


def test_boxes_without_area_are_left_out_with_their_relations():
    things = (Thing((1, 1, 5, 5), 1), Thing((3, 3, 3, 9), 1), Thing((50, 1, 60, 5), 1), Thing((2, 2, 8, 8), 2))
    with collecting() as problems:
        kept = checked(image(*things, relations=[(0, 1), (0, 3), (2, 3), (3, 0), (0, 3), (3, 3)]), SOURCE)
    assert [thing.label for thing in kept.things] == [1, 2]
    assert kept.relations == [(0, 1), (1, 0)]  # rows of what is left; each once, none with itself
    assert len(problems) == 2
    assert not any(problem.stops for problem in problems)


def test_a_box_that_is_too_thin_for_float32_is_left_out():
    things = (Thing((30.00001, 1, 30.000011, 20), 1), Thing((30, 1, 30.02, 20), 2))
    kept = checked(image(*things), SOURCE)
    assert [thing.label for thing in kept.things] == [2]
    left, _, right, _ = Objects.of([kept]).boxes[0]
    assert right > left


@pytest.mark.parametrize("box", [(5, 1, 4, 9), (1, 5, 9, 4), (float("nan"), 1, 2, 3), (1, 1, float("inf"), 3)])
def test_what_is_no_box(box):
    with pytest.raises(DataError, match=r"boxes\.json: the box .* in image a\.jpg is not valid"):
        checked(image(Thing(box, 1)), SOURCE)


def test_an_image_without_a_size():
    with pytest.raises(DataError, match="is 0×30 pixels large"):
        checked(image(size=(0, 30)), SOURCE)


# Packed -----------------------------------------------------------------------------

MARKS = st.sampled_from([COUNTS, DIFFICULT, CROWD])


@st.composite
def annotated(draw):
    count = draw(st.integers(0, 4))
    things = [Thing((n, 0, n + draw(st.integers(1, 5)), 7), draw(st.integers(1, 3)), draw(MARKS)) for n in range(count)]
    places = st.integers(0, max(0, count - 1))
    relations = draw(st.lists(st.tuples(places, places), max_size=4, unique=True)) if count else []
    return image(*things, relations=relations)


def plainly(one, keep=lambda thing: True):
    """What a target should hold, without packing."""
    places = [k for k, thing in enumerate(one.things) if keep(thing)]
    relations = [[places.index(a), places.index(b)] for a, b in one.relations if a in places and b in places]
    return [list(one.things[k].box) for k in places], [one.things[k].label for k in places], relations


def values(target):
    return target["boxes"].tolist(), target["labels"].tolist(), target["relations"].tolist()


@given(st.lists(annotated(), min_size=1, max_size=5), st.data())
def test_targets(images, data):
    """Of all images, of some of them, and of what counts: as written down plainly."""
    objects = Objects.of(images, related=True)
    assert len(objects) == len(images)
    assert [values(objects.target(n)) for n in range(len(images))] == [plainly(one) for one in images]
    for n, one in enumerate(images):
        assert objects.target(n)["iscrowd"].tolist() == [thing.mark == CROWD for thing in one.things]
        assert objects.target(n)["difficult"].tolist() == [thing.mark == DIFFICULT for thing in one.things]
    chosen = data.draw(st.lists(st.integers(0, len(images) - 1), max_size=5))
    some = objects.take(chosen)
    assert [values(some.target(n)) for n in range(len(chosen))] == [plainly(images[n]) for n in chosen]
    counted = objects.counted()
    assert [values(counted.target(n)) for n in range(len(images))] == [
        plainly(one, lambda thing: thing.mark == COUNTS) for one in images
    ]


def test_scenes_and_relations_only_where_there_are_some():
    assert set(Objects.of([image()]).target(0)) == {"boxes", "labels", "iscrowd", "difficult"}
    target = Objects.of([image(), Annotated(Path(), (4, 4), scene=3)], related=True, scenes=True).target(1)
    assert int(target["scene"]) == 3
    assert target["relations"].shape == (0, 2)
    assert target["boxes"].dtype == torch.float32


# Photographs ------------------------------------------------------------------------


@pytest.fixture
def turned(tmp_path):
    """A photograph of 40×30 pixels, red on the left, that is to be shown as 30×40."""
    picture = Image.new("RGB", (40, 30))
    picture.paste((255, 0, 0), (0, 0, 10, 30))
    exif = Image.Exif()
    exif[0x0112] = 6
    picture.save(tmp_path / "a.png", exif=exif)
    return tmp_path / "a.png"


def test_a_turned_photograph(turned):
    """Boxes for the turned image get the turned image, boxes for the file as it is get that."""
    upright = read_sized(turned, (30, 40))
    assert upright.getpixel((15, 2)) == (255, 0, 0)
    raw = read_sized(turned, (40, 30))
    assert raw.getpixel((2, 15)) == (255, 0, 0)
    with pytest.raises(DataError, match="has 30×40 pixels and its boxes are for 50×40"):
        read_sized(turned, (50, 40))


@pytest.mark.parametrize(
    ("orientation", "size", "expected"),
    [(1, (40, 30), False), (3, (40, 30), True), (2, (40, 30), True), (6, (40, 30), False), (8, (30, 30), True)],
)
def test_sides_that_do_not_tell_the_orientation(tmp_path, orientation, size, expected):
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.new("RGB", size).save(tmp_path / "a.jpg", exif=exif)
    assert undecided(tmp_path / "a.jpg", size) is expected


@pytest.mark.parametrize("mode", ["L", "CMYK", "I;16", "P", "RGBA"])
def test_modes_of_photographs(tmp_path, mode):
    file = tmp_path / ("a.jpg" if mode == "CMYK" else "a.png")
    Image.new(mode, (8, 6)).save(file)
    assert (read_sized(file, (8, 6)).mode, read_sized(file, (8, 6)).size) == ("RGB", (8, 6))
