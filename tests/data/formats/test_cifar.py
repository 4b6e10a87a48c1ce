"""CIFAR: binary files, class folders, and pickles that are not read."""

import pickle

import numpy as np
import pytest
import torch
from small_files import build, save, write

from foveal.data import dataset
from foveal.data.formats.cifar import read_cifar10, read_cifar100
from foveal.errors import DataError

CPU = torch.device("cpu")


def records(labels, seed=0):
    """Bytes of a binary file; every label is a tuple of label bytes."""
    pixels = np.random.default_rng(seed).integers(0, 256, (len(labels), 3072), dtype=np.uint8)
    return b"".join(bytes(label) + row.tobytes() for label, row in zip(labels, pixels, strict=True)), pixels


TEN = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


@pytest.fixture
def cifar10(tmp_path):
    folder = tmp_path / "cifar-10-batches-bin"
    write(folder / "batches.meta.txt", "\n".join(TEN) + "\n\n")
    for n in range(1, 6):
        (folder / f"data_batch_{n}.bin").write_bytes(records([(k,) for k in range(10)] * 2, n)[0])
    (folder / "test_batch.bin").write_bytes(records([(9,), (0,), (3,)])[0])
    return tmp_path


def test_cifar10_binary(cifar10):
    image_set = read_cifar10(cifar10 / "cifar-10-batches-bin")
    assert image_set.answers == TEN
    assert image_set.splits["train"].labels.tolist() == list(range(10)) * 10
    assert image_set.splits["test"].labels.tolist() == [9, 0, 3]
    expected = records([(0,)] * 3)[1].reshape(3, 3, 32, 32)  # red, green, blue planes, row by row
    assert np.array_equal(image_set.splits["test"].images.numpy(), expected)
    second = records([(0,)] * 20, 2)[1].reshape(20, 3, 32, 32)
    assert np.array_equal(image_set.splits["train"].images[20:40].numpy(), second)
    source = build("cifar10", cifar10)
    assert "CIFAR-10, 10 classes, 90 + 10 + 3 images" in source.describe()
    assert next(iter(source.loader("train", 6, device=CPU)))["image"].shape == (6, 3, 32, 32)
    assert dataset("cifar10").status(cifar10).there


def test_cifar100_binary_has_fine_labels(tmp_path):
    names = [f"class_{n:02}" for n in range(100)]
    write(tmp_path / "fine_label_names.txt", "\n".join(names))
    (tmp_path / "train.bin").write_bytes(records([(1, 99), (2, 5)])[0])
    (tmp_path / "test.bin").write_bytes(records([(19, 42)])[0])
    image_set = read_cifar100(tmp_path)
    assert image_set.answers == names
    assert [image_set.splits[s].labels.tolist() for s in ("train", "test")] == [[99, 5], [42]]
    assert np.array_equal(image_set.splits["test"].images[0].numpy().ravel(), records([(0, 0)])[1][0])


def test_cifar10_as_class_folders_is_read_once(tmp_path, monkeypatch):
    for split, count in (("train", 3), ("test", 1)):
        for k, name in enumerate(TEN):
            for n in range(count):
                save(tmp_path / "cifar10" / split / name / f"{n:04}.png", (20 * k, n, 7), (32, 32))
    source = build("cifar10", tmp_path, val_fraction=0.0)
    assert source.answers == TEN
    assert {s: len(samples) for s, samples in source.splits.items()} == {"train": 30, "val": 10, "test": 10}
    train = source.splits["train"]
    assert train.images.shape == (30, 3, 32, 32)
    assert train.images[:, 0, 0, 0].tolist() == [20 * k for k in train.labels.tolist()]
    monkeypatch.setattr("foveal.data.images.held.read_image", None)  # the second time comes from the cache
    again = build("cifar10", tmp_path, val_fraction=0.0, folder="cifar10")
    assert torch.equal(again.splits["train"].images, train.images)


class Dangerous:
    def __reduce__(self):
        return pytest.fail, ("unpickled",)


@pytest.mark.parametrize(
    ("read", "name", "files"),
    [
        (read_cifar10, "cifar-10-batches-py", ["data_batch_1", "test_batch", "batches.meta"]),
        (read_cifar100, "cifar-100-python", ["train", "test", "meta"]),
    ],
)
def test_the_python_version_is_not_unpickled(tmp_path, read, name, files):
    for file in files:
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / file).write_bytes(pickle.dumps(Dangerous()))
    with pytest.raises(DataError, match=r"pickles that could run any code.*get the binary version from https"):
        read(tmp_path / name)
    with pytest.raises(DataError, match="python version"):
        build("cifar10" if read is read_cifar10 else "cifar100", tmp_path)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("data_batch_3.bin", None, r"data_batch_3\.bin is missing; get the binary version"),
        ("data_batch_3.bin", b"", r"data_batch_3\.bin is damaged: 0 bytes are not whole records of 3,073"),
        ("test_batch.bin", b"x" * 5000, r"test_batch\.bin is damaged: 5,000 bytes"),
        ("test_batch.bin", bytes([10]) + bytes(3072), r"test_batch\.bin has a label 10, expected 0 to 9"),
        ("batches.meta.txt", None, r"batches\.meta\.txt, the names of the classes, cannot be read"),
        ("batches.meta.txt", b"cat\ndog\n", r"batches\.meta\.txt names 2 classes instead of 10"),
    ],
)
def test_damaged_cifar(cifar10, file, content, message):
    path = cifar10 / "cifar-10-batches-bin" / file
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        build("cifar10", cifar10)


def test_cifar_folder_with_nothing_in_it(tmp_path):
    with pytest.raises(DataError, match=r"has no train\.bin; get the binary version .* or use class folders"):
        read_cifar100(tmp_path)
