"""Generated scenes: what is related, and what their names depend on."""

import torch
from small_boxes import build

from foveal.data.embedded.companions import CELL, DIGITS, SHAPES, _cast, generate


def test_what_comes_together():
    """The first shape has its digits with it; no other digit has its shape in the picture."""
    labels, companions = _cast(0, torch.arange(300))
    for label, companion in zip(labels.tolist(), companions.tolist(), strict=True):
        kinds = [value - DIGITS - 1 for value in label if value > DIGITS]
        assert len(kinds) == len(set(kinds)) == 2
        for value, related in zip(label, companion, strict=True):
            if 0 < value <= DIGITS:
                assert related == ((value - 1) // 2 == kinds[0])
                assert related or (value - 1) // 2 not in kinds
            else:
                assert not related


def test_no_object_tells_the_scene():
    """Every shape is as often the one without companions as the one with them."""
    label, _ = _cast(0, torch.arange(1000))
    named, other = (label[:, k].bincount(minlength=DIGITS + 6)[DIGITS + 1 :] for k in (0, 2))
    assert named.tolist() == [200] * len(SHAPES)
    assert (other - 200).abs().max() < 60


def test_boxes_are_tight():
    pictures = generate("test", 20)
    for k in range(6):
        used = pictures["label"][:, k] > 0
        left, top, right, bottom = pictures["box"][used, k].unbind(1)
        assert ((right - left) >= 5).all()
        assert ((right - left) <= CELL[0]).all()
        assert ((bottom - top) >= 8).all()
        assert ((bottom - top) <= CELL[0]).all()


def test_the_first_are_the_same_for_any_count():
    few, more = generate("val", 3), generate("val", 7)
    assert all(torch.equal(values, more[name][:3]) for name, values in few.items())


def test_the_source(monkeypatch):
    from foveal.data.embedded import companions

    monkeypatch.setattr(companions, "COUNTS", {"train": 40, "val": 10, "test": 10})
    source = build("companions")
    assert source.answers == [*map(str, range(10)), *SHAPES]
    assert source.scenes == list(SHAPES)
    sizes = set()
    for batch in source.loader("train", 8, device=torch.device("cpu")):
        for image, target in zip(batch["image"], batch["target"], strict=True):
            sizes.add(tuple(image.shape))
            assert target["boxes"].max() <= max(image.shape)
            subjects, objects = target["labels"][target["relations"]].unbind(1)
            assert len(subjects) >= 1
            assert ((subjects - 1) // 2 == objects - DIGITS - 1).all()
            assert (objects - DIGITS - 1 == target["scene"]).all()
    assert sizes == {(3, 80, 112), (3, 112, 80)}
