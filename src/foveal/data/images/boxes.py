"""Objects in images: boxes, classes, relations between them; checked, and packed into a few tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from foveal.data.problems import collected, note
from foveal.errors import DataError

LEAST_SIDE = 0.01  # pixels of a box; thinner ones have no area any more when they are resized and mirrored in float32
COUNTS, DIFFICULT, CROWD = range(3)  # marks of objects: difficult ones and crowds are neither right nor wrong
Target = dict[str, Any]


class Thing(NamedTuple):
    """One object of an image.

    Attributes:
        box: left, top, right and bottom in pixels; the first pixel begins at 0.
        label: number of its class, from 1 on.
        mark: whether it counts, is difficult, or a crowd.
    """

    box: tuple[float, float, float, float]
    label: int
    mark: int = COUNTS


@dataclass
class Annotated:
    """What the annotations say of one image.

    Attributes:
        file: the image.
        size: its width and height according to the annotations.
        things: the objects in it.
        relations: pairs of places in ``things``: subject and object.
        scene: class of the whole image, from 0 on, where images have one.
    """

    file: Path
    size: tuple[int, int]
    things: list[Thing] = field(default_factory=list)
    relations: list[tuple[int, int]] = field(default_factory=list)
    scene: int = 0


def checked(image: Annotated, source: Path) -> Annotated:
    """The same with boxes cut off at the border of the image; those of which nothing is left are dropped, and noted.

    Relations of dropped objects, and of an object with itself, are dropped as well; each of the others stands once.

    Args:
        image: with boxes in pixels.
        source: file of the annotations, for messages.

    Raises:
        DataError: a box is not of numbers, or ends before it begins.
    """
    width, height = image.size
    if min(width, height) < 1:
        raise DataError(f"{source}: image {image.file.name} is {width}×{height} pixels large; correct its size")
    things: list[Thing] = []
    places: dict[int, int] = {}  # of things that stay
    for number, thing in enumerate(image.things):
        left, top, right, bottom = thing.box
        if not all(map(math.isfinite, thing.box)) or right < left or bottom < top:
            raise DataError(
                f"{source}: the box {_shown(thing.box)} in image {image.file.name} is not valid; expected finite "
                "numbers, left ≤ right and top ≤ bottom"
            )
        box = (max(0.0, left), max(0.0, top), min(float(width), right), min(float(height), bottom))
        if min(box[2] - box[0], box[3] - box[1]) < LEAST_SIDE:
            note(
                f"{source}: the box {_shown(thing.box)} in image {image.file.name} of {width}×{height} pixels has no "
                "area inside of the image; it is left out"
            )
            continue
        places[number] = len(things)
        things.append(thing._replace(box=box))
    pairs = ((places.get(subject), places.get(other)) for subject, other in image.relations)
    relations = [
        (subject, other) for subject, other in pairs if subject is not None and other is not None and subject != other
    ]
    return replace(image, things=things, relations=list(dict.fromkeys(relations)))


def _shown(box: Sequence[float]) -> str:
    return f"[{', '.join(f'{end:g}' for end in box)}]"


@dataclass(frozen=True)
class Objects:
    """The objects of many images.

    Attributes:
        boxes: left, top, right, bottom in pixels, float (M, 4), those of one image after the other.
        labels: class of each, from 1 on, int64 (M,).
        marks: ``COUNTS``, ``DIFFICULT`` or ``CROWD``, uint8 (M,).
        first: number of the first object of each image, and of all objects at the end; N + 1 numbers.
        relations: places of subject and object among the objects of their image, int64 (R, 2).
        first_relation: as ``first``, of the relations.
        scene: class of each image, int64 (N,), or None if images have none.
        related: whether the dataset annotates relations.
    """

    boxes: Tensor
    labels: Tensor
    marks: Tensor
    first: Sequence[int]
    relations: Tensor
    first_relation: Sequence[int]
    scene: Tensor | None = None
    related: bool = False

    @classmethod
    def of(cls, images: Sequence[Annotated], *, related: bool = False, scenes: bool = False) -> Objects:
        """Those of ``images``."""
        things = [thing for image in images for thing in image.things]
        return cls(
            torch.tensor([thing.box for thing in things], dtype=torch.float32).view(-1, 4),
            torch.tensor([thing.label for thing in things], dtype=torch.int64),
            torch.tensor([thing.mark for thing in things], dtype=torch.uint8),
            _starts(len(image.things) for image in images),
            torch.tensor([pair for image in images for pair in image.relations], dtype=torch.int64).view(-1, 2),
            _starts(len(image.relations) for image in images),
            torch.tensor([image.scene for image in images]) if scenes else None,
            related,
        )

    def __len__(self) -> int:
        return len(self.first) - 1

    def to(self, device: torch.device) -> Objects:
        """The same on ``device``; counts stay where Python reads them."""
        moved = {name: getattr(self, name).to(device) for name in ("boxes", "labels", "marks", "relations")}
        return replace(self, **moved, scene=None if self.scene is None else self.scene.to(device))

    def take(self, chosen: Iterable[int]) -> Objects:
        """Those of the images with these numbers."""
        numbers = list(chosen)
        rows, first = _rows(self.first, numbers)
        pairs, first_relation = _rows(self.first_relation, numbers)
        scene = None if self.scene is None else self.scene[torch.tensor(numbers, dtype=torch.int64)]
        return replace(
            self,
            boxes=self.boxes[rows],
            labels=self.labels[rows],
            marks=self.marks[rows],
            first=first,
            relations=self.relations[pairs],
            first_relation=first_relation,
            scene=scene,
        )

    def counted(self) -> Objects:
        """Those that are neither difficult nor crowds, and the relations between them: what a model is trained on."""
        keep = self.marks == COUNTS
        if bool(keep.all()):
            return self
        place = keep.cumsum(0) - 1  # among those that stay
        before = [int(place[start - 1]) + 1 if start else 0 for start in self.first]
        image = torch.repeat_interleave(torch.arange(len(self)), torch.tensor(self.first_relation).diff())
        rows = self.relations + torch.tensor(self.first)[image][:, None]
        both = keep[rows].all(1)
        relations = place[rows[both]] - torch.tensor(before)[image[both]][:, None]
        return replace(
            self,
            boxes=self.boxes[keep],
            labels=self.labels[keep],
            marks=self.marks[keep],
            first=before,
            relations=relations,
            first_relation=_starts(image[both].bincount(minlength=len(self)).tolist()),
        )

    def target(self, number: int) -> Target:
        """What is said of an image: boxes (m, 4), labels (m,), iscrowd and difficult (m,), and what else there is."""
        rows = slice(self.first[number], self.first[number + 1])
        marks = self.marks[rows]
        target = {
            "boxes": self.boxes[rows],
            "labels": self.labels[rows],
            "iscrowd": marks == CROWD,
            "difficult": marks == DIFFICULT,
        }
        if self.related:
            target["relations"] = self.relations[self.first_relation[number] : self.first_relation[number + 1]]
        if self.scene is not None:
            target["scene"] = self.scene[number]
        return target


def _starts(counts: Iterable[int]) -> list[int]:
    starts = [0]
    for count in counts:
        starts.append(starts[-1] + count)
    return starts


def _rows(first: Sequence[int], numbers: Sequence[int]) -> tuple[Tensor, list[int]]:
    """Rows of the images with these numbers, and where each begins among them."""
    parts = [torch.arange(first[n], first[n + 1]) for n in numbers]
    rows = torch.cat(parts) if parts else torch.zeros(0, dtype=torch.int64)
    return rows, _starts(map(len, parts))


@dataclass(frozen=True)
class BoxedFiles:
    """Image files of one split and what is in them.

    Attributes:
        files: the images.
        sizes: width and height of each, as the annotations say.
        objects: of each, in the same order.
    """

    files: Sequence[Path]
    sizes: Sequence[tuple[int, int]]
    objects: Objects

    @classmethod
    def of(cls, images: Iterable[Annotated], source: Path, *, related: bool = False) -> BoxedFiles:
        """The images that are there and whose annotations can be used; what is wrong is a ``DataError``.

        Args:
            images: with their annotations.
            source: file or folder of the annotations, for messages.
            related: whether the dataset annotates relations.
        """
        kept = []
        present: dict[Path, set[str]] = {}
        for image in images:
            with collected():
                folder = image.file.parent
                if folder not in present:
                    present[folder] = {file.name for file in folder.iterdir()} if folder.is_dir() else set()
                if image.file.name not in present[folder]:
                    raise DataError(f"{source} names the image {image.file}, which is not there")
                kept.append(checked(image, source))
        if not kept:
            raise DataError(f"{source} names no image that can be used")
        return cls([i.file for i in kept], [i.size for i in kept], Objects.of(kept, related=related))

    def __len__(self) -> int:
        return len(self.files)

    def take(self, chosen: Tensor) -> BoxedFiles:
        """Those with these numbers."""
        numbers = chosen.tolist()
        return BoxedFiles(
            [self.files[n] for n in numbers], [self.sizes[n] for n in numbers], self.objects.take(numbers)
        )
