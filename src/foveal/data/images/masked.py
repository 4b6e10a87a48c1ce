"""How images with masks are read, what is usual with them, and the options of a recipe's ``data`` section."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from torch import Tensor

from foveal.data.images.crops import MaskedImages
from foveal.data.images.format import ImageFormat
from foveal.data.images.masks import Classes
from foveal.data.images.reading import READ_ERRORS, read_image, unreadable
from foveal.errors import DataError

ROTATION, ON_ITS_SIDE = 0x0112, (5, 6, 7, 8)  # EXIF's tag, and its values of images whose sides are exchanged
ReadMask = Callable[[Path, tuple[int, int]], Classes]
"""Reads a mask file as classes uint8 (H, W); the second argument is the width and height of its image."""


@dataclass(frozen=True)
class SegmentOptions:
    """The ``data`` section of a recipe; null stands for what is usual with the dataset.

    Attributes:
        folder: folder of the files, absolute or relative to the data folder.
        short: all images and masks are first resized to this short side; null: not resized.
        crop: height and width of training crops.
        scale: range of the random factor by which training images are scaled before they are cropped.
        flip: mirror training images at random, with probability 1/2.
        val_fraction: part of the training images used for validation, if the dataset has no validation split; 0:
            validate on the test images, as some papers do.
        test_fraction: part of the images used for testing, if the dataset has no official splits.
        seed: seed of the random splits; independent of the training seed, so that all runs have the same test set.
        workers: processes that read images, per training process; 0: the training process reads them itself.
        hold: decode all images once, keep them in the cache, and train from the device's memory; null: do so if they
            take less than 4 GB.
        mean, std: mean and standard deviation of each colour, for pixels in [0, 1]; the model sees
            (pixel − mean) / std.
    """

    folder: str | None = None
    short: int | None = None
    crop: tuple[int, int] | None = None
    scale: tuple[float, float] | None = None
    flip: bool | None = None
    val_fraction: float | None = None
    test_fraction: float = 0.2
    seed: int = 0
    workers: int = 2
    hold: bool | None = None
    mean: tuple[float, float, float] | None = None
    std: tuple[float, float, float] | None = None


@dataclass(frozen=True)
class MaskedFiles:
    """Image files of one split and their mask files, in the same order."""

    images: Sequence[Path]
    masks: Sequence[Path]

    def __len__(self) -> int:
        return len(self.images)

    def take(self, chosen: Tensor) -> MaskedFiles:
        """Those with these numbers."""
        numbers = chosen.tolist()
        return MaskedFiles([self.images[n] for n in numbers], [self.masks[n] for n in numbers])


@dataclass(frozen=True)
class SegmentSet:
    """What a reader finds in the folder of a dataset.

    Attributes:
        answers: names of the classes.
        splits: files of ``train`` and of other official splits; or images in memory, then of all three splits.
        read_mask: reads a mask file; not used for images in memory.
        colours: of the classes, "#rrggbb"; those of VOC if there are none.
    """

    answers: list[str]
    splits: dict[str, MaskedFiles] | dict[str, MaskedImages]
    read_mask: ReadMask | None = None
    colours: Sequence[str] = ()


@dataclass(frozen=True)
class SegmentFormat(ImageFormat[SegmentSet]):
    """A format of images with masks; ``crop`` and ``scale`` as in :class:`SegmentOptions`."""

    crop: tuple[int, int] = (512, 512)
    scale: tuple[float, float] = (0.5, 2.0)


def read_pair(image_file: Path, mask_file: Path, read_mask: ReadMask | None) -> tuple[Image.Image, Classes]:
    """An image and its mask, of the same size."""
    assert read_mask is not None
    image = read_image(image_file)
    mask = read_mask(mask_file, image.size)
    if (mask.shape[1], mask.shape[0]) != image.size:
        with Image.open(image_file) as stored:
            turned = stored.size != image.size
        raise DataError(
            f"{mask_file} has {mask.shape[1]}×{mask.shape[0]} pixels and its image {image_file.name} has "
            f"{image.width}×{image.height}{', turned as its EXIF orientation says' if turned else ''}; "
            "a mask must be as large as its image"
        )
    return image, mask


def resized_to(size: tuple[int, int], short: int | None) -> tuple[int, int]:
    """Width and height of an image whose short side becomes ``short``.

    >>> resized_to((500, 375), 176)
    (235, 176)
    """
    if short is None:
        return size
    width, height = (max(1, round(side * short / min(size))) for side in size)
    return width, height


def size_of(file: Path, short: int | None) -> tuple[int, int]:
    """Height and width of an image file after resizing, from its first bytes."""
    try:
        with Image.open(file) as image:
            width, height = resized_to(image.size, short)
            turned = image.getexif().get(ROTATION) in ON_ITS_SIDE
    except READ_ERRORS as error:
        raise unreadable(file, error) from error
    return (width, height) if turned else (height, width)
