"""MIT67: the official lists decide which images are used."""

import pytest
import torch
from PIL import Image

from foveal.data.formats.mit67 import read_mit67
from foveal.errors import DataError

TRAIN = ["kitchen/a.jpg", "kitchen/b c.jpg", "wine_cellar/a.jpg"]
TEST = ["wine_cellar/d.jpg", "kitchen/e.jpg"]


@pytest.fixture
def folder(tmp_path):
    for line in (*TRAIN, *TEST, "kitchen/unlisted.jpg", "hall/f.jpg"):
        file = tmp_path / "Images" / line
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4)).save(file)
    (tmp_path / "TrainImages.txt").write_text("\r\n".join(TRAIN) + "\r\n\n")
    (tmp_path / "TestImages.txt").write_text("\n".join(TEST))
    return tmp_path


def test_official_lists(folder):
    images = read_mit67(folder)
    assert images.answers == ["kitchen", "wine cellar"]  # the hall is in no list
    assert torch.equal(images.splits["train"].labels, torch.tensor([0, 0, 1]))
    assert torch.equal(images.splits["test"].labels, torch.tensor([1, 0]))
    assert [images.splits["train"].file(n) for n in range(3)] == [folder / "Images" / line for line in TRAIN]


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("TestImages.txt", "hall/f.jpg", "no such class"),
        ("TestImages.txt", "f.jpg", "no CLASS/file"),
        ("TrainImages.txt", "kitchen/missing.jpg", "is missing, but TrainImages.txt lists it"),
        ("TestImages.txt", "\n", "is empty"),
    ],
)
def test_lists_that_do_not_fit(folder, file, text, message):
    (folder / file).write_text(text)
    with pytest.raises(DataError, match=message):
        read_mit67(folder)


def test_without_a_list(folder):
    (folder / "TestImages.txt").unlink()
    with pytest.raises(DataError, match=r"TestImages\.txt is missing"):
        read_mit67(folder)
