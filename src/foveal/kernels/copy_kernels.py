"""Triton kernels that copy, pad, pack and add up: what is one operator in PyTorch, as launches that can be recorded."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _sum_parts(parts, out, tile, COUNT, SIZE, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """BLOCK values of what :func:`sum_parts` computes."""
    i = tile * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, COUNT, ROWS):
        row = start + tl.arange(0, ROWS)
        there = (row < COUNT)[:, None] & (i < SIZE)[None, :]
        values = tl.load(parts + row[:, None] * SIZE + i[None, :], mask=there, other=0.0)
        total += tl.sum(values.to(tl.float32), 0)
    tl.store(out + i, total.to(out.dtype.element_ty), mask=i < SIZE)


@triton.jit(do_not_specialize=["COUNT", "SIZE"])
def sum_parts(parts, out, COUNT, SIZE, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Sum of parts (COUNT, SIZE) over the first axis, in float32."""
    _sum_parts(parts, out, tl.program_id(0), COUNT, SIZE, ROWS, BLOCK)


@triton.jit(do_not_specialize=["SIZE", "H", "W", "C", "TALL", "WIDE"])
def pad(x, out, SIZE, H, W, C, TALL, WIDE, BLOCK: tl.constexpr):
    """X (N, H, W, C) in the upper left corner of out (N, TALL, WIDE, C), of SIZE values; zeros elsewhere."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    c, position = i % C, i // C
    z, y, n = position % WIDE, position // WIDE % TALL, position // WIDE // TALL
    inside = (i < SIZE) & (z < W) & (y < H)
    tl.store(out + i, tl.load(x + ((n * H + y) * W + z) * C + c, mask=inside, other=0.0), mask=i < SIZE)


@triton.jit(do_not_specialize=["SIZE", "C2", "G1", "CG", "OG", "TOGETHER", "ROW", "STEP", "TAP"])
def pack(weight, out, SIZE, C2, G1, CG, OG, TOGETHER, ROW, STEP, TAP, T: tl.constexpr, BLOCK: tl.constexpr):
    """Weights as (C2 or more, T, G1), block-diagonal within every super-group of TOGETHER groups; SIZE values.

    ``weight`` is (C2, CG, T) with strides ROW, STEP and TAP. A group has CG input and OG output channels.
    """
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    j1, t, c2 = i % G1, i // G1 % T, i // G1 // T
    own = (i < SIZE) & (c2 < C2) & (j1 // CG == c2 // OG % TOGETHER)
    value = tl.load(weight + c2 * ROW + j1 % CG * STEP + t * TAP, mask=own, other=0.0)
    tl.store(out + i, value.to(out.dtype.element_ty), mask=i < SIZE)
