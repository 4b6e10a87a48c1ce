"""Image files as RGB images."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from foveal.errors import DataError

IMAGE_ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff")


def image_files(folder: Path, deep: bool = True) -> list[Path]:
    """The image files in ``folder``, sorted, and in folders below it if ``deep``; hidden files do not count."""
    files = []
    for parent, folders, names in os.walk(folder, followlinks=True):
        files += [Path(parent, n) for n in names if not n.startswith(".") and n.lower().endswith(IMAGE_ENDINGS)]
        if not deep:
            folders.clear()
    return sorted(files)


READ_ERRORS = (
    OSError, UnidentifiedImageError, Image.DecompressionBombError, SyntaxError, ValueError, struct.error
)  # fmt: skip


def unreadable(path: Path, error: Exception) -> DataError:
    """What to raise where Pillow raises one of :data:`READ_ERRORS`."""
    if isinstance(error, Image.DecompressionBombError):
        return DataError(f"{path} has more pixels than Pillow decodes ({error}); make it smaller")
    return DataError(f"{path} cannot be read as an image ({error}); remove or replace it")


def read_header(path: Path) -> None:
    """Raise a ``DataError`` if the file is missing, or if its first bytes are not those of an image."""
    try:
        Image.open(path).close()
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such image file") from error
    except READ_ERRORS as error:
        raise unreadable(path, error) from error


def read_image(path: Path, *, turn: bool = True) -> Image.Image:
    """Open an image file as RGB; 16-bit grey values and floats from 0 to 1 are scaled to 8 bits.

    Args:
        path: the file.
        turn: turn and mirror the image as its EXIF orientation says.

    Raises:
        DataError: if the file is missing or damaged, or nothing says which of its values is white.
    """
    try:
        with Image.open(path) as opened:
            image = ImageOps.exif_transpose(opened) if turn else opened
            if image.mode not in ("I", "F") and not image.mode.startswith("I;16"):
                return image.convert("RGB")
            pixels = np.asarray(image).astype(np.float64)
            sixteen_bits = image.mode.startswith("I;16") or opened.format == "PNG"  # Pillow may load them as 32 bits
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such image file") from error
    except READ_ERRORS as error:
        raise unreadable(path, error) from error
    return Image.fromarray(_to_bytes(path, pixels, image.mode, sixteen_bits)).convert("RGB")


def _to_bytes(path: Path, pixels: NDArray[np.float64], mode: str, sixteen_bits: bool) -> NDArray[np.uint8]:
    """Grey values (H, W) of a deep ``mode`` as bytes; ``sixteen_bits``: white is always 65535."""
    low, high = float(pixels.min()), float(pixels.max())
    if mode == "F":
        white, valid = 1, 0 <= low <= high <= 1
    else:
        white, valid = 65535, sixteen_bits or high == low == 0 or (low >= 0 and 255 < high <= 65535)
    if not valid:
        expected = "floats from 0 to 1" if mode == "F" else "16 bits"
        raise DataError(
            f"{path} holds {'floats' if mode == 'F' else '32-bit numbers'} from {low:g} to {high:g}, and nothing "
            f"says which is white; save it with 8 bits or as {expected}"
        )
    return (pixels * (255 / white)).round().astype(np.uint8)
