"""Coloured shapes as the embedded stand-in for Visual Genome: the object class is a shape, its attributes are words.

A picture shows two to four shapes, no two of a kind, each in a quarter of its own. A shape has a colour and is small or
large; every kind has a favourite colour, so that a prior of the attributes given the class helps here too.
"""

from __future__ import annotations

import math
import random
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from PIL import Image, ImageDraw

from foveal.data.formats.visual_genome.annotations import Box, Index, Sample
from foveal.data.formats.visual_genome.attributes import VisualGenomeAttributes

SHAPES: dict[str, list[tuple[float, float]]] = {  # corners in the unit square
    "circle": [(0.5 + 0.5 * math.cos(math.tau * n / 40), 0.5 + 0.5 * math.sin(math.tau * n / 40)) for n in range(40)],
    "square": [(0, 0), (1, 0), (1, 1), (0, 1)],
    "triangle": [(0, 1), (1, 1), (0.5, 0)],
    "arrow": [(0, 0.35), (0.5, 0.35), (0.5, 0), (1, 0.5), (0.5, 1), (0.5, 0.65), (0, 0.65)],
}
COLOURS = {"red": (200, 40, 40), "green": (40, 160, 70), "blue": (50, 90, 210), "yellow": (230, 210, 60)}
SIDES = {"small": (18, 26), "large": (40, 58)}
CANVAS, IMAGES = 128, 2_000


class Thing(NamedTuple):
    """One shape of a picture; ``shape`` and ``words`` are names, ``box`` is in pixels of the canvas."""

    shape: str
    words: tuple[str, str]
    box: Box


def things(image: int) -> list[Thing]:
    """What picture ``image`` shows, a pure function of its number.

    >>> [(thing.shape, *thing.words) for thing in things(0)]
    [('arrow', 'yellow', 'large'), ('circle', 'red', 'small'), ('square', 'yellow', 'small')]
    """
    chance, found = random.Random(image), []
    kinds = chance.sample(list(SHAPES), chance.randint(2, 4))
    for kind, quarter in zip(kinds, chance.sample(range(4), len(kinds)), strict=True):
        likes = [3 if n == list(SHAPES).index(kind) else 1 for n in range(len(COLOURS))]
        colour, size = chance.choices(list(COLOURS), likes)[0], chance.choice(list(SIDES))
        side, half = chance.randint(*SIDES[size]), CANVAS // 2
        x, y = (half * place + chance.randint(0, half - side) for place in (quarter % 2, quarter // 2))
        found.append(Thing(kind, (colour, size), (x, y, side, side)))
    return found


@lru_cache(maxsize=2)
def index(images: int) -> Index:
    """The first ``images`` pictures in the form of Visual Genome's annotations."""
    queries, answers = list(SHAPES), [*COLOURS, *SIDES]
    samples = [
        Sample(n, queries.index(thing.shape), tuple(sorted(map(answers.index, thing.words))), (thing.box,))
        for n in range(images)
        for thing in things(n)
    ]
    return Index(queries, answers, samples, dict.fromkeys(range(images), (CANVAS, CANVAS)))


class Shapes(VisualGenomeAttributes):
    """:class:`VisualGenomeAttributes` of generated pictures; no folder is read, and every class is kept."""

    def _index(self) -> Index:
        return index(IMAGES if self.sizes is None else sum(self.sizes))

    def _files(self, images: set[int]) -> dict[int, Path]:
        return {}

    def _image(self, image: int) -> Image.Image:
        picture = Image.new("RGB", (self.image_size, self.image_size), (110, 110, 110))
        for thing in things(image):
            x, y, side, _ = (value * self.image_size / CANVAS for value in thing.box)
            corners = [(x + side * u, y + side * v) for u, v in SHAPES[thing.shape]]
            ImageDraw.Draw(picture).polygon(corners, fill=COLOURS[thing.words[0]])
        return picture
