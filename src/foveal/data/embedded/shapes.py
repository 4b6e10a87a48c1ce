"""Coloured shapes as the embedded stand-in for Visual Genome: the object class is a shape, its attributes are words.

An image shows two to four different shapes, each in its own quarter. A shape has a colour and is small or large. Every
kind of shape has a favourite colour, so that a prior of the attributes given the class helps here too.
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


class Shape(NamedTuple):
    """One shape of an image; ``kind`` and ``attributes`` are names, ``box`` is in pixels of the canvas."""

    kind: str
    attributes: tuple[str, str]
    box: Box


def shapes_of(image: int) -> list[Shape]:
    """The shapes of image ``image``, a pure function of its number.

    >>> [(shape.kind, *shape.attributes) for shape in shapes_of(0)]
    [('arrow', 'yellow', 'large'), ('circle', 'red', 'small'), ('square', 'yellow', 'small')]
    """
    generator, shapes = random.Random(image), []
    kinds = generator.sample(list(SHAPES), generator.randint(2, 4))
    for kind, quarter in zip(kinds, generator.sample(range(4), len(kinds)), strict=True):
        weights = [3 if n == list(SHAPES).index(kind) else 1 for n in range(len(COLOURS))]
        colour, size = generator.choices(list(COLOURS), weights)[0], generator.choice(list(SIDES))
        side, half = generator.randint(*SIDES[size]), CANVAS // 2
        x, y = (half * half_number + generator.randint(0, half - side) for half_number in (quarter % 2, quarter // 2))
        shapes.append(Shape(kind, (colour, size), (x, y, side, side)))
    return shapes


@lru_cache(maxsize=2)
def index(images: int) -> Index:
    """The first ``images`` images in the form of Visual Genome's annotations."""
    queries, answers = list(SHAPES), [*COLOURS, *SIDES]
    samples = [
        Sample(n, queries.index(shape.kind), tuple(sorted(map(answers.index, shape.attributes))), (shape.box,))
        for n in range(images)
        for shape in shapes_of(n)
    ]
    return Index(queries, answers, samples, dict.fromkeys(range(images), (CANVAS, CANVAS)))


class Shapes(VisualGenomeAttributes):
    """:class:`VisualGenomeAttributes` of generated images; no folder is read, and every class is kept."""

    def _index(self) -> Index:
        return index(IMAGES if self.sizes is None else sum(self.sizes))

    def _files(self, images: set[int]) -> dict[int, Path]:
        return {}

    def _image(self, image: int) -> Image.Image:
        canvas = Image.new("RGB", (self.image_size, self.image_size), (110, 110, 110))
        for shape in shapes_of(image):
            x, y, side, _ = (value * self.image_size / CANVAS for value in shape.box)
            corners = [(x + side * u, y + side * v) for u, v in SHAPES[shape.kind]]
            ImageDraw.Draw(canvas).polygon(corners, fill=COLOURS[shape.attributes[0]])
        return canvas
