"""A generated set of two objects on which classes are confused: a digit, and the shape that usually comes with it.

The class is the digit. Digits come in pairs (0 and 1, 2 and 3, …) and each pair has its own shape, which is beside the
digit in nine of ten training images. In validation and test images the shape is random. A network learns the pair from
the shape and which of the two from the digit. Both classes of a pair then attend to the same shape, and the network is
wrong where the shape is another. Attention that two classes must not share has to look at the digit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from foveal.data._random import integers, uniform
from foveal.data.cache import cached
from foveal.data.embedded.digits import sklearn_digits
from foveal.data.embedded.painting import paste
from foveal.data.embedded.scenes import Sources
from foveal.data.images.classification import Format, register_images
from foveal.data.images.labelled import ImageSet, LabelledImages

SIDE = 48
COUNTS = {"train": 3000, "val": 1000, "test": 1000}
USUAL = {"train": 0.9, "val": 0.0, "test": 0.0}  # how often the shape is chosen for the pair rather than at random
OWN = {"train": slice(0, 1100), "val": slice(1100, 1400), "test": slice(None)}  # of scikit-learn's digits
DIGIT, SHAPE = (20, 24), (14, 20)  # sides in pixels
SHAPES = ("disc", "ring", "cross", "bars", "triangle")
FINE = 32  # a shape is drawn on such a grid
VERSION = 2
PATCH, KIND, USE, AXIS, FIRST, ALONG, ACROSS, SIZE, COLOUR, GROUND = range(10)  # streams of random numbers


@dataclass(frozen=True)
class Confusion:
    """Images with two objects.

    Attributes:
        image: uint8 (N, 3, S, S).
        label: the digit, int64 (N,).
        shape: number of the shape, int64 (N,).
        digit_mask, shape_mask: bool (N, S, S), where the two are.
    """

    image: Tensor
    label: Tensor
    shape: Tensor
    digit_mask: Tensor
    shape_mask: Tensor


def shapes() -> Tensor:
    """The five shapes, uint8 (5, 32, 32)."""
    along = (torch.arange(FINE) + 0.5) / FINE * 2 - 1
    y, x = along[:, None], along[None]
    far = (x * x + y * y).sqrt()
    parts = [
        far < 0.95,
        (far < 0.95) & (far > 0.55),
        ((x.abs() < 0.3) | (y.abs() < 0.3)) & (x.abs() < 0.95) & (y.abs() < 0.95),
        ((x * 2.5 * math.pi).cos() > 0) & (y.abs() < 0.95),
        (x.abs() < (y + 0.95) / 2) & (y < 0.95),
    ]
    return torch.stack([part.to(torch.uint8) * 255 for part in parts])


def generate(split: str, count: int | None = None, seed: int = 0) -> Confusion:
    """Images of ``train``, ``val`` or ``test``; the first n are the same for every ``count``.

    >>> images = generate("test", 3)
    >>> images.image.shape, images.label.shape
    (torch.Size([3, 3, 48, 48]), torch.Size([3]))
    """
    n = COUNTS[split] if count is None else count
    stream = seed * len(COUNTS) + list(COUNTS).index(split)
    i = torch.arange(n)

    def draw(purpose: int, low: int, high: int, part: int = 0) -> Tensor:
        return integers(low, high, uniform(stream, purpose, i, torch.full_like(i, part)))

    digits = sklearn_digits("test" if split == "test" else "train")
    sources = Sources.by_class(*(values[OWN[split]] for values in digits))
    label = i % 10
    first, last = sources.starts[label], sources.starts[label + 1]
    digit = sources.digits[first + (uniform(stream, PATCH, i) * (last - first)).long()]
    usual = uniform(stream, USE, i) < USUAL[split]
    shape = torch.where(usual, label // 2, draw(KIND, 0, len(SHAPES) - 1))
    # The image is cut in two along one axis; the digit gets one half and the shape the other.
    upright, second = draw(AXIS, 0, 1).bool(), draw(FIRST, 0, 1)
    masks, ink = [], []
    for part, (patches, sides) in enumerate(((digit, DIGIT), (shapes()[shape], SHAPE))):
        size = draw(SIZE, *sides, part)
        half = torch.where(second == part, 0, SIDE // 2)
        across = half + (uniform(stream, ACROSS, i, torch.full_like(i, part)) * (SIDE // 2 - size + 1)).long()
        along = (uniform(stream, ALONG, i, torch.full_like(i, part)) * (SIDE - size + 1)).long()
        x, y = torch.where(upright, along, across), torch.where(upright, across, along)
        masks.append(paste(patches, size, x, y, SIDE))
        ink.append(torch.stack([draw(COLOUR, 110, 255, 3 * part + c) for c in range(3)], 1))
    spots = torch.arange(36).expand(n, -1)
    grey = integers(0, 110, uniform(stream, GROUND, i[:, None], spots)).view(n, 6, 6)
    ground = paste(grey, torch.full_like(i, SIDE), torch.zeros_like(i), torch.zeros_like(i), SIDE)
    image = ground[:, None].expand(-1, 3, -1, -1)
    for mask, colour in zip(masks, ink, strict=True):
        over = mask[:, None]
        image = (image * (255 - over) + colour[:, :, None, None] * over + 127) // 255
    return Confusion(image.to(torch.uint8), label, shape, masks[0] > 64, masks[1] > 64)


def confusion(split: str) -> Confusion:
    """All images of ``train``, ``val`` or ``test``, from the cache if they are there."""
    key = {"split": split, "version": VERSION, "count": COUNTS[split]}
    return Confusion(**cached("confusion", key, lambda: dict(vars(generate(split)))))


def read_confusion(_: Path) -> ImageSet:
    """The images, their digits, and where these are."""
    images = {split: confusion(split) for split in COUNTS}
    splits = {split: LabelledImages(s.image, s.label, masks=s.digit_mask) for split, s in images.items()}
    return ImageSet([str(d) for d in range(10)], splits, lambda split: digit_boxes(images[split]))


def digit_boxes(images: Confusion) -> Tensor:
    """The box around each digit, (N, 1, 5) as in :class:`~foveal.data.images.labelled.ImageSet`."""
    columns, rows = images.digit_mask.any(1).int(), images.digit_mask.any(2).int()
    first = [along.argmax(1) for along in (columns, rows)]
    last = [SIDE - along.flip(1).argmax(1) for along in (columns, rows)]
    return torch.stack([images.label, *((side / SIDE - 0.5) for side in (*first, *last))], 1)[:, None]


register_images(
    Format(
        "confusion",
        "two-object confusion",
        read_confusion,
        size=SIDE,
        augment="small",
        flip=False,
        mean=(0.3, 0.3, 0.3),
        std=(0.25, 0.25, 0.25),
        note="embedded, for trying things out; a shape beside each digit fits it in training but not in the test",
    ),
    "a digit and a misleading shape; embedded",
)
