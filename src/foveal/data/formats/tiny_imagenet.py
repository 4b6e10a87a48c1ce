"""Tiny-ImageNet: ``train/WNID/images``, ``val/images`` with val_annotations.txt, and words.txt for the names.

The labels of its test images are not public: the official validation images serve for testing.
"""

from __future__ import annotations

from pathlib import Path

import torch

from foveal.data.formats._rows import read_rows
from foveal.data.formats.image_folders import class_names, class_samples
from foveal.data.formats.imagenet import wordnet_names
from foveal.data.images.classification import Format, register_images
from foveal.data.images.labelled import ImageSet, LabelledImages
from foveal.data.images.reading import image_files
from foveal.data.place import Place
from foveal.data.problems import collected
from foveal.errors import DataError

ARCHIVE = "tiny-imagenet-200"


def read_tiny_imagenet(folder: Path) -> ImageSet:
    """Training and validation images; classes are in the order of their WNIDs."""
    if not (folder / "train").is_dir() or not (folder / "val").is_dir():
        raise DataError(f"{folder} has no train and val folders; unpack {ARCHIVE}.zip there")
    classes = class_names(folder / "train")
    train = class_samples(folder / "train", classes)
    labels = {wnid: label for label, wnid in enumerate(classes)}
    annotations = folder / "val" / "val_annotations.txt"
    rows = read_rows(annotations, 2)
    files = {file.name: file for file in image_files(folder / "val")}  # also where someone sorted them into folders
    listed: list[tuple[Path, int]] = []
    for name, wnid, *_ in rows:
        with collected():
            if wnid not in labels:
                raise DataError(f"{annotations}: {name} is of class {wnid}, which has no folder in {folder / 'train'}")
            if name not in files:
                raise DataError(f"{folder / 'val' / 'images' / name} is missing; unpack {ARCHIVE}.zip again")
            listed.append((files[name], labels[wnid]))
    val = LabelledImages.of_files([file for file, _ in listed], torch.tensor([label for _, label in listed]))
    return ImageSet(wordnet_names(classes, folder / "words.txt"), {"train": train, "val": val})


register_images(
    Format(
        "tiny-imagenet",
        "Tiny-ImageNet",
        read_tiny_imagenet,
        Place(
            folders=(ARCHIVE,),
            needs=("train/*/*", "val/val_annotations.txt"),
            how=f"{ARCHIVE}.zip from http://cs231n.stanford.edu/{ARCHIVE}.zip",
        ),
        size=64,
        augment="small",
    ),
    "110,000 small photographs of 200 classes",
)
