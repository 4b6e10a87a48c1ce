"""PASCAL VOC 2007 and 2012 for classification: ``ImageSets/Main/CLASS_SPLIT.txt`` and ``JPEGImages``.

Everingham et al., "The PASCAL visual object classes challenge" (IJCV 2010). An image may have several classes. The
class files are the ground truth of the official evaluation: 1, -1, or 0 where all objects of the class are difficult.
Such a label is neither right nor wrong there; here it is 0 and not ``valid``. (The boxes in Annotations differ from
these files for a few images.) VOC 2012 publishes no labels of its test images, so its validation images serve for
testing. Boxes are read if the folder Annotations is there.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from foveal.data.formats._rows import read_rows
from foveal.data.images.classification import Format, register_images
from foveal.data.images.labelled import ImageSet, LabelledImages, from_middle
from foveal.data.place import Place
from foveal.data.problems import collected
from foveal.data.splits import SPLITS
from foveal.errors import DataError

SITE = "http://host.robots.ox.ac.uk/pascal/VOC"
VOC_CLASSES = (
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable", "dog"),
    *("horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)
UNSET = 9  # a label that no class file has given yet


def read_voc(folder: Path, splits: tuple[str, ...] = ("train", "val")) -> ImageSet:
    """Images of ``splits``, with boxes if there are any."""
    main = folder / "ImageSets" / "Main"
    if not main.is_dir():
        raise DataError(f"{main} is missing; unpack the official VOCtrainval archive, which makes VOCdevkit")
    samples = {}
    for split in splits:
        with collected():
            samples[split] = _read_split(folder, main, split)
    annotated = (folder / "Annotations").is_dir() and splits[-1] in samples
    return ImageSet(list(VOC_CLASSES), samples, partial(_boxes, folder, samples) if annotated else None)


def read_voc2007(folder: Path) -> ImageSet:
    """VOC 2007, whose test images have public labels."""
    if (folder / "ImageSets" / "Main").is_dir() and not (folder / "ImageSets" / "Main" / "test.txt").is_file():
        raise DataError(f"{folder} has no test images; unpack VOCtest_06-Nov-2007.tar into the same VOCdevkit folder")
    return read_voc(folder, SPLITS)


def _read_split(folder: Path, main: Path, split: str) -> LabelledImages:
    images = [row[0] for row in read_rows(main / f"{split}.txt", 1)]
    number = {image: n for n, image in enumerate(images)}
    marks = torch.full((len(images), len(VOC_CLASSES)), UNSET)
    for k, name in enumerate(VOC_CLASSES):
        with collected():
            _read_class(main / f"{name}_{split}.txt", number, marks[:, k])
    files = [folder / "JPEGImages" / f"{image}.jpg" for image in images]
    return LabelledImages.of_files(files, (marks == 1).float(), marks != 0)


def _read_class(path: Path, number: dict[str, int], marks: Tensor) -> None:
    """Fill in the marks (N,) of one class; images are numbered by name."""
    for image, mark, *_ in read_rows(path, 2):
        if image not in number or mark not in ("1", "0", "-1"):
            raise DataError(
                f"{path}: expected an image of {path.stem.split('_')[-1]}.txt and 1, 0 or -1, got '{image} {mark}'; "
                "get it again"
            )
        marks[number[image]] = int(mark)
    if (marks == UNSET).any():
        missing = list(number)[int((marks == UNSET).nonzero()[0])]
        raise DataError(f"{path} has no line for image {missing}; get it again")


def _boxes(folder: Path, splits: dict[str, LabelledImages], split: str) -> Tensor:
    """Boxes of all objects (N, M, 5), as in :class:`~foveal.data.images.labelled.ImageSet`."""
    samples = splits[split]
    boxes = [torch.empty(0, 5) for _ in range(len(samples))]
    for n in range(len(samples)):
        with collected():
            boxes[n] = _objects(folder / "Annotations" / f"{samples.file(n).stem}.xml")
    return pad_sequence(boxes, batch_first=True, padding_value=-1)


class VocObject(NamedTuple):
    """An object of an annotation file: number of its class, left, top, right, bottom, and whether it is difficult."""

    label: int
    box: tuple[float, float, float, float]
    difficult: bool


def read_annotation(file: Path) -> tuple[tuple[int, int], list[VocObject]]:
    """Width and height of an image, and its objects; pixels are counted from 1 in the file, and the last is inside."""
    try:
        image = ElementTree.parse(file).getroot()
        width, height = (int(image.findtext(f"size/{side}", "")) for side in ("width", "height"))
        objects = []
        for node in image.findall("object"):
            x0, y0, x1, y1 = (float(node.findtext(f"bndbox/{end}", "")) for end in ("xmin", "ymin", "xmax", "ymax"))
            name = node.findtext("name", "")
            if name not in VOC_CLASSES:
                raise ValueError(f"{name!r} is none of its {len(VOC_CLASSES)} classes")
            label = VOC_CLASSES.index(name)
            objects.append(VocObject(label, (x0 - 1, y0 - 1, x1, y1), node.findtext("difficult", "0").strip() == "1"))
    except (OSError, ValueError, ElementTree.ParseError) as error:
        raise DataError(f"{file} cannot be read as an annotation of VOC ({error}); get it again") from error
    if min(width, height) < 1:
        raise DataError(f"{file} says that its image has {width}×{height} pixels; get it again")
    return (width, height), objects


def _objects(file: Path) -> Tensor:
    """Class and box of every object of an image, (M, 5), as in :class:`~foveal.data.images.labelled.ImageSet`."""
    size, objects = read_annotation(file)
    return torch.tensor([[thing.label, *from_middle(thing.box, *size)] for thing in objects]).view(-1, 5)


def voc_place(year: str, splits: tuple[str, ...], archives: str, *more: str) -> Place:
    """Where VOC lies; ``more`` names further files or folders that are needed."""
    lists = tuple(f"ImageSets/Main/{split}.txt" for split in splits)
    return Place(
        folders=(f"VOCdevkit/VOC{year}", f"VOC{year}"),
        needs=(*lists, "JPEGImages", *more),
        how=f"{archives} from {SITE}/voc{year}/",
    )


SUMMARY = "photographs with several of 20 classes each"
register_images(
    Format(
        "voc2012",
        "VOC 2012",
        read_voc,
        voc_place("2012", ("train", "val"), "VOCtrainval_11-May-2012.tar"),
    ),
    SUMMARY,
)
register_images(
    Format(
        "voc2007",
        "VOC 2007",
        read_voc2007,
        voc_place("2007", SPLITS, "VOCtrainval_06-Nov-2007.tar and VOCtest_06-Nov-2007.tar"),
    ),
    SUMMARY,
)
