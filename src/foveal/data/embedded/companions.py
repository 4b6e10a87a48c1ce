"""Generated scenes of digits and shapes in which what comes together has a meaning.

Every shape has two digits as its companions: the disc 0 and 1, the ring 2 and 3, and so on. A picture shows two shapes.
One of them has its companions with it, one or two digits; the other has none. There are one or two other digits whose
shapes are missing. The scene is named after the shape that has its companions: no single object tells, only a pair
does. Relations lead from each of these digits to its shape. Places, sizes and colours say nothing.

Pictures are wide or tall, so that batches hold different sizes.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from foveal.data._random import integers, uniform
from foveal.data.cache import cached
from foveal.data.embedded.confusion import SHAPES, shapes
from foveal.data.embedded.digits import sklearn_digits
from foveal.data.embedded.painting import paste
from foveal.data.embedded.scenes import Sources
from foveal.data.images.boxed import BoxedImages, BoxFormat, BoxSet
from foveal.data.images.boxes import Annotated, Objects, Thing
from foveal.data.images.detection import register_boxes
from foveal.data.images.labelled import WholeImages

LONG, SHORT = 112, 80  # sides of a picture
COUNTS = {"train": 1200, "val": 150, "test": 300}
COLUMNS, ROWS = 4, 3  # cells of a wide picture; an object is in a cell of its own
CELL = (28, 26)  # width and height
SIDE = (18, 25)  # of an object
DIGITS = 10
SLOTS = 6  # objects of a picture at most
INK = 64  # least intensity of what belongs to an object
VERSION = 1
OTHER, ALONE, OWN, MORE, WHICH, PATCH, PLACE, SIZE, X, Y, COLOUR, GROUND, NOISE, SHIFT, TALL = range(1, 16)


def generate(split: str, count: int | None = None) -> dict[str, Tensor]:
    """Pictures of a split; the first n are the same for any count.

    Returns:
        image: uint8 (N, 3, 112, 112), of which wide pictures have the first 80 rows and tall ones the first 80 columns.
        tall: bool (N,).
        label: from 1 on, 0 for an empty slot, int64 (N, 6); the first is the shape that the scene is named after.
        box: left, top, right, bottom, int64 (N, 6, 4).
        companion: bool (N, 6), whether it is a digit that belongs to the first.

    >>> pictures = generate("test", 2)
    >>> pictures["label"].tolist()
    [[11, 1, 13, 7, 0, 2], [12, 3, 15, 2, 0, 3]]
    """
    seed, n = list(COUNTS).index(split), torch.arange(COUNTS[split] if count is None else count)
    i, slot = n[:, None], torch.arange(SLOTS)[None]
    label, companion = _cast(seed, n)
    used = label > 0
    tall = uniform(seed, TALL, n) < 0.5
    cell = uniform(seed, PLACE, i, torch.arange(COLUMNS * ROWS)[None]).argsort(1)[:, :SLOTS]
    size = integers(*SIDE, uniform(seed, SIZE, i, slot))
    along = cell % COLUMNS * CELL[0] + (uniform(seed, X, i, slot) * (CELL[0] - size + 1)).long()
    across = cell // COLUMNS * CELL[1] + (uniform(seed, Y, i, slot) * (CELL[1] - size + 1)).long()
    x, y = torch.where(tall[:, None], across, along), torch.where(tall[:, None], along, across)
    sources = Sources.by_class(*sklearn_digits("test" if split == "test" else "train"))
    digit = (label - 1).clamp(0, DIGITS - 1)
    first, last = sources.starts[digit], sources.starts[digit + 1]
    patch = sources.digits[first + (uniform(seed, PATCH, i, slot) * (last - first)).long()]
    shape = shapes()[(label - 1 - DIGITS).clamp(min=0)]
    image = integers(10, 70, uniform(seed, GROUND, n))[:, None, None, None].repeat(1, 3, LONG, LONG).int()
    box = torch.zeros(len(n), SLOTS, 4, dtype=torch.int64)
    for k in range(SLOTS):
        place = (size[:, k], x[:, k], y[:, k], LONG)
        ink = torch.where((label[:, k] > DIGITS)[:, None, None], paste(shape[:, k], *place), paste(patch[:, k], *place))
        ink = ink * used[:, k, None, None]
        colour = torch.stack([integers(110, 255, uniform(seed, COLOUR, n * SLOTS + k, n * 0 + c)) for c in range(3)], 1)
        image = (image * (255 - ink[:, None]) + colour[:, :, None, None].int() * ink[:, None] + 127) // 255
        box[:, k] = _around(ink >= INK)
    noise = integers(-12, 12, uniform(0, NOISE, torch.arange(LONG * LONG))).int().view(LONG, LONG)
    shift = integers(0, LONG - 1, uniform(seed, SHIFT, n))[:, None]
    noise = noise[(torch.arange(LONG) + shift) % LONG]  # (N, 112, 112)
    image = (image + noise[:, None]).clamp(0, 255).to(torch.uint8)
    return {"image": image, "tall": tall, "label": label, "box": box, "companion": companion}


def _cast(seed: int, n: Tensor) -> tuple[Tensor, Tensor]:
    """Label of every slot of each picture, and whether it is a companion of the first; (N, 6) each."""
    kinds = len(SHAPES)
    scene = n % kinds
    other = (scene + integers(1, kinds - 1, uniform(seed, OTHER, n))) % kinds
    absent = uniform(seed, ALONE, n[:, None], torch.arange(kinds)[None])  # an order of the shapes that are missing
    absent = absent.scatter(1, torch.stack([scene, other], 1), 2.0).argsort(1)
    label = torch.zeros(len(n), SLOTS, dtype=torch.int64)
    companion = torch.zeros(len(n), SLOTS, dtype=torch.bool)
    label[:, 0], label[:, 2] = DIGITS + 1 + scene, DIGITS + 1 + other

    def digit(kind: Tensor, slot: int) -> Tensor:
        return 1 + 2 * kind + integers(0, 1, uniform(seed, WHICH, n, torch.full_like(n, slot)))

    second, fourth = uniform(seed, OWN, n) < 0.5, uniform(seed, MORE, n) < 0.5
    label[:, 1], label[:, 3] = digit(scene, 1), digit(absent[:, 0], 3)
    label[:, 4] = torch.where(fourth, digit(absent[:, 1], 4), 0)
    label[:, 5] = torch.where(second, digit(scene, 5), 0)
    companion[:, 1], companion[:, 5] = True, second
    return label, companion


def _around(mask: Tensor) -> Tensor:
    """The boxes around masks bool (N, S, S): left, top, right, bottom, int64 (N, 4)."""
    columns, rows = mask.any(1).int(), mask.any(2).int()
    first = [along.argmax(1) for along in (columns, rows)]
    last = [mask.shape[-1] - along.flip(1).argmax(1) for along in (columns, rows)]
    return torch.stack([*first, *last], 1)


def companions(split: str) -> BoxedImages:
    """All pictures of a split, from the cache if they are there."""
    key = {"split": split, "version": VERSION, "count": COUNTS[split]}
    drawn = cached("companions", key, lambda: generate(split))
    pixels, images, sizes = [], [], []
    for n, tall in enumerate(drawn["tall"].tolist()):
        height, width = (LONG, SHORT) if tall else (SHORT, LONG)
        sizes.append((height, width))
        pixels.append(drawn["image"][n, :, :height, :width].permute(1, 2, 0).reshape(-1, 3))
        images.append(_annotated(drawn["label"][n], drawn["box"][n], drawn["companion"][n], (width, height)))
    objects = Objects.of(images, related=True, scenes=True)
    return BoxedImages(WholeImages.of(torch.cat(pixels), torch.tensor(sizes)), objects)


def _annotated(label: Tensor, box: Tensor, companion: Tensor, size: tuple[int, int]) -> Annotated:
    slots = [k for k, value in enumerate(label.tolist()) if value]
    things = [Thing(tuple(map(float, box[k].tolist())), int(label[k])) for k in slots]  # type: ignore[arg-type]
    relations = [(place, 0) for place, k in enumerate(slots) if bool(companion[k])]
    return Annotated(Path(), size, things, relations, int(label[0]) - DIGITS - 1)


def read_companions(_: Path) -> BoxSet:
    """The pictures and what is in them."""
    answers = [*map(str, range(DIGITS)), *SHAPES]
    return BoxSet(answers, {split: companions(split) for split in COUNTS}, list(SHAPES))


register_boxes(
    BoxFormat(
        "companions",
        "companions",
        read_companions,
        flip=False,  # a mirrored digit is another sign
        note="embedded, for trying things out; which shape has its digits with it names the scene",
    ),
    "digits, and the shapes that they belong to; embedded",
)
