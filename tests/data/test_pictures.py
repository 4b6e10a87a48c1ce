import numpy as np
import pytest
import torch
from PIL import Image

from foveal.data.pictures import photographs, read_image, textures
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
    found = {split: greys(photographs(folder, 16, split)) for split in SPLITS}
    assert found["train"] | found["val"] | found["test"] == {20 * i for i in range(12)}
    assert not found["train"] & found["val"]
    assert not found["train"] & found["test"]
    assert not found["val"] & found["test"]
    assert [len(found[split]) for split in SPLITS] == [8, 2, 2]


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


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "CMYK", "1", "I;16"])
def test_any_mode_becomes_rgb(mode, tmp_path):
    path = tmp_path / ("x.tif" if mode in ("CMYK", "I;16") else "x.png")
    Image.new(mode, (9, 9)).save(path)
    assert read_image(path).mode == "RGB"


@pytest.mark.parametrize(
    ("name", "dtype", "white"),
    [
        ("x.png", "uint16", 65535),
        ("x.tif", "uint16", 65535),
        ("x.tif", ">u2", 65535),
        ("x.tif", "int32", 65535),
        ("x.tif", "float32", 1),
    ],
)
def test_deep_greys_are_scaled(name, dtype, white, tmp_path):
    greys = np.array([[0.0, 0.2], [0.6, 1.0]])
    Image.fromarray((greys * white).round(4).astype(dtype)).save(tmp_path / name)
    found = np.asarray(read_image(tmp_path / name))
    assert found[..., 0].tolist() == [[0, 51], [153, 255]]
    assert (found == found[..., :1]).all()


def test_a_dark_image_of_16_bits_stays_dark(tmp_path):
    Image.fromarray(np.full((3, 3), 200, dtype=np.uint16)).save(tmp_path / "x.png")
    assert np.asarray(read_image(tmp_path / "x.png")).max() == 1


@pytest.mark.parametrize(
    ("dtype", "values"),
    [("int32", [0, 200]), ("int32", [-1, 300]), ("int32", [0, 70000]), ("float32", [0, 255]), ("float32", [0, np.nan])],
)
def test_greys_of_unknown_range_are_refused(dtype, values, tmp_path):
    Image.fromarray(np.array([values], dtype=dtype)).save(tmp_path / "x.tif")
    with pytest.raises(DataError, match=r"^\S*x\.tif holds .* from .* to .*, and nothing says which is white; save it"):
        read_image(tmp_path / "x.tif")


def test_the_camera_orientation_is_respected(tmp_path):
    image = Image.new("RGB", (30, 20))
    exif = image.getexif()
    exif[0x0112] = 6  # turn by 90 degrees
    image.save(tmp_path / "x.jpg", exif=exif)
    assert read_image(tmp_path / "x.jpg").size == (20, 30)


def test_a_corrupt_jpeg_is_named(folder):
    Image.new("RGB", (64, 64), "red").save(folder / "whole.jpg")
    raw = (folder / "whole.jpg").read_bytes()
    (folder / "whole.jpg").unlink()
    (folder / "00.jpg").write_bytes(raw[: len(raw) // 2])  # the first by name, so it belongs to train
    with pytest.raises(DataError, match=r"00\.jpg cannot be read as an image .* remove or replace it"):
        photographs(folder, 16, "train")


@pytest.mark.parametrize("raw", [b"", b"hello", b"\xff\xd8\xff\xe0garbage"])
def test_what_is_not_an_image(raw, tmp_path):
    (tmp_path / "x.jpg").write_bytes(raw)
    with pytest.raises(DataError, match=r"x\.jpg cannot be read as an image"):
        read_image(tmp_path / "x.jpg")


def test_a_missing_image(tmp_path):
    with pytest.raises(DataError, match="no such image file"):
        read_image(tmp_path / "x.jpg")


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


def test_textures_differ_between_splits_and_repeat():
    made = {split: textures(24, split, count=6) for split in SPLITS}
    for split, tiles in made.items():
        assert tiles.shape == (6, 3, 24, 24)
        assert tiles.dtype == torch.uint8
        assert torch.equal(textures(24, split, count=6), tiles)
        assert tiles.float().flatten(1).std(1).min() > 2  # none is plain
    every = torch.cat(list(made.values())).flatten(1)
    assert len({tuple(row.tolist()) for row in every}) == 18
