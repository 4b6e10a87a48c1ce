"""CUB-200-2011: official lists, class folders, boxes."""

import zipfile

import pytest
import torch
from small_files import build, listed, needed, save, write

from foveal.data import dataset
from foveal.data.formats.cub import read_cub
from foveal.errors import DataError

CPU = torch.device("cpu")


@pytest.fixture
def cub(tmp_path):
    folder = tmp_path / "CUB_200_2011"
    classes = ["001.Black_footed_Albatross", "002.Laysan_Albatross"]
    images = [f"{name}/{n}.jpg" for name in classes for n in range(6)]
    for image in images:
        save(folder / "images" / image)
    write(folder / "classes.txt", "".join(f"{k + 1} {name}\n" for k, name in enumerate(classes)))
    write(folder / "images.txt", "".join(f"{n + 1} {image}\n" for n, image in enumerate(images)))
    write(folder / "image_class_labels.txt", "".join(f"{n + 1} {1 + n // 6}\n" for n in range(12)))
    write(folder / "train_test_split.txt", "".join(f"{n + 1} {int(n % 3 > 0)}\n" for n in range(12)))
    return tmp_path


def test_cub_official(cub):
    image_set = read_cub(cub / "CUB_200_2011")
    assert image_set.answers == ["Black footed Albatross", "Laysan Albatross"]
    assert listed(image_set.splits["test"]) == [("0.jpg", 0), ("3.jpg", 0), ("0.jpg", 1), ("3.jpg", 1)]
    assert len(image_set.splits["train"]) == 8
    source = build("cub200", cub, size=16, val_fraction=0.25)
    assert "CUB-200-2011, 2 classes, 6 + 2 + 4 images" in source.describe()
    assert next(iter(source.loader("test", 4, device=CPU)))["label"].tolist() == [0, 0, 1, 1]
    assert dataset("cub200").status(cub).there


def test_boxes_of_cub(cub):
    assert build("cub200", cub, val_fraction=0.0).boxes() is None
    file = cub / "CUB_200_2011" / "bounding_boxes.txt"
    write(file, "".join(f"{n + 1} 0.0 5.0 6.0 {n}.0\n" for n in range(12)))  # of images of 12 × 10
    boxes = build("cub200", cub, val_fraction=0.0, size=20, augment="small").boxes()
    assert boxes.shape == (4, 1, 5)
    assert boxes[:, 0, 0].tolist() == [0, 0, 1, 1]
    torch.testing.assert_close(boxes[1, 0, 1:], torch.tensor([-2.0, 10, 10, 16]))  # image 4: twice as large, cut to 20
    write(file, "1 0.0 5.0 6.0 1.0\n")
    with pytest.raises(DataError, match=r"bounding_boxes.txt: expected x, y, width and height of 3.jpg"):
        build("cub200", cub, val_fraction=0.0).boxes()
    write(file, "".join(f"{n + 1} 0.0 5.0 6.0 {n}.0\n" for n in range(12)))
    image = cub / "CUB_200_2011" / "images" / "001.Black_footed_Albatross" / "3.jpg"
    source = build("cub200", cub, val_fraction=0.0)
    image.write_bytes(b"no image")
    with pytest.raises(DataError, match=r"3.jpg cannot be read as an image"):
        source.boxes()


def test_cub_as_class_folders(tmp_path):
    for split in ("train", "test"):
        for name in ("001.Black_footed_Albatross", "100.Brown_Pelican"):
            save(tmp_path / "cub100" / split / name / f"{split}.jpg")
    image_set = read_cub(tmp_path / "cub100")
    assert image_set.answers == ["Black footed Albatross", "Brown Pelican"]
    assert listed(image_set.splits["test"]) == [("test.jpg", 0), ("test.jpg", 1)]


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("classes.txt", None, r"classes\.txt is missing; it comes with the official archive"),
        ("images.txt", "", r"images\.txt is empty"),
        ("images.txt", "1 a.jpg\n2\n", r"images\.txt line 2: expected 2 words, got '2'"),
        ("image_class_labels.txt", "1 1\n", r"image 2 .* has no class in image_class_labels\.txt"),
        ("train_test_split.txt", "1 yes\n", r"image 1 .* no 0 or 1 in train_test_split\.txt"),
        ("train_test_split.txt", "".join(f"{n} 1\n" for n in range(1, 13)), "leaves no image for test"),
    ],
)
def test_damaged_cub(cub, file, content, message):
    path = cub / "CUB_200_2011" / file
    path.unlink()
    if content is not None:
        path.write_text(content)
    with pytest.raises(DataError, match=message):
        build("cub200", cub)


def test_real_birds(real_data, tmp_path):
    needed(real_data, "cub100-112.zip")
    with zipfile.ZipFile(real_data / "cub100-112.zip") as archive:
        names = [n for n in archive.namelist() if "/001." in n or "/100." in n]
        archive.extractall(tmp_path, names)
    source = build("cub200", tmp_path, size=112)
    assert source.answers == ["Black footed Albatross", "Brown Pelican"]
    assert [len(source.splits[s]) for s in ("train", "val", "test")] == [54, 6, 60]
    batch = next(iter(source.loader("train", 16, device=CPU)))
    assert batch["image"].float().std() > 20
    assert set(batch["label"].tolist()) == {0, 1}
