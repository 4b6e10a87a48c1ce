"""V-COCO: people in photographs of COCO, and what they do with which object.

Gupta and Malik, "Visual semantic role labeling" (https://arxiv.org/abs/1505.04474), as prepared for training in the
repository fredzzhang/vcoco: ``trainval.json`` and ``test.json`` list for every image pairs of a person's box and an
object's box, with an action and the object's class. The same box in several pairs is one object here. A pair with
several actions is one relation, from the person to the object.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from foveal.data.formats._json import member, numbers, read_json
from foveal.data.images.boxes import Annotated, BoxedFiles, Thing
from foveal.data.images.detection import BoxFormat, BoxSet, register_boxes
from foveal.data.place import Place
from foveal.data.problems import collected
from foveal.errors import DataError

PERSON = 1
HOW = "trainval.json and test.json from the repository fredzzhang/vcoco, and the images that they name in images/"


def read_vcoco(folder: Path) -> BoxSet:
    """Images, objects and relations; ``trainval`` is for training."""
    splits, names = {}, None
    for split, name in (("train", "trainval.json"), ("test", "test.json")):
        path = folder / name
        with collected():
            content = read_json(path, dict, HOW)
            listed = member(content, "objects", list, str(path))
            names = names or listed
            if listed[: PERSON + 1] != ["background", "person"] or listed != names:
                raise DataError(f"{path}: expected 'objects' to begin with background and person, as in both files")
            images = _annotated(content, len(listed), path, folder / "images")
            splits[split] = BoxedFiles.of(images, path, related=True)
    return BoxSet([str(name) for name in (names or ["background"])[1:]], splits)


def _annotated(content: dict[str, Any], classes: int, path: Path, folder: Path) -> Iterator[Annotated]:
    for entry in member(content, "annotations", list, str(path)):
        with collected():
            where = f"{path}, image {entry.get('file_name') if isinstance(entry, dict) else entry!r}"
            size = (member(entry, "width", int, where), member(entry, "height", int, where))
            people, others, labels = (member(entry, key, list, where) for key in ("boxes_h", "boxes_o", "objects"))
            if not len(people) == len(others) == len(labels):
                raise DataError(f"{where}: expected as many boxes_h as boxes_o and objects")
            things: dict[Thing, int] = {}  # each with its place
            relations = []
            for person, other, label in zip(people, others, labels, strict=True):
                if not isinstance(label, int) or not 0 < label < classes:
                    raise DataError(f"{where}: object class {label!r} is not from 1 to {classes - 1}")
                pair = (Thing(_box(person, where), PERSON), Thing(_box(other, where), label))
                subject, target = (things.setdefault(thing, len(things)) for thing in pair)
                relations.append((subject, target))
            yield Annotated(folder / member(entry, "file_name", str, where), size, list(things), relations)


def _box(value: Any, where: str) -> tuple[float, float, float, float]:
    left, top, right, bottom = numbers(value, 4, where)
    return left, top, right, bottom


register_boxes(
    BoxFormat(
        "vcoco",
        "V-COCO",
        read_vcoco,
        Place(folders=("vcoco",), needs=("trainval.json", "test.json", "images"), how=HOW),
        val_fraction=0.0,
    ),
    "photographs of people and the objects that they use",
)
