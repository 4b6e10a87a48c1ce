"""Cityscapes: ``leftImg8bit/SPLIT/CITY/NAME_leftImg8bit.png`` and ``gtFine/SPLIT/CITY/NAME_gtFine_labelIds.png``.

Cordts et al., "The Cityscapes dataset for semantic urban scene understanding" (https://arxiv.org/abs/1604.01685). Of
the 34 ids of the masks 19 are trained and tested; all others do not count. Labels of the test images are not published,
so the validation images serve for testing. Where ``labelIds.png`` is missing, ``NAME_gtFine_polygons.json`` is drawn in
the order of the file, as the official scripts draw it, and brought to the size of the image at the nearest pixels; so
images that were made smaller need no masks of their own.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from foveal.data.images.masks import IGNORED, Classes, lookup, read_index_mask
from foveal.data.images.reading import image_files
from foveal.data.images.segmentation import MaskedFiles, SegmentFormat, SegmentSet, register_segments
from foveal.data.place import Place
from foveal.data.problems import collected
from foveal.errors import DataError

# id of the masks, and the official colour
TRAINED = {
    "road": (7, "#804080"),
    "sidewalk": (8, "#f423e8"),
    "building": (11, "#464646"),
    "wall": (12, "#66669c"),
    "fence": (13, "#be9999"),
    "pole": (17, "#999999"),
    "traffic light": (19, "#faaa1e"),
    "traffic sign": (20, "#dcdc00"),
    "vegetation": (21, "#6b8e23"),
    "terrain": (22, "#98fb98"),
    "sky": (23, "#4682b4"),
    "person": (24, "#dc143c"),
    "rider": (25, "#ff0000"),
    "car": (26, "#00008e"),
    "truck": (27, "#000046"),
    "bus": (28, "#003c64"),
    "train": (31, "#005064"),
    "motorcycle": (32, "#0000e6"),
    "bicycle": (33, "#770b20"),
}
IDS = 34
UNTRAINED = (  # also in polygons
    *("unlabeled", "ego vehicle", "rectification border", "out of roi", "static", "dynamic", "ground", "parking"),
    *("rail track", "guard rail", "bridge", "tunnel", "polegroup", "caravan", "trailer"),
)
INVISIBLE = "license plate"  # has no id: what is below it shows
TABLE = lookup(
    dict.fromkeys(range(IDS), IGNORED) | {number: label for label, (number, _) in enumerate(TRAINED.values())}
)
LABELS = {name: label for label, name in enumerate(TRAINED)} | dict.fromkeys(UNTRAINED, IGNORED)
IMAGE, IDS_FILE, POLYGONS = "_leftImg8bit.png", "_gtFine_labelIds.png", "_gtFine_polygons.json"


def read_mask(path: Path, size: tuple[int, int]) -> Classes:
    """The classes of a mask: index image, or polygons drawn at ``size`` (width, height)."""
    return draw_polygons(path, size) if path.suffix == ".json" else read_index_mask(path, TABLE)


def draw_polygons(path: Path, size: tuple[int, int]) -> Classes:
    """The polygons of a file as classes at ``size`` (width, height); later ones cover earlier ones.

    They are drawn at the size of their own coordinates: Pillow draws borders too, which would make things wider in a
    smaller mask.
    """
    try:
        scene = json.loads(path.read_text(encoding="utf-8"))
        mask = Image.new("L", (scene["imgWidth"], scene["imgHeight"]), IGNORED)
        draw = ImageDraw.Draw(mask)
        for thing in scene["objects"]:
            name = thing["label"]
            label = LABELS.get(name, LABELS.get(name.removesuffix("group")))  # persongroup counts as person
            if name == INVISIBLE or thing.get("deleted"):
                continue
            if label is None:
                raise DataError(f"{path} has a polygon of {name!r}, which is no class of Cityscapes; correct the file")
            draw.polygon([(x, y) for x, y in thing["polygon"]], fill=label)
        return np.array(mask.resize(size, Image.Resampling.NEAREST))
    except (OSError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path} cannot be read as polygons of Cityscapes ({error!r}); get it again") from error


def read_cityscapes(folder: Path) -> SegmentSet:
    """Images and masks of ``train`` and ``val``."""
    files = {}
    for split in ("train", "val"):
        with collected():
            images = [f for f in image_files(folder / "leftImg8bit" / split) if f.name.endswith(IMAGE)]
            if not images:
                raise DataError(
                    f"{folder / 'leftImg8bit' / split} holds no images *{IMAGE}; unpack leftImg8bit_trainvaltest.zip"
                )
            files[split] = MaskedFiles(images, [_mask_of(folder, split, image) for image in images])
    return SegmentSet(list(TRAINED), files, read_mask, [colour for _, colour in TRAINED.values()])


def _mask_of(folder: Path, split: str, image: Path) -> Path:
    stem = folder / "gtFine" / split / image.parent.name / image.name.removesuffix(IMAGE)
    ids, polygons = Path(f"{stem}{IDS_FILE}"), Path(f"{stem}{POLYGONS}")
    return polygons if not ids.is_file() and polygons.is_file() else ids


register_segments(
    SegmentFormat(
        "cityscapes",
        "Cityscapes",
        read_cityscapes,
        Place(
            folders=("cityscapes", "Cityscapes"),
            needs=tuple(f"{part}/{split}/*" for part in ("leftImg8bit", "gtFine") for split in ("train", "val")),
            how="leftImg8bit_trainvaltest.zip and gtFine_trainvaltest.zip from https://www.cityscapes-dataset.com/",
        ),
        crop=(769, 769),
        scale=(0.7, 2.0),
        val_fraction=0.0,
    ),
    "street scenes of 50 cities, 19 classes of pixels",
)
