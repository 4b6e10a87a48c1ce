"""How much each word of a sentence matters: as a clockwise ring, or as highlighted text.

The ring is how Wang, Samari, Kim, Chaudhuri, Siddiqi, "FAN: Focused Attention Networks"
(https://arxiv.org/abs/1905.11498), draw a sentence: from the top, clockwise. Importance is what
:func:`foveal.measure.word_importance` returns, and 1 is the average of it; the greatest sets the scale of a picture.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from foveal.errors import unknown
from foveal.see._type import (
    FINE,
    INK,
    MUTED,
    PAPER,
    RULE,
    font,
    matrix,
    numbers,
    readable,
    shade,
    shortened,
    some_words,
    turned,
    width,
)

Style = Literal["ring", "text"]
Weights = Sequence[Sequence[float]] | Tensor
CHORDS = 24  # most pairs drawn across a ring


def words(
    words: Sequence[str],
    importance: Sequence[float] | Tensor,
    *,
    style: Style = "ring",
    weights: Weights | None = None,
    title: str = "",
    size: int = 480,
) -> Image.Image:
    """Draw the importance of every word of a sentence.

    Args:
        words: N words.
        importance: (N,), finite and not negative.
        style: ``ring``: words clockwise from the top, each with a bar as long as it is important; ``text``: the
            sentence, its words the stronger coloured the more important they are.
        weights: (N, N), row m attending to column n; the strongest pairs are drawn across the ring.
        title: a line above the picture.
        size: width in pixels, and height of a ring.

    Returns:
        An RGB picture on white.

    >>> words(["the", "car", "is", "fast"], [0.2, 2.0, 0.3, 1.5], size=300).size
    (300, 300)
    """
    said = some_words(words)
    values = numbers(importance, "importance", len(said))
    if style == "text":
        return _text(said, values, title, size)
    if style != "ring":
        raise unknown("style", str(style), ("ring", "text"))
    pairs = _chords(matrix(weights, "weights", len(said))) if weights is not None else []
    return _ring(said, values, pairs, title, size)


def ring_svg(
    words: Sequence[str],
    importance: Sequence[float] | Tensor,
    *,
    weights: Weights | None = None,
    ink: str = "currentColor",
) -> str:
    """The ring of :func:`words` as inline SVG, for a page in light or dark.

    >>> ring_svg(["fast", "car"], [0.5, 1.5]).count("<text")
    2
    """
    said = some_words(words)
    values = numbers(importance, "importance", len(said))
    pairs = _chords(matrix(weights, "weights", len(said))) if weights is not None else []
    spokes, drawn = _spokes(said, values), []
    drawn.append(f'<circle r="{INNER}" fill="none" stroke="currentColor" opacity=".25"/>')
    drawn.append(f'<path d="M-4 {-INNER + 9}L4 {-INNER + 14}L-4 {-INNER + 19}Z" fill="currentColor" opacity=".45"/>')
    for m, n, strength in pairs:
        (x0, y0), (x1, y1) = spokes[m].at(INNER), spokes[n].at(INNER)
        curve = f"M{x0:.1f} {y0:.1f}Q0 0 {x1:.1f} {y1:.1f}"
        look = f'stroke="{ink}" stroke-width="{0.6 + 2.4 * strength:.1f}" opacity="{0.15 + 0.6 * strength:.2f}"'
        drawn.append(f'<path d="{curve}" fill="none" {look}/>')
    for spoke in spokes:
        path = " ".join(f"{x:.1f} {y:.1f}" for x, y in spoke.bar())
        bar = f'<path d="M{path}Z" style="fill:{ink}" opacity="{0.25 + 0.75 * spoke.strength:.2f}"/>'
        x, y = spoke.at(INNER + LONGEST + 6)
        anchor = "end" if spoke.left else "start"
        place = f'transform="translate({x:.1f} {y:.1f}) rotate({-spoke.tilt:.1f})"'
        weight = ' font-weight="700"' if spoke.strength > 0.66 else ""
        label = f'<text {place} text-anchor="{anchor}" dy=".35em"{weight}>{escape(_cut(spoke.word))}</text>'
        drawn.append(f"<g><title>{escape(spoke.word)}: {spoke.value:.2f}</title>{bar}{label}</g>")
    return (
        f'<svg class="ring" viewBox="-190 -190 380 380" role="img" aria-label="importance of each word, clockwise" '
        f'font-size="12" fill="currentColor">{"".join(drawn)}</svg>'
    )


def text_html(words: Sequence[str], importance: Sequence[float] | Tensor, most: float | None = None) -> str:
    """The highlighted text of :func:`words` as an HTML fragment; the report's style sheet colours it.

    Args:
        words: N words.
        importance: (N,), finite and not negative.
        most: what counts as the strongest; the greatest importance if left out.

    >>> text_html(["a", "<b>"], [0.0, 1.0])
    '<span class="w" style="--s:0%">a</span> <span class="w" style="--s:100%">&lt;b&gt;</span>'
    """
    said = some_words(words)
    values = numbers(importance, "importance", len(said))
    top = (max(values) if most is None else most) or 1.0
    return " ".join(
        f'<span class="w" style="--s:{100 * value / top:.0f}%">{escape(word)}</span>'
        for word, value in zip(said, values, strict=True)
    )


# The ring, in units of which 190 are half its side ---------------------------

INNER, LONGEST, REACH = 52.0, 52.0, 190.0  # radius of the ring, length of the longest bar, half the side


@dataclass(frozen=True)
class _Spoke:
    """One word of a ring: its angle clockwise from the top in radians, that of its half width, its strength."""

    word: str
    value: float
    strength: float
    angle: float
    half: float

    @property
    def left(self) -> bool:
        """Whether its text reads towards the middle."""
        return self.angle > math.pi + 1e-9

    @property
    def tilt(self) -> float:
        """Of the text, counter-clockwise in degrees."""
        return 90 - math.degrees(self.angle) + (180 if self.left else 0)

    def at(self, radius: float, turn: float = 0.0) -> tuple[float, float]:
        """A point, downwards positive."""
        angle = self.angle + turn
        return radius * math.sin(angle), -radius * math.cos(angle)

    def bar(self) -> list[tuple[float, float]]:
        """Corners of the bar; its ends are arcs."""
        out = INNER + max(1.0, LONGEST * self.strength)
        turns = [self.half * (2 * i / 12 - 1) for i in range(13)]
        return [self.at(INNER, turn) for turn in turns] + [self.at(out, turn) for turn in reversed(turns)]


def _spokes(said: list[str], values: list[float]) -> list[_Spoke]:
    most, step = max(values) or 1.0, 2 * math.pi / len(said)
    half = min(0.42 * step, 0.2)
    return [_Spoke(word, v, v / most, i * step, half) for i, (word, v) in enumerate(zip(said, values, strict=True))]


def _chords(weights: Tensor) -> list[tuple[int, int, float]]:
    """The strongest pairs of two words and their strength in (0, 1], weakest first so that strong ones lie on top."""
    both = (weights + weights.mT).triu(1)
    strongest, place = both.flatten().topk(min(CHORDS, both.numel()))
    most = float(strongest[0]) or 1.0
    found = [
        (int(p) // len(weights), int(p) % len(weights), float(s) / most)
        for p, s in zip(place, strongest, strict=True)
        if s > 0
    ]
    return found[::-1]


def _cut(word: str) -> str:
    return word if len(word) <= 13 else word[:12] + "…"


def _ring(
    said: list[str], values: list[float], pairs: list[tuple[int, int, float]], title: str, size: int
) -> Image.Image:
    head = 26 if title else 0
    scale = FINE * size / (2 * REACH)
    canvas = Image.new("RGB", (FINE * size, FINE * (size + head)), PAPER)
    draw = ImageDraw.Draw(canvas)
    middle = FINE * size / 2, FINE * (head + size / 2)

    def point(at: tuple[float, float]) -> tuple[float, float]:
        return middle[0] + scale * at[0], middle[1] + scale * at[1]

    spokes = _spokes(said, values)
    for m, n, strength in pairs:
        draw.line(
            [point(p) for p in _curve(spokes[m].at(INNER), spokes[n].at(INNER))],
            shade(0.05 + 0.75 * strength),  # weak ones are pale, not transparent: their pieces would show
            max(1, round(scale * (0.5 + 2.2 * strength))),
            "curve",
        )
    draw.ellipse([*point((-INNER, -INNER)), *point((INNER, INNER))], outline=RULE, width=max(1, round(scale)))
    # A small arrow at the first word tells the direction of reading.
    draw.polygon([point((-4, -INNER + 9)), point((4, -INNER + 14)), point((-4, -INNER + 19))], MUTED)
    face = {bold: font(max(6, round(min(12.5, 560 / len(said)) * scale)), bold) for bold in (False, True)}
    room = scale * (REACH - INNER - LONGEST - 10)
    for spoke in spokes:
        draw.polygon([point(p) for p in spoke.bar()], shade(0.18 + 0.82 * spoke.strength))
        bold = spoke.strength > 0.66
        text = shortened(spoke.word, face[bold], room)
        if not text:
            continue
        label = turned(text, face[bold], spoke.tilt, INK if spoke.strength > 0.25 else MUTED)
        x, y = point(spoke.at(INNER + LONGEST + 6 + width(text, face[bold]) / 2 / scale))
        canvas.paste(label, (round(x - label.width / 2), round(y - label.height / 2)), label)
    if title:
        heavy = font(15 * FINE, True)
        draw.text((FINE * size / 2, FINE * 8), shortened(title, heavy, FINE * (size - 20)), INK, heavy, "ma")
    return canvas.resize((size, size + head), Image.Resampling.LANCZOS)


def _curve(start: tuple[float, float], end: tuple[float, float]) -> list[tuple[float, float]]:
    """A parabola from one point of the ring to another that bends towards its middle."""
    steps = [i / 24 for i in range(25)]
    return [((1 - t) ** 2 * start[0] + t**2 * end[0], (1 - t) ** 2 * start[1] + t**2 * end[1]) for t in steps]


# Highlighted text -------------------------------------------------------------


def _text(said: list[str], values: list[float], title: str, size: int) -> Image.Image:
    face, most = font(16 * FINE), max(values) or 1.0
    margin, line, pad = 16 * FINE, 30 * FINE, 4 * FINE
    rows = wrapped(said, face, FINE * size - 2 * margin, pad)
    head = 30 * FINE if title else 0
    height = 2 * margin + head + line * len(rows)
    canvas = Image.new("RGB", (FINE * size, height), PAPER)
    draw = ImageDraw.Draw(canvas)
    if title:
        bold = font(15 * FINE, True)
        draw.text((margin, margin), shortened(title, bold, FINE * size - 2 * margin), INK, bold)
    highlight(draw, rows, [v / most for v in values], (margin, margin + head), line, pad, face)
    return canvas.resize((size, height // FINE), Image.Resampling.LANCZOS)


def wrapped(said: list[str], face: ImageFont.FreeTypeFont, room: float, pad: float) -> list[list[tuple[str, float]]]:
    """Rows of words with their left edges, so that none is wider than ``room``; a word that alone is, is cut."""
    rows: list[list[tuple[str, float]]] = [[]]
    left = 0.0
    for word in said:
        shown = shortened(word, face, room - 2 * pad)
        wide = width(shown, face) + 2 * pad
        if rows[-1] and left + wide > room:
            rows.append([])
            left = 0.0
        rows[-1].append((shown, left))
        left += wide + pad
    return rows


def highlight(
    draw: ImageDraw.ImageDraw,
    rows: list[list[tuple[str, float]]],
    strengths: Sequence[float],
    corner: tuple[float, float],
    line: float,
    pad: float,
    face: ImageFont.FreeTypeFont,
) -> None:
    """Draw rows of words from ``corner`` downwards, each on a patch as strong as its strength in [0, 1]."""
    each = iter(strengths)
    for r, row in enumerate(rows):
        for word, left in row:
            strength = next(each)
            x, y = corner[0] + left, corner[1] + r * line
            wide = width(word, face) + 2 * pad
            colour = shade(strength) if strength > 0.02 else (255, 255, 255)
            draw.rounded_rectangle([x, y + 0.08 * line, x + wide, y + 0.92 * line], 4 * FINE, colour)
            draw.text((x + pad, y + line / 2), word, readable(colour), face, "lm")
