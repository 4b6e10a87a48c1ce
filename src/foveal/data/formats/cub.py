"""CUB-200-2011 with its official split, in the official form or as class folders below ``train`` and ``test``.

Wah et al., "The Caltech-UCSD Birds-200-2011 dataset" (2011). The official form has images.txt, classes.txt,
image_class_labels.txt, train_test_split.txt and the folder images; boxes are read if bounding_boxes.txt is there.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from foveal.data.formats._rows import read_rows
from foveal.data.formats.image_folders import CLASS_FOLDERS, plain_name, read_folder
from foveal.data.images.classification import Format, register_images
from foveal.data.images.labelled import ImageSet, LabelledImages, from_middle
from foveal.data.place import Place
from foveal.data.problems import collected
from foveal.errors import DataError


def read_cub(folder: Path) -> ImageSet:
    """Training and test images of all species."""
    if not (folder / "images.txt").is_file() and (folder / "train").is_dir():
        images = read_folder(folder)
        return ImageSet([plain_name(name) for name in images.answers], images.splits)
    classes = {row[0]: row[1] for row in read_rows(folder / "classes.txt", 2)}
    numbers = {number: label for label, number in enumerate(classes)}
    class_of = dict(row[:2] for row in read_rows(folder / "image_class_labels.txt", 2))
    is_training = dict(row[:2] for row in read_rows(folder / "train_test_split.txt", 2))
    listed: dict[str, tuple[list[Path], list[int]]] = {"train": ([], []), "test": ([], [])}
    for image, name in (row[:2] for row in read_rows(folder / "images.txt", 2)):
        with collected():
            if class_of.get(image) not in numbers or is_training.get(image) not in ("0", "1"):
                raise DataError(
                    f"{folder}: image {image} ({name}) has no class in image_class_labels.txt or no 0 or 1 in "
                    "train_test_split.txt; the files do not belong together, get the official archive again"
                )
            files, labels = listed["train" if is_training[image] == "1" else "test"]
            files.append(folder / "images" / name)
            labels.append(numbers[class_of[image]])
    for split, (files, _) in listed.items():
        if not files:
            raise DataError(f"{folder / 'train_test_split.txt'} leaves no image for {split}; get it again")
    samples = {split: LabelledImages.of_files(files, torch.tensor(labels)) for split, (files, labels) in listed.items()}
    has_boxes = (folder / "bounding_boxes.txt").is_file()
    boxes = partial(_boxes, folder, samples) if has_boxes else None
    return ImageSet([plain_name(name) for name in classes.values()], samples, boxes)


def _boxes(folder: Path, splits: dict[str, LabelledImages], split: str) -> Tensor:
    """The bird of each image (N, 1, 5), as in :class:`~foveal.data.images.labelled.ImageSet`."""
    samples = splits[split]
    path = folder / "bounding_boxes.txt"
    box_of = {image: box for image, *box in (row[:5] for row in read_rows(path, 5))}
    rows = read_rows(folder / "images.txt", 2)
    image_of = {folder / "images" / name: image for image, name in (row[:2] for row in rows)}
    boxes = []
    for n in range(len(samples)):
        file = samples.file(n)
        with collected():
            try:
                x, y, w, h = (float(number) for number in box_of[image_of[file]])
            except (KeyError, ValueError) as error:
                raise DataError(f"{path}: expected x, y, width and height of {file.name}; get it again") from error
            try:
                with Image.open(file) as opened:
                    width, height = opened.size
            except OSError as error:
                raise DataError(f"{file} cannot be read as an image ({error}); get it again") from error
            boxes.append([float(samples.labels[n]), *from_middle((x, y, x + w, y + h), width, height)])
    return torch.tensor(boxes).view(-1, 1, 5)


register_images(
    Format(
        "cub200",
        "CUB-200-2011",
        read_cub,
        Place(
            folders=("CUB_200_2011", "cub200", "cub100"),
            needs=("images", "images.txt", "classes.txt", "image_class_labels.txt", "train_test_split.txt"),
            how="CUB_200_2011.tgz from https://www.vision.caltech.edu/datasets/cub_200_2011/; or train/CLASS and "
            "test/CLASS folders of images in cub200/",
            layouts=(CLASS_FOLDERS,),
        ),
    ),
    "birds of 200 species",
)
