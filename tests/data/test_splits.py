"""Division into training, validation and test."""

from itertools import chain

import pytest
import torch
from PIL import Image

from foveal.data import dataset
from foveal.data.images.classification import ImageOptions
from foveal.data.images.labelled import LabelledImages
from foveal.data.splits import complete, complete_streams, part_of, some_of_each
from foveal.errors import UserError


def numbered(*labels, start=0):
    return LabelledImages(torch.arange(start, start + len(labels)).view(-1, 1, 1, 1), torch.tensor(labels))


def numbers(samples):
    return samples.images.flatten().tolist()


def test_a_part_has_the_same_fraction_of_every_class():
    samples = numbered(*([0] * 40 + [1] * 10 + [2] * 20))
    chosen = part_of(samples, 0.2, seed=3)
    assert samples.labels[chosen].bincount().tolist() == [8, 2, 4]
    assert torch.equal(chosen, part_of(samples, 0.2, seed=3))
    assert not torch.equal(chosen, part_of(samples, 0.2, seed=4))
    assert not torch.equal(chosen, part_of(samples, 0.2, seed=3, stream=1))


def test_a_part_where_images_have_several_classes():
    samples = LabelledImages(torch.zeros(50, 3, 1, 1), torch.ones(50, 4))
    assert int(part_of(samples, 0.1, 0).sum()) == 5


def test_official_splits_stay_as_they_are():
    splits = {"train": numbered(0, 1), "val": numbered(0, start=5), "test": numbered(1, start=7)}
    assert complete(splits, 0.5, 0.5, 0) == splits


def test_validation_is_cut_from_training_if_only_test_is_official():
    splits = complete({"train": numbered(*[0] * 10), "test": numbered(0, start=20)}, 0.3, 0.5, 0)
    assert sorted(numbers(splits["train"]) + numbers(splits["val"])) == list(range(10))
    assert len(splits["val"]) == 3
    assert numbers(splits["test"]) == [20]


def test_an_official_validation_split_without_test_is_the_test_split():
    splits = complete({"train": numbered(*[0] * 10), "val": numbered(0, start=20)}, 0.3, 0.5, 0)
    assert numbers(splits["test"]) == [20]
    assert len(splits["val"]) == 3
    assert set(numbers(splits["val"])) < set(range(10))


def test_without_official_splits_all_three_are_cut():
    splits = complete({"train": numbered(*[0] * 20)}, 0.25, 0.2, 0)
    assert [len(splits[split]) for split in ("train", "val", "test")] == [12, 4, 4]
    assert sorted(chain(*map(numbers, splits.values()))) == list(range(20))


def samples(counts: list[int]) -> LabelledImages:
    labels = torch.cat([torch.full((n,), c) for c, n in enumerate(counts)])
    return LabelledImages(torch.arange(len(labels)).view(-1, 1, 1, 1).expand(-1, 3, 2, 2), labels)


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


def test_the_splits_do_not_overlap_and_lose_nothing():
    texts = [(str(i), 0) for i in range(5000)]
    splits = complete_streams({"train": lambda: iter(texts)}, 0.1, 0.2, seed=3)
    parts = {name: [text for text, _ in read()] for name, read in splits.items()}
    assert sorted((text for part in parts.values() for text in part), key=int) == [text for text, _ in texts]
    assert len(parts["test"]) == pytest.approx(1000, abs=90)
    assert len(parts["val"]) == pytest.approx(500, abs=70)
    other = complete_streams({"train": lambda: iter(texts)}, 0.1, 0.2, seed=4)
    assert parts["test"] != [text for text, _ in other["test"]()]
    with pytest.raises(UserError, match="nothing to test on"):
        complete_streams({"train": lambda: iter(texts)}, 0.1, 0.0, seed=0)
