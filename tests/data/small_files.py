"""Small files in the official formats, for the tests of their readers."""

import gzip

import pytest
import torch
from PIL import Image

from foveal.data import dataset
from foveal.data.embedded.digits import sklearn_digits
from foveal.data.formats.mnist import MNIST_FILES
from foveal.data.images.classification import ImageOptions


def save(path, colour=(200, 100, 50), size=(12, 10)):
    """An image of one colour."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)
    return path


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def write_all(folder, files):
    """Texts by name, in Latin-1."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode("latin-1"))


def listed(samples):
    """(file name, label) of every sample."""
    return [(samples.file(n).name, int(samples.labels[n])) for n in range(len(samples))]


def build(name, root=None, **options):
    """A source of images to classify."""
    return dataset(name).build(ImageOptions(**{"workers": 0} | options), root)


def needed(folder, *names):
    """Skip without these real files."""
    for name in names:
        if not (folder / name).is_file():
            pytest.skip(f"real data: {name} is not in FOVEAL_DATA")


def write_mnist(root):
    """scikit-learn's digits in the official format of MNIST, gzipped."""
    (root / "mnist").mkdir(parents=True)
    for split, names in MNIST_FILES.items():
        images, labels = sklearn_digits(split)
        for name, array in zip(names, (images[:200], labels[:200].to(torch.uint8)), strict=True):
            header = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
            (root / "mnist" / f"{name}.gz").write_bytes(gzip.compress(header + array.numpy().tobytes()))
    return root
