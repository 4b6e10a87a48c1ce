"""AW-convolution fused: a convolution whose kernel is scaled per sample, output channel and kernel position.

With the multiplier constant along input channels, O = Σ_t s_t ⊙ (K_t · I_t) over kernel positions t. Each kernel here
is one implicit matrix product, and no kernel is ever built for a sample in memory.

There are two forms of each result; the shape decides which is faster. On large maps a tile lies within a sample: s
scales a tile of the common kernel in registers, before the product; each sample's own weight gradient G is summed as
s ⊙ G into that of the kernel, and ∂s = Σ_c K ⊙ G. On small maps that wastes much of a tile, so tiles go across samples,
one position of the map in each: the products K_t · I_t are scaled and added, one kernel position after the other, ∂K
takes the incoming gradient scaled by s, and ∂s = Σ_p g ⊙ (K_t · I_t) over positions p of the map. This form skips
kernel positions that fall outside the map.

All maps are channels last: images (N, H, W, C), weights (C2, T, C1), multipliers (N, T, C2) with T kernel positions.
Tiles within a sample are boxes of TH rows and TW columns, read through tensor descriptors, which give zeros outside
the image; a stride S splits an image into S×S interleaved ones, so a descriptor sees it as (N, H/S, S, W/S, S·C).
Across samples a descriptor sees images as (N, H·W·C). Values it reads beyond the channels of a position are multiplied
by zeros of the other operand.

Groups are joined into super-groups of G1 input and G2 output channels, wide enough for the tensor cores; the weights of
a super-group are block-diagonal, (C2, T, G1) with zeros between its groups. A tile lies within one super-group. The
weight gradient is computed for all of it, and the diagonal blocks are stored: (C2, T, CG). A dense convolution is one
super-group, of one group.

Sizes and channels are no constants of the compiled kernels, so that the layers of a network share them: compiling takes
far longer than a launch. Channels are passed in units of UNIT, 16 bytes: the compiler then knows that rows are aligned.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

SIZES = ("N", "H", "W", "OH", "OW", "SPLITS")
CHANNELS = ("C1", "C2", "G1", "G2", "CG", "OG")


@triton.jit
def _box(h, w, NB: tl.constexpr, TH: tl.constexpr, TW: tl.constexpr):
    """First sample, row and column of this program's tile of an h×w map."""
    across, tiles, i = tl.cdiv(w, TW), tl.cdiv(h, TH) * tl.cdiv(w, TW), tl.program_id(0)
    return (i // tiles) * NB, (i % tiles) // across * TH, (i % tiles) % across * TW


@triton.jit
def _rows(n0, y0, x0, NB: tl.constexpr, TH: tl.constexpr, TW: tl.constexpr):
    """Sample, row and column of every row of the tile."""
    m = tl.arange(0, NB * TH * TW)
    return n0 + m // (TH * TW), y0 + m // TW % TH, x0 + m % TW


@triton.jit
def _tile(pid, G, BLOCK: tl.constexpr):
    """Super-group of a tile of BLOCK channels, and the tile's first channel within it; G channels a super-group."""
    return pid // tl.cdiv(G, BLOCK), pid % tl.cdiv(G, BLOCK) * BLOCK


@triton.jit
def _channels(C1, C2, G1, G2, UNIT: tl.constexpr):
    """Numbers of channels, from numbers of units."""
    return C1 * UNIT, C2 * UNIT, G1 * UNIT, G2 * UNIT


@triton.jit
def _finish(HOPPER: tl.constexpr):
    """Wait for the tensor cores.

    They read the scaled operand from registers asynchronously, and Triton lets the program continue too early: the
    next step overwrites these registers. Seen with Triton 3.6 as wrong numbers in wide tiles.
    """
    if HOPPER:
        wait: tl.constexpr = "wgmma.wait_group.sync.aligned 0; mov.b32 $0, $1;"
        tl.inline_asm_elementwise(wait, "=r,r", [tl.arange(0, 32)], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit(do_not_specialize=SIZES + CHANNELS)
def forward(
    x, w, s, b, o, OH, OW, C1, C2, G1, G2, UNIT: tl.constexpr,
    S: tl.constexpr, PY: tl.constexpr, PX: tl.constexpr, DY: tl.constexpr, DX: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, BIAS: tl.constexpr, PRECISION: tl.constexpr, HOPPER: tl.constexpr,
    TH: tl.constexpr, TW: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """O from a kernel scaled in registers; a tile lies within one sample."""
    BM: tl.constexpr = TH * TW
    C1, C2, G1, G2 = _channels(C1, C2, G1, G2, UNIT)
    n, y0, x0 = _box(OH, OW, 1, TH, TW)
    group, first = _tile(tl.program_id(1), G2, BN)
    first1, last = group * G1, tl.minimum((group + 1) * G2, C2)
    first += group * G2
    total = tl.zeros((BN, BM), tl.float32)
    t, c = 0, 0
    for _ in range(KH * KW * tl.cdiv(G1, BK)):
        dy, dx = t // KW * DY - PY + S * PY, t % KW * DX - PX + S * PX  # not negative
        rows = x.load([n, y0 + dy // S - PY, dy % S, x0 + dx // S - PX, dx % S * C1 + first1 + c]).reshape(BM, BK)
        weight = w.load([first, t, c]).reshape(BN, BK)
        scale = s.load([n, t, first]).reshape(BN, 1)
        total = tl.dot((weight * scale).to(rows.dtype), rows.T, total, input_precision=PRECISION)
        _finish(HOPPER)
        t, c = tl.where(c + BK < G1, t, t + 1), tl.where(c + BK < G1, c + BK, 0)
    c2 = first + tl.arange(0, BN)
    if BIAS:
        total += tl.load(b + c2, mask=c2 < C2, other=0.0).to(tl.float32)[:, None]
    n, y, z = _rows(n, y0, x0, 1, TH, TW)
    to = o + (((n * OH + y) * OW + z) * C2)[:, None] + c2[None, :]
    tl.store(to, total.to(o.dtype.element_ty).T, mask=((y < OH) & (z < OW))[:, None] & (c2 < last)[None, :])


@triton.jit
def _kernel_span(at, SIZE, S: tl.constexpr, P: tl.constexpr, D: tl.constexpr, K: tl.constexpr):
    """First and number of the K kernel positions that fall on a map of SIZE, for the output position ``at``."""
    low = tl.cdiv(tl.maximum(P - at * S, 0), D)
    return low, tl.maximum(tl.minimum(K, (SIZE - 1 + P - at * S) // D + 1) - low, 0)


@triton.jit
def _offset(y, z, ky, kx, W, C1, S: tl.constexpr, PY: tl.constexpr, PX: tl.constexpr, DY: tl.constexpr,
           DX: tl.constexpr):  # fmt: skip
    """Offset in a flat image at which the kernel position (ky, kx) of output (y, z) falls."""
    return ((y * S + ky * DY - PY) * W + z * S + kx * DX - PX) * C1


@triton.jit
def _product(x, w, n0, at, t, first, G1, PRECISION: tl.constexpr, NB: tl.constexpr, BN: tl.constexpr,
             BK: tl.constexpr):  # fmt: skip
    """K_t · I at one position of the map, for NB samples and BN channels."""
    total = tl.zeros((NB, BN), tl.float32)
    for c in range(0, G1, BK):  # both operands go straight from shared memory into the product
        weight = w.load([first, t, c]).reshape(BN, BK)
        total = tl.dot(x.load([n0, at + c]), weight.T, total, input_precision=PRECISION)
    return total


@triton.jit(do_not_specialize=SIZES + CHANNELS)
def forward_across(
    x, w, s, b, o, N, H, W, OH, OW, C1, C2, G1, G2, UNIT: tl.constexpr,
    S: tl.constexpr, PY: tl.constexpr, PX: tl.constexpr, DY: tl.constexpr, DX: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, BIAS: tl.constexpr, PRECISION: tl.constexpr,
    NB: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """O at one position of the map, NB samples a tile, from scaled products of the common kernel."""
    C1, C2, G1, G2 = _channels(C1, C2, G1, G2, UNIT)
    n0, y, z = _box(OH, OW, NB, 1, 1)
    group, first = _tile(tl.program_id(1), G2, BN)
    first1, last = group * G1, tl.minimum((group + 1) * G2, C2)
    first += group * G2
    low_y, many_y = _kernel_span(y, H, S, PY, DY, KH)
    low_x, many_x = _kernel_span(z, W, S, PX, DX, KW)
    total = tl.zeros((NB, BN), tl.float32)
    for j in range(many_y * many_x):
        ky, kx = low_y + j // many_x, low_x + j % many_x
        at = first1 + _offset(y, z, ky, kx, W, C1, S, PY, PX, DY, DX)
        part = _product(x, w, n0, at, ky * KW + kx, first, G1, PRECISION, NB, BN, BK)
        total += part * s.load([n0, ky * KW + kx, first]).reshape(NB, BN).to(tl.float32)
    n, c2 = n0 + tl.arange(0, NB), first + tl.arange(0, BN)
    if BIAS:
        total += tl.load(b + c2, mask=c2 < C2, other=0.0).to(tl.float32)[None, :]
    to = o + (((n * OH + y) * OW + z) * C2)[:, None] + c2[None, :]
    tl.store(to, total.to(o.dtype.element_ty), mask=(n < N)[:, None] & (c2 < last)[None, :])
