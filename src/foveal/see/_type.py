"""Letters and colours of pictures that hold text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from foveal.errors import UserError

INK, MUTED, RULE, PAPER = "#1c1b1a", "#6f6b66", "#d9d4cb", "#ffffff"
PALE, STRONG = (253, 238, 214), (196, 64, 16)  # of no importance, of the greatest
FINE = 3  # pictures are drawn so many times larger and shrunk, which smooths edges


@lru_cache(maxsize=32)
def font(size: int, bold: bool = False) -> ImageFont.FreeTypeFont:
    """DejaVu Sans, which comes with matplotlib and knows the letters of most languages."""
    from matplotlib import get_data_path

    return ImageFont.truetype(f"{get_data_path()}/fonts/ttf/DejaVuSans{'-Bold' if bold else ''}.ttf", size)


def width(text: str, face: ImageFont.FreeTypeFont) -> float:
    """Of one line of text in pixels."""
    return face.getlength(text)


def shortened(text: str, face: ImageFont.FreeTypeFont, most: float) -> str:
    """``text``, cut with an ellipsis where it is wider than ``most`` pixels; control characters become spaces."""
    text = "".join(letter if letter.isprintable() else " " for letter in text)
    cut = text
    while cut and width(cut, face) > most:
        cut = cut[:-2].rstrip() + "…" if len(cut) > 1 else ""
    return cut


def turned(text: str, face: ImageFont.FreeTypeFont, degrees: float, ink: str) -> Image.Image:
    """One line of text, turned counter-clockwise about the middle of the picture that holds it."""
    high = sum(face.getmetrics())
    line = Image.new("RGBA", (max(1, round(width(text, face))), high), (0, 0, 0, 0))
    ImageDraw.Draw(line).text((0, 0), text, ink, face)
    return line.rotate(degrees, Image.Resampling.BICUBIC, expand=True)


def shade(strength: float) -> tuple[int, int, int]:
    """Colour of a strength in [0, 1], from pale to strong."""
    r, g, b = (round(low + (high - low) * strength) for low, high in zip(PALE, STRONG, strict=True))
    return r, g, b


def readable(background: tuple[int, int, int]) -> str:
    """Black or white, whichever reads better on ``background``."""
    r, g, b = background
    return INK if 0.299 * r + 0.587 * g + 0.114 * b > 140 else PAPER


def numbers(values: Sequence[float] | Tensor, name: str, count: int) -> list[float]:
    """One finite, not negative number for each of ``count`` words."""
    flat = torch.as_tensor(values).detach().cpu().double()
    if flat.ndim != 1 or len(flat) != count:
        raise UserError(f"{name} {tuple(flat.shape)} must be one number for each of the {count} words")
    if not bool(((flat >= 0) & flat.isfinite()).all()):
        raise UserError(f"{name} must be finite and not negative; give weights after the softmax")
    return flat.tolist()


def matrix(weights: Sequence[Sequence[float]] | Tensor, name: str, count: int) -> Tensor:
    """A finite, not negative number for each pair of ``count`` words, float64 (N, N)."""
    square = torch.as_tensor(weights).detach().cpu().double()
    if square.shape != (count, count):
        raise UserError(f"{name} {tuple(square.shape)} must be ({count}, {count}), a row and a column for each word")
    if not bool(((square >= 0) & square.isfinite()).all()):
        raise UserError(f"{name} must be finite and not negative; give weights after the softmax")
    return square


def some_words(words: Sequence[str]) -> list[str]:
    """The words, of which there must be some."""
    if isinstance(words, str):
        raise UserError("words must be a list of words, got one text; split it first")
    if not words:
        raise UserError("there are no words to draw")
    return [str(word) for word in words]
