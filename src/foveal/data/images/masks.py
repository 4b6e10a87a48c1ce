"""Masks that give every pixel a class: index images, or images whose colours stand for classes.

A class is a number from 0 on; 255 marks pixels that do not count. What a file may hold is checked when it is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from foveal.errors import DataError

IGNORED = 255
MOST_CLASSES = 254
BACKGROUND = ("background", "void", "unlabelled", "unlabeled", "other", "none")  # names of what is no object
_UNKNOWN = 254  # in a lookup table: no class has this value
Classes = NDArray[np.uint8]
"""Class of every pixel, (H, W)."""


def lookup(classes: Mapping[int, int]) -> Classes:
    """A table (256,) that turns the values of a mask file into classes; 255 is ignored unless it is a class.

    >>> table = lookup({7: 0, 8: 1})
    >>> int(table[8]), int(table[255])
    (1, 255)
    """
    table = np.full(256, _UNKNOWN, np.uint8)
    table[IGNORED] = IGNORED
    for value, label in classes.items():
        table[value] = label
    return table


def read_index_mask(path: Path, table: Classes) -> Classes:
    """The classes of an index image: grey values, or the numbers of a palette's colours.

    Args:
        path: the file.
        table: what its values mean, from :func:`lookup`.
    """
    values, mode = _opened(path)
    if values.ndim != 2:
        raise DataError(
            f"{path} is a colour image ({mode}), expected an index image with the number of a class in every pixel; "
            "a mask folder may name the colours of its classes in classes.txt"
        )
    if values.min(initial=0) < 0 or values.max(initial=0) > 255:
        raise DataError(f"{path} holds values up to {values.max()}; expected at most 255")
    classes = table[values.astype(np.uint8)]
    if (classes == _UNKNOWN).any():
        unknown = np.unique(values[classes == _UNKNOWN]).tolist()
        known = np.flatnonzero(table != _UNKNOWN).tolist()
        raise DataError(
            f"{path} holds {_listed(unknown)}, which is no class; expected {_ranges(known)}: correct the mask, or the "
            "list of classes"
        )
    return classes


def read_colour_mask(path: Path, colours: Sequence[tuple[int, int, int]], labels: Sequence[int]) -> Classes:
    """The classes of an image in which each class has its colour.

    Args:
        path: the file.
        colours: red, green and blue.
        labels: class of each colour.
    """
    values, _ = _opened(path, "RGB")
    packed = (values.astype(np.int64) * (65536, 256, 1)).sum(2)
    classes = np.full(packed.shape, _UNKNOWN, np.uint8)
    for (red, green, blue), label in zip(colours, labels, strict=True):
        classes[packed == red * 65536 + green * 256 + blue] = label
    if (unknown := classes == _UNKNOWN).any():
        red, green, blue = values[unknown][0].tolist()
        raise DataError(
            f"{path} has {int(unknown.sum()):,} pixels of colours that are no class, such as {red} {green} {blue}; add "
            "the colour to classes.txt, or save the mask without smoothing and JPEG compression"
        )
    return classes


def _opened(path: Path, mode: str | None = None) -> tuple[NDArray[np.int64], str]:
    try:
        with Image.open(path) as opened:
            image = opened.convert(mode) if mode else opened
            return np.asarray(image).astype(np.int64), opened.mode
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such mask file") from error
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError, SyntaxError, ValueError) as error:
        raise DataError(f"{path} cannot be read as a mask ({error}); remove or replace it") from error


def _listed(values: Sequence[int]) -> str:
    return ", ".join(map(str, values[:5])) + (f" and {len(values) - 5} more values" if len(values) > 5 else "")


def _ranges(values: Sequence[int]) -> str:
    """Numbers in short.

    >>> _ranges([0, 1, 2, 3, 7, 255])
    '0 to 3, 7, 255'
    """
    parts: list[list[int]] = []
    for value in values:
        if parts and value == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], value]
        else:
            parts.append([value])
    return ", ".join(" to ".join(map(str, part)) for part in parts)


def palette(names: Sequence[str]) -> list[str]:
    """Colours of classes as "#rrggbb": those of VOC, where a background, the first class, is black.

    >>> palette(["background", "dog", "cat"]), palette(["dog", "cat"])
    (['#000000', '#800000', '#008000'], ['#800000', '#008000'])
    """
    first = 0 if names and names[0].casefold() in BACKGROUND else 1
    colours = []
    for number in range(first, first + len(names)):
        red = green = blue = 0
        for bit in range(8):
            red, green, blue = (
                channel | ((number >> (3 * bit + place)) & 1) << (7 - bit)
                for place, channel in enumerate((red, green, blue))
            )
        colours.append(f"#{red:02x}{green:02x}{blue:02x}")
    return colours
