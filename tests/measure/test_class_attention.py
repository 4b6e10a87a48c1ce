"""Overlap of two classes, inner attention in the last layer's, pointing game and energy in boxes."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score
from torch import Tensor

from foveal.errors import UserError
from foveal.measure import (
    AttentionOverlap,
    AveragePrecision,
    EnergyInBox,
    InnerInLast,
    PointingGame,
    Split,
    WeightedAveragePrecision,
    attention_overlap,
    average_precision,
    box_mask,
    energy_in_box,
    inner_in_last,
    pointing_game,
    true_positive_strength,
    weighted_average_precision,
)
from foveal.supervise import consistency, separability

seeds = st.integers(0, 2**31)
MEASURES = {
    "overlap": (attention_overlap, AttentionOverlap),
    "inner": (inner_in_last, InnerInLast),
    "pointing": (pointing_game, PointingGame),
    "energy": (energy_in_box, EnergyInBox),
}


def samples(name: str, seed: int, n: int = 7, h: int = 5, w: int = 6) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    first = torch.rand(n, h, w, generator=draw) ** 3
    second = torch.rand(n, h, w, generator=draw) ** 3
    if name in ("pointing", "energy"):
        second = second < 0.05
    return first, second, torch.rand(n, generator=draw) < 0.5


def slow(name: str, first: Tensor, second: Tensor) -> float | None:
    """One sample; None if it does not count."""
    a, b = first.flatten().tolist(), second.flatten().tolist()
    if name == "overlap":
        return 2 * sum(map(min, a, b)) / (sum(a) + sum(b)) if sum(a) else None
    if name == "inner":
        if not sum(a) or not sum(b):
            return None
        mask = [1 / (1 + math.exp(-100 * (x / max(b) - 0.55))) for x in b]
        return sum(x * m for x, m in zip(a, mask, strict=True)) / sum(a)
    if not any(b):
        return None
    if name == "pointing":
        return float(b[a.index(max(a))])
    return sum(x for x, inside in zip(a, b, strict=True) if inside) / sum(a) if sum(a) else 0.0


def mean(values: list[float | None]) -> float:
    kept = [v for v in values if v is not None]
    return sum(kept) / len(kept) if kept else math.nan


@pytest.mark.parametrize("name", MEASURES)
@given(seed=seeds)
def test_equals_one_sample_at_a_time(name: str, seed: int) -> None:
    first, second, correct = samples(name, seed)
    if name != "pointing":
        first[0] = 0
    second[1] = 0
    entry = [slow(name, a, b) for a, b in zip(first, second, strict=True)]
    right = [v for v, c in zip(entry, correct, strict=True) if c]
    wrong = [v for v, c in zip(entry, correct, strict=True) if not c]
    actual = MEASURES[name][0](first, second, correct)
    assert isinstance(actual, Split)
    for value, expected in zip(actual, (mean(entry), mean(right), mean(wrong)), strict=True):
        assert value.item() == pytest.approx(expected, rel=1e-4, abs=1e-6, nan_ok=True)
    alone = MEASURES[name][0](first, second)
    torch.testing.assert_close(alone.all, actual.all, equal_nan=True)
    assert alone.right.isnan()
    assert alone.wrong.isnan()


@pytest.mark.parametrize("name", MEASURES)
@given(seed=seeds, order=st.permutations(range(7)), cut=st.integers(0, 7), factor=st.sampled_from([1e-9, 7.0, 1e9]))
def test_order_batching_and_scale_change_nothing(
    name: str, seed: int, order: list[int], cut: int, factor: float
) -> None:
    first, second, correct = samples(name, seed)
    function, kind = MEASURES[name]
    expected = function(first, second, correct)
    scaled = second * factor if second.is_floating_point() else second
    metric = kind()
    for part in (order[:cut], order[cut:]):
        metric.update(first[part] * factor, scaled[part], correct[part])
    torch.testing.assert_close(tuple(metric.compute()), tuple(expected), equal_nan=True, rtol=1e-4, atol=1e-6)
    metric.reset()
    metric.update(first, second)
    torch.testing.assert_close(metric.compute().all, expected.all, equal_nan=True, rtol=1e-4, atol=1e-6)


@given(seeds)
def test_overlap_and_share_are_what_the_losses_say(seed: int) -> None:
    target, confuser, _ = samples("overlap", seed)
    everywhere = separability(target, confuser, sigma=-1.0)  # a mask that is one everywhere
    torch.testing.assert_close(attention_overlap(target, confuser).all, everywhere)
    torch.testing.assert_close(inner_in_last(target, confuser).all, 0.8 - consistency(target, confuser))


def test_extremes() -> None:
    ones, left = torch.ones(1, 2, 2), torch.tensor([[[1.0, 0.0], [1.0, 0.0]]])
    assert attention_overlap(ones, ones).all == 1
    assert attention_overlap(left, left.flip(2)).all == 0
    assert attention_overlap(torch.zeros(1, 2, 2), ones).all.isnan()
    assert inner_in_last(left, left).all == pytest.approx(1)
    assert inner_in_last(left.flip(2), left).all == pytest.approx(0)
    assert inner_in_last(torch.ones(1, 8, 8), left).all.item() == pytest.approx(0.5, abs=0.01)
    assert pointing_game(torch.zeros(1, 2, 2), left.bool()).all == 0.5  # no opinion: the area
    assert energy_in_box(torch.zeros(1, 2, 2), left.bool()).all == 0


def test_energy_is_true_positive_strength() -> None:
    first, second, _ = samples("energy", 3, n=40)
    kept = second.flatten(1).any(1)
    torch.testing.assert_close(energy_in_box(first, second).all, true_positive_strength(first[kept], second[kept]))


@pytest.mark.parametrize("tolerance", [0, 1, 2, 3])
def test_tolerance_is_a_distance(tolerance: int) -> None:
    mask = torch.zeros(1, 9, 11, dtype=torch.bool)
    mask[0, 3:5, 4:6] = True
    inside = mask[0].nonzero()
    for i in range(9):
        for j in range(11):
            attention = torch.zeros(1, 9, 11)
            attention[0, i, j] = 1
            near = ((inside - torch.tensor([i, j])) ** 2).sum(1).min().item() <= tolerance**2
            assert bool(pointing_game(attention, mask, tolerance=tolerance).all == 1) == near


def covers(first: float, last: float, pixel: int) -> bool:
    within = [p for p in range(-5, 15) if first <= p + 0.5 < last]
    return pixel in within or (not within and pixel == math.floor((first + last) / 2))


@given(seeds)
def test_boxes_are_the_masks_of_the_pixels_they_cover(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    corner = torch.rand(2, 3, 2, generator=draw) * 6 - 1
    boxes = torch.cat([corner, corner + 4 * torch.rand(2, 3, 2, generator=draw)], 2)
    mask = box_mask([boxes[0], boxes[1, :0]], (5, 7))
    for i in range(5):
        for j in range(7):
            expected = any(covers(x0, x1, j) and covers(y0, y1, i) for x0, y0, x1, y1 in boxes[0].tolist())
            assert bool(mask[0, i, j]) == expected
    assert not mask[1].any()
    attention = torch.rand(2, 5, 7, generator=draw)
    for function in (pointing_game, energy_in_box):
        by_box = function(attention, [boxes[0], boxes[1, :0]])
        torch.testing.assert_close(tuple(by_box), tuple(function(attention, mask)), equal_nan=True)


def test_no_boxes_at_all() -> None:
    assert box_mask([], (3, 4)).shape == (0, 3, 4)
    assert energy_in_box(torch.rand(1, 3, 4), [torch.zeros(0, 4)]).all.isnan()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["overlap", "inner", "energy"])
def test_half_precision_is_summed_in_float32(name: str, dtype: torch.dtype) -> None:
    ones = torch.full((1, 400, 400), 3.0, dtype=dtype)
    second = ones
    if name == "energy":
        second = torch.zeros(1, 400, 400, dtype=torch.bool)
        second[:, :100] = True
    actual = MEASURES[name][0](ones, second)
    assert actual.all.dtype == torch.float32
    assert actual.all.item() == pytest.approx(0.25 if name == "energy" else 1, abs=1e-4)


MASK = torch.ones(2, 4, 4, dtype=torch.bool)
BAD = [
    ("overlap", (torch.rand(4, 4), torch.rand(4, 4)), r"maps must both be \(N, H, W\)"),
    ("overlap", (torch.rand(2, 4, 4), torch.rand(2, 8, 8)), r"got \(2, 4, 4\) and \(2, 8, 8\)"),
    ("inner", (torch.rand(2, 4, 4), torch.rand(3, 4, 4)), r"one per sample, got \(2, 4, 4\) and \(3, 4, 4\)"),
    ("pointing", (torch.rand(2, 4, 4), MASK.float()), "mask must be bool"),
    ("energy", (torch.rand(2, 4, 4), MASK[:1]), "differ in shape"),
    ("energy", (torch.rand(2, 4, 4) - 1, MASK), "finite and not negative"),
    ("energy", (torch.rand(2, 4, 4), [torch.zeros(1, 4)]), "boxes of 2 images, got those of 1"),
    ("energy", (torch.rand(1, 4, 4), [torch.zeros(1, 5)]), r"must be \(M, 4\)"),
    ("energy", (torch.rand(1, 4, 4), [torch.tensor([[3.0, 0, 1, 1]])]), "x0 ≤ x1"),
    ("overlap", (torch.rand(2, 4, 4), torch.rand(2, 4, 4), torch.ones(2)), r"correct must be bool \(2,\)"),
    ("pointing", (torch.rand(2, 4, 4), MASK, torch.ones(3).bool()), r"correct must be bool \(2,\)"),
]


@pytest.mark.parametrize(("name", "given", "message"), BAD)
def test_bad_input_says_what_to_do(name: str, given: tuple, message: str) -> None:
    for call in (MEASURES[name][0], MEASURES[name][1]().update):
        with pytest.raises(UserError, match=message):
            call(*given)
    with pytest.raises(UserError, match="tolerance is a whole number of pixels"):
        PointingGame(tolerance=-1)
    with pytest.raises(UserError, match="tolerance is a whole number of pixels"):
        PointingGame(tolerance=1.5)


@given(seeds, st.sampled_from(["area", "11point", "step"]))
def test_average_precision_of_each_class_over_batches(seed: int, interpolation: str) -> None:
    draw = torch.Generator().manual_seed(seed)
    scores, labels = torch.randint(0, 9, (30, 4), generator=draw) / 9, torch.rand(30, 4, generator=draw) < 0.3
    labels[:, 3] = False
    metric = AveragePrecision(interpolation)
    metric.update(scores[:11], labels[:11])
    metric.update(scores[11:], labels[11:])
    actual = metric.compute()
    torch.testing.assert_close(actual, average_precision(scores, labels, interpolation), equal_nan=True)
    assert actual[3].isnan()
    if interpolation == "step" and labels[:, :3].any(0).all():
        expected = average_precision_score(labels[:, :3].numpy(), scores[:, :3].numpy(), average=None)
        assert actual[:3].tolist() == pytest.approx(expected.tolist(), abs=1e-6)


def test_small_boxes_have_the_pixel_that_holds_their_centre() -> None:
    boxes = torch.tensor([[1.6, 1.6, 2.4, 2.4]]), torch.tensor([[0.0, 2.6, 4.0, 3.2]]), torch.zeros(1, 4)
    mask = box_mask(boxes, (4, 4))
    assert mask[0].nonzero().tolist() == [[2, 2]]
    assert mask[1].nonzero().tolist() == [[2, 0], [2, 1], [2, 2], [2, 3]]
    assert not mask[2].any()  # no area
    assert not box_mask([torch.tensor([[4.1, 1.0, 4.3, 2.0]])], (4, 4)).any()  # not in the map
    assert box_mask([torch.tensor([[0.5, 0.0, 1.5, 1.0]])], (1, 3)).tolist() == [[[True, False, False]]]


@pytest.mark.parametrize("name", MEASURES)
@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf])
def test_maps_must_be_finite_and_not_negative(name: str, bad: float) -> None:
    first, second, _ = samples(name, 0)
    first[0, 0, 0] = bad
    with pytest.raises(UserError, match="finite and not negative"):
        MEASURES[name][0](first, second)


def test_average_precision_leaves_out_what_is_not_valid() -> None:
    draw = torch.Generator().manual_seed(0)
    scores, labels, valid = (torch.rand(30, 4, generator=draw) for _ in range(3))
    labels, valid = labels < 0.4, valid < 0.7
    actual = average_precision(scores, labels, valid=valid)
    for k in range(4):
        kept = valid[:, k]
        torch.testing.assert_close(
            actual[k : k + 1], average_precision(scores[kept, k : k + 1], labels[kept, k : k + 1])
        )
    metric = WeightedAveragePrecision()
    metric.update(scores, labels, valid)
    torch.testing.assert_close(weighted_average_precision(scores, labels, valid=valid), metric.compute())
