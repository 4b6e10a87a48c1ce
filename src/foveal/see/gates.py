"""The same samples through the eyes of several models, as one picture: input, attended image, every gate, the answer.

:func:`foveal.see.cards.gates_html` lays out the same content for a page.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TypeGuard

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from foveal.errors import UserError
from foveal.see.overlay import attended, heatmap, plain
from foveal.see.samples import Samples

GAP, LINE = 12, 18  # pixels between tiles, and of one line of text
INK, MUTED, WRONG = "#1c1b1a", "#6f6b66", "#c2331f"
VERDICT_INK = {"right": "#1a7f4b", "wrong": WRONG, "partly": "#9a6a00", None: INK}
MARKS = {  # strokes in a square of 16: a tick, a cross, a dash
    "right": [[(2, 8), (6, 12), (14, 3)]],
    "wrong": [[(3, 3), (13, 13)], [(13, 3), (3, 13)]],
    "partly": [[(2, 8), (14, 8)]],
}


def gates(models: Mapping[str, Samples], *, limit: int = 6, size: int = 120) -> Image.Image:
    """Draw a panel: a row a sample; input, then for each model its attended image and the map of each gate.

    Args:
        models: title of each model and what it did; samples are matched by image and query.
        limit: most rows.
        size: side of a tile in pixels.

    Returns:
        An RGB picture on white. A tick or a cross stands before each answer whose truth is known.

    >>> import torch
    >>> seen = Samples(
    ...     image=torch.zeros(1, 3, 8, 8, dtype=torch.uint8), query=torch.tensor([7]), prediction=torch.tensor([0]),
    ...     gates=(torch.rand(1, 4, 4), torch.rand(1, 2, 2)), map=torch.rand(1, 8, 8), answers=("red", "blue"),
    ... )
    >>> gates({"HAttNet": seen}, size=100).size  # input, attended and two gates; a title and two lines of text
    (460, 190)
    """
    rows = shared(models)[:limit]
    widths = {title: (1 + len(samples.gates)) * (size + GAP) for title, samples in models.items()}
    row_height = size + 2 * LINE + GAP
    width = GAP + size + GAP + sum(widths.values())
    canvas = Image.new("RGB", (width, 2 * GAP + LINE + len(rows) * row_height), "white")
    panel = _Panel(canvas, size)
    lefts, left = {}, 2 * GAP + size
    for title in models:
        lefts[title] = left
        panel.text(left, GAP, title, widths[title] - GAP)
        left += widths[title]
    for r, row in enumerate(rows):
        top = 2 * GAP + LINE + r * row_height
        title, k = next(iter(row.items()))
        panel.question(models[title], k, GAP, top)
        for title, k in row.items():
            panel.look(models[title], k, lefts[title], top)
    return canvas


def shared(models: Mapping[str, Samples]) -> list[dict[str, int]]:
    """Match the samples of several models by image and query.

    Returns:
        One row a sample, title to index; rows that more models have come first, otherwise in the order recorded.
    """
    if not models:
        raise UserError("no models to show; give at least one title with its samples")
    rows: dict[tuple[int, bytes], dict[str, int]] = defaultdict(dict)
    for title, samples in models.items():
        for k in range(len(samples)):
            asked = -1 if samples.query is None else int(samples.query[k])
            rows[asked, samples.image[k].cpu().numpy().tobytes()].setdefault(title, k)
    return sorted(rows.values(), key=len, reverse=True)


def drawable(attention: Tensor | None) -> TypeGuard[Tensor]:
    """Whether a map can be shown; that of a diverged model cannot, and its place stays empty."""
    return attention is not None and bool(torch.isfinite(attention).all() and (attention >= 0).all())


class _Panel:
    """Draws the cells of :func:`gates`."""

    def __init__(self, canvas: Image.Image, size: int) -> None:
        self.canvas, self.size = canvas, size
        self.draw = ImageDraw.Draw(canvas)
        from matplotlib import get_data_path  # its DejaVu Sans knows the letters of most languages

        self.font = ImageFont.truetype(f"{get_data_path()}/fonts/ttf/DejaVuSans.ttf", 12)

    def text(self, left: float, top: float, text: str, width: float, ink: str = INK) -> None:
        """One line, cut with an ellipsis where it would run over ``width``."""
        cut = text
        while cut and self.draw.textlength(cut, self.font) > width:
            cut = cut[:-2].rstrip() + "…" if len(cut) > 1 else ""
        self.draw.text((left, top), cut, ink, self.font)

    def tile(self, picture: Image.Image, left: int, top: int) -> None:
        """Paste a picture, blown up without smoothing, so that a map shows its own positions."""
        self.canvas.paste(picture.resize((self.size, self.size), Image.Resampling.NEAREST), (left, top))

    def question(self, samples: Samples, k: int, left: int, top: int) -> None:
        self.tile(plain(samples.image[k]), left, top)
        if box := samples.box(k):
            x0, y0, x1, y1 = (edge * self.size for edge in box)
            self.draw.rectangle([left + x0 - 2, top + y0 - 2, left + x1 + 1, top + y1 + 1], outline="white")
        below, truth = top + self.size + 2, samples.truth(k)
        if (asked := samples.asked(k)) is not None:
            self.text(left, below, f"asked: {asked}", self.size)
        if truth is not None:
            self.text(left, below + LINE, f"true: {samples.names(truth)}", self.size, MUTED)

    def look(self, samples: Samples, k: int, left: int, top: int) -> None:
        below = top + self.size + 2
        combined = None if samples.map is None else samples.map[k]
        if drawable(combined):
            self.tile(attended(samples.image[k], combined), left, top)
        self.answer(samples, k, left, below)
        for i, gate in enumerate(samples.gates):
            left += self.size + GAP
            if drawable(gate[k]):
                self.tile(heatmap(gate[k]), left, top)
            self.text(left, below, samples.site(i), self.size, MUTED)
            self.text(left, below + LINE, f"{gate.shape[1]}×{gate.shape[2]}", self.size, MUTED)

    def answer(self, samples: Samples, k: int, left: int, top: int) -> None:
        verdict, confidence = samples.verdict(k), samples.confidence(k)
        ink, indent = VERDICT_INK[verdict], 18 if verdict else 0
        for stroke in MARKS[verdict] if verdict else []:
            self.draw.line([(left + x * 0.8, top + 2 + y * 0.8) for x, y in stroke], ink, 2)
        if verdict == "wrong":
            edge = top - 2 - self.size
            self.draw.rectangle(
                [left - 3, edge - 3, left + self.size + 2, edge + self.size + 2], outline=WRONG, width=3
            )
        self.text(left + indent, top, samples.names(samples.guess(k)), self.size - indent, ink)
        if confidence is not None:
            self.text(left, top + LINE, f"{confidence:.0%} sure", self.size, MUTED)
