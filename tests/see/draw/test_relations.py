"""Regions over an image, and what they attend to."""

import numpy as np
import pytest
import torch

from foveal.errors import UserError
from foveal.see import relations
from foveal.see.draw._type import STRONG
from foveal.see.draw.relations import REFERENCE, related

IMAGE = torch.full((3, 120, 160), 0.5)
BOXES = torch.tensor([[10.0, 10, 50, 50], [90, 10, 150, 60], [20, 70, 70, 110], [92, 12, 150, 60], [100, 80, 150, 110]])
WEIGHTS = torch.tensor([0.1, 0.3, 0.05, 0.5, 0.05]).repeat(5, 1)


def painted(picture, colour, box, within=30):
    """Whether a colour is on all four sides of a box, in parts of the picture's size."""
    pixels = np.abs(np.asarray(picture).astype(int) - np.array(colour)).max(2) <= within
    (height, width), (left, up, right, down) = pixels.shape, box
    left, right, up, down = (
        round(v * s) for v, s in ((left, width / 160), (right, width / 160), (up, height / 120), (down, height / 120))
    )
    middle_x, middle_y = (left + right) // 2, (up + down) // 2
    sides = [
        pixels[middle_y, max(0, left - 6) : left + 7],
        pixels[middle_y, right - 6 : right + 7],
        pixels[max(0, up - 6) : up + 7, middle_x],
        pixels[down - 6 : down + 7, middle_x],
    ]
    return all(side.any() for side in sides)


def test_reference_and_strongest_regions():
    picture = relations(IMAGE, BOXES, WEIGHTS, reference=0, top=1)
    assert picture.size == (480, 360)
    assert painted(picture, REFERENCE, BOXES[0].tolist())
    assert painted(picture, STRONG, BOXES[3].tolist())
    assert (np.asarray(picture)[200:] == 128).all()  # nothing is drawn of the weaker ones


def test_of_regions_that_overlap_the_strongest_is_taken():
    row = WEIGHTS[0]
    assert related(BOXES, row, 0, 5, 0.5) == [3, 2, 4]  # 1 is nearly 3; equal weights keep their order
    assert related(BOXES, row, 0, 2, 0.5) == [3, 2]
    assert related(BOXES, row, 1, 5, 0.5) == [0, 2, 4]  # 3 is nearly the reference
    assert related(BOXES, row, 0, 5, 1.0) == [3, 1, 2, 4]
    flat = BOXES.clone()
    flat[3, 2] = flat[3, 0]  # no area
    assert related(flat, row, 0, 5, 0.5) == [1, 2, 4]
    assert related(BOXES, torch.zeros(5), 0, 5, 0.5) == []


def test_the_nearest_region_of_a_box_is_the_reference():
    expected = relations(IMAGE, BOXES, WEIGHTS, reference=2)
    assert relations(IMAGE, BOXES, WEIGHTS, reference=[21.0, 69, 70, 111]).tobytes() == expected.tobytes()
    assert (
        relations(IMAGE, BOXES, WEIGHTS, reference=torch.tensor([18.0, 116, 60, 119])).tobytes() == expected.tobytes()
    )
    strongest = relations(IMAGE, BOXES, torch.eye(5) * 0.1 + torch.eye(5).roll(1, 1) * torch.arange(5)[:, None])
    assert painted(strongest, REFERENCE, BOXES[4].tolist())


def test_models_stand_beside_each_other():
    other = WEIGHTS.roll(1, 1)
    both = relations(IMAGE, {"plain": BOXES, "guided": BOXES[:4]}, {"plain": WEIGHTS, "guided": other[:4, :4]}, 0)
    assert both.width > 2 * 480
    text = np.asarray(both)[:20].min()
    assert text < 60  # their titles


def test_names_and_rows_alone():
    row = relations(IMAGE, BOXES, WEIGHTS[0], reference=0)
    assert row.tobytes() == relations(IMAGE, BOXES, WEIGHTS, reference=0).tobytes()
    named = relations(IMAGE, BOXES, WEIGHTS[0], reference=0, names=["dog", "cat", "cup", "bed", "man"])
    assert named.tobytes() != row.tobytes()


def test_hardly_any_regions():
    empty = relations(IMAGE, torch.zeros(0, 4), torch.zeros(0, 0))
    assert len(set(map(tuple, np.asarray(empty).reshape(-1, 3)))) == 1  # the image, with nothing on it
    one = relations(IMAGE, BOXES[:1], torch.ones(1, 1))
    assert painted(one, REFERENCE, BOXES[0].tolist())
    outside = torch.tensor([[-50.0, -50, 400, 400], [500, 500, 600, 600], [30, 30, 30, 30]])
    assert relations(IMAGE, outside, torch.ones(3, 3), reference=0).size == (480, 360)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"boxes": BOXES[:, :3]}, "x1, y1, x2, y2"),
        ({"boxes": BOXES * torch.nan}, "NaN"),
        ({"weights": WEIGHTS[:3]}, r"\(5, 5\) or \(5,\)"),
        ({"weights": WEIGHTS - 1}, "softmax"),
        ({"weights": WEIGHTS * torch.nan}, "finite"),
        ({"weights": WEIGHTS[0]}, "reference=0"),
        ({"weights": {"a": WEIGHTS}}, "both"),
        ({"boxes": {"b": BOXES}, "weights": {"a": WEIGHTS}}, "are of b, weights of a"),
        ({"reference": 5}, "from 0 to 4"),
        ({"reference": [1.0, 2.0]}, "number of a region or a box"),
        ({"names": ["dog"]}, "1 names for 5 regions"),
        ({"top": 0}, "top=0"),
        ({"image": torch.zeros(2, 3)}, "RGB image"),
    ],
)
def test_bad_input(change, message):
    with pytest.raises(UserError, match=message):
        relations(**({"image": IMAGE, "boxes": BOXES, "weights": WEIGHTS} | change))
