"""Batches of images with boxes."""

from __future__ import annotations

import pytest
import torch
from small_boxes import build, coco, save, write_cocofolder, write_json

from foveal.data.check import check
from foveal.data.images.detection import mirrored
from foveal.errors import DataError, UnknownNameError, UserError

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_cocofolder(tmp_path_factory.mktemp("boxes"))


def samples(source, split="train", batch=2, **more):
    """Image and target by number, over one epoch."""
    pairs = {}
    for one in source.loader(split, batch, device=CPU, **more):
        assert len(one["image"]) == len(one["target"]) == len(one["index"])
        for image, target in zip(one["image"], one["target"], strict=True):
            pairs[target["image_id"]] = (image, target)
    return pairs


def test_a_batch_of_different_sizes(root):
    (batch,) = build("cocofolder", root, flip=False).loader("train", 4, device=CPU)
    shapes = {
        target["image_id"]: tuple(image.shape) for image, target in zip(batch["image"], batch["target"], strict=True)
    }
    assert shapes == {0: (3, 30, 40), 1: (3, 40, 30), 2: (3, 36, 36), 3: (3, 28, 44)}
    assert all(image.dtype == torch.uint8 for image in batch["image"])


@pytest.mark.parametrize("short", [None, 20])
def test_held_and_read_are_the_same(root, short):
    held, read = (build("cocofolder", root, hold=hold, short=short) for hold in (True, False))
    assert (held.held, read.held) == (True, False)
    for split in ("train", "test"):
        first, second = samples(held, split, seed=1), samples(read, split, seed=1)
        assert first.keys() == second.keys()
        for number, (image, target) in first.items():
            assert torch.equal(image, second[number][0])
            torch.testing.assert_close(target["boxes"], second[number][1]["boxes"])
            if short:
                assert min(image.shape[1:]) == short


def test_boxes_follow_their_image(tmp_path):
    """A red object is where its box is, resized and mirrored or not."""
    picture = save(tmp_path / "cocofolder/train/0.png", (60, 40), (0, 0, 0))
    from PIL import Image

    with Image.open(picture) as image:
        image.paste((255, 0, 0), (10, 8, 30, 24))
        image.save(picture)
    content = coco([(0, "0.png", 60, 40)], [(0, 3, [10, 8, 20, 16], 0)])
    for split in ("train", "val", "test"):
        write_json(tmp_path / f"cocofolder/annotations/instances_{split}.json", content)
        save(tmp_path / f"cocofolder/{split}/0.png", (60, 40)) if split != "train" else None
    source = build("cocofolder", tmp_path, short=20)
    lefts = set()
    for epoch in range(8):
        image, target = samples(source, batch=1, epoch=epoch)[0]
        left, top, right, bottom = target["boxes"][0].tolist()
        lefts.add(left)
        red = image[0] > 127
        assert red[round(top) : round(bottom), round(left) : round(right)].float().mean() > 0.8
        assert red.sum() <= 1.2 * (right - left) * (bottom - top)
    assert lefts == {5, 15}  # half of the size; mirrored in some epochs


def test_mirrored_twice():
    image, boxes = torch.rand(3, 4, 9), torch.tensor([[1.0, 0, 4, 3], [0, 1, 9, 2]])
    flipped, exchanged = mirrored(image, boxes)
    assert exchanged.tolist() == [[5, 0, 8, 3], [0, 1, 9, 2]]
    again, back = mirrored(flipped, exchanged)
    assert torch.equal(again, image)
    assert torch.equal(back, boxes)


def test_an_epoch_depends_on_the_seed_alone(root):
    source = build("cocofolder", root)
    for batch in (1, 2):
        first, second = samples(source, seed=3, epoch=2), samples(source, batch=batch, seed=3, epoch=2)
        assert all(torch.equal(first[n][1]["boxes"], second[n][1]["boxes"]) for n in first)


def test_images_without_objects(tmp_path):
    """They are trained on unless told otherwise, and always tested on."""
    write_cocofolder(tmp_path)
    images = [(n, f"{n}.png", w, h) for n, (w, h) in enumerate(((40, 30), (30, 40), (36, 36), (44, 28)))]
    boxes = [(0, 3, [1, 1, 9, 9], 0), (2, 7, [1, 1, 9, 9], 1)]  # a crowd is no object to train on
    for split in ("train", "test"):
        write_json(tmp_path / f"cocofolder/annotations/instances_{split}.json", coco(images, boxes))
    assert len(build("cocofolder", tmp_path).splits["train"]) == 4
    source = build("cocofolder", tmp_path, empty=False)
    assert [len(source.splits[split]) for split in ("train", "test")] == [1, 4]
    assert samples(source, "test")[1][1]["boxes"].shape == (0, 4)
    for split in ("train", "test"):
        write_json(tmp_path / f"cocofolder/annotations/instances_{split}.json", coco(images, boxes[1:]))
    with pytest.raises(DataError, match="no training image has an object"):
        build("cocofolder", tmp_path)
    measured, trained = check("cocofolder", {}, tmp_path)
    assert "no test image has an object" in str(measured)
    assert not measured.stops
    assert "no training image has an object" in str(trained)
    assert trained.stops


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"short": 0}, r"data\.short"),
        ({"workers": -1}, r"data\.workers"),
        ({"val_fraction": 1.0}, r"data\.val_fraction"),
        ({"test_fraction": 0.0}, r"data\.test_fraction"),
    ],
)
def test_bad_options(root, options, message):
    with pytest.raises(UserError, match=message):
        build("cocofolder", root, **options)


def test_bad_requests(root):
    source = build("cocofolder", root)
    with pytest.raises(UnknownNameError, match="'trian'"):
        source.loader("trian", 1, device=CPU)
    with pytest.raises(UserError, match="no masks of single objects"):
        source.loader("train", 1, device=CPU, masks=True)


def test_worker_processes(root):
    source = build("cocofolder", root, hold=False, workers=1)
    assert samples(source, "test").keys() == {0, 1, 2, 3}
