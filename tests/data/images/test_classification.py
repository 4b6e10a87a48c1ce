"""Images to classify: what a task sees, held or read by workers."""

import pickle
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from small_files import build

from foveal.data import dataset
from foveal.data.images.augment import resized, view
from foveal.data.images.classification import ImageData, ImageOptions
from foveal.data.images.labelled import LabelledImages
from foveal.errors import DataError, UnknownNameError, UserError
from foveal.typed import parse

CPU = torch.device("cpu")


def noise(n, side=24):
    """An image in which every crop differs from every other."""
    return Image.fromarray(np.random.default_rng(n).integers(0, 256, (side, side + 8, 3), dtype=np.uint8))


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Three classes of 10 images each, without official splits."""
    folder = tmp_path_factory.mktemp("data")
    for k, name in enumerate(("ant", "bee", "cat")):
        (folder / "imagefolder" / name).mkdir(parents=True)
        for n in range(10):
            noise(10 * k + n).save(folder / "imagefolder" / name / f"{n}.png")
    return folder


@pytest.fixture(scope="module")
def source(root):
    return build("imagefolder", root, size=16)


def batches(source, split="train", batch=4, **where):
    return list(source.loader(split, batch, device=CPU, **where))


def by_index(batches):
    return {int(n): image for batch in batches for n, image in zip(batch["index"], batch["image"], strict=True)}


def same(left, right):
    return len(left) == len(right) and all(
        a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a) for a, b in zip(left, right, strict=True)
    )


def test_names_and_description(source):
    assert (source.name, source.multilabel, source.embedded) == ("imagefolder", False, False)
    assert source.answers == ["ant", "bee", "cat"]
    description = source.describe()
    assert "image folder, 3 classes, 21 + 3 + 6 images for training, validation and test, 16×16" in description
    assert "no official splits: divided at random" in description


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_batches_of_files_and_of_held_images_look_alike(source, split):
    for data, side in ((source, 16), (build("digits"), 32)):
        batch = batches(data, split, 3)[0]
        assert {k: (tuple(v.shape), v.dtype) for k, v in batch.items()} == {
            "image": ((3, 3, side, side), torch.uint8),
            "label": ((3,), torch.int64),
            "index": ((3,), torch.int64),
        }


def test_labels_belong_to_the_images(root):
    source = build("imagefolder", root, size=16, augment="small", hold=False)
    samples = source.splits["test"]
    for batch in batches(source, "test"):
        for n, label, image in zip(batch["index"], batch["label"], batch["image"], strict=True):
            path = samples.file(int(n))
            assert path.parent.name == source.answers[label]
            assert torch.equal(image, view(16, "small", True, False)(Image.open(path)))


def test_digits_are_embedded_and_never_mirrored():
    source = build("digits")
    assert source.embedded
    assert not source.flip
    assert source.answers == list("0123456789")
    assert "scikit-learn's 8×8 digits, 10 classes, 1,260 + 140 + 397 images" in source.describe()
    assert "embedded" in source.describe()
    assert source.splits["train"].images.shape[1:] == (3, 32, 32)
    assert source.splits["train"].labels.bincount().min() > 100


def test_held_images_at_another_size():
    source = build("digits", size=20, augment="none")
    batch = batches(source, "test", 5)[0]
    assert batch["image"].shape == (5, 3, 20, 20)
    assert torch.equal(batch["image"], resized(source.splits["test"].images[:5], 20))
    assert source.held_on("test", CPU) is source.held_on("test", CPU)


def test_files_are_held_if_they_are_few_and_not_cropped_from(root, monkeypatch):
    assert build("imagefolder", root, size=16, augment="small").held
    assert build("imagefolder", root, size=16, augment="none").held
    assert not build("imagefolder", root, size=16).held
    assert not build("imagefolder", root, size=16, augment="small", hold=False).held
    monkeypatch.setattr("foveal.data.images.classification.MOST_HELD", 30 * 3 * 16 * 16)
    assert not build("imagefolder", root, size=16, augment="small").held
    assert build("imagefolder", root, size=16, augment="small", hold=True).held


@pytest.mark.parametrize("augment", ["small", "none"])
def test_held_files_look_as_if_they_were_read(root, augment):
    held, read = (build("imagefolder", root, size=16, augment=augment, hold=hold) for hold in (True, False))
    for split in ("val", "test"):
        assert same(batches(held, split), batches(read, split))
    assert torch.equal(held.splits["train"].labels, read.splits["train"].labels)


def test_held_files_are_decoded_once_and_again_when_they_change(tmp_path, monkeypatch):
    for name in ("ant", "bee"):
        (tmp_path / "imagefolder" / name).mkdir(parents=True)
        for n in range(5):
            noise(n).save(tmp_path / "imagefolder" / name / f"{n}.png")
    options = {"size": 16, "augment": "small", "val_fraction": 0.25}
    first = build("imagefolder", tmp_path, **options)
    monkeypatch.setattr("foveal.data.images.held.read_image", None)
    assert same(batches(first, "test"), batches(build("imagefolder", tmp_path, **options), "test"))
    monkeypatch.undo()
    for file in (tmp_path / "imagefolder").rglob("*.png"):
        Image.new("RGB", (20, 20), (9, 99, 200)).save(file)
    (batch,) = batches(build("imagefolder", tmp_path, **options), "test")
    assert (batch["image"] == torch.tensor([9, 99, 200])[:, None, None]).all()


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("augment", ["small", "large", "crop"])
def test_a_damaged_file_is_found_before_training_if_held(tmp_path, augment, workers):
    for n in range(10):
        path = tmp_path / "imagefolder" / "ant" / f"{n}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        noise(n).save(path)
    path.write_bytes(b"<html>")
    with pytest.raises(DataError, match=r"^.*9\.png cannot be read as an image .*; remove or replace it$") as caught:
        build("imagefolder", tmp_path, augment=augment, hold=True, workers=workers, size=16)
    assert "\n" not in str(caught.value)


def test_no_validation_fraction_means_choosing_by_the_test_images(root):
    source = build("imagefolder", root, val_fraction=0.0)
    assert source.splits["val"] is source.splits["test"]
    assert len(source.splits["train"]) == 24
    assert "validation and test are the same images" in source.describe()


def test_the_division_depends_on_the_data_seed_alone(root, source):
    def files(data):
        return data.splits["test"].images.tolist()

    assert files(build("imagefolder", root, size=32)) == files(source)
    assert files(build("imagefolder", root, seed=1)) != files(source)


def test_none_trains_on_what_evaluation_sees(root):
    source = build("imagefolder", root, size=16, augment="none", hold=False)
    evaluate = view(16, "none", True, False)
    for n, image in by_index(batches(source)).items():
        assert torch.equal(image, evaluate(Image.open(source.splits["train"].file(n))))


@pytest.mark.parametrize(
    ("name", "augment", "hold"),
    [
        ("imagefolder", "small", True),
        ("imagefolder", "small", False),
        ("imagefolder", "large", False),
        ("imagefolder", "large", True),
        ("imagefolder", "crop", True),
        ("digits", "small", None),
    ],
)
def test_augmentation_depends_on_seed_epoch_and_sample_alone(root, name, augment, hold):
    source = build(name, root, size=16, augment=augment, hold=hold)
    first = by_index(batches(source, batch=4, epoch=2, seed=1))
    other = by_index(batches(source, batch=7, epoch=2, seed=1))  # also in other batches
    shared = first.keys() & other.keys()
    assert len(shared) >= 18
    assert all(torch.equal(first[n], other[n]) for n in shared)
    for epoch, seed in ((3, 1), (2, 2)):
        changed = by_index(batches(source, batch=4, epoch=epoch, seed=seed))
        assert sum(not torch.equal(first[n], changed[n]) for n in first.keys() & changed.keys()) > 10


@pytest.mark.parametrize("hold", [False, True])
def test_a_resumed_run_sees_the_same(root, hold):
    """A new process that starts at epoch 3 gets what one that has been through all epochs gets."""
    through = build("imagefolder", root, size=16, hold=hold)
    for epoch in range(3):
        batches(through, epoch=epoch)
    assert same(batches(through, epoch=3), batches(build("imagefolder", root, size=16, hold=hold), epoch=3))


def test_training_does_not_touch_the_global_random_numbers(root, source):
    before = torch.get_rng_state()
    batches(source)
    batches(build("imagefolder", root, size=16, hold=True))
    batches(build("digits"), batch=100)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", ["imagefolder", "digits"])
def test_training_order(root, name):
    source = build(name, root, size=16)
    epoch = batches(source, batch=5)
    seen = list(chain(*(b["index"].tolist() for b in epoch)))
    count = len(source.splits["train"])
    assert len(epoch) == len(source.loader("train", 5, device=CPU)) == count // 5
    assert len(set(seen)) == len(seen) == count // 5 * 5
    assert seen != sorted(seen)


@pytest.mark.parametrize(
    ("name", "augment", "hold"),
    [
        ("imagefolder", "large", False),
        ("imagefolder", "large", True),
        ("imagefolder", "crop", True),
        ("digits", None, None),
    ],
)
@pytest.mark.parametrize("world", [2, 3])
def test_processes_share_each_global_batch(root, name, augment, hold, world):
    """Step by step, the processes together see what one process with a larger batch would see, pixel by pixel."""
    source = build(name, root, size=16, augment=augment, hold=hold)
    whole = batches(source, batch=2 * world, epoch=4)
    parts = [batches(source, batch=2, epoch=4, rank=r, world=world) for r in range(world)]
    joined = [{k: torch.cat([p[k] for p in pieces]) for k in pieces[0]} for pieces in zip(*parts, strict=True)]
    assert same(joined, whole)


@pytest.mark.parametrize("name", ["imagefolder", "digits"])
@pytest.mark.parametrize("split", ["val", "test"])
def test_evaluation_covers_every_sample_once(root, name, split):
    source = build(name, root, size=16)
    parts = [batches(source, split, 4, rank=r, world=3, seed=r, epoch=r) for r in range(3)]
    assert sorted(by_index(chain(*parts))) == list(range(len(source.splits[split])))


def test_too_few_for_one_batch(source):
    with pytest.raises(UserError, match="21 training samples do not fill one batch of 20 × 2"):
        source.loader("train", 20, world=2, device=CPU)


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_deliver_the_same(root, source, workers):
    several = build("imagefolder", root, size=16, workers=workers)
    assert several.loader("train", 4, device=CPU).workers == workers
    assert same(batches(several, epoch=1), batches(source, epoch=1))


def test_a_dataset_can_be_sent_to_a_worker(source):
    gather = source.loader("train", 4, device=CPU).gather
    index = torch.tensor([3, 1])
    assert torch.equal(pickle.loads(pickle.dumps(gather))(index)["image"], gather(index)["image"])


@pytest.mark.parametrize("workers", [0, 1])
def test_a_damaged_image_is_one_line(tmp_path, workers):
    for n in range(10):
        path = tmp_path / "imagefolder" / "ant" / f"{n}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        noise(n).save(path)
        path.write_bytes(path.read_bytes()[:-200])  # its header is right
    source = build("imagefolder", tmp_path, workers=workers)
    with pytest.raises(DataError, match=r"^.*\.jpg cannot be read as an image .*; remove or replace it$") as caught:
        batches(source, "test", 1)
    assert "\n" not in str(caught.value)


def test_a_file_that_went_away(tmp_path):
    for n in range(10):
        path = tmp_path / "imagefolder" / "ant" / f"{n}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        noise(n).save(path)
    source = build("imagefolder", tmp_path)
    source.splits["test"].file(0).unlink()
    with pytest.raises(DataError, match="no such image file"):
        batches(source, "test", 1)


def test_memory_is_pinned_for_a_gpu_only(source):
    assert source.loader("val", 4, device=torch.device("cuda")).dataloader(0).pin_memory
    assert not source.loader("val", 4, device=CPU).dataloader(0).pin_memory


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": -1}, r"data\.workers=-1: expected 0 or more"),
        ({"std": (1.0, 0.0, 1.0)}, r"data\.std=\[1.0, 0.0, 1.0\]: expected three numbers above 0"),
        ({"size": 0}, r"data\.size=0: expected 1 or more"),
        ({"val_fraction": 1.0}, r"data\.val_fraction=1.0: expected 0 or more and less than 1"),
        ({"test_fraction": 0.0}, r"data\.test_fraction=0.0: expected more than 0 and less than 1"),
        ({"val_fraction": 0.01}, r"data\.val_fraction=0.01: 0 of 24 training images would be left for val"),
        ({"test_fraction": 0.99}, r"data\.test_fraction=0.99: 30 of 30 training images would be left for test"),
    ],
)
def test_wrong_options(root, options, message):
    with pytest.raises(UserError, match=message):
        build("imagefolder", root, **options)


def test_wrong_recipes():
    with pytest.raises(UserError, match=r"data\.augment: expected one of none, small, crop, large"):
        parse(ImageOptions, {"augment": "huge"}, "data")
    for hold in (None, True, False):
        with pytest.raises(UserError, match=r"data\.augment=large needs image files; digits is held in memory"):
            build("digits", augment="large", hold=hold)
    with pytest.raises(UserError, match=r"data\.mean: expected a list of 3 values"):
        parse(ImageOptions, {"mean": 0.5}, "data")


def test_unknown_split(source):
    with pytest.raises(UnknownNameError, match="unknown split 'validation'; known: test, train, val"):
        source.loader("validation", 4, device=CPU)


def test_no_data_folder():
    with pytest.raises(DataError, match=r"cifar10: set FOVEAL_DATA .*cifar-10-batches-bin.*data\.folder.*binary"):
        build("cifar10")
    with pytest.raises(DataError, match=r"set FOVEAL_DATA .*holds mine"):
        build("imagefolder", folder="mine")


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(DataError, match=r"cub200: no folder .*CUB_200_2011 or .*cub100; CUB_200_2011\.tgz from https"):
        build("cub200", tmp_path)


def test_an_absolute_folder_needs_no_data_folder(root):
    assert build("imagefolder", folder=str(root / "imagefolder")).answers == ["ant", "bee", "cat"]


def test_options_are_hashable_and_typed():
    assert hash(ImageOptions()) == hash(parse(ImageOptions, {}, "data"))
    assert isinstance(build("digits"), ImageData)
    assert isinstance(LabelledImages.of_files([Path("ä b.jpg")], torch.tensor([0])).file(0), Path)
    assert LabelledImages.of_files([Path("ä b.jpg")], torch.tensor([0])).file(0) == Path("ä b.jpg")


def test_what_is_held_in_memory_is_not_cropped_from_files() -> None:
    with pytest.raises(UserError, match=r"data.augment=crop needs image files"):
        dataset("digits").build(ImageOptions(augment="crop"), None)
