from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from foveal.errors import UserError
from foveal.measure import ScaleAccuracy, scale_accuracy

EDGES = (0.5, 1, 1.5, 2, 2.5, 3)
# Quarters hit every edge; 0.25 and 3.25 fall outside.
samples = st.lists(st.tuples(st.booleans(), st.sampled_from([k / 4 for k in range(1, 14)])), max_size=30)


def tensors(pairs: list[tuple[bool, float]]) -> tuple[Tensor, Tensor]:
    return torch.tensor([c for c, _ in pairs], dtype=torch.bool), torch.tensor([s for _, s in pairs])


def brute_force(pairs: list[tuple[bool, float]]) -> tuple[list[float], list[int]]:
    accuracy, counts = [], []
    for lo, hi in pairwise(EDGES):
        inside = [c for c, s in pairs if lo < s <= hi or (lo == EDGES[0] and s == lo)]
        accuracy.append(sum(inside) / len(inside) if inside else float("nan"))
        counts.append(len(inside))
    return accuracy, counts


@given(samples)
def test_equals_brute_force(pairs: list[tuple[bool, float]]) -> None:
    accuracy, counts = scale_accuracy(*tensors(pairs))
    expected_accuracy, expected_counts = brute_force(pairs)
    torch.testing.assert_close(accuracy, torch.tensor(expected_accuracy), equal_nan=True)
    assert counts.tolist() == expected_counts


@given(samples, st.integers(0, 30), st.randoms())
def test_order_and_batching_change_nothing(pairs: list[tuple[bool, float]], cut: int, random) -> None:
    shuffled = random.sample(pairs, len(pairs))
    metric = ScaleAccuracy()
    metric.update(*tensors(shuffled[:cut]))
    metric.update(*tensors(shuffled[cut:]))
    for actual, expected in zip(metric.compute(), scale_accuracy(*tensors(pairs)), strict=True):
        torch.testing.assert_close(actual, expected, equal_nan=True, rtol=0, atol=0)


def test_every_edge_has_one_bin() -> None:
    _, counts = scale_accuracy(torch.ones(6, dtype=torch.bool), torch.tensor(EDGES))
    assert counts.tolist() == [2, 1, 1, 1, 1]


def test_bins_weigh_back_to_plain_accuracy() -> None:
    draw = torch.Generator().manual_seed(0)
    correct, scale = torch.rand(500, generator=draw) < 0.7, 0.5 + 2.5 * torch.rand(500, generator=draw)
    accuracy, counts = scale_accuracy(correct, scale)
    torch.testing.assert_close((accuracy * counts).sum() / 500, correct.float().mean())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions(dtype: torch.dtype) -> None:
    correct, scale = torch.tensor([True, False, True]), torch.tensor([0.5, 1.25, 3.0])
    accuracy, counts = scale_accuracy(correct, scale.to(dtype))
    assert accuracy.dtype == torch.float32
    assert counts.tolist() == [1, 1, 0, 0, 1]


def test_integer_scales_and_own_edges() -> None:
    accuracy, counts = scale_accuracy(torch.tensor([True, False]), torch.tensor([1, 2]), edges=[0, 1, 2])
    assert accuracy.tolist() == [1, 0]
    assert counts.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("correct", "scale", "message"),
    [
        (torch.ones(3, dtype=torch.bool), torch.ones(4), r"both be \(N,\).*got \(3,\) and \(4,\)"),
        (torch.ones(3, 1, dtype=torch.bool), torch.ones(3, 1), r"got \(3, 1\) and \(3, 1\)"),
        (torch.ones(3), torch.ones(3), "must be bool, got torch.float32.*predicted == target"),
        (torch.ones(1, dtype=torch.bool), torch.tensor([float("nan")]), "scale holds nan"),
    ],
)
def test_bad_input_says_what_to_do(correct: Tensor, scale: Tensor, message: str) -> None:
    with pytest.raises(UserError, match=message):
        scale_accuracy(correct, scale)
    with pytest.raises(UserError, match=message):
        ScaleAccuracy().update(correct, scale)


@pytest.mark.parametrize("edges", [(1,), (), (1, 1), (2, 1), (0, float("nan"), 1)])
def test_bad_edges_say_what_to_do(edges: tuple[float, ...]) -> None:
    with pytest.raises(UserError, match="two or more increasing numbers, got"):
        scale_accuracy(torch.ones(1, dtype=torch.bool), torch.ones(1), edges)
    with pytest.raises(UserError, match="two or more increasing numbers, got"):
        ScaleAccuracy(edges)
