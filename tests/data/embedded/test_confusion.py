"""Two-object images on which classes are confused."""

import pytest
import torch

from foveal.data import dataset
from foveal.data.embedded.confusion import (
    COUNTS,
    SHAPES,
    SIDE,
    confusion,
    digit_boxes,
    generate,
    read_confusion,
    shapes,
)
from foveal.data.images.classification import ImageOptions


@pytest.fixture(autouse=True)
def _few(request, monkeypatch):
    """Fewer images than the dataset has, except for statistics."""
    if "slow" not in request.keywords:
        for split, count in {"train": 300, "val": 50, "test": 100}.items():
            monkeypatch.setitem(COUNTS, split, count)


def test_the_first_images_are_the_same_however_many_there_are() -> None:
    few, many = generate("train", 7), generate("train", 30)
    for name, value in vars(few).items():
        assert torch.equal(value, getattr(many, name)[:7])
    assert not torch.equal(few.image, generate("test", 7).image)
    assert not torch.equal(few.image, generate("train", 7, seed=1).image)


def test_both_objects_are_there_apart_and_brighter_than_the_ground() -> None:
    images = generate("test", 60)
    assert images.image.shape == (60, 3, SIDE, SIDE)
    assert images.image.dtype == torch.uint8
    assert not (images.digit_mask & images.shape_mask).any()
    level = images.image.float().mean(1)
    for mask in (images.digit_mask, images.shape_mask):
        assert (mask.sum((1, 2)) > 20).all()
        on = (level * mask).sum((1, 2)) / mask.sum((1, 2))
        ground = ~(images.digit_mask | images.shape_mask)
        off = (level * ground).sum((1, 2)) / ground.sum((1, 2))
        assert (on > off).all()


@pytest.mark.slow
def test_shapes_fit_the_pair_in_training_only() -> None:
    splits = {split: confusion(split) for split in COUNTS}
    fits = {split: (images.shape == images.label // 2).float().mean() for split, images in splits.items()}
    chance = 1 / len(SHAPES)
    assert fits["train"] == pytest.approx(0.9 + 0.1 * chance, abs=0.02)
    for split in ("val", "test"):
        assert fits[split] == pytest.approx(chance, abs=0.04)
    for images in splits.values():
        assert images.label.bincount().tolist() == [len(images.label) // 10] * 10


def test_no_two_shapes_are_alike() -> None:
    drawn = (shapes() > 0).float()
    assert len(drawn) == len(SHAPES)
    for i in range(len(drawn)):
        for j in range(i):
            shared = (drawn[i] * drawn[j]).sum() / torch.maximum(drawn[i], drawn[j]).sum()
            assert shared < 0.75


def test_it_is_a_dataset_like_the_others(tmp_path) -> None:
    entry = dataset("confusion")
    assert entry.status(None).there
    source = entry.build(ImageOptions(workers=0), None)
    assert source.embedded
    assert "misleading" in entry.summary
    assert "confusion" in source.describe()
    batch = next(iter(source.loader("test", 8, device=torch.device("cpu"))))
    assert batch["image"].shape == (8, 3, SIDE, SIDE)
    image_set = read_confusion(tmp_path)
    assert {split: len(samples) for split, samples in image_set.splits.items()} == COUNTS
    assert torch.equal(batch["label"], image_set.splits["test"].labels[batch["index"]])


def test_boxes_are_those_of_the_digits() -> None:
    images = generate("test", 20)
    for box, label, mask in zip(digit_boxes(images), images.label, images.digit_mask, strict=True):
        rows, columns = mask.nonzero().T
        expected = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
        assert ((box[0, 1:] + 0.5) * SIDE).round().tolist() == [int(end) for end in expected]
        assert box[0, 0] == label
    source = dataset("confusion").build(ImageOptions(size=SIDE // 2), None)
    torch.testing.assert_close(source.boxes()[:20, :, 1:], (digit_boxes(images)[..., 1:] + 0.5) * SIDE / 2)


@pytest.mark.parametrize("options", [{}, {"augment": "none"}, {"flip": True}, {"size": 96}])
def test_masks_move_with_the_image(options) -> None:
    """The training image is as bright inside the mask as the original is inside its own."""
    source = dataset("confusion").build(ImageOptions(**options), None)
    batch = next(iter(source.loader("train", 200, epoch=3, device=torch.device("cpu"), masks=True)))
    images = confusion("train")
    own = images.digit_mask[batch["index"]]
    if options.get("augment") == "none":
        assert torch.equal(batch["mask"], own)
        return
    if "size" not in options:
        assert not torch.equal(batch["mask"], own)  # padded, cropped, perhaps mirrored
    level = batch["image"].float().amax(1)
    inside = (level * batch["mask"]).sum((1, 2)) / batch["mask"].sum((1, 2))
    original = images.image[batch["index"]].float().amax(1)
    expected = (original * own).sum((1, 2)) / own.sum((1, 2))
    cut_off = batch["mask"].sum((1, 2)) < own.sum((1, 2)) * (source.size / SIDE) ** 2 * 0.98
    assert cut_off.float().mean() < 0.5
    torch.testing.assert_close(inside[~cut_off], expected[~cut_off], atol=8.0, rtol=0.05)
