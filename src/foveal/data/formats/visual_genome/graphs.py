"""Scene graphs of Visual Genome: objects with their boxes, and the relations between them.

Krishna et al., "Visual Genome" (https://arxiv.org/abs/1602.07332): ``scene_graphs.json`` lists for every image objects
with names and boxes, and relationships by the ids of their subject and object. FAN (https://arxiv.org/abs/1905.11498)
keeps 150 classes of objects and divides the images into 70,000 for training and 30,000 for testing, "the scene-graph
split". That list is not among the official files: here the 150 most frequent names are kept, and images are divided
70 : 30 by a hash of their id. Images without an object of these classes are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from foveal.data.formats.visual_genome.annotations import (
    SITE,
    box_of,
    field_of,
    frequent,
    image_sizes,
    name_of,
    object_id,
    read_list,
)
from foveal.data.formats.visual_genome.attributes import IMAGE_FOLDERS, image_files, split_images
from foveal.data.images.boxes import Annotated, BoxedFiles, Thing
from foveal.data.images.detection import BoxFormat, BoxSet, register_boxes
from foveal.data.place import Layout, Place
from foveal.data.problems import collected
from foveal.errors import DataError

CLASSES = 150
ANNOTATIONS = ("scene_graphs.json", "image_data.json")
Graph = tuple[list[dict[str, Any]], list[dict[str, Any]]]


def read_graphs(folder: Path, classes: int = CLASSES) -> BoxSet:
    """Images, objects of the most frequent ``classes`` and relations between them."""
    path = folder / ANNOTATIONS[0]
    graphs = dict(_graphs(path))
    names = frequent((name for things, _ in graphs.values() for thing in things if (name := name_of(thing))), 0)
    names = names[:classes]
    labels = {name: label for label, name in enumerate(names, 1)}
    kept = {image for image, (things, _) in graphs.items() if any(name_of(thing) in labels for thing in things)}
    sizes, files = image_sizes(folder, kept), image_files(folder, kept)
    kept &= sizes.keys() & files.keys()
    if len(kept) < 2:
        raise DataError(f"{path} has no objects in two images that are there; get both from {SITE}")
    test = round(0.3 * len(kept)) or 1
    splits = {}
    for split in ("train", "test"):
        chosen = split_images(kept, split, sizes=(len(kept) - test, 0, test))
        images = (_annotated(files[i], sizes[i], graphs[i], labels) for i in sorted(chosen))
        splits[split] = BoxedFiles.of(images, path, related=True)
    return BoxSet(names, splits)


def _graphs(path: Path) -> Iterator[tuple[int, Graph]]:
    """Objects and relationships of every image, by its id."""
    for number, entry in enumerate(read_list(path)):
        with collected():
            image = field_of(entry, ("image_id", "id"), int, path, number)
            things, relations = (field_of(entry, (key,), list, path, number) for key in ("objects", "relationships"))
            if not all(isinstance(node, dict) for node in (*things, *relations)):
                raise DataError(f"{path}: image {image} lists something else than objects; get the file from {SITE}")
            yield image, (things, relations)


def _annotated(file: Path, size: tuple[int, int], graph: Graph, labels: dict[str, int]) -> Annotated:
    things: list[Thing] = []
    places: dict[Any, int] = {}  # by id
    for node in graph[0]:
        box, label = box_of(node), labels.get(name_of(node))
        if label is not None and box is not None:
            left, top, width, height = box
            places[object_id(node)] = len(things)
            things.append(Thing((left, top, left + width, top + height), label))
    ends = ((places.get(node.get("subject_id")), places.get(node.get("object_id"))) for node in graph[1])
    relations = [(subject, other) for subject, other in ends if subject is not None and other is not None]
    return Annotated(file, size, things, relations)


register_boxes(
    BoxFormat(
        "visual-genome-graphs",
        "Visual Genome",
        read_graphs,
        Place(
            folders=("visual_genome",),
            needs=(*ANNOTATIONS, *IMAGE_FOLDERS),
            how=f"scene_graphs.json.zip, image_data.json.zip, images.zip and images2.zip from {SITE}, unpacked in "
            "visual_genome/",
            layouts=(Layout("a part of the images", (*ANNOTATIONS, f"{IMAGE_FOLDERS[0]}*")),),
        ),
        val_fraction=0.0,
    ),
    "photographs with objects of 150 classes and relations between them",
)
