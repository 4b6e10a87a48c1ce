"""Depthwise AW-convolution fused: O[n,y,x,c] = Σ_t s[n,t,c] · K[c,t] · I[n,y',x',c], every channel for itself.

These are limited by memory and by loads, not by products: every map is read once from memory, and again only from the
caches. All maps are channels last, (N, H, W, C); weights are (C, T), multipliers (N, T, C) with T kernel positions, and
so are the samples' own kernels s ⊙ K, which are small here. A tile is a box of TH rows and TW columns of one sample, by
BC channels. A stride above 1 comes without dilation.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

from foveal.kernels.aw.branch_gradient_kernels import _add_cells, _load_cells
from foveal.kernels.aw.triton_kernels import SIZES, _box, _rows


@triton.jit
def _load(x, n, y, z, c, H, W, C, there):
    """Values (positions, channels) of images (N, H, W, C) at rows y and columns z, zero outside; float32."""
    there = (there & (y >= 0) & (y < H) & (z >= 0) & (z < W))[:, None] & (c < C)[None, :]
    return tl.load(x + (((n * H + y) * W + z) * C)[:, None] + c[None, :], mask=there, other=0.0).to(tl.float32)


@triton.jit
def _kernel(k, n, t, c, C, T: tl.constexpr):
    """Kernel of a sample (N, T, C) at position t and channels c, as a row."""
    return tl.load(k + (n * T + t) * C + c, mask=c < C, other=0.0).to(tl.float32)[None, :]


@triton.jit(do_not_specialize=SIZES)
def forward(
    x, k, b, o, H, W, OH, OW, C,
    S: tl.constexpr, PY: tl.constexpr, PX: tl.constexpr, DY: tl.constexpr, DX: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, BIAS: tl.constexpr, TH: tl.constexpr, TW: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """O of a tile."""
    n0, y0, x0 = _box(OH, OW, 1, TH, TW)
    n, y, z = _rows(n0, y0, x0, 1, TH, TW)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    inside = (y < OH) & (z < OW)
    total = tl.zeros((TH * TW, BC), tl.float32)
    for ky in range(KH):
        for kx in tl.static_range(KW):  # unrolled: many loads on their way at a time
            image = _load(x, n, y * S + ky * DY - PY, z * S + kx * DX - PX, c, H, W, C, inside)
            total += image * _kernel(k, n0, ky * KW + kx, c, C, KH * KW)
    if BIAS:
        total += tl.load(b + c, mask=c < C, other=0.0).to(tl.float32)[None, :]
    to = o + (((n * OH + y) * OW + z) * C)[:, None] + c[None, :]
    tl.store(to, total.to(o.dtype.element_ty), mask=inside[:, None] & (c < C)[None, :])


@triton.jit(do_not_specialize=SIZES)
def input_grad(
    g, k, cells, dx, H, W, OH, OW, C,
    S: tl.constexpr, PY: tl.constexpr, PX: tl.constexpr, DY: tl.constexpr, DX: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, TH: tl.constexpr, TW: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """∂I of a tile of one of the S×S interleaved images; only every S-th kernel position contributes to each.

    To it is added what the branch gives to the positions of its ``cells`` (N·KH·KW, C), if not None.
    """
    a, e = tl.program_id(2) // S, tl.program_id(2) % S
    n0, y0, x0 = _box(tl.cdiv(H, S), tl.cdiv(W, S), 1, TH, TW)
    n, y, z = _rows(n0, y0, x0, 1, TH, TW)
    y, z = y * S + a, z * S + e
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    inside = (y < H) & (z < W)
    total = tl.zeros((TH * TW, BC), tl.float32)
    for ky in range((a + PY) % S, KH, S):
        for i in tl.static_range((KW + S - 1) // S):
            kx = (e + PX) % S + i * S
            # Multiples of S, made positive before the division.
            oy = (y + PY + (KH * S - ky) * DY) // S - KH * DY
            ox = (z + PX + (2 * KW * S - kx) * DX) // S - 2 * KW * DX
            gradient = _load(g, n, oy, ox, c, OH, OW, C, inside & (kx + tl.zeros_like(z) < KW))
            total += gradient * _kernel(k, n0, ky * KW + tl.minimum(kx, KW - 1), c, C, KH * KW)
    if cells is not None:
        total = _add_cells(total, _load_cells(cells, n0, c, C, C, KH, KW), y, z, H, W, KH, KW)
    to = dx + (((n * H + y) * W + z) * C)[:, None] + c[None, :]
    tl.store(to, total.to(dx.dtype.element_ty), mask=inside[:, None] & (c < C)[None, :])


@triton.jit(do_not_specialize=SIZES)
def weight_grad(
    g, x, w, s, dw, ds, N, H, W, OH, OW, SPLITS, C,
    S: tl.constexpr, PY: tl.constexpr, PX: tl.constexpr, DY: tl.constexpr, DX: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, BX: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """∂s and part ``split`` of ∂K of one row of kernel positions, one sample after the other.

    A sample's own weight gradient G[t,c] = Σ_p g·I gives ∂s = K ⊙ G, and ∂K is the sum of s ⊙ G. BX: KW, rounded up to
    a power of two; BM positions at a time.
    """
    T: tl.constexpr = KH * KW
    ky, split = tl.program_id(0) % KH, tl.program_id(0) // KH
    c, kx = tl.program_id(1) * BC + tl.arange(0, BC), tl.arange(0, BX)
    t = (ky * KW + kx)[:, None]
    both = (kx < KW)[:, None] & (c < C)[None, :]
    weight = tl.load(w + c[None, :] * T + t, mask=both, other=0.0).to(x.dtype.element_ty).to(tl.float32)
    total = tl.zeros((BX, BC), tl.float32)
    for n in range(split * N // SPLITS, (split + 1) * N // SPLITS):
        part = tl.zeros((BX, BM, BC), tl.float32)
        for first in range(0, OH * OW, BM):
            p = first + tl.arange(0, BM)
            y, z = p // OW, p % OW
            gradient = _load(g, n, y, z, c, OH, OW, C, p < OH * OW)
            iy, ix = y * S + ky * DY - PY, (z * S - PX)[None, :] + (kx * DX)[:, None]
            there = ((iy >= 0) & (iy < H))[None, :] & (ix >= 0) & (ix < W) & (kx < KW)[:, None]
            at = ((n * H + iy)[None, :] * W + ix)[:, :, None] * C + c[None, None, :]
            image = tl.load(x + at, mask=there[:, :, None] & (c < C)[None, None, :], other=0.0)
            part += gradient[None, :, :] * image.to(tl.float32)
        own = tl.sum(part, 1)
        scale = tl.load(s + (n * T + t) * C + c[None, :], mask=both, other=0.0).to(tl.float32)
        tl.store(ds + (n * T + t) * C + c[None, :], (own * weight).to(ds.dtype.element_ty), mask=both)
        total += own * scale
    tl.store(dw + (split * C + c[None, :]) * T + t, total.to(dw.dtype.element_ty), mask=both)


@triton.jit(do_not_specialize=["SIZE", "C", "T"])
def sample_kernels(w, s, out, SIZE, C, T, BLOCK: tl.constexpr):
    """The samples' own kernels (N, T, C), of SIZE values, from weight (C, T) and multiplier s (N, T, C)."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    c, t = i % C, i // C % T
    weight = tl.load(w + c * T + t, mask=i < SIZE, other=0.0).to(out.dtype.element_ty)
    scale = tl.load(s + i, mask=i < SIZE, other=0.0)
    tl.store(out + i, (weight.to(tl.float32) * scale.to(tl.float32)).to(out.dtype.element_ty), mask=i < SIZE)
