from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from foveal.errors import UserError
from foveal.measure import assert_attends
from foveal.measure.assert_attends import _interval, randomised


class Looks(nn.Module):
    """Sees red in channel 0 and blue in channel 1 and tells them apart; its attention rests on what is coloured."""

    def __init__(self) -> None:
        super().__init__()
        self.see = nn.Conv2d(3, 2, 1)
        self.norm = nn.BatchNorm2d(2)
        self.head = nn.Linear(2, 2, bias=False)
        with torch.no_grad():
            self.see.weight.copy_(torch.tensor([[1.0, -1.0, -1.0], [-1.0, -1.0, 1.0]])[:, :, None, None])
            self.see.bias.zero_()
            self.head.weight.copy_(torch.eye(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.see(x)).relu().mean((2, 3)))


def scenes(n: int = 40, side: int = 8) -> tuple[Tensor, Tensor, Tensor]:
    """A red or a blue square on green, which catches the eye of who has not learned to ignore it, and where it is."""
    draw = torch.Generator().manual_seed(0)
    x, y = torch.zeros(n, 3, side, side), torch.randint(0, 2, (n,), generator=draw)
    masks = torch.zeros(n, side, side, dtype=torch.bool)
    x[:, 1] = 1.0
    for i in range(n):
        top, left = torch.randint(0, side - 3, (2,), generator=draw).tolist()
        masks[i, top : top + 3, left : left + 3] = True
        x[i, :, masks[i]] = 0.0
        x[i, 0 if y[i] == 0 else 2, masks[i]] = 1.0
    return x, y, masks


def at_norm(model: nn.Module, x: Tensor, y: Tensor | None) -> Tensor:
    return model.norm(model.see(x)).relu().sum(1)


def test_a_model_that_attends_passes_and_is_left_as_it_was() -> None:
    model, (x, y, masks) = Looks().train(), scenes()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    actual = assert_attends(model, (x, y), masks, attention=at_norm)
    assert actual.mass == pytest.approx(1)
    assert actual.samples == 40
    assert actual.random is not None
    assert actual.random < 0.6
    assert model.training
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_class_attention_of_true_and_of_predicted_classes() -> None:
    model, (x, y, masks) = Looks(), scenes()
    inputs = assert_attends(model, (x, y), masks, 0.5, at="norm", kind="gradcam", sanity=False)
    predicted = assert_attends(model, x, masks, 0.5, at="norm", kind="gradcam", sanity=False)
    assert inputs.mass == pytest.approx(predicted.mass)
    assert inputs.low <= inputs.mass <= inputs.high


def test_a_model_whose_scores_are_an_attribute() -> None:
    class Named(Looks):
        def forward(self, x: Tensor) -> Any:
            return SimpleNamespace(logits=super().forward(x))

    x, _, masks = scenes()
    options: dict[str, Any] = {"at": "norm", "kind": "gradcam", "sanity": False}
    assert assert_attends(Named(), x, masks, 0.5, **options) == assert_attends(Looks(), x, masks, 0.5, **options)


def test_the_forms_of_data_agree() -> None:
    model, (x, y, masks) = Looks(), scenes()
    expected = assert_attends(model, (x, y), masks, attention=at_norm)
    corners = [mask.nonzero() for mask in masks]
    boxes = [torch.tensor([[*c.min(0).values.flip(0), *(c.max(0).values.flip(0) + 1)]]).float() for c in corners]
    parts = [slice(0, 16), slice(16, 40)]
    for data, regions in (
        ((x, y), boxes),
        ([x, y], masks),
        ((x, y), masks.numpy()),
        ([(x[p], y[p]) for p in parts], [masks[p].numpy() for p in parts]),
        ([(x[p], y[p]) for p in parts], [masks[p] for p in parts]),
        ([x[p] for p in parts], [boxes[p] for p in parts]),
    ):
        assert assert_attends(model, data, regions, attention=at_norm) == expected
    assert assert_attends(model, (x, y), masks, attention=at_norm, batch=7) == expected


def test_masks_of_another_size_and_images_without_a_thing() -> None:
    model, (x, y, masks) = Looks(), scenes()
    large = masks.repeat_interleave(4, 1).repeat_interleave(4, 2)
    large[:5] = False
    actual = assert_attends(model, (x, y), large, attention=at_norm)
    assert actual.samples == 35
    assert actual.mass > 0.8


def test_attention_elsewhere_fails() -> None:
    model, (x, y, masks) = Looks(), scenes()
    with pytest.raises(
        AssertionError, match=r"attention is elsewhere: 0\.\d+ .*95% interval .* over 40 images; required: 0.6"
    ):
        assert_attends(model, (x, y), masks.flip(1) & ~masks, attention=at_norm)


def test_too_few_samples_fail_although_the_mean_is_enough() -> None:
    maps = torch.zeros(8, 2, 2)
    maps[:6, 0], maps[6:, 1] = 1.0, 1.0
    masks = torch.zeros(8, 2, 2, dtype=torch.bool)
    masks[:, 0] = True
    with pytest.raises(AssertionError, match=r"too few or too uneven images.*0.750 of it"):
        assert_attends(nn.Identity(), torch.zeros(8, 3, 2, 2), masks, attention=lambda m, x, y: maps)
    with pytest.raises(AssertionError, match="too few images to say it attends: 4 with a region; use at least 5"):
        assert_attends(nn.Identity(), torch.zeros(4, 3, 2, 2), masks[:4], attention=lambda m, x, y: maps[:4])


def test_what_a_random_model_passes_proves_nothing() -> None:
    model, (x, y, _) = Looks(), scenes()
    everywhere = torch.ones(40, 8, 8, dtype=torch.bool)
    with pytest.raises(AssertionError, match=r"this proves nothing: with random weights 1.000 .*use smaller masks"):
        assert_attends(model, (x, y), everywhere, attention=at_norm)
    assert assert_attends(model, (x, y), everywhere, attention=at_norm, sanity=False).random is None


def test_randomised_weights_are_the_same_numbers_in_another_order() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Linear(8, 4))
    other, again = randomised(model, 1), randomised(model, 1)
    for p, q, r in zip(model.parameters(), other.parameters(), again.parameters(), strict=True):
        assert torch.equal(q, r)
        assert torch.equal(p.flatten().sort().values, q.flatten().sort().values)
    assert not torch.equal(model[0].weight, other[0].weight)


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    draw = torch.Generator().manual_seed(0)
    covered = 0
    for i in range(200):
        low, high = _interval(torch.rand(30, generator=draw), 0.9, 300, i)
        covered += low <= 0.5 <= high
    assert 0.8 < covered / 200 < 0.97


def test_bad_input_says_what_to_do() -> None:
    model, (x, y, masks) = Looks(), scenes(4)
    with pytest.raises(UserError, match="min_mass=60"):
        assert_attends(model, x, masks, 60)
    with pytest.raises(UserError, match="resamples=0"):
        assert_attends(model, x, masks, attention=at_norm, resamples=0)
    with pytest.raises(UserError, match="4 images need as many masks"):
        assert_attends(model, x, masks[:3])
    with pytest.raises(UserError, match=r"batch the masks too, for example masks.split"):
        assert_attends(model, [(x, y)], masks)
    with pytest.raises(UserError, match=r"model must be a torch.nn.Module, got function"):
        assert_attends(lambda x: x, x, masks)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="same number of batches"):
        assert_attends(model, [(x, y)], [masks, masks])
    with pytest.raises(UserError, match="no image has a region"):
        assert_attends(model, x, masks & False, attention=at_norm)
    with pytest.raises(UserError, match="unknown layer 'layer4'"):
        assert_attends(model, x, masks)
