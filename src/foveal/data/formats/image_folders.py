"""Images sorted into one folder for each class.

The folder holds ``train/CLASS``, ``val/CLASS`` and ``test/CLASS``, of which ``train`` is needed, or just ``CLASS``.
Classes are numbered in the order of their names, and images follow in the order of theirs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import torch

from foveal.data.images.classification import Format, register_images
from foveal.data.images.labelled import ImageSet, LabelledImages
from foveal.data.images.reading import image_files
from foveal.data.place import Layout, Place
from foveal.data.problems import collected
from foveal.data.splits import SPLITS
from foveal.errors import DataError, unknown

CLASS_FOLDERS = Layout("class folders", ("train/*/*",))


def class_names(folder: Path) -> list[str]:
    """Names of the folders in ``folder``, sorted."""
    names = sorted(p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    if not names:
        loose = " but image files; sort them into one folder for each class" if image_files(folder) else ""
        raise DataError(f"{folder} has no class folders{loose or '; expected one folder of images for each class'}")
    return names


def class_samples(folder: Path, classes: Sequence[str], deep: bool = True, all_needed: bool = True) -> LabelledImages:
    """The images of ``classes``, numbered as they are listed.

    Args:
        folder: holds the class folders.
        classes: their names.
        deep: also take images in folders below a class folder.
        all_needed: whether a class without images is an error, as it is in training.
    """
    files: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        members = image_files(folder / name, deep)
        with collected():
            if not members and all_needed:
                raise DataError(f"{folder / name} holds no image files; add some or remove the folder")
        files += members
        labels += [label] * len(members)
    if not files:
        raise DataError(f"{folder} holds no image files")
    return LabelledImages.of_files(files, torch.tensor(labels))


def read_folder(folder: Path) -> ImageSet:
    """A plain folder of images with or without folders for its splits."""
    present = [split for split in SPLITS if (folder / split).is_dir()]
    if not present:
        classes = class_names(folder)
        return ImageSet(classes, {"train": class_samples(folder, classes)})
    if "train" not in present:
        raise DataError(f"{folder} has {' and '.join(present)} but no train folder")
    classes = class_names(folder / "train")
    for split in present[1:]:
        for name in class_names(folder / split):
            with collected():
                if name not in classes:
                    raise DataError(f"{folder / split}: {unknown('class', name, classes)}; training has no such folder")
    samples = {s: class_samples(folder / s, classes, all_needed=s == "train") for s in present}
    return ImageSet(classes, samples)


def plain_name(name: str) -> str:
    """A class folder's name without number and underscores.

    >>> plain_name("001.Black_footed_Albatross")
    'Black footed Albatross'
    """
    return re.sub(r"^\d+\.", "", name).replace("_", " ")


register_images(
    Format(
        "imagefolder",
        "image folder",
        read_folder,
        Place(
            folders=("imagefolder",),
            needs=("*/*",),
            how="put images there as train/CLASS/*.jpg, val/CLASS/*.jpg and test/CLASS/*.jpg, or as CLASS/*.jpg",
        ),
        own_files=True,
    ),
    "any images sorted into one folder for each class",
)
