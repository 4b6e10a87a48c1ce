"""MNIST: the official idx files, plain or gzipped; MREF, MDIST and MBG are painted from its digits.

LeCun, Cortes, Burges: "The MNIST database of handwritten digits" (http://yann.lecun.com/exdb/mnist).
"""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from foveal.data.place import GZIPPED, Place
from foveal.errors import DataError

MNIST_FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
HOW_TO_GET_MNIST = (
    "put the four official idx files (plain or .gz) in mnist/; torchvision.datasets.MNIST downloads them too"
)
MNIST = Place(
    folders=("mnist",),
    needs=tuple(f"{name}{GZIPPED}" for names in MNIST_FILES.values() for name in names),
    how=HOW_TO_GET_MNIST,
    option="",
    instead="use data.digits=embedded for scikit-learn's digits",
)


def read_idx(path: Path) -> Tensor:
    """Read an idx file of unsigned bytes, plain or gzipped.

    Returns:
        uint8 tensor of the shape in the header.
    """
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except FileNotFoundError as error:
        raise DataError(f"{path} is missing; {HOW_TO_GET_MNIST}") from error
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read ({error}); it is damaged, get it again") from error
    if len(raw) < 4 or raw[:3] != b"\0\0\x08" or raw[3] not in (1, 2, 3) or len(raw) < 4 + 4 * raw[3]:
        raise DataError(f"{path} is not an idx file of bytes; get the official file")
    shape = tuple(int.from_bytes(raw[4 + 4 * i : 8 + 4 * i], "big") for i in range(raw[3]))
    body = raw[4 + 4 * raw[3] :]
    if len(body) != int(np.prod(shape)):
        raise DataError(
            f"{path} is damaged: its header promises {np.prod(shape):,} bytes, it has {len(body):,}; get it again"
        )
    return torch.from_numpy(np.frombuffer(body, dtype=np.uint8).reshape(shape).copy())


def mnist(folder: Path, split: str) -> tuple[Tensor, Tensor]:
    """Images uint8 (M, 28, 28) and labels int64 (M,) of ``train`` or ``test``."""
    images, labels = (read_idx(idx_file(folder, name)) for name in MNIST_FILES[split])
    if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels):
        raise DataError(
            f"{folder}: {split} images {tuple(images.shape)} and labels {tuple(labels.shape)} do not belong together"
        )
    return images, labels.long()


def idx_file(folder: Path, name: str) -> Path:
    """The plain file, if it is there, else the gzipped one."""
    plain = folder / name
    return plain if plain.exists() else folder / f"{name}.gz"
