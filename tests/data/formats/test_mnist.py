"""The idx files of MNIST."""

import gzip

import pytest
import torch
from small_files import idx

from foveal.data.formats.mnist import MNIST_FILES, mnist, read_idx
from foveal.errors import DataError


def write(folder, images, labels, zipped=(), splits=("train", "test")):
    folder.mkdir(exist_ok=True)
    for split in splits:
        for name, array in zip(MNIST_FILES[split], (images, labels), strict=True):
            if name in zipped or zipped == "all":
                (folder / f"{name}.gz").write_bytes(gzip.compress(idx(array)))
            else:
                (folder / name).write_bytes(idx(array))


@pytest.mark.parametrize("zipped", ["all", (), ("train-images-idx3-ubyte",)])
@pytest.mark.parametrize("split", ["train", "test"])
def test_plain_and_gzipped_files(zipped, split, images, labels, tmp_path):
    write(tmp_path, images, labels, zipped)
    digits, classes = mnist(tmp_path, split)
    assert torch.equal(digits, images)
    assert torch.equal(classes, labels.long())
    assert digits.dtype == torch.uint8
    assert classes.dtype == torch.int64


def test_the_official_names():
    assert MNIST_FILES["train"] == ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
    assert MNIST_FILES["test"] == ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


@pytest.mark.parametrize("name", [*MNIST_FILES["train"]])
def test_a_missing_file_is_named(name, images, labels, tmp_path):
    write(tmp_path, images, labels)
    (tmp_path / name).unlink()
    with pytest.raises(DataError, match=rf"{name}\.gz is missing; put the four official idx files"):
        mnist(tmp_path, "train")


def test_a_missing_folder(tmp_path):
    with pytest.raises(DataError, match="is missing"):
        mnist(tmp_path / "nowhere", "test")


@pytest.mark.parametrize("change", [-100, -1, 3])
def test_a_file_of_the_wrong_length(change, images, tmp_path):
    raw = idx(images)
    path = tmp_path / "images"
    path.write_bytes(raw[:change] if change < 0 else raw + bytes(change))
    message = rf"is damaged: its header promises 15,680 bytes, it has {15_680 + change:,}; get it again"
    with pytest.raises(DataError, match=message):
        read_idx(path)


@pytest.mark.parametrize("keep", [0, 5, 40])
def test_a_truncated_gzip_file(keep, images, tmp_path):
    path = tmp_path / "images.gz"
    path.write_bytes(gzip.compress(idx(images))[:keep])
    with pytest.raises(DataError, match=r"images\.gz (cannot be read \(.*\); it is damaged|is not an idx file)"):
        read_idx(path)


def test_a_damaged_gzip_file(images, tmp_path):
    raw = bytearray(gzip.compress(idx(images)))
    raw[len(raw) // 2] ^= 0xFF
    path = tmp_path / "images.gz"
    path.write_bytes(raw)
    with pytest.raises(DataError, match=r"cannot be read .* get it again"):
        read_idx(path)


def test_a_gz_file_that_is_not_gzip(images, tmp_path):
    path = tmp_path / "images.gz"
    path.write_bytes(idx(images))
    with pytest.raises(DataError, match=r"cannot be read .*[Nn]ot a gzipped file"):
        read_idx(path)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\0\0",
        b"<html>not found</html>",
        b"\0\0\x0d\x01\0\0\0\x01\0\0\0\0",  # floats
        b"\0\0\x08\x04" + bytes(16),  # four dimensions
        b"\0\0\x08\x03\0\0\0\x01",  # a header cut short
    ],
)
def test_what_is_not_an_idx_file_of_bytes(raw, tmp_path):
    path = tmp_path / "images"
    path.write_bytes(raw)
    with pytest.raises(DataError, match="is not an idx file of bytes; get the official file"):
        read_idx(path)


def test_a_folder_in_place_of_a_file(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        read_idx(tmp_path)


def test_images_and_labels_must_belong_together(images, labels, tmp_path):
    write(tmp_path, images, labels[:19])
    message = r"train images \(20, 28, 28\) and labels \(19,\) do not belong together"
    with pytest.raises(DataError, match=message):
        mnist(tmp_path, "train")


def test_swapped_files(images, labels, tmp_path):
    write(tmp_path, labels, images)
    with pytest.raises(DataError, match="do not belong together"):
        mnist(tmp_path, "test")
