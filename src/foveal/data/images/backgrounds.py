"""Photographs to paint scenes on: any folder of images, cut into square tiles."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from foveal.data.images.reading import image_files, read_image
from foveal.errors import DataError

MOST = 20_000  # photographs used of a folder; 128-pixel tiles of as many take about 1.5 GB


def photographs(folder: Path, side: int, part: str) -> Tensor:
    """Square tiles of the photographs below ``folder`` that belong to one split.

    The files are dealt out by name, so that no photograph serves two splits: of every five in order, the first three go
    to ``train``, the fourth to ``val`` and the fifth to ``test``.

    Args:
        folder: searched recursively for image files.
        side: each photograph's short side is resized to this, and the long side is cut into as many squares as cover
            it.
        part: ``train``, ``val`` or ``test``.

    Returns:
        uint8 (P, 3, side, side).
    """
    remainders = {"train": (0, 1, 2), "val": (3,), "test": (4,)}[part]
    files = photograph_files(folder)[:MOST]
    return torch.cat([tiles(file, side) for i, file in enumerate(files) if i % 5 in remainders])


def photograph_files(folder: Path) -> list[Path]:
    """All image files below ``folder``, sorted."""
    if not folder.is_dir():
        raise DataError(f"no folder of photographs at {folder}; put any natural photographs there")
    files = image_files(folder)
    if len(files) < 5:
        raise DataError(f"{folder} holds {len(files)} image files; at least five are needed for separate splits")
    return files


def tiles(file: Path, side: int) -> Tensor:
    """Squares of one photograph, uint8 (P, 3, side, side)."""
    image = read_image(file)
    short, long = sorted(image.size)
    if short < 8:
        raise DataError(f"{file} is only {image.size[0]}×{image.size[1]} pixels; remove it")
    size = [max(side, round(s * side / short)) for s in image.size]
    pixels = torch.from_numpy(np.array(image.resize(size, Image.Resampling.BICUBIC))).permute(2, 0, 1)
    count = -(-long // short)
    starts = torch.linspace(0, max(size) - side, count).round().int().tolist()
    if size[0] >= size[1]:
        return torch.stack([pixels[:, :side, s : s + side] for s in starts])
    return torch.stack([pixels[:, s : s + side, :side] for s in starts])
