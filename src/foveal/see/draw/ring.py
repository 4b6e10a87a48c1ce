"""The ring of a sentence: laid out once, drawn as SVG for a page and as pixels for a picture.

The layout is in units of which 190 are half the side of the ring, from its middle, downwards positive.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image, ImageDraw
from torch import Tensor

from foveal.see.draw._inputs import PairWeights, matrix, numbers, some_words
from foveal.see.draw._svg import element, markup
from foveal.see.draw._type import FINE, INK, MUTED, PAPER, RULE, font, shade, shortened, turned, width

INNER, LONGEST, REACH = 52.0, 52.0, 190.0  # radius of the ring, length of the longest bar, half the side
CHORDS = 24  # most pairs drawn across a ring
Point = tuple[float, float]


@dataclass(frozen=True)
class Spoke:
    """One word of a ring.

    Attributes:
        word: the word.
        label: the word, cut to the room it has.
        value: its importance.
        strength: the same in [0, 1], 1 for the most important word.
        angle: clockwise from the top in radians.
        half: half the width of its bar in radians.
    """

    word: str
    label: str
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
        """Angle of the text, counter-clockwise in degrees."""
        return 90 - math.degrees(self.angle) + (180 if self.left else 0)

    @property
    def bold(self) -> bool:
        """Whether its text is bold."""
        return self.strength > 0.66

    def at(self, radius: float, turn: float = 0.0) -> Point:
        """The point at ``radius`` in the direction of the word, turned clockwise by ``turn`` radians."""
        angle = self.angle + turn
        return radius * math.sin(angle), -radius * math.cos(angle)

    def bar(self) -> list[Point]:
        """Corners of the bar; its ends are arcs."""
        outer = INNER + max(1.0, LONGEST * self.strength)
        turns = [self.half * (2 * i / 12 - 1) for i in range(13)]
        return [self.at(INNER, turn) for turn in turns] + [self.at(outer, turn) for turn in reversed(turns)]


@dataclass(frozen=True)
class Chord:
    """A pair of words: its ends on the ring, and its strength in (0, 1]."""

    start: Point
    end: Point
    strength: float

    @property
    def width(self) -> float:
        """Width of the line."""
        return 0.5 + 2.2 * self.strength


@dataclass(frozen=True)
class Ring:
    """A ring laid out: words clockwise from the top, pairs weakest first, and the size of its letters."""

    spokes: list[Spoke]
    chords: list[Chord]
    letters: float

    @property
    def arrow(self) -> list[Point]:
        """A small arrow below the first word that tells the direction of reading."""
        return [(-4, -INNER + 9), (4, -INNER + 14), (-4, -INNER + 19)]


def ring(
    words: Sequence[str],
    importance: Sequence[float] | Tensor,
    weights: PairWeights | None = None,
) -> Ring:
    """Lay out a ring; arguments as in :func:`foveal.see.words`."""
    sentence = some_words(words)
    values = numbers(importance, "importance", len(sentence))
    pairs = matrix(weights, "weights", len(sentence), len(sentence)) if weights is not None else None
    greatest, step = max(values) or 1.0, 2 * math.pi / len(sentence)
    letters, half = min(12.5, 560 / len(sentence)), min(0.42 * step, 0.2)
    spokes = []
    for i, (word, value) in enumerate(zip(sentence, values, strict=True)):
        strength = value / greatest
        face = font(max(2, round(8 * letters)), strength > 0.66)  # measured larger, which is finer
        label = shortened(word, face, 8 * (REACH - INNER - LONGEST - 10))
        spokes.append(Spoke(word, label, value, strength, i * step, half))
    return Ring(spokes, [] if pairs is None else _chords(spokes, pairs), letters)


def _chords(spokes: list[Spoke], weights: Tensor) -> list[Chord]:
    """The strongest pairs of two words, weakest first so that strong ones lie on top."""
    both = (weights + weights.mT).triu(1)
    strongest, place = both.flatten().topk(min(CHORDS, both.numel()))
    greatest = float(strongest[0]) or 1.0
    chords = [
        Chord(spokes[p // len(spokes)].at(INNER), spokes[p % len(spokes)].at(INNER), value / greatest)
        for p, value in zip(place.tolist(), strongest.tolist(), strict=True)
        if value > 0
    ]
    return chords[::-1]


def ring_svg(layout: Ring, ink: str = "currentColor") -> str:
    """A ring as inline SVG, for a page in light or dark.

    Args:
        layout: what :func:`ring` returns.
        ink: colour of bars and pairs in CSS.

    >>> ring_svg(ring(["fast", "car"], [0.5, 1.5])).count("<text")
    2
    """
    root = element("svg", class_="ring", viewbox=f"{-REACH:.0f} {-REACH:.0f} {2 * REACH:.0f} {2 * REACH:.0f}")
    root.attrib |= {"role": "img", "aria-label": "importance of each word, clockwise", "fill": "currentColor"}
    root.set("font-size", f"{layout.letters:.3g}")
    root.append(element("circle", r=INNER, fill="none", stroke="currentColor", opacity=0.25))
    root.append(element("path", d=_path(layout.arrow), opacity=0.45))
    for chord in layout.chords:
        (x0, y0), (x1, y1) = chord.start, chord.end
        style = f"stroke:{ink};stroke-width:{chord.width:.1f};opacity:{0.15 + 0.6 * chord.strength:.2f}"
        root.append(element("path", d=f"M{x0:.1f} {y0:.1f}Q0 0 {x1:.1f} {y1:.1f}", fill="none", style=style))
    for spoke in layout.spokes:
        style = f"fill:{ink};opacity:{0.25 + 0.75 * spoke.strength:.2f}"
        bar = element("path", d=_path(spoke.bar()), style=style)
        x, y = spoke.at(INNER + LONGEST + 6)
        label = element("text", spoke.label, text_anchor="end" if spoke.left else "start", dy=".35em")
        label.set("transform", f"translate({x:.1f} {y:.1f}) rotate({-spoke.tilt:.1f})")
        if spoke.bold:
            label.set("font-weight", "700")
        root.append(element("g", element("title", f"{spoke.word}: {spoke.value:.2f}"), bar, label))
    return markup(root)


def _path(corners: Sequence[Point]) -> str:
    return "M" + " ".join(f"{x:.1f} {y:.1f}" for x, y in corners) + "Z"


def ring_picture(layout: Ring, title: str, size: int) -> Image.Image:
    """A ring as an RGB picture of ``size`` pixels on white, below a title."""
    head = 26 if title else 0
    scale = FINE * size / (2 * REACH)
    canvas = Image.new("RGB", (FINE * size, FINE * (size + head)), PAPER)
    draw = ImageDraw.Draw(canvas)

    def place(point: Point) -> Point:
        return FINE * size / 2 + scale * point[0], FINE * (head + size / 2) + scale * point[1]

    for chord in layout.chords:
        colour = shade(0.05 + 0.75 * chord.strength)  # weak ones are pale, not transparent: their pieces would show
        draw.line([place(p) for p in _curve(chord)], colour, max(1, round(scale * chord.width)), "curve")
    draw.ellipse([*place((-INNER, -INNER)), *place((INNER, INNER))], outline=RULE, width=max(1, round(scale)))
    draw.polygon([place(p) for p in layout.arrow], MUTED)
    for spoke in layout.spokes:
        draw.polygon([place(p) for p in spoke.bar()], shade(0.18 + 0.82 * spoke.strength))
        if not spoke.label:
            continue
        face = font(max(6, round(layout.letters * scale)), spoke.bold)
        label = turned(spoke.label, face, spoke.tilt, INK if spoke.strength > 0.25 else MUTED)
        x, y = place(spoke.at(INNER + LONGEST + 6 + width(spoke.label, face) / 2 / scale))
        canvas.paste(label, (round(x - label.width / 2), round(y - label.height / 2)), label)
    if title:
        bold = font(15 * FINE, True)
        draw.text((FINE * size / 2, FINE * 8), shortened(title, bold, FINE * (size - 20)), INK, bold, "ma")
    return canvas.resize((size, size + head), Image.Resampling.LANCZOS)


def _curve(chord: Chord) -> list[Point]:
    """Points of the parabola between the ends that bends towards the middle of the ring."""
    steps = [i / 24 for i in range(25)]
    (x0, y0), (x1, y1) = chord.start, chord.end
    return [((1 - t) ** 2 * x0 + t**2 * x1, (1 - t) ** 2 * y0 + t**2 * y1) for t in steps]
