from __future__ import annotations

import torch

from foveal.data.embedded.signals import CLASSES, FAR, GREEN, RED, generate


def test_the_lamp_decides():
    """Cars drive where the lamp is green and wait where it is red; nothing else tells them apart."""
    images, labels = generate("train", 100)
    states = []
    for image, label in zip(images, labels, strict=True):
        lamp = image[:, label == 1].float().mean(1)
        green = bool((lamp - torch.tensor(GREEN)).abs().max() < (lamp - torch.tensor(RED)).abs().max())
        assert set(label.unique().tolist()) == {0, 1, 2 if green else 3}
        states.append(green)
    assert 30 < sum(states) < 70


def test_the_lamp_is_far():
    _, labels = generate("train", 100)
    ends = []
    for label in labels:
        lamp, cars = ((label == 1).nonzero()[:, 1], (label > 1).nonzero()[:, 1])
        distance = (cars[:, None] - lamp[None]).abs().min()
        assert distance > FAR - 20
        ends.append(bool(lamp.float().mean() < cars.float().mean()))
    assert 30 < sum(ends) < 70


def test_images_do_not_depend_on_how_many_there_are():
    few, many = generate("test", 3), generate("test", 5)
    assert all(torch.equal(a, b[:3]) for a, b in zip(few, many, strict=True))
    assert not torch.equal(few[0], generate("val", 3)[0])
    assert few[1].max() < len(CLASSES)
