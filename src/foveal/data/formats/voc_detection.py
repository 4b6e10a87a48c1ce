"""PASCAL VOC 2007 and 2012 for detection: ``ImageSets/Main``, ``Annotations`` and ``JPEGImages``.

Everingham et al., "The PASCAL visual object classes challenge" (IJCV 2010). Difficult objects are neither trained on
nor counted in the test. Papers train on ``trainval`` of 2007 and test on its ``test``; for 2012, whose test boxes are
not published, ``train`` and ``val`` serve.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from foveal.data.formats._rows import read_rows
from foveal.data.formats.voc import VOC_CLASSES, read_annotation, voc_place
from foveal.data.images.boxes import COUNTS, DIFFICULT, Annotated, BoxedFiles, Thing
from foveal.data.images.detection import BoxFormat, BoxSet, register_boxes
from foveal.data.problems import collected


def read_voc_boxes(folder: Path, lists: Mapping[str, str]) -> BoxSet:
    """Images and boxes of some splits.

    Args:
        folder: such as ``VOCdevkit/VOC2012``.
        lists: the official list of each split.
    """
    splits = {}
    for split, name in lists.items():
        with collected():
            images = [row[0] for row in read_rows(folder / "ImageSets" / "Main" / f"{name}.txt", 1)]
            splits[split] = BoxedFiles.of(_annotated(folder, images), folder / "Annotations")
    return BoxSet(list(VOC_CLASSES), splits)


def _annotated(folder: Path, images: list[str]) -> Iterator[Annotated]:
    for image in images:
        with collected():
            size, objects = read_annotation(folder / "Annotations" / f"{image}.xml")
            things = [Thing(o.box, o.label + 1, DIFFICULT if o.difficult else COUNTS) for o in objects]
            yield Annotated(folder / "JPEGImages" / f"{image}.jpg", size, things)


def _register(year: str, lists: dict[str, str], archives: str) -> None:
    place = voc_place(year, tuple(lists.values()), archives, "Annotations")
    form = BoxFormat(
        f"voc{year}-detection", f"VOC {year}", partial(read_voc_boxes, lists=lists), place, val_fraction=0.0
    )
    register_boxes(form, "photographs with objects of 20 classes")


_register("2012", {"train": "train", "val": "val"}, "VOCtrainval_11-May-2012.tar")
_register("2007", {"train": "trainval", "test": "test"}, "VOCtrainval_06-Nov-2007.tar and VOCtest_06-Nov-2007.tar")
