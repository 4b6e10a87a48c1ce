"""CIFAR-10 and CIFAR-100 from the official binary files, or as class folders of tiny images.

Krizhevsky, "Learning multiple layers of features from tiny images" (2009). A binary file is a row of records: one label
byte (CIFAR-100: coarse, then fine), then 3×32×32 bytes of red, green and blue. The "python version" of the archives is
not read: it consists of pickles, and unpickling a file runs whatever code its author put in.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from foveal.data.folders import read_folder
from foveal.data.samples import Found, Samples
from foveal.errors import DataError

SIDE = 32
SITE = "https://www.cs.toronto.edu/~kriz/cifar.html"


def read_cifar10(folder: Path) -> Found:
    """CIFAR-10: data_batch_1.bin to data_batch_5.bin, test_batch.bin and batches.meta.txt, or class folders."""
    parts = {"train": [f"data_batch_{n}.bin" for n in range(1, 6)], "test": ["test_batch.bin"]}
    return _read(folder, parts, "batches.meta.txt", 10, 1)


def read_cifar100(folder: Path) -> Found:
    """CIFAR-100 with its 100 fine labels: train.bin, test.bin and fine_label_names.txt, or class folders."""
    return _read(folder, {"train": ["train.bin"], "test": ["test.bin"]}, "fine_label_names.txt", 100, 2)


def _read(folder: Path, parts: dict[str, list[str]], names: str, classes: int, label_bytes: int) -> Found:
    if (folder / "train").is_dir():
        return read_folder(folder)
    if not any((folder / name).is_file() for files in parts.values() for name in files):
        pickles = any((folder / name).exists() for name in ("data_batch_1", "batches.meta", "train", "meta"))
        why = " (these are the python version, pickles that could run any code and are not read)" if pickles else ""
        raise DataError(
            f"{folder} has no {parts['train'][0]}{why}; get the binary version from {SITE}, or class folders of images"
        )
    try:
        answers = (folder / names).read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{folder / names}, the names of the classes, cannot be read ({error}); {_again()}") from error
    if len(answers) != classes:
        raise DataError(f"{folder / names} names {len(answers)} classes instead of {classes}; {_again()}")
    splits = {}
    for split, files in parts.items():
        read = [read_records(folder / name, classes, label_bytes) for name in files]
        splits[split] = Samples(torch.cat([p for p, _ in read]), torch.cat([label for _, label in read]))
    return Found(answers, splits)


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
