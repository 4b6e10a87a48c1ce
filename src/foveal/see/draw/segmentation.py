"""Classes of pixels painted over an image, with a legend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

import torch
from PIL import Image, ImageDraw
from torch import Tensor

from foveal.errors import UserError
from foveal.see.draw._type import INK, MUTED, PAPER, font, lines, width
from foveal.see.draw.overlay import _picture, _pixels

GAP, SWATCH, LETTERS = 10, 12, 12  # pixels
ACROSS = 4  # panels beside each other; more of them are in further rows
LEAST_SHARE = 0.001  # of the pixels of a picture, for a class to be in the legend


def painted(image: Tensor, labels: Tensor, colours: Sequence[str], *, alpha: float = 0.6) -> Image.Image:
    """An image with its classes laid over it as colours; pixels without a class keep theirs.

    Args:
        image: (3, H, W), uint8, or float in [0, 1].
        labels: class of each pixel, int (H, W); a number that is no class, such as 255, is left as it is.
        colours: of the classes, "#rrggbb".
        alpha: opacity of the colours, in [0, 1].

    Returns:
        An RGB picture of W×H pixels.

    >>> picture = painted(torch.zeros(3, 1, 2), torch.tensor([[0, 255]]), ["#ff0000"], alpha=1)
    >>> picture.getpixel((0, 0)), picture.getpixel((1, 0))
    ((255, 0, 0), (0, 0, 0))
    """
    if not 0 <= alpha <= 1:
        raise UserError(f"alpha={alpha} is not an opacity; give a number from 0 (image only) to 1 (colours only)")
    pixels = _pixels(image)
    if labels.shape != pixels.shape[1:] or labels.is_floating_point():
        raise UserError(
            f"labels are {labels.dtype} {tuple(labels.shape)}; expected the class of every pixel, int "
            f"{tuple(pixels.shape[1:])}"
        )
    table = torch.tensor([[int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)] for colour in colours])
    labels = labels.detach().cpu().long()
    known = (labels >= 0) & (labels < len(colours))
    colour = table[labels.where(known, 0)].permute(2, 0, 1)
    return _picture(torch.where(known, pixels + alpha * (colour - pixels), pixels))


def segmentation(
    image: Tensor,
    labels: Mapping[str, Tensor],
    names: Sequence[str],
    colours: Sequence[str],
    *,
    panels: Mapping[str, Image.Image] | None = None,
    size: int = 480,
    alpha: float = 0.6,
) -> Image.Image:
    """An image, and beside it what several models, or a mask, say of its pixels; the classes are named below.

    Args:
        image: (3, H, W), uint8, or float in [0, 1].
        labels: title and classes int (H, W) of each panel.
        names: of the classes.
        colours: of the classes, "#rrggbb".
        panels: further pictures by title, such as attention.
        size: longest side of a panel.
        alpha: opacity of the colours.

    Returns:
        An RGB picture.

    >>> classes = torch.tensor([[0, 1]]).repeat_interleave(40, 0).repeat_interleave(40, 1)
    >>> segmentation(torch.zeros(3, 40, 80), {"truth": classes}, ["sky", "sea"], ["#0000ff", "#00ffff"]).mode
    'RGB'
    """
    if len(names) != len(colours):
        raise UserError(f"there are {len(names)} names and {len(colours)} colours; give each class one of each")
    pictures = {"image": _picture(_pixels(image))}
    pictures |= {title: painted(image, values, colours, alpha=alpha) for title, values in labels.items()}
    pictures |= panels or {}
    classes = torch.cat([values.detach().cpu().flatten().long() for values in labels.values()])
    drawn = _side_by_side(pictures, size)
    return _below(drawn, legend(_present(classes, len(names)), names, colours, drawn.width))


def _present(classes: Tensor, count: int) -> list[int]:
    """Numbers of the classes that have more than a few of the pixels."""
    classes = classes[(classes >= 0) & (classes < count)]
    shares = classes.bincount(minlength=count) / max(1, len(classes))
    return (shares >= LEAST_SHARE).nonzero()[:, 0].tolist()


def _side_by_side(pictures: Mapping[str, Image.Image], size: int) -> Image.Image:
    """Pictures with their titles, in as many rows as they need; the longest side of all is ``size``."""
    largest = max(max(picture.size) for picture in pictures.values())
    shown = [
        (title, picture.resize([max(1, round(side * size / largest)) for side in picture.size]))
        for title, picture in pictures.items()
    ]
    rows = (_row(dict(shown[first : first + ACROSS])) for first in range(0, len(shown), ACROSS))
    return reduce(_below, rows)


def _row(shown: Mapping[str, Image.Image]) -> Image.Image:
    face = font(LETTERS, bold=True)
    titles = {title: lines(title, face, picture.width) for title, picture in shown.items()}
    head = GAP + (LETTERS + 4) * max(map(len, titles.values()))
    across = GAP + sum(picture.width + GAP for picture in shown.values())
    row = Image.new("RGB", (across, head + max(picture.height for picture in shown.values()) + GAP), PAPER)
    draw, left = ImageDraw.Draw(row), GAP
    for title, picture in shown.items():
        for number, line in enumerate(titles[title]):
            draw.text((left, GAP // 2 + number * (LETTERS + 4)), line, INK, face)
        row.paste(picture, (left, head))
        left += picture.width + GAP
    return row


def legend(classes: Sequence[int], names: Sequence[str], colours: Sequence[str], across: int) -> Image.Image:
    """Name and colour of some classes, in as many lines as they need in a picture of width ``across``."""
    face, places, left, top = font(LETTERS), [], GAP, 0
    for number in classes:
        wide = SWATCH + 6 + round(width(names[number], face)) + 2 * GAP
        if left > GAP and left + wide > across:
            left, top = GAP, top + LETTERS + GAP
        places.append((number, left, top))
        left += wide
    picture = Image.new("RGB", (across, top + LETTERS + GAP + GAP), PAPER)
    draw = ImageDraw.Draw(picture)
    for number, x, y in places:
        draw.rectangle((x, y + 2, x + SWATCH, y + 2 + SWATCH), colours[number], MUTED)
        draw.text((x + SWATCH + 6, y), names[number], INK, face)
    return picture


def _below(first: Image.Image, second: Image.Image) -> Image.Image:
    whole = Image.new("RGB", (max(first.width, second.width), first.height + second.height), PAPER)
    whole.paste(first, (0, 0))
    whole.paste(second, (0, first.height))
    return whole
