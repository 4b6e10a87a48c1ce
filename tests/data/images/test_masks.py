from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from foveal.data.images.masks import lookup, palette, read_colour_mask, read_index_mask
from foveal.errors import DataError

TABLE = lookup({7: 0, 8: 1, 9: 255})
VALUES = np.array([[7, 8, 255], [9, 8, 7]], np.uint8)
CLASSES = [[0, 1, 255], [255, 1, 0]]


@pytest.mark.parametrize("mode", ["L", "P", "I;16"])
def test_index_masks(tmp_path, mode):
    image = Image.fromarray(VALUES.astype(np.uint16) if mode == "I;16" else VALUES)
    if mode == "P":
        image = Image.fromarray(VALUES, "P")
        image.putpalette([c for n in range(256) for c in (n, 255 - n, 3)])
    image.save(tmp_path / "mask.png")
    assert read_index_mask(tmp_path / "mask.png", TABLE).tolist() == CLASSES


def test_unknown_ids(tmp_path):
    Image.fromarray(np.array([[7, 3, 100]], np.uint8)).save(tmp_path / "mask.png")
    with pytest.raises(DataError, match=r"mask.png holds 3, 100, which is no class; expected 7 to 9, 255: correct"):
        read_index_mask(tmp_path / "mask.png", TABLE)


def test_masks_of_another_form(tmp_path):
    Image.new("RGB", (3, 2)).save(tmp_path / "colour.png")
    with pytest.raises(DataError, match=r"index image.*classes\.txt"):
        read_index_mask(tmp_path / "colour.png", TABLE)
    Image.fromarray(np.array([[7, 300]], np.uint16)).save(tmp_path / "deep.png")
    with pytest.raises(DataError, match="at most 255"):
        read_index_mask(tmp_path / "deep.png", TABLE)
    (tmp_path / "text.png").write_text("no image")
    with pytest.raises(DataError, match="remove or replace"):
        read_index_mask(tmp_path / "text.png", TABLE)
    with pytest.raises(DataError, match="no such mask"):
        read_index_mask(tmp_path / "none.png", TABLE)


def test_colour_masks(tmp_path):
    colours = [(0, 0, 0), (200, 30, 40), (255, 255, 255)]
    Image.fromarray(np.array([colours, colours[::-1]], np.uint8)).save(tmp_path / "mask.png")
    assert read_colour_mask(tmp_path / "mask.png", colours, [0, 1, 255]).tolist() == [[0, 1, 255], [255, 1, 0]]
    with pytest.raises(DataError, match=r"2 pixels .* such as 200 30 40; add the colour to classes\.txt"):
        read_colour_mask(tmp_path / "mask.png", [colours[0], colours[2]], [0, 255])


def test_the_palette_is_that_of_voc():
    assert palette(["background", *["object"] * 20])[15] == "#c08080"  # person
    assert len(set(palette(["class"] * 254))) == 254
    assert "#000000" not in palette(["soil", "sugar beet"])  # a class that is no background can be seen
