"""Random numbers that are functions of their name."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from foveal.data._random import integers, normal, uniform

N = 200_000


def splitmix(x):
    """The finaliser of SplitMix64 in Python's own integers."""
    mask = (1 << 64) - 1
    x &= mask
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    return x ^ (x >> 31)


def slow_uniform(seed, stream, *counters):
    golden = 0x9E3779B97F4A7C15
    state = splitmix(seed * golden + stream)
    for counter in counters:
        state = splitmix((state + 1) * golden + counter)
    return (state >> 11) / 2**53


@settings(max_examples=60, deadline=None)
@given(st.integers(-(2**40), 2**40), st.integers(0, 100), st.lists(st.integers(0, 2**50), min_size=1, max_size=4))
def test_equals_plain_integer_arithmetic(seed, stream, counters):
    numbers = uniform(seed, stream, *(torch.tensor([c]) for c in counters))
    assert numbers.item() == slow_uniform(seed, stream, *counters)


def test_is_a_pure_function():
    index = torch.arange(1000)
    torch.manual_seed(1)
    before = uniform(3, 2, index)
    torch.manual_seed(2)
    torch.rand(10)
    assert torch.equal(uniform(3, 2, index), before)
    assert torch.initial_seed() == 2  # untouched


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 900), st.integers(1, 100), st.permutations(range(7)))
def test_does_not_depend_on_the_slice_or_the_order(start, length, order):
    whole = uniform(5, 1, torch.arange(1000))
    assert torch.equal(uniform(5, 1, torch.arange(start, start + length)), whole[start : start + length])
    assert torch.equal(uniform(5, 1, torch.tensor(order)), whole[order])


def test_counters_broadcast():
    rows, columns = torch.arange(4)[:, None], torch.arange(6)
    table = uniform(1, 2, rows, columns)
    assert table.shape == (4, 6)
    assert table[2, 5] == uniform(1, 2, torch.tensor([2]), torch.tensor([5]))
    assert table.unique().numel() == 24


@pytest.mark.parametrize(("seed", "stream"), [(0, 0), (1, 0), (0, 1), (123, 45)])
def test_moments_and_range(seed, stream):
    u = uniform(seed, stream, torch.arange(N))
    assert u.dtype == torch.float64
    assert u.min() >= 0
    assert u.max() < 1
    assert u.mean().item() == pytest.approx(0.5, abs=5 * math.sqrt(1 / 12 / N))
    assert u.var().item() == pytest.approx(1 / 12, abs=0.001)


def chi_square(counts):
    expected = counts.sum() / counts.numel()
    return ((counts - expected) ** 2 / expected).sum().item()


def accepted(counts):
    """Whether counts are uniform, five standard deviations of χ² allowed either way."""
    freedom = counts.numel() - 1
    return abs(chi_square(counts.double()) - freedom) < 5 * math.sqrt(2 * freedom)


@pytest.mark.parametrize("seed", [0, 1, 7])
def test_uniform_over_a_hundred_bins(seed):
    assert accepted((uniform(seed, 3, torch.arange(N)) * 100).long().bincount(minlength=100))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((0, 0, 0), (0, 0, 1)),  # neighbours in one stream
        ((0, 0, 0), (0, 1, 0)),  # neighbouring streams
        ((0, 0, 0), (1, 0, 0)),  # neighbouring seeds
    ],
)
def test_pairs_are_uniform_in_the_square(one, other):
    a, b = (uniform(seed, stream, torch.arange(N) + shift) for seed, stream, shift in (one, other))
    assert accepted(((a * 20).long() * 20 + (b * 20).long()).bincount(minlength=400))


def test_images_and_slots_do_not_mix():
    """Image 1 slot 0 and image 0 slot 1 are different numbers, and so are all others."""
    table = uniform(0, 0, torch.arange(100)[:, None], torch.arange(100))
    assert table.unique().numel() == 10_000


def test_integers_include_both_bounds():
    u = uniform(0, 0, torch.arange(N))
    numbers = integers(3, 8, u)
    assert numbers.dtype == torch.int64
    assert numbers.unique().tolist() == [3, 4, 5, 6, 7, 8]
    assert accepted((numbers - 3).bincount(minlength=6))


@given(st.integers(-1000, 1000), st.integers(0, 2**31))
def test_integers_never_leave_the_bounds(low, width):
    edge = torch.tensor([0.0, 1 - 2.0**-53], dtype=torch.float64)
    assert integers(low, low + width, edge).tolist() == [low, low + width]


def test_integers_with_bounds_of_their_own():
    high = torch.tensor([0, 1, 5])
    numbers = integers(torch.zeros_like(high), high, torch.full((3,), 0.999, dtype=torch.float64))
    assert numbers.tolist() == [0, 1, 5]


def test_normal_moments():
    index = torch.arange(N)
    x = normal(uniform(0, 1, index), uniform(0, 2, index))
    assert x.isfinite().all()
    assert x.mean().item() == pytest.approx(0, abs=0.012)
    assert x.var().item() == pytest.approx(1, abs=0.02)
    assert (x**3).mean().item() == pytest.approx(0, abs=0.04)
    assert (x**4).mean().item() == pytest.approx(3, abs=0.12)
    assert (x.abs() < 1).double().mean().item() == pytest.approx(0.6827, abs=0.006)


def test_normal_is_finite_at_the_edges():
    edge = torch.tensor([0.0, 1 - 2.0**-53], dtype=torch.float64)
    assert normal(edge, edge.flip(0)).isfinite().all()
