"""Caltech-256: ``NNN.name/NNN_NNNN.jpg``, without official splits.

Griffin, Holub, Perona: "Caltech-256 object category dataset" (2007).
"""

from __future__ import annotations

import re
from pathlib import Path

from foveal.data.formats.image_folders import class_names, class_samples, plain_name
from foveal.data.images.classification import Format, register_images
from foveal.data.images.labelled import ImageSet
from foveal.data.place import Layout, Place
from foveal.errors import DataError

ARCHIVE = "256_ObjectCategories"
CLASS_IMAGES = "[0-9][0-9][0-9].*/*"


def read_caltech256(folder: Path) -> ImageSet:
    """All images as one split.

    ``257.clutter`` is the background that the other classes are told from, not a class, and is left out; so are stray
    folders within a class folder.
    """
    inner = folder / ARCHIVE
    folder = inner if inner.is_dir() else folder
    classes = [name for name in class_names(folder) if re.match(r"\d{3}\.", name) and name != "257.clutter"]
    if not classes:
        raise DataError(f"{folder} has no folders like 001.ak47; expected what {ARCHIVE}.tar unpacks")
    return ImageSet([plain_name(name) for name in classes], {"train": class_samples(folder, classes, deep=False)})


register_images(
    Format(
        "caltech256",
        "Caltech-256",
        read_caltech256,
        Place(
            folders=(ARCHIVE, "caltech256"),
            needs=(CLASS_IMAGES,),
            how=f"{ARCHIVE}.tar from https://data.caltech.edu/records/nyy15-4j048",
            layouts=(Layout("folder of the archive", (f"{ARCHIVE}/{CLASS_IMAGES}",)),),
        ),
    ),
    "29,780 photographs of 256 classes",
)
