"""How much each word of a sentence matters: as a clockwise ring, or as highlighted text.

The ring is how Wang, Samari, Kim, Chaudhuri, Siddiqi, "FAN: Focused Attention Networks"
(https://arxiv.org/abs/1905.11498), draw a sentence: from the top, clockwise. Importance is what
:func:`foveal.measure.word_importance` returns, and 1 is the average of it; the greatest sets the scale of a picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from PIL import Image, ImageDraw
from torch import Tensor

from foveal.errors import unknown
from foveal.see.draw._inputs import PairWeights, numbers, some_words
from foveal.see.draw._type import FINE, INK, PAPER, Font, font, readable, shade, shortened, width
from foveal.see.draw.ring import ring, ring_picture

Style = Literal["ring", "text"]


def words(
    words: Sequence[str],
    importance: Sequence[float] | Tensor,
    *,
    style: Style = "ring",
    weights: PairWeights | None = None,
    title: str = "",
    size: int = 480,
) -> Image.Image:
    """Draw the importance of every word of a sentence.

    Args:
        words: N words.
        importance: (N,), finite and not negative.
        style: ``ring``: words clockwise from the top, each with a bar whose length is its importance; ``text``:
            the sentence, with stronger colour behind more important words.
        weights: (N, N), row m attending to column n, or a pairwise record of one sample; the strongest pairs are drawn
            across the ring.
        title: a line above the picture.
        size: width in pixels, and height of a ring.

    Returns:
        An RGB picture on white.

    >>> words(["the", "car", "is", "fast"], [0.2, 2.0, 0.3, 1.5], size=300).size
    (300, 300)
    """
    if style == "ring":
        return ring_picture(ring(words, importance, weights), title, size)
    if style != "text":
        raise unknown("style", str(style), ("ring", "text"))
    sentence = some_words(words)
    return _text(sentence, numbers(importance, "importance", len(sentence)), title, size)


def _text(words: list[str], values: list[float], title: str, size: int) -> Image.Image:
    face, greatest = font(16 * FINE), max(values) or 1.0
    margin, line, pad = 16 * FINE, 30 * FINE, 4 * FINE
    rows = wrapped(words, face, FINE * size - 2 * margin, pad)
    head = 30 * FINE if title else 0
    height = 2 * margin + head + line * len(rows)
    canvas = Image.new("RGB", (FINE * size, height), PAPER)
    draw = ImageDraw.Draw(canvas)
    if title:
        bold = font(15 * FINE, True)
        draw.text((margin, margin), shortened(title, bold, FINE * size - 2 * margin), INK, bold)
    highlight(draw, rows, [value / greatest for value in values], (margin, margin + head), line, pad, face)
    return canvas.resize((size, height // FINE), Image.Resampling.LANCZOS)


def wrapped(words: list[str], face: Font, room: float, pad: float) -> list[list[tuple[str, float]]]:
    """Rows of words with their left edges, none wider than ``room``; a word that alone is too wide is cut."""
    rows: list[list[tuple[str, float]]] = [[]]
    left = 0.0
    for word in words:
        label = shortened(word, face, room - 2 * pad)
        patch = width(label, face) + 2 * pad
        if rows[-1] and left + patch > room:
            rows.append([])
            left = 0.0
        rows[-1].append((label, left))
        left += patch + pad
    return rows


def highlight(
    draw: ImageDraw.ImageDraw,
    rows: list[list[tuple[str, float]]],
    strengths: Sequence[float],
    corner: tuple[float, float],
    line: float,
    pad: float,
    face: Font,
) -> None:
    """Draw rows of words from ``corner`` downwards, each on a patch as strong as its strength in [0, 1]."""
    remaining = iter(strengths)
    for r, row in enumerate(rows):
        for word, left in row:
            strength = next(remaining)
            x, y = corner[0] + left, corner[1] + r * line
            right = x + width(word, face) + 2 * pad
            colour = shade(strength) if strength > 0.02 else (255, 255, 255)
            draw.rounded_rectangle([x, y + 0.08 * line, right, y + 0.92 * line], 4 * FINE, colour)
            draw.text((x + pad, y + line / 2), word, readable(colour), face, "lm")
