"""VRD: objects in photographs and the relations between them.

Lu et al., "Visual relationship detection with language priors" (https://arxiv.org/abs/1608.00187): 4,000 images for
training and 1,000 for testing, 100 classes of objects, 70 predicates. ``annotations_train.json`` lists triples of
subject, predicate and object for every image; a box is [top, bottom, left, right]. The same object in several triples
is one, and a pair with several predicates is one relation. The files do not say how large the images are, so these are
asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from foveal.data.formats._json import member, numbers, read_json
from foveal.data.images.boxes import Annotated, BoxedFiles, Thing
from foveal.data.images.detection import BoxFormat, BoxSet, register_boxes
from foveal.data.images.masked import size_of
from foveal.data.place import Place
from foveal.data.problems import collected
from foveal.errors import DataError

HOW = "json_dataset.zip and sg_dataset.zip from https://cs.stanford.edu/people/ranjaykrishna/vrd/, unpacked in vrd/"
FILES = {
    "train": ("annotations_train.json", "sg_dataset/sg_train_images"),
    "test": ("annotations_test.json", "sg_dataset/sg_test_images"),
}


def read_vrd(folder: Path) -> BoxSet:
    """Images, objects and relations."""
    names = [str(name) for name in read_json(folder / "objects.json", list, HOW)]
    splits = {}
    for split, (name, images) in FILES.items():
        path = folder / name
        with collected():
            content = read_json(path, dict, HOW)
            splits[split] = BoxedFiles.of(_annotated(content, len(names), path, folder / images), path, related=True)
    return BoxSet(names, splits)


def _annotated(content: dict[str, Any], classes: int, path: Path, folder: Path) -> Iterator[Annotated]:
    for name, triples in content.items():
        with collected():
            where = f"{path}, image {name}"
            things: dict[Thing, int] = {}  # each with its place
            relations = []
            for triple in triples if isinstance(triples, list) else [triples]:
                pair = (_thing(member(triple, role, dict, where), classes, where) for role in ("subject", "object"))
                subject, other = (things.setdefault(thing, len(things)) for thing in pair)
                relations.append((subject, other))
            if not (folder / name).exists():
                raise DataError(f"{path} names the image {folder / name}, which is not there")
            height, width = size_of(folder / name, None)
            yield Annotated(folder / name, (width, height), list(things), relations)


def _thing(entry: dict[str, Any], classes: int, where: str) -> Thing:
    category = member(entry, "category", int, where)
    if not 0 <= category < classes:
        raise DataError(f"{where}: category {category} is not from 0 to {classes - 1}, as objects.json has them")
    top, bottom, left, right = numbers(entry.get("bbox"), 4, where)
    return Thing((left, top, right, bottom), category + 1)


register_boxes(
    BoxFormat(
        "vrd",
        "VRD",
        read_vrd,
        Place(folders=("vrd",), needs=("objects.json", *(path for pair in FILES.values() for path in pair)), how=HOW),
        val_fraction=0.0,
    ),
    "photographs with objects of 100 classes and relations between them",
)
