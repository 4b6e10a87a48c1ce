"""Letters and colours of pictures that hold text."""

from __future__ import annotations

import re
from functools import lru_cache

from PIL import Image, ImageDraw, ImageFont

INK, MUTED, RULE, PAPER = "#1c1b1a", "#6f6b66", "#d9d4cb", "#ffffff"
PALE, STRONG = (253, 238, 214), (196, 64, 16)  # colours of the least and of the greatest importance
FINE = 3  # pictures are drawn this many times larger and shrunk, which smooths edges

Font = ImageFont.FreeTypeFont


@lru_cache(maxsize=32)
def font(size: int, bold: bool = False) -> Font:
    """DejaVu Sans, which comes with matplotlib and covers most scripts."""
    from matplotlib import get_data_path

    return ImageFont.truetype(f"{get_data_path()}/fonts/ttf/DejaVuSans{'-Bold' if bold else ''}.ttf", size)


def width(text: str, face: Font) -> float:
    """Width of one line of text in pixels."""
    return face.getlength(text)


def printable(text: str) -> str:
    """``text`` with a space in place of every control character."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def shortened(text: str, face: Font, most: float) -> str:
    """``text`` without control characters, cut with an ellipsis where it is wider than ``most`` pixels."""
    cut = printable(text)
    while cut and width(cut, face) > most:
        cut = cut[:-2].rstrip() + "…" if len(cut) > 1 else ""
    return cut


def lines(text: str, face: Font, most: float) -> list[str]:
    """``text`` wrapped to lines no wider than ``most`` pixels, all of it.

    Lines break at spaces and after ``_``, ``-``, ``/``, ``.`` and ``=``; where a piece is too wide alone, anywhere.
    """
    wrapped = [""]
    for piece in re.findall(r"[^\s_\-/.=]*[\s_\-/.=]?", printable(text).strip()):
        if wrapped[-1] and width(wrapped[-1] + piece.rstrip(), face) > most:
            wrapped.append("")
        for letter in piece:
            if wrapped[-1] and width(wrapped[-1] + letter.rstrip(), face) > most:
                wrapped.append("")
            wrapped[-1] += letter
    return [line.strip() for line in wrapped]


def turned(text: str, face: Font, degrees: float, ink: str) -> Image.Image:
    """One line of text, turned counter-clockwise about the middle of the picture that holds it."""
    height = sum(face.getmetrics())
    line = Image.new("RGBA", (max(1, round(width(text, face))), height), (0, 0, 0, 0))
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
