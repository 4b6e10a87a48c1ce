"""COCO: ``annotations/instances_SPLIT.json`` and a folder of images for each split.

Lin et al., "Microsoft COCO: Common objects in context" (https://arxiv.org/abs/1405.0312). Ids of categories have gaps;
labels number the categories in the order of their ids, from 1 on. Crowds are neither trained on nor counted in the
test. ``minicoco`` is the division of COCO 2014's validation images into 35,504 for training and 5,000 (minival) for
testing. ``cocofolder`` reads files of one's own in the same form.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from foveal.data.formats._json import member, numbers, read_json
from foveal.data.images.boxes import COUNTS, CROWD, Annotated, BoxedFiles, Thing
from foveal.data.images.detection import BoxFormat, BoxSet, register_boxes
from foveal.data.place import Place
from foveal.data.problems import collected
from foveal.errors import DataError

SITE = "https://cocodataset.org/#download"
Files = Mapping[str, tuple[str, str]]
"""Annotation file and folder of images of each split."""


def read_coco(folder: Path, files: Files, get: str) -> BoxSet:
    """Images and boxes of the splits that ``files`` names.

    Args:
        folder: with ``annotations`` and the images.
        files: of the splits; one that is not there is left out, unless it is ``train``.
        get: where to get the files, for messages.
    """
    splits, names = {}, None
    for split, (name, images) in files.items():
        path = folder / "annotations" / name
        if split != "train" and not path.exists():
            continue
        with collected():
            content = read_json(path, dict, get)
            categories = categories_of(content, path)
            names = names or categories
            if categories != names:
                raise DataError(
                    f"{path} has other categories than {next(iter(files.values()))[0]}; use files that agree"
                )
            splits[split] = BoxedFiles.of(annotated(content, categories, path, folder / images), path)
    return BoxSet(list((names or {}).values()), splits)


def categories_of(content: dict[str, Any], path: Path) -> dict[int, str]:
    """Names of the categories by id, in the order of the ids."""
    categories: dict[int, str] = {}
    for entry in member(content, "categories", list, str(path)):
        number, where = member(entry, "id", int, f"{path}, categories"), f"{path}, categories"
        if number in categories:
            raise DataError(f"{path} has two categories with id {number}; give each an id of its own")
        name = member(entry, "name", str, where)
        if name in categories.values():
            raise DataError(f"{path} has two categories with the name {name!r}; give each a name of its own")
        categories[number] = name
    if not categories:
        raise DataError(f"{path} has no categories; list them under 'categories'")
    return dict(sorted(categories.items()))


def annotated(
    content: dict[str, Any],
    categories: dict[int, str],
    path: Path,
    folder: Path,
    related: Mapping[int, Collection[tuple[int, int]]] | None = None,
) -> Iterator[Annotated]:
    """What the annotations say of each image.

    Args:
        content: of the file of annotations.
        categories: as :func:`categories_of` returns them.
        path: of the file, for messages.
        folder: of the images.
        related: pairs of ids of annotations by the id of the image; other images are left out.
    """
    labels = {number: label for label, number in enumerate(categories, 1)}
    entries = member(content, "images", list, str(path))
    known = {entry.get("id") for entry in entries if isinstance(entry, dict)}
    things: dict[Any, list[Thing]] = defaultdict(list)
    places: dict[Any, int] = {}  # of annotations among those of their image
    for entry in member(content, "annotations", list, str(path)):
        with collected():
            where = f"{path}, annotation {entry.get('id') if isinstance(entry, dict) else entry!r}"
            image, category = (member(entry, key, int, where) for key in ("image_id", "category_id"))
            if image not in known:
                raise DataError(f"{where} is of image {image}, which is not listed under 'images'")
            if category not in labels:
                raise DataError(f"{where} is of category {category}, which is not listed under 'categories'")
            left, top, width, height = numbers(entry.get("bbox"), 4, where)
            if related is not None:
                places[image, member(entry, "id", int, where)] = len(things[image])
            mark = CROWD if entry.get("iscrowd") else COUNTS
            things[image].append(Thing((left, top, left + width, top + height), labels[category], mark))
    seen = set()
    for entry in entries:
        with collected():
            number = entry.get("id") if isinstance(entry, dict) else entry
            where = f"{path}, image {number!r}"
            if member(entry, "id", int, where) in seen:
                raise DataError(f"{path} has two images with id {number}; give each an id of its own")
            seen.add(number)
            if related is not None and number not in related:
                continue
            ends = () if related is None else related[member(entry, "id", int, where)]
            try:
                pairs = [(places[number, one], places[number, other]) for one, other in ends]
            except KeyError as error:
                raise DataError(f"{where}: an action is of an object that is not among its annotations") from error
            size = (member(entry, "width", int, where), member(entry, "height", int, where))
            yield Annotated(folder / member(entry, "file_name", str, where), size, things[number], pairs)


def _register(name: str, title: str, files: Files, how: str, summary: str) -> None:
    needs = tuple(path for annotations, images in files.values() for path in (f"annotations/{annotations}", images))
    place = Place(folders=("coco",), needs=tuple(dict.fromkeys(needs)), how=how)
    read = partial(read_coco, files=files, get=f"get {how}")
    register_boxes(BoxFormat(name, title, read, place, val_fraction=0.0), summary)


_register(
    "coco",
    "COCO 2017",
    {"train": ("instances_train2017.json", "train2017"), "val": ("instances_val2017.json", "val2017")},
    f"train2017.zip, val2017.zip and annotations_trainval2017.zip from {SITE}",
    "photographs with objects of 80 classes",
)
_register(
    "minicoco",
    "minicoco",
    {
        "train": ("instances_valminusminival2014.json", "val2014"),
        "test": ("instances_minival2014.json", "val2014"),
    },
    f"val2014.zip from {SITE}, and the two files of annotations that Fast R-CNN's authors publish",
    "half of COCO's photographs, with objects of 80 classes",
)
OWN = {split: (f"instances_{split}.json", split) for split in ("train", "val", "test")}
HOW = (
    "annotations/instances_train.json in COCO's form and its images in train/; likewise val and test, if there are such"
)
register_boxes(
    BoxFormat(
        "cocofolder",
        "images with boxes",
        partial(read_coco, files=OWN, get=f"put there {HOW}"),
        Place(folders=("cocofolder",), needs=("annotations/instances_train.json", "train"), how=HOW),
        own_files=True,
    ),
    "images with boxes of your own, in COCO's form",
)
