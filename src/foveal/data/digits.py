"""Handwritten digits: the official MNIST idx files, and scikit-learn's digits as the embedded stand-in."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from foveal.data.scenes import Sources
from foveal.errors import DataError

MNIST_FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
HOW_TO_GET_MNIST = "put the four official idx files (plain or .gz) there; torchvision.datasets.MNIST downloads them too"


def read_idx(path: Path) -> Tensor:
    """Read an idx file of unsigned bytes, plain or gzipped.

    Returns:
        uint8 tensor of the shape the header gives.
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
    found = []
    for name in MNIST_FILES[split]:
        candidates = [folder / name, folder / f"{name}.gz"]
        found.append(read_idx(next((c for c in candidates if c.exists()), candidates[1])))
    images, labels = found
    if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels):
        raise DataError(
            f"{folder}: {split} images {tuple(images.shape)} and labels {tuple(labels.shape)} do not belong together"
        )
    return images, labels.long()


def embedded(split: str) -> tuple[Tensor, Tensor]:
    """scikit-learn's 8×8 digits with a one-pixel border, the first 1,400 for ``train`` and the others for ``test``."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = torch.from_numpy(bunch.images * (255 / 16)).round().to(torch.uint8)
    part = slice(0, 1400) if split == "train" else slice(1400, None)
    return torch.nn.functional.pad(images[part], (1, 1, 1, 1)), torch.from_numpy(bunch.target[part]).long()


def by_class(images: Tensor, labels: Tensor) -> Sources:
    """Sort digits by class into :class:`Sources`."""
    order = labels.argsort(stable=True)
    counts = labels.bincount(minlength=10)
    if len(counts) != 10 or (counts == 0).any():
        raise DataError(f"expected digits of all ten classes 0–9, found {counts.tolist()} of each")
    return Sources(images[order], torch.cat([counts.new_zeros(1), counts.cumsum(0)]))
