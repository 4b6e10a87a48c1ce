"""Images sorted into class folders."""

import pytest
from small_files import build, listed, save, write

from foveal.data.formats.image_folders import read_folder
from foveal.data.images.reading import image_files
from foveal.errors import DataError


def test_folder_with_splits(tmp_path):
    for name in ("b", "a", "c"):
        save(tmp_path / "train" / name / "2.JPEG")
        save(tmp_path / "train" / name / "more" / "1.png")
    save(tmp_path / "val" / "c" / "v.jpg")
    save(tmp_path / "test" / "b" / "t.jpg")
    image_set = read_folder(tmp_path)
    assert image_set.answers == ["a", "b", "c"]
    assert listed(image_set.splits["train"]) == [
        ("2.JPEG", 0), ("1.png", 0), ("2.JPEG", 1), ("1.png", 1), ("2.JPEG", 2), ("1.png", 2)
    ]  # fmt: skip
    assert listed(image_set.splits["val"]) == [("v.jpg", 2)]
    assert listed(image_set.splits["test"]) == [("t.jpg", 1)]


def test_folder_of_classes_alone(tmp_path):
    for name in ("dog", "cat"):
        for n in range(10):
            save(tmp_path / "imagefolder" / name / f"{n}.jpg")
    assert list(read_folder(tmp_path / "imagefolder").splits) == ["train"]
    source = build("imagefolder", tmp_path, size=8)
    assert [source.splits[s].labels.bincount().tolist() for s in ("train", "val", "test")] == [[7, 7], [1, 1], [2, 2]]
    assert "divided at random" in source.describe()


def test_only_image_files_count(tmp_path):
    write(tmp_path / "a" / "notes.txt", "")
    write(tmp_path / "a" / "._1.jpg", "")  # what macOS puts into archives
    save(tmp_path / "a" / "1.jpg")
    assert [file.name for file in image_files(tmp_path)] == ["1.jpg"]


def test_folders_that_cannot_be_used(tmp_path):
    with pytest.raises(DataError, match="has no class folders; expected one folder of images for each class"):
        read_folder(tmp_path)
    save(tmp_path / "1.jpg")
    with pytest.raises(DataError, match="has no class folders but image files; sort them"):
        read_folder(tmp_path)
    (tmp_path / "a").mkdir()
    with pytest.raises(DataError, match=r"a holds no image files; add some or remove the folder"):
        read_folder(tmp_path)
    save(tmp_path / "test" / "a" / "1.jpg")
    with pytest.raises(DataError, match="has test but no train folder"):
        read_folder(tmp_path)
    save(tmp_path / "train" / "bird" / "1.jpg")
    save(tmp_path / "val" / "birb" / "1.jpg")
    with pytest.raises(
        DataError, match=r"val: unknown class 'birb'; did you mean 'bird'\?; training has no such folder"
    ):
        read_folder(tmp_path)


def test_a_file_that_is_no_image_stops_before_training(tmp_path):
    for name in ("dog", "cat"):
        for n in range(10):
            save(tmp_path / "imagefolder" / name / f"{n}.jpg")
    write(tmp_path / "imagefolder" / "cat" / "page.jpg", "<html>")
    with pytest.raises(DataError, match=r"cat/page\.jpg cannot be read as an image .*remove or replace it$"):
        build("imagefolder", tmp_path, size=8)
    write(tmp_path / "imagefolder" / "dog" / "empty.jpg", "")
    with pytest.raises(DataError, match="2 files cannot be read, `foveal data check imagefolder` names all"):
        build("imagefolder", tmp_path, size=8)
