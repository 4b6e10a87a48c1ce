from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from foveal.errors import UserError
from foveal.measure import AttentionPrecisionRecall, attention_precision_recall

seeds = st.integers(0, 2**31)


def maps(seed: int, n: int = 5, h: int = 4, w: int = 6) -> tuple[Tensor, Tensor]:
    """Maps with few distinct values, so that many pixels lie exactly on a threshold."""
    draw = torch.Generator().manual_seed(seed)
    attention = torch.randint(0, 9, (n, h, w), generator=draw) / 8
    return attention, torch.rand(n, h, w, generator=draw) < 0.3


def brute_force(attention: Tensor, mask: Tensor, thresholds: list[float], normalise: bool) -> tuple[Tensor, Tensor]:
    precision, recall = [], []
    for threshold in thresholds:
        hits = predicted = positives = 0
        for one, inside in zip(attention, mask, strict=True):
            peak = float(one.max()) if normalise and one.max() > 0 else 1.0
            for value, flag in zip(one.flatten().tolist(), inside.flatten().tolist(), strict=True):
                reaches = value / peak >= threshold
                hits += reaches and flag
                predicted += reaches
                positives += flag
        precision.append(hits / predicted if predicted else 1.0)
        recall.append(hits / positives if positives else float("nan"))
    return torch.tensor(precision), torch.tensor(recall)


def assert_same(actual: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor]) -> None:
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, equal_nan=True)


@given(seeds, st.booleans(), st.integers(1, 4), st.integers(1, 5), st.integers(1, 5))
def test_equals_brute_force(seed: int, normalise: bool, n: int, h: int, w: int) -> None:
    attention, mask = maps(seed, n, h, w)
    attention[0] = 0
    levels = [-0.5, 0.0, 0.125, 0.25, 0.25, 0.5, 0.7, 1.0, 1.5]
    actual = attention_precision_recall(attention, mask, torch.tensor(levels), normalise=normalise)
    assert_same(actual, brute_force(attention, mask, levels, normalise))


def test_an_int_spaces_the_thresholds_evenly() -> None:
    attention, mask = maps(3)
    assert_same(
        attention_precision_recall(attention, mask, 5), brute_force(attention, mask, [0, 0.25, 0.5, 0.75, 1], True)
    )
    assert attention_precision_recall(attention, mask)[0].shape == (101,)


@given(seeds, st.permutations(range(5)), st.integers(0, 5))
def test_order_and_batching_change_nothing(seed: int, order: list[int], cut: int) -> None:
    attention, mask = maps(seed)
    metric = AttentionPrecisionRecall(17)
    metric.update(attention[order][:cut], mask[order][:cut])
    metric.update(attention[order][cut:], mask[order][cut:])
    actual, expected = metric.compute(), attention_precision_recall(attention, mask, 17)
    for one, other in zip(actual, expected, strict=True):
        assert torch.equal(one.nan_to_num(-1), other.nan_to_num(-1))  # counts are integers: exact


@given(seeds)
def test_recall_falls_from_one(seed: int) -> None:
    attention, mask = maps(seed)
    mask[0, 0, 0] = True
    precision, recall = attention_precision_recall(attention, mask, 17)
    assert recall[0] == 1
    assert (recall.diff() <= 0).all()
    torch.testing.assert_close(precision[0], mask.float().mean())


@given(seeds, st.sampled_from([2.0**k for k in range(-20, 21)]))
def test_normalised_maps_have_no_scale(seed: int, factor: float) -> None:
    attention, mask = maps(seed)
    assert_same(
        attention_precision_recall(attention * factor, mask, 17),
        attention_precision_recall(attention, mask, 17),
    )


def test_without_normalising_the_scale_counts() -> None:
    attention = torch.tensor([[[0.4, 0.2]]])
    mask = torch.tensor([[[True, False]]])
    _, recall = attention_precision_recall(attention, mask, torch.tensor([0.3, 0.5]), normalise=False)
    assert recall.tolist() == [1, 0]
    _, recall = attention_precision_recall(attention, mask, torch.tensor([0.3, 0.5]))
    assert recall.tolist() == [1, 1]


def test_nothing_predicted_is_precise_and_nothing_to_find_has_no_recall() -> None:
    attention, mask = torch.zeros(1, 2, 2), torch.zeros(1, 2, 2, dtype=torch.bool)
    precision, recall = attention_precision_recall(attention, mask, 3)
    assert precision.tolist() == [0, 1, 1]
    assert recall.isnan().all()


def test_no_samples() -> None:
    precision, recall = attention_precision_recall(torch.zeros(0, 3, 3), torch.zeros(0, 3, 3, dtype=torch.bool), 4)
    assert precision.tolist() == [1, 1, 1, 1]
    assert recall.isnan().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions(dtype: torch.dtype) -> None:
    attention, mask = maps(4)  # eighths are exact in every dtype
    assert_same(
        attention_precision_recall(attention.to(dtype), mask, 9), attention_precision_recall(attention, mask, 9)
    )


def test_a_value_reaches_its_own_threshold_in_float64() -> None:
    attention = torch.tensor([[[0.3]]], dtype=torch.float64)
    mask = torch.ones(1, 1, 1, dtype=torch.bool)
    for level in (torch.tensor([0.3]), torch.tensor([0.3], dtype=torch.float64)):
        assert attention_precision_recall(attention, mask, level, normalise=False)[1].item() == 1


def test_counts_beyond_float32_are_exact() -> None:
    metric = AttentionPrecisionRecall(2)
    metric.histogram[1, 2] = 2**24
    metric.update(torch.ones(1, 1, 1), torch.ones(1, 1, 1, dtype=torch.bool))
    assert metric.histogram[1, 2] == 2**24 + 1


def test_thresholds_can_be_a_list() -> None:
    attention, mask = maps(0)
    levels = [0.0, 0.25, 1.0]
    expected = attention_precision_recall(attention, mask, torch.tensor(levels))
    assert all(map(torch.equal, attention_precision_recall(attention, mask, levels), expected))


def test_thresholds_can_be_plotted_against() -> None:
    assert AttentionPrecisionRecall(3).thresholds.tolist() == [0, 0.5, 1]
    assert not AttentionPrecisionRecall(3).state_dict()


@pytest.mark.parametrize(
    ("thresholds", "message"),
    [
        (1, "at least 2.*got 1"),
        (torch.rand(2, 2), r"1-D tensor, got a tensor of shape \(2, 2\)"),
        (torch.rand(0), r"1-D tensor, got a tensor of shape \(0,\)"),
        (torch.tensor([0.5, 0.1]), "must not decrease.*thresholds.sort"),
        (torch.tensor([float("nan")]), "not be nan"),
        ([], r"1-D tensor, got a tensor of shape \(0,\)"),
    ],
)
def test_bad_thresholds_say_what_to_do(thresholds: int | Tensor, message: str) -> None:
    attention, mask = maps(0)
    with pytest.raises(UserError, match=message):
        attention_precision_recall(attention, mask, thresholds)
    with pytest.raises(UserError, match=message):
        AttentionPrecisionRecall(thresholds)


def test_bad_maps_say_what_to_do() -> None:
    attention, mask = maps(0)
    with pytest.raises(UserError, match="differ in shape"):
        attention_precision_recall(attention, mask[:, 1:], 3)
    with pytest.raises(UserError, match="finite and not negative"):
        AttentionPrecisionRecall(3).update(-attention, mask)
