"""MIT Indoor Scenes (MIT67) with its official split: ``Images/CLASS/*.jpg``, ``TrainImages.txt``, ``TestImages.txt``.

Quattoni, Torralba: "Recognizing indoor scenes" (CVPR 2009). A line of the two lists is ``CLASS/file.jpg``. Only the
listed images are used: 80 of each class to train on and 20 to test with, a few more or less in the official lists.
"""

from __future__ import annotations

from pathlib import Path

import torch

from foveal.data.formats._rows import read_lines
from foveal.data.formats.image_folders import plain_name
from foveal.data.images.classification import Format, register_images
from foveal.data.images.labelled import ImageSet, LabelledImages
from foveal.data.place import Place
from foveal.data.problems import collected
from foveal.errors import DataError

LISTS = {"train": "TrainImages.txt", "test": "TestImages.txt"}


def read_mit67(folder: Path) -> ImageSet:
    """Training and test images of all scenes that the lists name."""
    listed = {split: read_lines(folder / name) for split, name in LISTS.items()}
    classes = sorted({line.rpartition("/")[0] for line in listed["train"]})
    numbers = {name: label for label, name in enumerate(classes)}
    splits = {}
    for split, lines in listed.items():
        files, labels = [], []
        for line in lines:
            scene, _, name = line.rpartition("/")
            with collected():
                if not scene or scene not in numbers:
                    raise DataError(
                        f"{folder / LISTS[split]}: {line!r} is no CLASS/file, or {LISTS['train']} has no such class"
                    )
                if not (folder / "Images" / line).is_file():
                    raise DataError(f"{folder / 'Images' / line} is missing, but {LISTS[split]} lists it")
                files.append(folder / "Images" / scene / name)
                labels.append(numbers[scene])
        if not files:
            raise DataError(f"{folder / LISTS[split]} lists no image that is there; get indoorCVPR_09.tar again")
        splits[split] = LabelledImages.of_files(files, torch.tensor(labels))
    return ImageSet([plain_name(name) for name in classes], splits)


register_images(
    Format(
        "mit67",
        "MIT Indoor Scenes",
        read_mit67,
        Place(
            folders=("mit67", "indoorCVPR_09"),
            needs=("Images/*/*", *LISTS.values()),
            how="indoorCVPR_09.tar (Images) and the two lists from https://web.mit.edu/torralba/www/indoor.html",
        ),
    ),
    "5,360 training and 1,340 test photographs of 67 kinds of rooms",
)
