"""Images with masks: reading, splits, batches, and bad files."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from foveal.data import dataset
from foveal.data.check import check
from foveal.data.images.masked import resized_to, size_of
from foveal.data.images.segmentation import SegmentOptions
from foveal.data.splits import divide
from foveal.errors import DataError, UserError

CPU = torch.device("cpu")
SIZES = [(40, 30), (30, 40), (40, 30), (50, 20)]  # width, height


def write_pair(folder, name, size, seed=0):
    """An image whose colour says the class: red channel 100 × class."""
    draw = np.random.default_rng(seed)
    classes = draw.integers(0, 3, (size[1], size[0])).astype(np.uint8)
    for kind, array in (("images", np.stack([classes * 100] * 3, 2)), ("masks", classes)):
        path = folder / kind / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(array).save(path)


@pytest.fixture
def folder(tmp_path):
    for split in ("train", "val", "test"):
        for n, size in enumerate(SIZES):
            write_pair(tmp_path / "mine" / split, f"{split}{n}", size, n)
    (tmp_path / "mine/classes.txt").write_text("background\ncell\nnucleus\n")
    return tmp_path / "mine"


def build(folder, **options):
    settings = {"folder": str(folder), "workers": 0, "crop": (24, 32), **options}
    return dataset("maskfolder").build(SegmentOptions(**settings), None)


def agrees(batch):
    """Whether images and masks say the same wherever a pixel counts."""
    counted = batch["label"] != 255
    return torch.equal(batch["image"][:, 0][counted], batch["label"][counted] * 100)


@pytest.mark.parametrize("hold", [True, False])
def test_batches(folder, hold):
    source = build(folder, hold=hold, scale=(1, 1))
    assert source.held == hold
    (train,) = source.loader("train", 4, device=CPU)
    assert train["image"].shape == (4, 3, 24, 32)
    assert (train["image"].dtype, train["label"].dtype) == (torch.uint8, torch.uint8)
    assert agrees(train)
    batches = list(source.loader("test", 4, device=CPU))
    shapes = [(tuple(batch["label"].shape), batch["index"].tolist()) for batch in batches]
    assert shapes == [((3, 32, 64), [0, 2, 3]), ((1, 64, 32), [1])]
    for batch in batches:
        assert agrees(batch)
        for n, label in zip(batch["index"].tolist(), batch["label"], strict=True):
            assert int((label != 255).sum()) == SIZES[n][0] * SIZES[n][1]


def test_held_and_read_images_are_augmented_alike(folder):
    held, read = (build(folder, hold=hold, scale=(0.5, 2.0)) for hold in (True, False))
    for epoch in range(3):
        one, two = (next(iter(s.loader("train", 4, epoch=epoch, device=CPU))) for s in (held, read))
        assert all(torch.equal(one[key], two[key]) for key in one)


def test_a_short_side(folder):
    source = build(folder, short=10)
    batches = list(source.loader("test", 4, device=CPU))
    shapes = {n: b["label"][k] for b in batches for k, n in enumerate(b["index"].tolist())}
    assert [int((shapes[n] != 255).sum()) for n in range(4)] == [130, 130, 130, 250]
    assert resized_to((500, 375), 176) == (235, 176)
    assert "short side 10" in source.describe()


def test_an_image_on_its_side(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (40, 30)).save(tmp_path / "a.jpg", exif=exif)
    assert size_of(tmp_path / "a.jpg", None) == (40, 30)
    assert size_of(tmp_path / "a.jpg", 15) == (20, 15)


def test_without_official_splits(folder, tmp_path):
    for n in range(10):
        write_pair(tmp_path / "plain", f"{n}", (12, 10), n)
    (tmp_path / "plain/classes.txt").write_text("a\nb\nc\n")
    source = build(tmp_path / "plain", test_fraction=0.3, val_fraction=0.2)
    assert [len(source.splits[split]) for split in ("train", "val", "test")] == [6, 1, 3]
    names = [{path.name for path in build_files(source, split)} for split in ("train", "val", "test")]
    assert len(set.union(*names)) == 10
    with pytest.raises(UserError, match=r"data\.val_fraction=0\.01"):
        build(tmp_path / "plain", val_fraction=0.01)


def build_files(source, split):
    found, options = source.form.read(source.folder), source.options
    return divide(found.splits, source.val_fraction, options.test_fraction, options.seed)[split].images


# What is wrong with files -----------------------------------------------------------


def test_a_mask_of_another_size(folder):
    Image.new("L", (30, 31)).save(folder / "test/masks/test1.png")
    with pytest.raises(DataError, match=r"test1.png has 30×31 pixels and its image test1.png has 30×40; a mask must"):
        build(folder)
    source = build(folder, hold=False)
    with pytest.raises(DataError, match="as large as its image"):
        list(source.loader("test", 4, device=CPU))


def test_everything_that_is_wrong_is_listed(folder):
    Image.new("L", (30, 31)).save(folder / "test/masks/test1.png")
    Image.new("L", (40, 30), 9).save(folder / "val/masks/val2.png")
    (folder / "train/masks/train3.png").unlink()
    problems = [str(problem) for problem in check("maskfolder", {"folder": str(folder)})]
    assert len(problems) == 3
    for text, problem in zip(("train3.png: no such", "holds 9, which is no class", "30×31"), problems, strict=True):
        assert text in problem


def test_masks_without_a_class(folder):
    for split in ("train", "test"):
        for mask in (folder / split / "masks").iterdir():
            Image.new("L", Image.open(mask).size, 255).save(mask)
    with pytest.raises(DataError, match="no training mask has a class"):
        build(folder)
    measured, trained = check("maskfolder", {"folder": str(folder)})
    assert "no test mask has a class" in str(measured)
    assert not measured.stops
    assert "no training mask has a class" in str(trained)
    assert trained.stops


def test_a_check_without_training_images(folder):
    for image in (folder / "train/images").iterdir():
        image.unlink()
    assert any("holds no image files" in str(problem) for problem in check("maskfolder", {"folder": str(folder)}))


def test_photographs_that_are_shown_turned(folder):
    exif = Image.Exif()
    for name, orientation in (("train0", 3), ("train1", 6)):
        exif[0x0112] = orientation
        image = Image.open(folder / f"train/images/{name}.png")
        image.save(folder / f"train/images/{name}.png", exif=exif)
    on_its_side, undecided = check("maskfolder", {"folder": str(folder)})
    assert "has 40×30, turned as its EXIF orientation says; a mask must" in str(on_its_side)
    assert "train0.png is shown turned or mirrored" in str(undecided)
    assert not undecided.stops


def test_a_mask_without_an_image(folder):
    (folder / "train/images/train3.png").unlink()
    (problem,) = check("maskfolder", {"folder": str(folder)})
    assert "holds 1 masks without an image, such as train3.png" in str(problem)
    assert not problem.stops


def test_an_image_that_is_too_large(folder, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 400)  # Pillow refuses twice as many
    with pytest.raises(DataError, match=r"train0\.png has more pixels than Pillow decodes"):
        size_of(folder / "train/images/train0.png", None)


def test_a_class_that_no_training_mask_has(folder):
    (folder / "classes.txt").write_text("background\ncell\nnucleus\nghost\n")
    (problem,) = check("maskfolder", {"folder": str(folder)})
    assert not problem.stops
    assert "'ghost' is in no training mask" in str(problem)
    source = build(folder)
    assert source.absent_classes() == ["ghost"]
    assert "in no training mask: ghost" in source.describe()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"crop": (0, 5)}, "data.crop"),
        ({"scale": (2.0, 1.0)}, "data.scale"),
        ({"short": 0}, "data.short"),
        ({"workers": -1}, "data.workers"),
        ({"val_fraction": 1.0}, "data.val_fraction"),
        ({"std": (0.0, 1.0, 1.0)}, "data.std"),
    ],
)
def test_bad_options(folder, options, message):
    with pytest.raises(UserError, match=message):
        build(folder, **options)


def test_no_masks_of_objects(folder):
    with pytest.raises(UserError, match="no masks of single objects"):
        build(folder).loader("train", 2, device=CPU, masks=True)
