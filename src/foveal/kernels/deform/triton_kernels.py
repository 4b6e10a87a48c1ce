"""Bilinear samples of a map at the points of a deformable convolution, and their gradients.

Maps are channels last, (N, H, W, C); offsets (P, G, K, 2) with y before x, modulation (P, G, K), samples (P, K, C), for
P = N · H' · W' positions of the result, K kernel positions and G groups of channels with offsets of their own. A tile
is BP positions by BC channels, which are in one group. C and G are known to the compiler: only then it reads and adds
several channels at a time.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

SIZES = ("P", "H", "W", "OH", "OW", "K", "KW", "SY", "SX", "PY", "PX", "DY", "DX")  # one kernel for all of them


@triton.jit
def _point(offset, p, inside, tap, OH, OW, SY, SX, PY, PX, DY, DX, KW):
    """Where kernel position ``tap`` looks from positions p: number of the sample, y and x."""
    move_y = tl.load(offset, mask=inside, other=0.0).to(tl.float32)
    move_x = tl.load(offset + 1, mask=inside, other=0.0).to(tl.float32)
    y = (p // OW % OH * SY - PY + tap // KW * DY).to(tl.float32) + move_y
    x = (p % OW * SX - PX + tap % KW * DX).to(tl.float32) + move_x
    return p // (OW * OH), y, x


@triton.jit(do_not_specialize=SIZES)
def gather(
    x, offset, modulation, samples, P, H, W, OH, OW, K, KW, SY, SX, PY, PX, DY, DX,
    C: tl.constexpr, G: tl.constexpr, MODULATED: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Samples of a tile of positions and channels, of one kernel position."""
    p, tap = tl.program_id(0) * BP + tl.arange(0, BP), tl.program_id(1)
    c = tl.program_id(2) * BC + tl.arange(0, BC)
    inside = p < P
    number = (p * G + tl.program_id(2) * BC // (C // G)) * K + tap
    n, py, px = _point(offset + number * 2, p, inside, tap, OH, OW, SY, SX, PY, PX, DY, DX, KW)
    low_y, low_x = tl.floor(py), tl.floor(px)
    total = tl.zeros((BP, BC), tl.float32)
    for corner in tl.static_range(4):
        y, z = low_y + corner // 2, low_x + corner % 2
        share = (1 - tl.abs(py - y)) * (1 - tl.abs(px - z))
        there = inside & (y >= 0) & (y < H) & (z >= 0) & (z < W)
        at = ((n * H + y.to(tl.int32)) * W + z.to(tl.int32)) * C
        pixels = tl.load(x + at[:, None] + c[None, :], mask=there[:, None], other=0.0)
        total += share[:, None] * pixels.to(tl.float32)
    if MODULATED:
        total *= tl.load(modulation + number, mask=inside, other=0.0).to(tl.float32)[:, None]
    to = samples + ((p * K + tap) * C)[:, None] + c[None, :]
    tl.store(to, total.to(samples.dtype.element_ty), mask=inside[:, None])


@triton.jit(do_not_specialize=SIZES)
def scatter(
    gradient, x, offset, modulation, d_x, d_offset, d_modulation,
    P, H, W, OH, OW, K, KW, SY, SX, PY, PX, DY, DX,
    C: tl.constexpr, G: tl.constexpr, MODULATED: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Gradients of the map, which is float32 and zero before, and of the offsets and modulation of a tile."""
    p, tap, group = tl.program_id(0) * BP + tl.arange(0, BP), tl.program_id(1), tl.program_id(2)
    inside = p < P
    number = (p * G + group) * K + tap
    n, py, px = _point(offset + number * 2, p, inside, tap, OH, OW, SY, SX, PY, PX, DY, DX, KW)
    low_y, low_x = tl.floor(py), tl.floor(px)
    weight = tl.full((BP,), 1.0, tl.float32)
    if MODULATED:
        weight = tl.load(modulation + number, mask=inside, other=0.0).to(tl.float32)
    along_y = tl.zeros((BP,), tl.float32)
    along_x = tl.zeros((BP,), tl.float32)
    sampled = tl.zeros((BP,), tl.float32)
    for first in range(0, C // G, BC):
        c = group * (C // G) + first + tl.arange(0, BC)
        at = ((p * K + tap) * C)[:, None] + c[None, :]
        g = tl.load(gradient + at, mask=inside[:, None], other=0.0).to(tl.float32)
        for corner in tl.static_range(4):
            y, z = low_y + corner // 2, low_x + corner % 2
            share_y, share_x = 1 - tl.abs(py - y), 1 - tl.abs(px - z)
            there = inside & (y >= 0) & (y < H) & (z >= 0) & (z < W)
            at = (((n * H + y.to(tl.int32)) * W + z.to(tl.int32)) * C)[:, None] + c[None, :]
            pixels = tl.load(x + at, mask=there[:, None], other=0.0).to(tl.float32)
            tl.atomic_add(d_x + at, g * (weight * share_y * share_x)[:, None], mask=there[:, None], sem="relaxed")
            product = tl.sum(g * pixels, 1)
            sampled += product * share_y * share_x
            along_y += product * share_x * (2 * (corner // 2) - 1)
            along_x += product * share_y * (2 * (corner % 2) - 1)
    kind = d_offset.dtype.element_ty
    tl.store(d_offset + number * 2, (along_y * weight).to(kind), mask=inside)
    tl.store(d_offset + number * 2 + 1, (along_x * weight).to(kind), mask=inside)
    if MODULATED:
        tl.store(d_modulation + number, sampled.to(kind), mask=inside)
