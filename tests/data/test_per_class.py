"""So many images of each class, and random crops of resized files."""

from __future__ import annotations

import pytest
import torch
from PIL import Image

from foveal.data import dataset
from foveal.data.augment import view
from foveal.data.images import ImageOptions
from foveal.data.samples import Samples, some_of_each
from foveal.errors import UserError


def samples(counts: list[int]) -> Samples:
    labels = torch.cat([torch.full((n,), c) for c, n in enumerate(counts)])
    return Samples(torch.arange(len(labels)).view(-1, 1, 1, 1).expand(-1, 3, 2, 2), labels)


def test_as_many_of_each_class_as_asked_for_and_disjoint() -> None:
    train, test = some_of_each(samples([9, 30, 12]), (5, 3), seed=0)
    assert train.labels.bincount().tolist() == [5, 5, 5]
    assert test.labels.bincount().tolist() == [3, 3, 3]
    numbers = [set(part.images[:, 0, 0, 0].tolist()) for part in (train, test)]
    assert not numbers[0] & numbers[1]
    again = some_of_each(samples([9, 30, 12]), (5, 3), seed=0)
    assert torch.equal(again[0].images, train.images)
    assert not torch.equal(some_of_each(samples([9, 30, 12]), (5, 3), seed=1)[0].images, train.images)


def test_more_training_images_keep_the_same_test() -> None:
    few, many = (some_of_each(samples([20, 20]), (n, 4), seed=0) for n in (5, 10))
    assert torch.equal(few[1].images, many[1].images)
    assert set(few[0].images[:, 0, 0, 0].tolist()) < set(many[0].images[:, 0, 0, 0].tolist())


def test_too_few_images_and_official_splits(tmp_path) -> None:
    with pytest.raises(UserError, match=r"data.per_class=\[5, 3\]: a class has 7 images only"):
        some_of_each(samples([9, 7]), (5, 3), seed=0)
    with pytest.raises(UserError, match="at least 1"):
        some_of_each(samples([9, 7]), (0, 3), seed=0)
    with pytest.raises(UserError, match="without official splits; digits has"):
        dataset("digits").build(ImageOptions(per_class=(5, 3)), None)
    for name in "ab":
        for n in range(4):
            path = tmp_path / "imagefolder" / name / f"{n}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (6, 6)).save(path)
    source = dataset("imagefolder").build(ImageOptions(per_class=(2, 1), workers=0, size=4), tmp_path)
    assert {split: len(part) for split, part in source.splits.items()} == {"train": 4, "val": 2, "test": 2}


def test_crops_of_the_resized_image() -> None:
    """Every pixel tells where it came from: the short side becomes 8/7 of the size, and crops lie at random in it."""
    ramp = torch.arange(64).expand(64, 64)
    image = Image.fromarray(torch.stack([ramp, ramp.T, ramp * 0], 2).to(torch.uint8).mul(4).numpy())
    make = view(56, "crop", False, True)
    torch.manual_seed(0)
    corners = {(int(c[0, 0, 0]) // 4, int(c[1, 0, 0]) // 4) for c in (make(image) for _ in range(60))}
    assert {x for x, _ in corners} == {y for _, y in corners} == set(range(9))
    assert make(image).shape == (3, 56, 56)
    middle = view(56, "crop", False, False)(image)
    assert (int(middle[0, 0, 0]) // 4, int(middle[1, 0, 0]) // 4) == (4, 4)
    flipped = [view(56, "crop", True, True)(image) for _ in range(20)]
    assert {bool(f[0, 0, 0] > f[0, 0, -1]) for f in flipped} == {True, False}


def test_what_is_held_in_memory_is_not_cropped_from_files() -> None:
    with pytest.raises(UserError, match=r"data.augment=crop needs image files"):
        dataset("digits").build(ImageOptions(augment="crop"), None)
