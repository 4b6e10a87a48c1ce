"""How images with boxes are read, what is usual with them, and the options of a recipe's ``data`` section."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import ExifTags, Image
from torch import Tensor

from foveal.data.images.boxes import BoxedFiles, Objects
from foveal.data.images.format import ImageFormat
from foveal.data.images.labelled import WholeImages
from foveal.data.images.reading import read_image
from foveal.data.problems import Problem
from foveal.errors import DataError


@dataclass(frozen=True)
class BoxOptions:
    """The ``data`` section of a recipe; null stands for what is usual with the dataset.

    Attributes:
        folder: folder of the files, absolute or relative to the data folder.
        short: images and boxes are resized to this short side when they are read; null: not resized. The detector
            resizes its input again, to ``model.min_size``.
        flip: mirror training images at random, with probability 1/2.
        empty: also train on images without objects.
        val_fraction: part of the training images used for validation, if the dataset has no validation split; 0:
            validate on the test images, as some papers do.
        test_fraction: part of the images used for testing, if the dataset has no official splits.
        seed: seed of the random splits; independent of the training seed, so that all runs have the same test set.
        workers: processes that read images, per training process; 0: the training process reads them itself.
        hold: decode all images once, keep them in the cache, and train from the device's memory; null: do so if they
            take less than 4 GB.
    """

    folder: str | None = None
    short: int | None = None
    flip: bool | None = None
    empty: bool = True
    val_fraction: float | None = None
    test_fraction: float = 0.2
    seed: int = 0
    workers: int = 2
    hold: bool | None = None


@dataclass(frozen=True)
class BoxedImages:
    """Images in memory and what is in them.

    Attributes:
        images: the images.
        objects: of each, in pixels of ``images``.
    """

    images: WholeImages
    objects: Objects

    def __len__(self) -> int:
        return len(self.objects)

    def take(self, chosen: Tensor) -> BoxedImages:
        """Those with these numbers."""
        numbers = chosen.tolist()
        counts = self.images.size.prod(1)
        parts = [self.images.pixels[int(self.images.first[n]) :][: int(counts[n])] for n in numbers]
        return BoxedImages(WholeImages.of(torch.cat(parts), self.images.size[chosen]), self.objects.take(numbers))


@dataclass(frozen=True)
class BoxSet:
    """What a reader finds in the folder of a dataset.

    Attributes:
        answers: names of the classes; the first has label 1.
        splits: files of ``train`` and of other official splits; or images in memory.
        scenes: names of the classes of whole images, if they have one.
    """

    answers: list[str]
    splits: dict[str, BoxedFiles] | dict[str, BoxedImages]
    scenes: list[str] | None = None


@dataclass(frozen=True)
class BoxFormat(ImageFormat[BoxSet]):
    """A format of images with boxes."""


def read_sized(file: Path, size: tuple[int, int]) -> Image.Image:
    """An image as large as its annotations say.

    A photograph whose EXIF orientation says so is turned, unless its annotations have the sides of the file as it is:
    then its boxes are those of the file as it is.

    Args:
        file: the image.
        size: width and height that the boxes refer to.
    """
    image = read_image(file)
    if image.size != size and image.size == size[::-1]:
        image = read_image(file, turn=False)
    if image.size != size:
        raise DataError(
            f"{file} has {image.width}×{image.height} pixels and its boxes are for {size[0]}×{size[1]}; get the image "
            "that was annotated, or correct the size in the annotations"
        )
    return image


def turned_files(sizes: Mapping[Path, tuple[int, int]]) -> Iterator[Problem]:
    """A remark on each of these photographs, with their sizes, that is :func:`undecided`."""
    for file, size in sizes.items():
        if undecided(file, size):
            yield Problem(
                f"{file} is shown turned or mirrored, as its EXIF orientation says, and its sides do not tell whether "
                "its boxes are for that; they are taken so",
                stops=False,
                file=file,
            )


def undecided(file: Path, size: tuple[int, int]) -> bool:
    """Whether :func:`read_sized` turns or mirrors a photograph although its sides do not tell that its boxes are so.

    Args:
        file: the image.
        size: width and height that the boxes refer to.
    """
    with Image.open(file) as image:
        orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
    return orientation in (2, 3, 4) or (orientation in (5, 6, 7, 8) and size[0] == size[1])
