from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from foveal.errors import UserError
from foveal.measure import TruePositiveStrength, true_positive_strength


def maps(seed: int, n: int = 5, h: int = 4, w: int = 6) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return torch.rand(n, h, w, generator=draw), torch.rand(n, h, w, generator=draw) < 0.3


def brute_force(attention: Tensor, mask: Tensor) -> float:
    strengths = []
    for one, inside in zip(attention.double().tolist(), mask.tolist(), strict=True):
        total = on = 0.0
        for row, flags in zip(one, inside, strict=True):
            for value, flag in zip(row, flags, strict=True):
                total += value
                on += value if flag else 0.0
        if any(map(any, inside)):
            strengths.append(on / total if total else 0.0)
    return sum(strengths) / len(strengths) if strengths else math.nan


seeds = st.integers(0, 2**31)


@pytest.mark.filterwarnings("ignore:no sample has a target")
@given(seeds, st.integers(1, 7), st.integers(1, 9), st.integers(1, 9))
def test_equals_brute_force(seed: int, n: int, h: int, w: int) -> None:
    attention, mask = maps(seed, n, h, w)
    attention[0] = 0
    expected = pytest.approx(brute_force(attention, mask), abs=1e-6, nan_ok=True)
    assert true_positive_strength(attention, mask).item() == expected


@given(seeds, st.lists(st.floats(1e-6, 1e6), min_size=5, max_size=5))
def test_scaling_a_map_changes_nothing(seed: int, factors: list[float]) -> None:
    attention, mask = maps(seed)
    scaled = attention * torch.tensor(factors)[:, None, None]
    torch.testing.assert_close(true_positive_strength(scaled, mask), true_positive_strength(attention, mask))


@given(seeds)
def test_uniform_attention_has_the_area_of_the_mask(seed: int) -> None:
    _, mask = maps(seed)
    torch.testing.assert_close(true_positive_strength(torch.full(mask.shape, 0.37), mask), mask.float().mean())


@given(seeds, st.permutations(range(5)), st.integers(0, 5))
def test_order_and_batching_change_nothing(seed: int, order: list[int], cut: int) -> None:
    attention, mask = maps(seed)
    metric = TruePositiveStrength()
    metric.update(attention[order][:cut], mask[order][:cut])
    metric.update(attention[order][cut:], mask[order][cut:])
    torch.testing.assert_close(metric.compute(), true_positive_strength(attention, mask))


def test_full_and_empty_masks() -> None:
    attention, mask = maps(0)
    assert true_positive_strength(attention, torch.ones_like(mask)) == 1
    empty = mask.clone()
    empty[1:] = False
    assert true_positive_strength(attention, empty) == true_positive_strength(attention[:1], mask[:1])


def test_a_sample_without_attention_counts_as_zero() -> None:
    attention = torch.tensor([[[1.0, 1.0]], [[0.0, 0.0]]])
    mask = torch.ones(2, 1, 2, dtype=torch.bool)
    assert true_positive_strength(attention, mask) == 0.5


def test_no_samples_is_nan() -> None:
    assert math.isnan(true_positive_strength(torch.zeros(0, 3, 3), torch.zeros(0, 3, 3, dtype=torch.bool)))


def test_gradient_is_finite_without_attention() -> None:
    attention, mask = maps(0)
    attention[0] = 0
    attention.requires_grad_()
    true_positive_strength(attention, mask).backward()
    assert attention.grad is not None
    assert attention.grad.isfinite().all()
    assert (attention.grad[1:] != 0).any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_summed_in_float32(dtype: torch.dtype) -> None:
    attention = torch.full((1, 400, 400), 3.0, dtype=dtype)  # the sum overflows float16 and stalls in bfloat16
    mask = torch.zeros(1, 400, 400, dtype=torch.bool)
    mask[:, :100] = True
    strength = true_positive_strength(attention, mask)
    assert strength.dtype == torch.float32
    assert strength.item() == pytest.approx(0.25, abs=1e-6)


def test_forward_gives_the_batch_and_reset_forgets() -> None:
    (first, first_mask), (second, second_mask) = maps(1), maps(2)
    metric = TruePositiveStrength()
    metric(first, first_mask)
    torch.testing.assert_close(metric(second, second_mask), true_positive_strength(second, second_mask))
    metric.reset()
    metric.update(first, first_mask)
    torch.testing.assert_close(metric.compute(), true_positive_strength(first, first_mask))


BAD = [
    (torch.rand(4, 6), torch.ones(4, 6, dtype=torch.bool), r"attention must be \(N, H, W\).*got shape \(4, 6\)"),
    (torch.rand(2, 0, 6), torch.ones(2, 0, 6, dtype=torch.bool), r"got shape \(2, 0, 6\)"),
    (torch.rand(2, 4, 4), torch.ones(2, 9, 9, dtype=torch.bool), r"\(2, 4, 4\) and mask \(2, 9, 9\).*attention_map"),
    (torch.rand(2, 4, 4), torch.ones(1, 4, 4, dtype=torch.bool), r"differ in shape"),
    (torch.rand(2, 4, 4), torch.ones(2, 4, 4), r"mask must be bool, got torch.float32.*mask > 0"),
    (torch.rand(2, 4, 4) - 2, torch.ones(2, 4, 4, dtype=torch.bool), r"finite and not negative"),
    (torch.full((2, 4, 4), math.nan), torch.ones(2, 4, 4, dtype=torch.bool), r"finite and not negative"),
    (torch.full((2, 4, 4), math.inf), torch.ones(2, 4, 4, dtype=torch.bool), r"finite and not negative"),
]


@pytest.mark.parametrize(("attention", "mask", "message"), BAD)
def test_bad_input_says_what_to_do(attention: Tensor, mask: Tensor, message: str) -> None:
    with pytest.raises(UserError, match=message):
        true_positive_strength(attention, mask)
    with pytest.raises(UserError, match=message):
        TruePositiveStrength().update(attention, mask)
