"""Triton kernel of a 1×1 convolution whose output is scaled: what its gradient needs of the scaled map, in one pass."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def scale_grad(
    g, y, s, dy, ds, size, units, turns, UNIT: tl.constexpr, POSITIONS: tl.constexpr, CHANNELS: tl.constexpr
):  # fmt: skip
    """∂y = s·g, and parts of ∂s = Σ_positions g·y; maps are (N, H·W, C), s is (N, C), ∂s (parts, N, C) in float32.

    C is a number of units, of which the compiler knows that they are aligned.
    """
    c = units * UNIT
    n, part = tl.program_id(0), tl.program_id(2)
    channels = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    inside = channels < c
    factor = tl.load(s + n * c + channels, mask=inside, other=0.0).to(tl.float32)
    total = tl.zeros((CHANNELS,), tl.float32)
    for turn in range(turns):
        positions = (part * turns + turn) * POSITIONS + tl.arange(0, POSITIONS)
        mask = (positions < size)[:, None] & inside[None, :]
        at = (n * size + positions).to(tl.int64)[:, None] * c + channels[None, :]
        gradient = tl.load(g + at, mask=mask, other=0.0).to(tl.float32)
        value = tl.load(y + at, mask=mask, other=0.0).to(tl.float32)
        tl.store(dy + at, (gradient * factor[None, :]).to(dy.dtype.element_ty), mask=mask)
        total += tl.sum(gradient * value, 0)
    tl.store(ds + (part * tl.num_programs(0) + n) * c + channels, total, mask=inside)
