"""Dynamic convolution: each position sums its neighbourhood with weights of its own.

Maps are channels last, (N, H, W, C), weights (N, G, K, H, W) for K kernel positions and G groups of channels. A tile is
BP positions by the channels of one group, BC of them at most; P = N · H · W.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

SIZES = ("P", "H", "W")


@triton.jit
def _load(maps, p, y, z, i, j, c, inner, P, H, W, C):
    """Values (positions, channels) i rows below and j columns right of p, zero outside; and which are inside."""
    there = (p < P) & (y + i >= 0) & (y + i < H) & (z + j >= 0) & (z + j < W)
    at = ((p + i * W + j) * C)[:, None] + c[None, :]
    values = tl.load(maps + at, mask=there[:, None] & inner[None, :], other=0.0)
    return values.to(tl.float32), there


@triton.jit(do_not_specialize=SIZES)
def forward(
    x, weights, out, P, H, W, C: tl.constexpr, G: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    TOP: tl.constexpr, LEFT: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """The result of a tile."""
    p, group, channel = tl.program_id(0) * BP + tl.arange(0, BP), tl.program_id(1), tl.arange(0, BC)
    c, inner = group * (C // G) + channel, channel < C // G
    y, z, n = p // W % H, p % W, p // (H * W)
    first = (n * G + group) * (KH * KW * H * W) + p % (H * W)
    total = tl.zeros((BP, BC), tl.float32)
    for i in range(KH):
        for j in tl.static_range(KW):  # unrolled: many loads on their way at a time
            values, there = _load(x, p, y, z, i - TOP, j - LEFT, c, inner, P, H, W, C)
            weight = tl.load(weights + first + (i * KW + j) * H * W, mask=there, other=0.0)
            total += values * weight.to(tl.float32)[:, None]
    to = out + (p * C)[:, None] + c[None, :]
    tl.store(to, total.to(out.dtype.element_ty), mask=(p < P)[:, None] & inner[None, :])


@triton.jit(do_not_specialize=SIZES)
def backward(
    gradient, x, weights, d_x, d_weights, P, H, W, C: tl.constexpr, G: tl.constexpr, KH: tl.constexpr,
    KW: tl.constexpr, TOP: tl.constexpr, LEFT: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Gradients of the map and of the weights of a tile."""
    p, group, channel = tl.program_id(0) * BP + tl.arange(0, BP), tl.program_id(1), tl.arange(0, BC)
    c, inner = group * (C // G) + channel, channel < C // G
    y, z, n = p // W % H, p % W, p // (H * W)
    first = (n * G + group) * (KH * KW * H * W) + p % (H * W)
    own, _ = _load(gradient, p, y, z, 0, 0, c, inner, P, H, W, C)
    total = tl.zeros((BP, BC), tl.float32)
    for i in range(KH):
        for j in tl.static_range(KW):
            tap = (i * KW + j) * H * W
            values, _ = _load(x, p, y, z, i - TOP, j - LEFT, c, inner, P, H, W, C)
            d_weight = tl.sum(own * values, 1).to(d_weights.dtype.element_ty)
            tl.store(d_weights + first + tap, d_weight, mask=p < P)
            # Who sees this position through the same tap: the one as far on the other side.
            above, there = _load(gradient, p, y, z, TOP - i, LEFT - j, c, inner, P, H, W, C)
            weight = tl.load(weights + first + tap + (TOP - i) * W + LEFT - j, mask=there, other=0.0)
            total += above * weight.to(tl.float32)[:, None]
    to = d_x + (p * C)[:, None] + c[None, :]
    tl.store(to, total.to(d_x.dtype.element_ty), mask=(p < P)[:, None] & inner[None, :])
