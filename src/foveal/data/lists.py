"""Datasets whose labels lie in text files beside the images: CUB-200-2011, Tiny-ImageNet and VOC."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import torch
from PIL import Image
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from foveal.data.folders import class_names, class_samples, image_files, plain_name, read_folder, wordnet_names
from foveal.data.samples import SPLITS, Found, Samples
from foveal.errors import DataError

VOC_CLASSES = (
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable", "dog"),
    *("horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)


def table(path: Path, columns: int) -> list[list[str]]:
    """Rows of a text file with at least ``columns`` words a line; blank lines do not count."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError as error:
        raise DataError(f"{path} is missing; it comes with the official archive") from error
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read ({error}); get it again") from error
    rows = [line.split() for line in lines]
    for number, row in enumerate(rows, 1):
        if row and len(row) < columns:
            raise DataError(f"{path} line {number}: expected {columns} words, got {lines[number - 1]!r}")
    kept = [row for row in rows if row]
    if not kept:
        raise DataError(f"{path} is empty; get it again")
    return kept


def read_cub(folder: Path) -> Found:
    """CUB-200-2011 with its official split, in the official form or as class folders below ``train`` and ``test``.

    Wah et al., "The Caltech-UCSD Birds-200-2011 dataset" (2011). The official form has images.txt, classes.txt,
    image_class_labels.txt, train_test_split.txt and the folder images; boxes are read if bounding_boxes.txt is there.
    """
    if not (folder / "images.txt").is_file() and (folder / "train").is_dir():
        found = read_folder(folder)
        return Found([plain_name(name) for name in found.answers], found.splits)
    classes = {row[0]: row[1] for row in table(folder / "classes.txt", 2)}
    numbers = {number: label for label, number in enumerate(classes)}
    label_of = dict(row[:2] for row in table(folder / "image_class_labels.txt", 2))
    trained_on = dict(row[:2] for row in table(folder / "train_test_split.txt", 2))
    picked: dict[str, tuple[list[Path], list[int]]] = {"train": ([], []), "test": ([], [])}
    for image, name in (row[:2] for row in table(folder / "images.txt", 2)):
        if label_of.get(image) not in numbers or trained_on.get(image) not in ("0", "1"):
            raise DataError(
                f"{folder}: image {image} ({name}) has no class in image_class_labels.txt or no 0 or 1 in "
                "train_test_split.txt; the files do not belong together, get the official archive again"
            )
        files, labels = picked["train" if trained_on[image] == "1" else "test"]
        files.append(folder / "images" / name)
        labels.append(numbers[label_of[image]])
    for split, (files, _) in picked.items():
        if not files:
            raise DataError(f"{folder / 'train_test_split.txt'} leaves no image for {split}; get it again")
    samples = {split: Samples.of_files(files, torch.tensor(labels)) for split, (files, labels) in picked.items()}
    boxed = (folder / "bounding_boxes.txt").is_file()
    boxes = partial(_cub_boxes, folder, samples["test"]) if boxed else None
    return Found([plain_name(name) for name in classes.values()], samples, boxes)


def _cub_boxes(folder: Path, samples: Samples) -> Tensor:
    """The bird of each image (N, 1, 5), as in :class:`~foveal.data.samples.Found`."""
    path = folder / "bounding_boxes.txt"
    box_of = {image: box for image, *box in (row[:5] for row in table(path, 5))}
    named = {folder / "images" / name: image for image, name in (row[:2] for row in table(folder / "images.txt", 2))}
    found = []
    for n in range(len(samples)):
        file = samples.file(n)
        try:
            x, y, w, h = (float(number) for number in box_of[named[file]])
        except (KeyError, ValueError) as error:
            raise DataError(f"{path}: expected x, y, width and height of {file.name}; get it again") from error
        try:
            with Image.open(file) as opened:
                width, height = opened.size
        except OSError as error:
            raise DataError(f"{file} cannot be read as an image ({error}); get it again") from error
        found.append([float(samples.labels[n]), *_from_middle((x, y, x + w, y + h), width, height)])
    return torch.tensor(found)[:, None]


def _from_middle(box: tuple[float, float, float, float], width: float, height: float) -> list[float]:
    """Pixels from the top left as parts of the image's short side from its middle."""
    middle = (width / 2, height / 2) * 2
    return [(end - half) / min(width, height) for end, half in zip(box, middle, strict=True)]


def read_tiny_imagenet(folder: Path) -> Found:
    """Tiny-ImageNet: ``train/WNID/images``, ``val/images`` with val_annotations.txt, and words.txt for the names.

    The labels of its test images are not public: the official validation images serve for testing. Classes are in the
    order of their WNIDs.
    """
    if not (folder / "train").is_dir() or not (folder / "val").is_dir():
        raise DataError(f"{folder} has no train and val folders; unpack tiny-imagenet-200.zip there")
    classes = class_names(folder / "train")
    train = class_samples(folder / "train", classes)
    numbers = {wnid: label for label, wnid in enumerate(classes)}
    annotations = folder / "val" / "val_annotations.txt"
    rows = table(annotations, 2)
    for name, wnid, *_ in rows:
        if wnid not in numbers:
            raise DataError(f"{annotations}: {name} is of class {wnid}, which has no folder in {folder / 'train'}")
    there = {file.name: file for file in image_files(folder / "val")}  # also where someone sorted them into folders
    for row in rows:
        if row[0] not in there:
            raise DataError(f"{folder / 'val' / 'images' / row[0]} is missing; unpack tiny-imagenet-200.zip again")
    val = Samples.of_files([there[row[0]] for row in rows], torch.tensor([numbers[row[1]] for row in rows]))
    return Found(wordnet_names(classes, folder / "words.txt"), {"train": train, "val": val})


def read_voc(folder: Path, splits: tuple[str, ...] = ("train", "val")) -> Found:
    """VOC classification: ``ImageSets/Main/CLASS_SPLIT.txt`` and ``JPEGImages``; an image may have several classes.

    Everingham et al., "The PASCAL visual object classes challenge" (IJCV 2010). The class files are the ground truth of
    the official evaluation: 1, -1, or 0 where all objects of the class are difficult. Such a label is neither right nor
    wrong there; here it is 0 and not ``valid``. (The boxes in Annotations differ from these files for a few images.)
    VOC 2012 publishes no labels of its test images, so its validation images serve for testing. Boxes are read if the
    folder Annotations is there.
    """
    main = folder / "ImageSets" / "Main"
    if not main.is_dir():
        raise DataError(f"{main} is missing; unpack the official VOCtrainval archive, which makes VOCdevkit")
    found = {split: _voc_split(folder, main, split) for split in splits}
    annotated = (folder / "Annotations").is_dir()
    return Found(list(VOC_CLASSES), found, partial(_voc_boxes, folder, found[splits[-1]]) if annotated else None)


def read_voc2007(folder: Path) -> Found:
    """VOC 2007, whose test images have public labels."""
    if (folder / "ImageSets" / "Main").is_dir() and not (folder / "ImageSets" / "Main" / "test.txt").is_file():
        raise DataError(f"{folder} has no test images; unpack VOCtest_06-Nov-2007.tar into the same VOCdevkit folder")
    return read_voc(folder, SPLITS)


def _voc_split(folder: Path, main: Path, split: str) -> Samples:
    images = [row[0] for row in table(main / f"{split}.txt", 1)]
    place = {image: n for n, image in enumerate(images)}
    marks = torch.full((len(images), len(VOC_CLASSES)), 9)
    for k, name in enumerate(VOC_CLASSES):
        path = main / f"{name}_{split}.txt"
        for image, mark, *_ in table(path, 2):
            if image not in place or mark not in ("1", "0", "-1"):
                raise DataError(
                    f"{path}: expected an image of {split}.txt and 1, 0 or -1, got '{image} {mark}'; get it again"
                )
            marks[place[image], k] = int(mark)
    if (marks == 9).any():
        n, k = (marks == 9).nonzero()[0].tolist()
        raise DataError(f"{main / f'{VOC_CLASSES[k]}_{split}.txt'} has no line for image {images[n]}; get it again")
    files = [folder / "JPEGImages" / f"{image}.jpg" for image in images]
    return Samples.of_files(files, (marks == 1).float(), marks != 0)


def _voc_boxes(folder: Path, samples: Samples) -> Tensor:
    """Boxes of all objects (N, M, 5), as in :class:`~foveal.data.samples.Found`."""
    files = (folder / "Annotations" / f"{samples.file(n).stem}.xml" for n in range(len(samples)))
    return pad_sequence([_voc_objects(file) for file in files], batch_first=True, padding_value=-1)


def _voc_objects(file: Path) -> Tensor:
    """Class and box of every object of an image, (M, 5); pixels are counted from 1 there, and the last is inside."""
    try:
        image = ElementTree.parse(file).getroot()
        width, height = (float(image.findtext(f"size/{side}", "")) for side in ("width", "height"))
        found = []
        for thing in image.findall("object"):
            x0, y0, x1, y1 = (float(thing.findtext(f"bndbox/{end}", "")) for end in ("xmin", "ymin", "xmax", "ymax"))
            label = VOC_CLASSES.index(thing.findtext("name", ""))
            found.append([label, *_from_middle((x0 - 1, y0 - 1, x1, y1), width, height)])
    except (OSError, ValueError, ZeroDivisionError, ElementTree.ParseError) as error:
        raise DataError(f"{file} cannot be read as an annotation of VOC ({error}); get it again") from error
    return torch.tensor(found).view(-1, 5)
