"""PASCAL VOC 2012 and 2007 for segmentation: ``ImageSets/Segmentation``, ``JPEGImages`` and ``SegmentationClass``.

Everingham et al., "The PASCAL visual object classes challenge: a retrospective" (IJCV 2015). Masks are index images
with a palette: 0 is background, 1 to 20 the classes, 255 the borders of objects, which do not count. Masks of the test
images of 2012 are not published, so its validation images serve for testing.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from foveal.data.formats._rows import read_rows
from foveal.data.formats.voc import SITE, VOC_CLASSES
from foveal.data.images.masks import Classes, lookup, read_index_mask
from foveal.data.images.segmentation import MaskedFiles, SegmentFormat, SegmentSet, register_segments
from foveal.data.place import Place
from foveal.data.problems import collected
from foveal.data.splits import SPLITS
from foveal.errors import DataError

CLASSES = ("background", *VOC_CLASSES)
TABLE = lookup({value: value for value in range(len(CLASSES))})


def read_mask(path: Path, size: tuple[int, int]) -> Classes:
    """The classes of a mask."""
    return read_index_mask(path, TABLE)


def read_voc_masks(folder: Path, splits: tuple[str, ...]) -> SegmentSet:
    """Images and masks of ``splits``."""
    lists = folder / "ImageSets" / "Segmentation"
    if not lists.is_dir():
        raise DataError(f"{lists} is missing; unpack the official VOCtrainval archive, which makes VOCdevkit")
    files = {}
    for split in splits:
        with collected():
            names = [row[0] for row in read_rows(lists / f"{split}.txt", 1)]
            files[split] = MaskedFiles(
                [folder / "JPEGImages" / f"{name}.jpg" for name in names],
                [folder / "SegmentationClass" / f"{name}.png" for name in names],
            )
    return SegmentSet(list(CLASSES), files, read_mask)


def _register(year: str, splits: tuple[str, ...], archives: str) -> None:
    lists = tuple(f"ImageSets/Segmentation/{split}.txt" for split in splits)
    place = Place(
        folders=(f"VOCdevkit/VOC{year}", f"VOC{year}"),
        needs=(*lists, "JPEGImages", "SegmentationClass"),
        how=f"{archives} from {SITE}/voc{year}/",
    )
    form = SegmentFormat(
        f"voc{year}-segmentation", f"VOC {year}", partial(read_voc_masks, splits=splits), place, val_fraction=0.0
    )
    register_segments(form, "photographs with one of 20 classes, or none, for every pixel")


_register("2012", ("train", "val"), "VOCtrainval_11-May-2012.tar")
_register("2007", SPLITS, "VOCtrainval_06-Nov-2007.tar and VOCtest_06-Nov-2007.tar")
