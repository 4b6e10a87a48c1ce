"""Random numbers that depend on nothing but their name.

``uniform(seed, stream, i, j)`` is a pure function of its arguments: the same on every device, for any number of
workers and in any order. Generated datasets are therefore identical however they are cut into pieces. The mixing
function is the finaliser of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)  # as signed 64 bit: torch integers wrap around
_FIRST = 0xBF58476D1CE4E5B9 - (1 << 64)
_SECOND = 0x94D049BB133111EB - (1 << 64)


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical right shift; torch's own keeps the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift(x, 30)) * _FIRST
    x = (x ^ _shift(x, 27)) * _SECOND
    return x ^ _shift(x, 31)


def uniform(seed: int, stream: int, *counters: Tensor) -> Tensor:
    """Uniform float64 numbers in [0, 1), one per broadcast position of the int64 ``counters``.

    >>> a = uniform(0, 1, torch.arange(4))
    >>> torch.equal(a[2:], uniform(0, 1, torch.arange(2, 4)))
    True
    """
    device = counters[0].device
    state = _mix(torch.tensor([seed], dtype=torch.int64, device=device) * _GOLDEN + stream)
    for counter in counters:
        state = _mix((state + 1) * _GOLDEN + counter)
    return _shift(state, 11).double() * 2.0**-53


def integers(low: Tensor | int, high: Tensor | int, u: Tensor) -> Tensor:
    """Turn ``u`` in [0, 1) into integers between ``low`` and ``high``, both included."""
    return (low + torch.floor(u * (high - low + 1))).long()


def normal(u1: Tensor, u2: Tensor) -> Tensor:
    """Standard normal numbers from two uniform ones (Box and Muller)."""
    return torch.sqrt(-2.0 * torch.log1p(-u1)) * torch.cos(2.0 * math.pi * u2)
