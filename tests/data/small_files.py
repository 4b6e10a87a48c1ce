"""Small files in the official formats, for the tests of their readers, and what these tests share."""

import gzip
from dataclasses import fields

import pytest
import torch
from PIL import Image

from foveal.data import dataset
from foveal.data.embedded.digits import sklearn_digits
from foveal.data.embedded.scenes import Scenes
from foveal.data.formats.mnist import MNIST_FILES
from foveal.data.images.classification import ImageOptions
from foveal.data.text.documents import TextOptions

MESSAGE = """From: someone@host.edu (Some One)
Subject: Re: engines
Lines: 6

In article <1@host> other@host.edu writes:
> What engine is best?

The small one, I think. It is caf\xe9 proof.

-----
Some One, host university
"""


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


def idx(array):
    """The format of MNIST: two zeros, 8 for bytes, the number of dimensions, big-endian sizes, the bytes."""
    header = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
    return header + array.numpy().tobytes()


def write_mnist(root):
    """scikit-learn's digits in the official format of MNIST, gzipped."""
    (root / "mnist").mkdir(parents=True)
    for split, names in MNIST_FILES.items():
        images, labels = sklearn_digits(split)
        for name, array in zip(names, (images[:200], labels[:200].to(torch.uint8)), strict=True):
            (root / "mnist" / f"{name}.gz").write_bytes(gzip.compress(idx(array)))
    return root


def write_textfolder(root, train=20, test=6):
    """Texts about cats and dogs, in a folder for each split and class."""
    for split, count in (("train", train), ("test", test)):
        for name in ("cats", "dogs"):
            texts = {f"{i:02}.txt": f"The {name} number{i} play. They never sleep! {name} again" for i in range(count)}
            write_all(root / "textfolder" / split / name, texts)
    return root


def build_texts(root, name="textfolder", **options):
    """A source of texts, without tags and with every word in the vocabulary."""
    return dataset(name).build(TextOptions(**{"tagger": "none", "min_count": 1} | options), root)


def write_newsgroups(folder):
    """Three messages of 20 Newsgroups."""
    files = {
        "20news-bydate-train/rec.autos/1": MESSAGE,
        "20news-bydate-train/sci.space/2": "Subject: moon\n\nThe moon.\n",
        "20news-bydate-test/sci.space/3": "Subject: sun\n\nThe sun.\n",
    }
    write_all(folder, files)


def assert_same_scenes(scenes, expected):
    for field in fields(Scenes):
        assert torch.equal(getattr(scenes, field.name), getattr(expected, field.name)), field.name
