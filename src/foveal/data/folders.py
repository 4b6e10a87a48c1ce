"""Images sorted into one folder for each class: plain image folders, ImageNet and Caltech-256.

The folder holds ``train/CLASS``, ``val/CLASS`` and ``test/CLASS``, of which ``train`` is needed, or just ``CLASS``.
Classes are numbered in the order of their names, and images follow in the order of theirs.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch

from foveal.data.pictures import SUFFIXES
from foveal.data.samples import SPLITS, Found, Samples
from foveal.errors import DataError, unknown


def image_files(folder: Path, deep: bool = True) -> list[Path]:
    """The image files in ``folder``, in order, and in folders below it if ``deep``; hidden files do not count."""
    found = []
    for where, folders, names in os.walk(folder, followlinks=True):
        kept = (n for n in names if not n.startswith(".") and os.path.splitext(n)[1].lower() in SUFFIXES)
        found += [Path(where, name) for name in kept]
        if not deep:
            folders.clear()
    return sorted(found)


def class_names(folder: Path) -> list[str]:
    """Names of the folders in ``folder``, in order."""
    found = sorted(p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    if not found:
        loose = " but image files; sort them into one folder for each class" if image_files(folder) else ""
        raise DataError(f"{folder} has no class folders{loose or '; expected one folder of images for each class'}")
    return found


def class_samples(folder: Path, classes: Sequence[str], deep: bool = True, all_needed: bool = True) -> Samples:
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
        found = image_files(folder / name, deep)
        if not found and all_needed:
            raise DataError(f"{folder / name} holds no image files; add some or remove the folder")
        files += found
        labels += [label] * len(found)
    if not files:
        raise DataError(f"{folder} holds no image files")
    return Samples.of_files(files, torch.tensor(labels))


def read_folder(folder: Path) -> Found:
    """A plain folder of images with or without folders for its splits."""
    present = [split for split in SPLITS if (folder / split).is_dir()]
    if not present:
        classes = class_names(folder)
        return Found(classes, {"train": class_samples(folder, classes)})
    if "train" not in present:
        raise DataError(f"{folder} has {' and '.join(present)} but no train folder")
    classes = class_names(folder / "train")
    for split in present[1:]:
        for name in class_names(folder / split):
            if name not in classes:
                raise DataError(f"{folder / split}: {unknown('class', name, classes)}; training has no such folder")
    samples = {s: class_samples(folder / s, classes, all_needed=s == "train") for s in present}
    return Found(classes, samples)


def read_imagenet(folder: Path) -> Found:
    """ImageNet: ``train/WNID/*.JPEG`` and ``val/WNID/*.JPEG``, tested on the latter as the papers do.

    Deng et al., "ImageNet: A large-scale hierarchical image database" (CVPR 2009). Classes get their English names from
    ``LOC_synset_mapping.txt`` if it is there.
    """
    for split in ("train", "val"):
        if not (folder / split).is_dir():
            raise DataError(
                f"{folder / split} is missing; expected train/WNID/*.JPEG and val/WNID/*.JPEG, unpacked from "
                "ILSVRC2012_img_train.tar and ILSVRC2012_img_val.tar"
            )
    if not any(p.is_dir() for p in (folder / "val").iterdir()):
        raise DataError(
            f"{folder / 'val'} has no class folders; the official archive is flat: sort its images into folders by "
            "class (torchvision.datasets.ImageNet or the script valprep.sh does that)"
        )
    found = read_folder(folder)
    names = wordnet_names(found.answers, folder / "LOC_synset_mapping.txt")
    return Found(names, {split: found.splits[split] for split in ("train", "val")})


def wordnet_names(wnids: Sequence[str], table: Path) -> list[str]:
    """First English word of each class from a table of lines ``WNID words``, if there is one.

    Words that several classes share (``crane``, a bird and a machine) are followed by the WNID.
    """
    try:
        lines = table.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return list(wnids)
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{table} cannot be read ({error}); remove it or get it again") from error
    words = {
        wnid: rest.split(",")[0].strip() for wnid, _, rest in (re.sub(r"\s", " ", x).partition(" ") for x in lines)
    }
    names = [words.get(wnid) or wnid for wnid in wnids]
    often = Counter(names)
    return [name if often[name] == 1 else f"{name} ({wnid})" for name, wnid in zip(names, wnids, strict=True)]


def plain_name(name: str) -> str:
    """A class folder's name without number and underscores.

    >>> plain_name("001.Black_footed_Albatross")
    'Black footed Albatross'
    """
    return re.sub(r"^\d+\.", "", name).replace("_", " ")


def read_caltech256(folder: Path) -> Found:
    """Caltech-256: ``NNN.name/NNN_NNNN.jpg``, without official splits.

    Griffin, Holub, Perona: "Caltech-256 object category dataset" (2007). ``257.clutter`` is the background that the
    other classes are told from, not a class, and is left out; so are stray folders within a class folder.
    """
    inner = folder / "256_ObjectCategories"
    folder = inner if inner.is_dir() else folder
    classes = [name for name in class_names(folder) if re.match(r"\d{3}\.", name) and name != "257.clutter"]
    if not classes:
        raise DataError(f"{folder} has no folders like 001.ak47; expected what 256_ObjectCategories.tar unpacks")
    return Found([plain_name(name) for name in classes], {"train": class_samples(folder, classes, deep=False)})
