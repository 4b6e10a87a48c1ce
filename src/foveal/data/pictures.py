"""Pictures to lie behind scenes: any folder of photographs, or generated textures as the embedded stand-in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from foveal.data._random import uniform
from foveal.errors import DataError

SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff"}
MOST = 20_000  # photographs used of a folder; 128-pixel tiles of as many take about 1.5 GB


def read_image(path: Path) -> Image.Image:
    """Open an image file as RGB, or say what is wrong with it; 16-bit greys and floats from 0 to 1 are scaled."""
    try:
        with Image.open(path) as opened:
            image = ImageOps.exif_transpose(opened)
            if image.mode not in ("I", "F") and not image.mode.startswith("I;16"):
                return image.convert("RGB")
            pixels = np.asarray(image).astype(np.float64)
            known = image.mode.startswith("I;16") or opened.format == "PNG"  # 32 bits in memory, 16 in the file
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such image file") from error
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError, SyntaxError, ValueError) as error:
        raise DataError(f"{path} cannot be read as an image ({error}); remove or replace it") from error
    return Image.fromarray(_bytes(path, pixels, image.mode, known)).convert("RGB")


def _bytes(path: Path, pixels: NDArray[np.float64], mode: str, known: bool) -> NDArray[np.uint8]:
    """Grey values (h, w) of a deep ``mode`` as bytes; ``known``: white is 65535 whatever the values are."""
    least, greatest = float(pixels.min()), float(pixels.max())
    if mode == "F":
        white, fits = 1, 0 <= least <= greatest <= 1
    else:
        white, fits = 65535, known or greatest == least == 0 or (least >= 0 and 255 < greatest <= 65535)
    if not fits:
        expected = "floats from 0 to 1" if mode == "F" else "16 bits"
        raise DataError(
            f"{path} holds {'floats' if mode == 'F' else '32-bit numbers'} from {least:g} to {greatest:g}, and nothing "
            f"says which is white; save it with 8 bits or as {expected}"
        )
    return (pixels * (255 / white)).round().astype(np.uint8)


def photographs(folder: Path, side: int, part: str) -> Tensor:
    """Square tiles of the photographs below ``folder`` that belong to one split.

    The files are dealt out by name, so that no photograph serves two splits: of every five in order, the first three go
    to ``train``, the fourth to ``val`` and the fifth to ``test``.

    Args:
        folder: searched recursively for image files.
        side: each photograph's short side is resized to this and the long side cut into as many squares as cover it.
        part: ``train``, ``val`` or ``test``.

    Returns:
        uint8 (P, 3, side, side).
    """
    if not folder.is_dir():
        raise DataError(f"no folder of photographs at {folder}; put any natural photographs there")
    files = sorted(p for p in folder.rglob("*") if p.suffix.lower() in SUFFIXES)
    if len(files) < 5:
        raise DataError(f"{folder} holds {len(files)} image files; at least five are needed for separate splits")
    places = {"train": (0, 1, 2), "val": (3,), "test": (4,)}[part]
    chosen = [file for i, file in enumerate(files[:MOST]) if i % 5 in places]
    return torch.cat([_tiles(file, side) for file in chosen])


def _tiles(file: Path, side: int) -> Tensor:
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


def textures(side: int, part: str, count: int = 96) -> Tensor:
    """Generated textures, different ones for each split: smooth colour noise of several frequencies and contrasts.

    Returns:
        uint8 (count, 3, side, side).
    """
    seed = {"train": 1, "val": 2, "test": 3}[part]
    which = torch.arange(count)[:, None]
    total = torch.zeros(count, 3, side, side, dtype=torch.float64)
    for octave, cells in enumerate((2, 5, 11, 23)):
        grid = uniform(seed, octave, which, torch.arange(3 * cells * cells)).view(count, 3, cells, cells)
        weight = uniform(seed, 10 + octave, which)[..., None, None] / (1 + 0.5 * octave)
        total += weight * (F.interpolate(grid, (side, side), mode="bicubic", align_corners=False) - 0.5)
    base = uniform(seed, 20, which, torch.arange(3))[..., None, None]
    base, total = (0.4 * v + 0.6 * v.mean(1, keepdim=True) for v in (base, total))  # muted, as photographs are
    return ((base + total).clamp(0, 1) * 255).round().to(torch.uint8)
