"""The same samples as several models saw them: input, attended image, the map of every gate, the answer.

:func:`looks` prepares the pictures and words once; :func:`gates` pastes them into one picture, and
:func:`foveal.see.page.sample_cards` puts them on a page.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeGuard

import torch
from PIL import Image, ImageDraw
from torch import Tensor

from foveal.see.draw._type import INK, MUTED, font, lines, shortened
from foveal.see.draw.overlay import attended, heatmap, plain
from foveal.see.draw.samples import Box, Samples, Verdict, shared_samples, spread

GAP, LINE = 12, 18  # pixels between tiles, and of one line of text
WRONG = "#c2331f"
VERDICT_INK = {"right": "#1a7f4b", "wrong": WRONG, "partly": "#9a6a00", None: INK}
MARKS = {  # strokes in a square of 16: a tick, a cross, a dash
    "right": [[(2, 8), (6, 12), (14, 3)]],
    "wrong": [[(3, 3), (13, 13)], [(13, 3), (3, 13)]],
    "partly": [[(2, 8), (14, 8)]],
}


@dataclass(frozen=True)
class GateMap:
    """The map of one gate.

    Attributes:
        picture: the coloured map, one pixel per position; None for a map that is not finite.
        site: name of the gate.
        size: width and height of the map.
        highest: its greatest value.
    """

    picture: Image.Image | None
    site: str
    size: tuple[int, int]
    highest: float


@dataclass(frozen=True)
class Look:
    """What one model saw in one sample, and what it answered.

    Attributes:
        answer: its answer in words.
        colour: the colour that the answer names, as ``#rrggbb``, or None.
        confidence: probability of the answer, or None.
        verdict: whether the answer is right; None when unknown.
        attended: the image as attended to; None without attention.
        maps: the maps of its gates.
        total_gates: how many gates it has; more than ``maps`` where only some are shown.
    """

    answer: str
    colour: str | None
    confidence: float | None
    verdict: Verdict | None
    attended: Image.Image | None
    maps: tuple[GateMap, ...]
    total_gates: int


@dataclass(frozen=True)
class SampleRow:
    """One sample and what every model saw in it.

    Attributes:
        picture: the input.
        question: what was asked, in words; may be empty.
        asked: name of the object asked for, or None.
        truth: the true answer in words, or None.
        colour: the colour that the true answer names, or None.
        box: frame of the object, see :meth:`Samples.box`.
        looks: title of each model to what it saw; None if it recorded nothing of this sample.
    """

    picture: Image.Image
    question: str
    asked: str | None
    truth: str | None
    colour: str | None
    box: Box | None
    looks: dict[str, Look | None]


def looks(models: Mapping[str, Samples], *, limit: int = 6, most_gates: int | None = None) -> list[SampleRow]:
    """Prepare the samples that most models share.

    Args:
        models: title of each model and its samples; they are matched by image and query.
        limit: most samples; they are spread over those recorded.
        most_gates: most maps per model, spread over its gates; None for all.
    """
    rows = []
    for row in spread(shared_samples(models), limit):
        first, k = next(iter(row.items()))
        samples, truth = models[first], models[first].truth(k)
        rows.append(
            SampleRow(
                picture=plain(samples.image[k]),
                question=samples.asks(k),
                asked=samples.asked(k),
                truth=None if truth is None else samples.names(truth),
                colour=None if truth is None else samples.colour(truth),
                box=samples.box(k),
                looks={
                    title: _look(models[title], row[title], most_gates) if title in row else None for title in models
                },
            )
        )
    return rows


def _look(samples: Samples, k: int, most_gates: int | None) -> Look:
    guess, combined = samples.guess(k), None if samples.map is None else samples.map[k]
    return Look(
        answer=samples.names(guess),
        colour=samples.colour(guess),
        confidence=samples.confidence(k),
        verdict=samples.verdict(k),
        attended=attended(samples.image[k], combined) if _drawable(combined) else None,
        maps=tuple(_gate_map(samples, k, i) for i in _spread(len(samples.gates), most_gates)),
        total_gates=max(samples.total_gates, len(samples.gates)),
    )


def _gate_map(samples: Samples, k: int, gate: int) -> GateMap:
    values = samples.gates[gate][k]
    height, width = values.shape
    picture = heatmap(values) if _drawable(values) else None
    return GateMap(picture, samples.site(gate), (width, height), float(values.max()))


def _spread(count: int, most: int | None) -> list[int]:
    """At most ``most`` of ``count`` indices at even distances, the first and the last among them.

    >>> _spread(3, None), _spread(12, 5)
    ([0, 1, 2], [0, 3, 6, 8, 11])
    """
    if most is None or count <= most:
        return list(range(count))
    return [round(i * (count - 1) / max(1, most - 1)) for i in range(most)]


def _drawable(attention: Tensor | None) -> TypeGuard[Tensor]:
    """Whether a map can be shown; that of a diverged model cannot, and its place stays empty."""
    return attention is not None and bool(torch.isfinite(attention).all() and (attention >= 0).all())


# One picture -----------------------------------------------------------------


def gates(models: Mapping[str, Samples], *, limit: int = 6, size: int = 120) -> Image.Image:
    """Draw a panel, one row per sample: the input, then for each model its attended image and the map of each gate.

    Args:
        models: title of each model and what it did; samples are matched by image and query.
        limit: most rows; they are spread over the samples.
        size: side of a tile in pixels.

    Returns:
        An RGB picture on white. A tick or a cross stands before each answer whose truth is known.

    >>> import torch
    >>> samples = Samples(
    ...     image=torch.zeros(1, 3, 8, 8, dtype=torch.uint8), query=torch.tensor([7]), prediction=torch.tensor([0]),
    ...     gates=(torch.rand(1, 4, 4), torch.rand(1, 2, 2)), map=torch.rand(1, 8, 8), answers=("red", "blue"),
    ... )
    >>> gates({"HAttNet": samples}, size=100).size  # input, attended and two gates; a title and two lines of text
    (460, 190)
    """
    rows = looks(models, limit=limit)
    widths = {title: (1 + len(samples.gates)) * (size + GAP) for title, samples in models.items()}
    titles = {title: lines(_heading(title, models[title]), font(12), widths[title] - GAP) for title in models}
    head, row_height = 2 * GAP + LINE * max(map(len, titles.values())), size + 2 * LINE + GAP
    canvas = Image.new("RGB", (2 * GAP + size + sum(widths.values()), head + len(rows) * row_height), "white")
    panel = _Panel(canvas, size)
    lefts, left = {}, 2 * GAP + size
    for title, wrapped in titles.items():
        lefts[title] = left
        for i, line in enumerate(wrapped):
            panel.text(left, GAP + i * LINE, line, widths[title] - GAP)
        left += widths[title]
    for r, row in enumerate(rows):
        top = head + r * row_height
        panel.question(row, GAP, top)
        for title, look in row.looks.items():
            if look is not None:
                panel.look(look, lefts[title], top)
    return canvas


def _heading(title: str, samples: Samples) -> str:
    shown = len(samples.gates)
    return f"{title} ({shown} of {samples.total_gates} gates)" if samples.total_gates > shown else title


class _Panel:
    """Draws the cells of :func:`gates`."""

    def __init__(self, canvas: Image.Image, size: int) -> None:
        self.canvas, self.size = canvas, size
        self.draw = ImageDraw.Draw(canvas)

    def text(self, left: float, top: float, text: str, width: float, ink: str = INK) -> None:
        """One line, cut with an ellipsis where it would run over ``width``."""
        self.draw.text((left, top), shortened(text, font(12), width), ink, font(12))

    def tile(self, picture: Image.Image, left: int, top: int) -> None:
        """Paste a picture, enlarged without smoothing, so that a map shows its own positions."""
        self.canvas.paste(picture.resize((self.size, self.size), Image.Resampling.NEAREST), (left, top))

    def question(self, row: SampleRow, left: int, top: int) -> None:
        self.tile(row.picture, left, top)
        if row.box is not None:
            x0, y0, x1, y1 = (edge * self.size for edge in row.box)
            self.draw.rectangle([left + x0 - 2, top + y0 - 2, left + x1 + 1, top + y1 + 1], outline="white")
        below = top + self.size + 2
        if row.asked is not None:
            self.text(left, below, f"asked: {row.asked}", self.size)
        if row.truth is not None:
            self.text(left, below + LINE, f"true: {row.truth}", self.size, MUTED)

    def look(self, look: Look, left: int, top: int) -> None:
        below = top + self.size + 2
        if look.attended is not None:
            self.tile(look.attended, left, top)
        self.answer(look, left, below)
        for gate in look.maps:
            left += self.size + GAP
            if gate.picture is not None:
                self.tile(gate.picture, left, top)
            self.text(left, below, gate.site, self.size, MUTED)
            self.text(left, below + LINE, f"{gate.size[0]}×{gate.size[1]}", self.size, MUTED)

    def answer(self, look: Look, left: int, top: int) -> None:
        ink, indent = VERDICT_INK[look.verdict], 18 if look.verdict else 0
        for stroke in MARKS[look.verdict] if look.verdict else []:
            self.draw.line([(left + x * 0.8, top + 2 + y * 0.8) for x, y in stroke], ink, 2)
        if look.verdict == "wrong":
            edge = top - 2 - self.size
            frame = [left - 3, edge - 3, left + self.size + 2, edge + self.size + 2]
            self.draw.rectangle(frame, outline=WRONG, width=3)
        self.text(left + indent, top, look.answer, self.size - indent, ink)
        if look.confidence is not None:
            self.text(left, top + LINE, f"{look.confidence:.0%} sure", self.size, MUTED)
