"""V-COCO: people in photographs of COCO, and what they do with which object.

Gupta and Malik, "Visual semantic role labeling" (https://arxiv.org/abs/1505.04474), as prepared for training in the
repository fredzzhang/vcoco: ``trainval.json`` and ``test.json`` list for every image pairs of a person's box and an
object's box, with an action and the object's class. The same box in several pairs is one object here. A pair with
several actions is one relation, from the person to the object.

The authors' own files are read too: ``data/vcoco/vcoco_trainval.json`` and ``vcoco_test.json``, beside them what their
script picks of COCO's annotations. There all objects of an image are known, not only those of pairs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from foveal.data.formats._json import member, numbers, read_json
from foveal.data.formats.coco import annotated, categories_of
from foveal.data.images.boxes import Annotated, BoxedFiles, Thing
from foveal.data.images.detection import BoxFormat, BoxSet, register_boxes
from foveal.data.place import Layout, Place
from foveal.data.problems import collected
from foveal.errors import DataError

PERSON = 1
INSTANCES = "data/instances_vcoco_all_2014.json"
ACTIONS = {"train": "data/vcoco/vcoco_trainval.json", "test": "data/vcoco/vcoco_test.json"}
OFFICIAL = "the repository s-gupta/v-coco, with what its script_pick_annotations.py makes, and the images in images/"
HOW = "trainval.json and test.json from the repository fredzzhang/vcoco, and the images that they name in images/"


def read_vcoco(folder: Path) -> BoxSet:
    """Images, objects and relations; ``trainval`` is for training."""
    if not (folder / "trainval.json").exists() and (folder / INSTANCES).exists():
        return _read_official(folder)
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


def _read_official(folder: Path) -> BoxSet:
    """The same from the authors' files."""
    path = folder / INSTANCES
    content = read_json(path, dict, f"see {OFFICIAL}")
    categories = categories_of(content, path)
    splits = {}
    for split, name in ACTIONS.items():
        with collected():
            related = _relations(read_json(folder / name, list, f"see {OFFICIAL}"), folder / name)
            images = annotated(content, categories, path, folder / "images", related)
            splits[split] = BoxedFiles.of(images, path, related=True)
    return BoxSet(list(categories.values()), splits)


def _relations(actions: list[Any], path: Path) -> dict[int, set[tuple[int, int]]]:
    """Pairs of annotations, of a person and an object of an action, by image; of those without actions no pairs."""
    found: dict[int, set[tuple[int, int]]] = defaultdict(set)
    for action in actions:
        where = f"{path}, action {action.get('action_name') if isinstance(action, dict) else action!r}"
        images, people, ends, does, roles = (
            member(action, key, list, where) for key in ("image_id", "ann_id", "role_object_id", "label", "role_name")
        )
        if not len(images) == len(people) == len(does) or len(ends) != len(roles) * len(people):
            raise DataError(f"{where}: expected as many image_id and label as ann_id, and role_object_id for each role")
        for number, (image, person, doing) in enumerate(zip(images, people, does, strict=True)):
            pairs = ((person, end) for end in ends[len(people) + number :: len(people)] if end)
            found[image].update(pairs if doing else ())
    return found


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
        Place(
            folders=("vcoco",),
            needs=("trainval.json", "test.json", "images"),
            how=f"{HOW}; or {OFFICIAL}",
            layouts=(Layout("the authors' files", (INSTANCES, *ACTIONS.values(), "images")),),
        ),
        val_fraction=0.0,
    ),
    "photographs of people and the objects that they use",
)
