"""Images and masks of one's own, in two folders.

The folder holds ``train/images``, ``train/masks`` and the same below ``val`` and ``test``, of which ``train`` is
needed; or just ``images`` and ``masks``. A mask has the name of its image and ends in ``.png``. ``classes.txt`` names
the classes, one a line::

    background                   the classes of index images: the first line is 0, and 255 does not count
    heart valve

    background 0 0 0             or of colour images: red, green and blue from 0 to 255
    heart valve 200 30 40
    ignored 255 255 255          pixels that do not count
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

from foveal.data.images.masked import ReadMask
from foveal.data.images.masks import IGNORED, MOST_CLASSES, Classes, lookup, read_colour_mask, read_index_mask
from foveal.data.images.reading import image_files
from foveal.data.images.segmentation import MaskedFiles, SegmentFormat, SegmentSet, register_segments
from foveal.data.place import Layout, Place
from foveal.data.problems import collected, is_checking, note
from foveal.data.splits import SPLITS
from foveal.errors import DataError

LIST = "classes.txt"
Colour = tuple[int, int, int]


def read_mask_folder(folder: Path) -> SegmentSet:
    """A folder of images and masks with or without folders for its splits."""
    answers, colours, read = _classes(folder / LIST)
    present = [split for split in SPLITS if (folder / split).is_dir()]
    if present and "train" not in present:
        raise DataError(f"{folder} has {' and '.join(present)} but no train folder")
    files = {}
    for split in present or ["train"]:
        with collected():
            files[split] = _pairs(folder / split if present else folder)
    return SegmentSet(answers, files, read, colours)


def _pairs(folder: Path) -> MaskedFiles:
    images, masks = image_files(folder / "images"), folder / "masks"
    if not images:
        raise DataError(f"{folder / 'images'} holds no image files; put images there, and their masks into {masks}")
    below = [image.relative_to(folder / "images").with_suffix(".png") for image in images]
    if is_checking():
        stray = sorted({file.relative_to(masks) for file in image_files(masks)} - set(below))
        if stray:
            note(f"{masks} holds {len(stray)} masks without an image, such as {stray[0]}; they are not used")
    return MaskedFiles(images, [masks / name for name in below])


def _classes(path: Path) -> tuple[list[str], list[str], ReadMask]:
    """Names and colours of the classes, and how masks are read."""
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path} cannot be read ({error}); write the name of a class into each of its lines, that of value 0 first"
        ) from error
    rows = [re.fullmatch(r"(.*\S)\s+(\d+)\s+(\d+)\s+(\d+)", line) for line in lines]
    if not lines or (any(rows) and not all(rows)):
        bad = next((line for line, row in zip(lines, rows, strict=True) if not row), "")
        raise DataError(f"{path}: expected NAME, or NAME RED GREEN BLUE, in every line alike, got {bad!r}")
    if not any(rows):
        _check_names(path, lines)
        return lines, [], partial(_read_index, table=lookup({value: value for value in range(len(lines))}))
    found: list[tuple[str, Colour]] = [(row[1], (int(row[2]), int(row[3]), int(row[4]))) for row in rows if row]
    names = [name for name, _ in found if name != "ignored"]
    _check_names(path, names)
    if max(max(colour) for _, colour in found) > 255 or len({colour for _, colour in found}) < len(found):
        raise DataError(f"{path}: every class needs a colour of its own, of three numbers from 0 to 255")
    labels = [IGNORED if name == "ignored" else names.index(name) for name, _ in found]
    shown = [f"#{red:02x}{green:02x}{blue:02x}" for name, (red, green, blue) in found if name != "ignored"]
    return names, shown, partial(_read_colours, colours=[colour for _, colour in found], labels=labels)


def _check_names(path: Path, names: list[str]) -> None:
    if len(set(names)) < len(names) or not 2 <= len(names) <= MOST_CLASSES:
        raise DataError(f"{path}: expected 2 to {MOST_CLASSES} different classes, got {len(names)} names")


def _read_index(path: Path, size: tuple[int, int], table: Classes) -> Classes:
    return read_index_mask(path, table)


def _read_colours(path: Path, size: tuple[int, int], colours: list[Colour], labels: list[int]) -> Classes:
    return read_colour_mask(path, colours, labels)


register_segments(
    SegmentFormat(
        "maskfolder",
        "mask folder",
        read_mask_folder,
        Place(
            folders=("maskfolder",),
            needs=(LIST, "train/images/*", "train/masks/*"),
            layouts=(Layout("without splits", (LIST, "images/*", "masks/*")),),
            how="put images into train/images and their masks into train/masks as PNG files, the same for val and "
            f"test, and the names of the classes into {LIST}",
        ),
        own_files=True,
    ),
    "any images with masks of the same name",
)
