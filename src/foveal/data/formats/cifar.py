"""CIFAR-10 and CIFAR-100 from the official binary files, or as class folders of tiny images.

Krizhevsky, "Learning multiple layers of features from tiny images" (2009). A binary file is a row of records: one label
byte (CIFAR-100: coarse, then fine), then 3×32×32 bytes of red, green and blue. The "python version" of the archives is
not read: it consists of pickles, and unpickling a file runs whatever code its author put in.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from foveal.data.formats.image_folders import CLASS_FOLDERS, read_folder
from foveal.data.images.classification import Format, register_images
from foveal.data.images.labelled import ImageSet, LabelledImages
from foveal.data.place import Place
from foveal.data.problems import collected
from foveal.errors import DataError

SIDE = 32
SITE = "https://www.cs.toronto.edu/~kriz/cifar.html"

Parts = dict[str, tuple[str, ...]]
"""Names of the files of each split."""

FILES_10: Parts = {"train": tuple(f"data_batch_{n}.bin" for n in range(1, 6)), "test": ("test_batch.bin",)}
FILES_100: Parts = {"train": ("train.bin",), "test": ("test.bin",)}
NAMES_10, NAMES_100 = "batches.meta.txt", "fine_label_names.txt"


def read_cifar10(folder: Path) -> ImageSet:
    """CIFAR-10: data_batch_1.bin to data_batch_5.bin, test_batch.bin and batches.meta.txt, or class folders."""
    return _read(folder, FILES_10, NAMES_10, 10, 1)


def read_cifar100(folder: Path) -> ImageSet:
    """CIFAR-100 with its 100 fine labels: train.bin, test.bin and fine_label_names.txt, or class folders."""
    return _read(folder, FILES_100, NAMES_100, 100, 2)


def _read(folder: Path, parts: Parts, names: str, classes: int, label_bytes: int) -> ImageSet:
    if (folder / "train").is_dir():
        return read_folder(folder)
    if not any((folder / name).is_file() for files in parts.values() for name in files):
        pickles = any((folder / name).exists() for name in ("data_batch_1", "batches.meta", "train", "meta"))
        reason = " (these are the python version, pickles that could run any code and are not read)" if pickles else ""
        raise DataError(
            f"{folder} has no {parts['train'][0]}{reason}; get the binary version from {SITE}, or use class folders"
        )
    answers: list[str] = []
    with collected():
        answers = _read_names(folder / names, classes)
    splits = {}
    for split, files in parts.items():
        records = []
        for name in files:
            with collected():
                records.append(read_records(folder / name, classes, label_bytes))
        if records:
            pixels, labels = (torch.cat(tensors) for tensors in zip(*records, strict=True))
            splits[split] = LabelledImages(pixels, labels)
    return ImageSet(answers, splits)


def _read_names(path: Path, classes: int) -> list[str]:
    try:
        names = path.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}, the names of the classes, cannot be read ({error}); {_again()}") from error
    if len(names) != classes:
        raise DataError(f"{path} names {len(names)} classes instead of {classes}; {_again()}")
    return names


def _again() -> str:
    return f"get the binary version from {SITE} again"


def read_records(path: Path, classes: int, label_bytes: int) -> tuple[Tensor, Tensor]:
    """Pixels uint8 (N, 3, 32, 32) and labels int64 (N,), the last of the label bytes, of a binary file."""
    try:
        raw = np.fromfile(path, dtype=np.uint8)
    except FileNotFoundError as error:
        raise DataError(f"{path} is missing; {_again()}") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error}); {_again()}") from error
    record = label_bytes + 3 * SIDE * SIDE
    if len(raw) == 0 or len(raw) % record:
        raise DataError(f"{path} is damaged: {len(raw):,} bytes are not whole records of {record:,}; {_again()}")
    records = torch.from_numpy(raw).view(-1, record)
    labels = records[:, label_bytes - 1].long()
    if int(labels.max()) >= classes:
        raise DataError(f"{path} has a label {int(labels.max())}, expected 0 to {classes - 1}; {_again()}")
    return records[:, label_bytes:].reshape(-1, 3, SIDE, SIDE).contiguous(), labels


def _register(classes: int, folders: tuple[str, ...], parts: Parts, names: str, **usual: Any) -> None:
    name = f"cifar{classes}"
    place = Place(
        folders=folders,
        needs=(*(file for files in parts.values() for file in files), names),
        how=f"cifar-{classes}-binary.tar.gz from {SITE}; or train/CLASS and test/CLASS folders of images in {name}/",
        layouts=(CLASS_FOLDERS,),
    )
    read = read_cifar10 if classes == 10 else read_cifar100
    register_images(
        Format(name, f"CIFAR-{classes}", read, place, size=SIDE, augment="small", **usual),
        f"60,000 tiny images of {classes} classes",
    )


# The folder of the python version is last: it is there to be refused with a reason.
_register(
    10,
    ("cifar-10-batches-bin", "cifar10", "CIFAR-10-images", "cifar-10-batches-py"),
    FILES_10,
    NAMES_10,
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
)
_register(
    100,
    ("cifar-100-binary", "cifar100", "cifar-100-python"),
    FILES_100,
    NAMES_100,
    mean=(0.5071, 0.4865, 0.4409),
    std=(0.2673, 0.2564, 0.2762),
)
