"""Boxes around the objects of an image, with their classes."""

from __future__ import annotations

import colorsys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from PIL import Image, ImageDraw
from torch import Tensor

from foveal.errors import UserError
from foveal.see.draw._type import font, readable
from foveal.see.draw.overlay import _picture, _pixels
from foveal.see.draw.segmentation import _side_by_side

TURN = 0.618034  # of the circle of hues, from one class to the next
LETTERS, LINE = 11, 2  # pixels


class Found(NamedTuple):
    """Objects of an image.

    Attributes:
        boxes: left, top, right, bottom in pixels of the image, (m, 4).
        labels: number of each class, from 1 on, (m,).
        scores: of each, (m,), or None for true objects.
    """

    boxes: Tensor
    labels: Tensor
    scores: Tensor | None = None


def class_colour(label: int) -> tuple[int, int, int]:
    """A colour for the class with this number; neighbours differ.

    >>> class_colour(1)
    (230, 48, 137)
    """
    red, green, blue = colorsys.hsv_to_rgb(0.3 + TURN * label, 0.79, 0.9)
    return round(255 * red), round(255 * green), round(255 * blue)


def boxes(image: Tensor, found: Found, names: Sequence[str], *, size: int | None = None) -> Image.Image:
    """An image with its objects framed and named; the surest are drawn last.

    Args:
        image: (3, H, W), uint8, or float in [0, 1].
        found: the objects.
        names: of the classes; the first has label 1.
        size: longest side of the picture; that of the image by default.

    Returns:
        An RGB picture.

    >>> import torch
    >>> found = Found(torch.tensor([[10.0, 20.0, 60.0, 70.0]]), torch.tensor([1]))
    >>> boxes(torch.zeros(3, 80, 100), found, ["cat"], size=200).size
    (200, 160)
    """
    labels, corners = found.labels.detach().cpu().tolist(), found.boxes.detach().cpu().float()
    if corners.shape != (len(labels), 4):
        raise UserError(f"boxes are {tuple(corners.shape)}; expected ({len(labels)}, 4), one for each label")
    if labels and not 1 <= min(labels) <= max(labels) <= len(names):
        raise UserError(f"labels are from {min(labels)} to {max(labels)}; expected 1 to {len(names)}, the classes")
    picture = _picture(_pixels(image))
    scale = 1.0 if size is None else size / max(picture.size)
    if size is not None:
        sides = (max(1, round(side * scale)) for side in picture.size)
        picture = picture.resize(tuple(sides), Image.Resampling.BILINEAR)  # type: ignore[arg-type]
    scores = None if found.scores is None else found.scores.detach().cpu().float()
    order = range(len(labels)) if scores is None else scores.argsort().tolist()
    for n in order:
        words = names[labels[n] - 1] + ("" if scores is None else f" {scores[n]:.0%}")
        _frame(picture, (corners[n] * scale).tolist(), class_colour(labels[n]), words)
    return picture


def _frame(picture: Image.Image, box: Sequence[float], colour: tuple[int, int, int], words: str) -> None:
    draw, face = ImageDraw.Draw(picture), font(LETTERS)
    left, top, right, bottom = box
    draw.rectangle((left, top, max(left, right - 1), max(top, bottom - 1)), outline=colour, width=LINE)
    wide, high = face.getlength(words) + 4, LETTERS + 4
    x = min(max(0.0, left), max(0.0, picture.width - wide))
    y = top - high if top >= high else min(top, picture.height - high)  # above the box, else inside of it
    draw.rectangle((x, y, x + wide, y + high), fill=colour)
    draw.text((x + 2, y + 1), words, readable(colour), face)


def detections(
    image: Tensor,
    found: Mapping[str, Found],
    names: Sequence[str],
    *,
    panels: Mapping[str, Image.Image] | None = None,
    size: int = 480,
) -> Image.Image:
    """What several models find in an image, or what is true, side by side.

    Args:
        image: (3, H, W), uint8, or float in [0, 1].
        found: title and objects of each panel.
        names: of the classes; the first has label 1.
        panels: title and picture of further panels.
        size: longest side of a panel.

    Returns:
        An RGB picture.

    >>> import torch
    >>> nothing = Found(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64))
    >>> detections(torch.zeros(3, 40, 80), {"truth": nothing}, ["cat"]).mode
    'RGB'
    """
    if not found:
        raise UserError("there is nothing to draw; give the objects of at least one model")
    pictures = {title: boxes(image, objects, names, size=size) for title, objects in found.items()}
    return _side_by_side({**pictures, **(panels or {})}, size)
