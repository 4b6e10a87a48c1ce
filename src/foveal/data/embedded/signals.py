"""Generated scenes in which far context decides the class of a pixel: cars and the traffic light that they obey.

A lamp is at one end of the picture, red or green. Cars are in the other half: discs whose size, place and colour say
nothing. They drive if the lamp is green and wait if it is red. A network that does not see from one end to the other
can only guess which; attention over the whole image finds the lamp.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from foveal.data._random import integers, uniform
from foveal.data.cache import cached
from foveal.data.images.crops import MaskedImages
from foveal.data.images.segmentation import SegmentFormat, SegmentSet, register_segments

HEIGHT, WIDTH = 48, 112
COUNTS = {"train": 800, "val": 100, "test": 200}
CLASSES = {"road": "#404048", "lamp": "#f0c020", "driving": "#20a060", "waiting": "#c03030"}
RED, GREEN = (210, 40, 40), (40, 190, 70)
CARS = 3  # at most
RADIUS = (5, 8)  # of a car, in pixels
LAMP = 8  # half of its side
FAR = 64  # least distance of a car's centre from the lamp's
VERSION = 1
STATE, END, LAMP_Y, COUNT, X, Y, SIZE, COLOUR, GROUND, NOISE, SHIFT = range(11)  # streams of random numbers


def generate(split: str, count: int | None = None) -> tuple[Tensor, Tensor]:
    """Images uint8 (N, 3, H, W) of a split and their classes uint8 (N, H, W); the first n are the same for any count.

    >>> images, labels = generate("test", 2)
    >>> images.shape, sorted(labels[0].unique().tolist())
    (torch.Size([2, 3, 48, 112]), [0, 1, 3])
    """
    seed, n = list(COUNTS).index(split), torch.arange(COUNTS[split] if count is None else count)
    row, column = torch.arange(HEIGHT)[:, None], torch.arange(WIDTH)[None]

    def draw(stream: int, low: int, high: int, *more: Tensor) -> Tensor:
        return integers(low, high, uniform(seed, stream, n, *more))[:, None, None]

    green, mirrored = draw(STATE, 0, 1).bool(), draw(END, 0, 1).bool()
    image = draw(GROUND, 50, 110).to(torch.int16)[:, None].repeat(1, 3, HEIGHT, WIDTH)
    label = torch.zeros(len(n), HEIGHT, WIDTH, dtype=torch.uint8)
    for car in range(CARS):
        part = torch.full_like(n, car)
        radius = draw(SIZE, *RADIUS, part)
        x, y = draw(X, LAMP + FAR, WIDTH - RADIUS[1] - 1, part), draw(Y, RADIUS[1], HEIGHT - RADIUS[1] - 1, part)
        inside = ((column - x) ** 2 + (row - y) ** 2 <= radius**2) & (draw(COUNT, 1, CARS) > car)
        colour = torch.stack([draw(COLOUR, 60, 255, part + CARS * c) for c in range(3)], 1).to(torch.int16)
        image = torch.where(inside[:, None], colour, image)
        label = torch.where(inside, torch.where(green, 2, 3).to(torch.uint8), label)
    lamp = ((column - LAMP).abs() < LAMP) & ((row - draw(LAMP_Y, LAMP, HEIGHT - LAMP - 1)).abs() < LAMP)
    lights = torch.tensor([RED, GREEN], dtype=torch.int16)
    light = lights[green[:, 0, 0].long()][:, :, None, None]
    image, label = torch.where(lamp[:, None], light, image), label.masked_fill(lamp, 1)
    noise = integers(-12, 12, uniform(0, NOISE, torch.arange(HEIGHT * WIDTH))).to(torch.int16).view(HEIGHT, WIDTH)
    noise = noise[(row + draw(SHIFT, 0, HEIGHT - 1)) % HEIGHT, (column + draw(SHIFT, 0, WIDTH - 1)) % WIDTH]
    image = (image + noise[:, None]).clamp(0, 255).to(torch.uint8)
    turned = mirrored & torch.ones(1, HEIGHT, WIDTH, dtype=torch.bool)
    return torch.where(turned[:, None], image.flip(3), image), torch.where(turned, label.flip(2), label)


def signals(split: str) -> MaskedImages:
    """All images of a split, from the cache if they are there."""

    def make() -> dict[str, Tensor]:
        images, labels = generate(split)
        size = torch.tensor([[HEIGHT, WIDTH]]).repeat(len(images), 1)
        return {"pixels": images.permute(0, 2, 3, 1).reshape(-1, 3), "labels": labels.flatten(), "size": size}

    return MaskedImages.of(**cached("signals", {"split": split, "version": VERSION, "count": COUNTS[split]}, make))


def read_signals(_: Path) -> SegmentSet:
    """The images and their classes."""
    return SegmentSet(list(CLASSES), {split: signals(split) for split in COUNTS}, None, list(CLASSES.values()))


register_segments(
    SegmentFormat(
        "signals",
        "signals",
        read_signals,
        crop=(HEIGHT, WIDTH),
        scale=(1.0, 1.0),
        mean=(0.35, 0.35, 0.35),
        std=(0.2, 0.2, 0.2),
        note="embedded, for trying things out; whether a car waits depends on a lamp at the other end of the picture",
    ),
    "cars that wait for a far lamp, or drive; embedded",
)
