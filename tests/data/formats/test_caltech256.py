"""Caltech-256, on a few small files."""

import pytest
from small_files import build, save, write

from foveal.data.formats.caltech256 import read_caltech256
from foveal.errors import DataError


def test_caltech256(tmp_path):
    folder = tmp_path / "256_ObjectCategories"
    for name in ("002.american-flag", "001.ak47", "257.clutter"):
        for n in range(10):
            save(folder / name / f"{name[:3]}_{n:04}.jpg")
    save(folder / "001.ak47" / "greg" / "again.jpg")
    write(folder / "002.american-flag" / "RENAME2", "")
    for place in (folder, tmp_path):
        image_set = read_caltech256(place)
        assert image_set.answers == ["ak47", "american-flag"]
        assert len(image_set.splits["train"]) == 20
    source = build("caltech256", tmp_path, test_fraction=0.3)
    assert "Caltech-256, 2 classes, 12 + 2 + 6 images" in source.describe()
    with pytest.raises(DataError, match=r"has no folders like 001\.ak47"):
        read_caltech256(folder / "001.ak47")
