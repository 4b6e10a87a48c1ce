"""Image files of every kind."""

import numpy as np
import pytest
from PIL import Image

from foveal.data.images.reading import read_header, read_image
from foveal.errors import DataError


def greys(tiles):
    return {int(tile[0, 0, 0]) for tile in tiles}


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
    pixels = np.asarray(read_image(tmp_path / name))
    assert pixels[..., 0].tolist() == [[0, 51], [153, 255]]
    assert (pixels == pixels[..., :1]).all()


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


@pytest.mark.parametrize("raw", [b"", b"hello", b"\xff\xd8\xff\xe0garbage"])
def test_what_is_not_an_image(raw, tmp_path):
    (tmp_path / "x.jpg").write_bytes(raw)
    with pytest.raises(DataError, match=r"x\.jpg cannot be read as an image"):
        read_image(tmp_path / "x.jpg")


def test_an_image_that_is_too_large(tmp_path, monkeypatch):
    Image.new("L", (30, 20)).save(tmp_path / "x.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 200)  # Pillow refuses twice as many
    for read in (read_header, read_image):
        with pytest.raises(DataError, match=r"x\.png has more pixels than Pillow decodes .*make it smaller"):
            read(tmp_path / "x.png")


def test_a_missing_image(tmp_path):
    with pytest.raises(DataError, match="no such image file"):
        read_image(tmp_path / "x.jpg")
