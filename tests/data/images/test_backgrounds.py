"""Photographs behind scenes."""

import pytest
from PIL import Image

from foveal.data.images.backgrounds import photographs
from foveal.errors import DataError

SPLITS = ("train", "val", "test")


def save(path, colour, size=(40, 40)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)


@pytest.fixture
def folder(tmp_path):
    """Twelve plain photographs, number i in the grey 20 · i."""
    for i in range(12):
        below = tmp_path / "more" if i % 2 else tmp_path
        save(below / f"{i:02}.png", (20 * i,) * 3)
    (tmp_path / "readme.txt").write_text("not a picture")
    return tmp_path


def greys(tiles):
    return {int(tile[0, 0, 0]) for tile in tiles}


def test_photographs_are_never_shared_between_splits(folder):
    greys_of = {split: greys(photographs(folder, 16, split)) for split in SPLITS}
    assert greys_of["train"] | greys_of["val"] | greys_of["test"] == {20 * i for i in range(12)}
    assert not greys_of["train"] & greys_of["val"]
    assert not greys_of["train"] & greys_of["test"]
    assert not greys_of["val"] & greys_of["test"]
    assert [len(greys_of[split]) for split in SPLITS] == [8, 2, 2]


def test_tiles_cover_a_wide_photograph(tmp_path):
    for i in range(5):
        wide = Image.new("RGB", (100, 40))
        for x in range(100):
            for y in range(40):
                wide.putpixel((x, y), (2 * x, 0, i))
        wide.save(tmp_path / f"{i}.png")
    tiles = photographs(tmp_path, 40, "test")
    assert tiles.shape == (3, 3, 40, 40)
    assert [int(t[0, 0, 0]) for t in tiles] == [0, 60, 120]
    assert [int(t[0, 0, -1]) for t in tiles] == [78, 138, 198]


def test_tiles_cover_a_tall_photograph(tmp_path):
    for i in range(5):
        tall = Image.new("RGB", (40, 60), (255, 0, 0))
        tall.paste((0, 0, 255), (0, 30, 40, 60))
        tall.save(tmp_path / f"{i}.png")
    upper, lower = photographs(tmp_path, 20, "val")
    assert upper.shape == (3, 20, 20)
    assert upper[:, 0, 0].tolist() == [255, 0, 0]
    assert lower[:, -1, 0].tolist() == [0, 0, 255]


def test_a_corrupt_jpeg_is_named(folder):
    Image.new("RGB", (64, 64), "red").save(folder / "whole.jpg")
    raw = (folder / "whole.jpg").read_bytes()
    (folder / "whole.jpg").unlink()
    (folder / "00.jpg").write_bytes(raw[: len(raw) // 2])  # the first by name, so it belongs to train
    with pytest.raises(DataError, match=r"00\.jpg cannot be read as an image .* remove or replace it"):
        photographs(folder, 16, "train")


def test_a_missing_folder(tmp_path):
    with pytest.raises(DataError, match=r"no folder of photographs at .*nowhere; put any natural photographs there"):
        photographs(tmp_path / "nowhere", 16, "train")


@pytest.mark.parametrize("count", [0, 4])
@pytest.mark.parametrize("split", SPLITS)
def test_too_few_photographs(count, split, tmp_path):
    """Whichever split is asked for first, so that training never starts on data that cannot be tested."""
    for i in range(count):
        save(tmp_path / f"{i}.png", "red")
    with pytest.raises(DataError, match=f"holds {count} image files; at least five are needed for separate splits"):
        photographs(tmp_path, 16, split)


def test_a_tiny_photograph_is_named(folder):
    save(folder / "000.png", "red", (300, 5))
    with pytest.raises(DataError, match=r"000\.png is only 300×5 pixels; remove it"):
        photographs(folder, 16, "train")
