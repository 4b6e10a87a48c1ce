"""Gradients of the fused AW-convolution; forms and layouts as in :mod:`foveal.kernels.aw.triton_kernels`."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

from foveal.kernels.aw.branch_gradient_kernels import _add_cells, _load_cells
from foveal.kernels.aw.branch_kernels import _inside
from foveal.kernels.aw.triton_kernels import (
    CHANNELS,
    SIZES,
    _box,
    _channels,
    _finish,
    _offset,
    _product,
    _rows,
    _tile,
)


@triton.jit(do_not_specialize=SIZES + CHANNELS)
def input_grad(
    g, w, s, cells, dx, N, H, W, OH, OW, C1, C2, G1, G2, UNIT: tl.constexpr, MASK: tl.constexpr,
    S: tl.constexpr, PY: tl.constexpr, PX: tl.constexpr, DY: tl.constexpr, DX: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, PRECISION: tl.constexpr, HOPPER: tl.constexpr,
    NB: tl.constexpr, TH: tl.constexpr, TW: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """∂I, from the gradient scaled in registers, and what the branch gives to the positions of its cells.

    MASK: channels of the next super-group are read, too. ``cells`` (N·KH·KW, C1) or None.
    """
    # Only every S-th kernel position contributes to each of the S×S interleaved images.
    BM: tl.constexpr = NB * TH * TW
    C1, C2, G1, G2 = _channels(C1, C2, G1, G2, UNIT)
    a, e = tl.program_id(2) // S, tl.program_id(2) % S
    n0, y0, x0 = _box(tl.cdiv(H, S), tl.cdiv(W, S), NB, TH, TW)
    n, y, z = _rows(n0, y0, x0, NB, TH, TW)
    group, first = _tile(tl.program_id(1), G1, BN)
    first2, last = group * G2, tl.minimum((group + 1) * G1, C1)
    c1 = group * G1 + first + tl.arange(0, BN)
    low_y, low_x = (a + PY) % S, (e + PX) % S
    many_y, many_x = (KH - low_y + S - 1) // S, (KW - low_x + S - 1) // S
    if S == 1:  # skip those that fall outside completely
        low_y, low_x = tl.cdiv(tl.maximum(y0 + PY - OH + 1, 0), DY), tl.cdiv(tl.maximum(x0 + PX - OW + 1, 0), DX)
        many_y = tl.maximum(tl.minimum(KH, (y0 + TH - 1 + PY) // DY + 1) - low_y, 0)
        many_x = tl.maximum(tl.minimum(KW, (x0 + TW - 1 + PX) // DX + 1) - low_x, 0)
    if cells is not None:  # noqa: SIM102, both are decided by the compiler
        if NB == 1:
            values = _load_cells(cells, n0, c1, last, C1, KH, KW)  # on their way while the products are made
    total = tl.zeros((BM, BN), tl.float32)
    j, c = 0, 0
    for _ in range(many_y * many_x * tl.cdiv(G2, BK)):
        ky, kx = low_y + j // many_x * S, low_x + j % many_x * S
        # a + PY − ky·DY is a multiple of S; made positive before the division.
        oy, ox = y0 + (a + PY + (KH * S - ky) * DY) // S - KH * DY, x0 + (e + PX + (KW * S - kx) * DX) // S - KW * DX
        rows = g.load([n0, oy, ox, first2 + c]).reshape(BM, BK)
        scale = s.load([n0, ky * KW + kx, first2 + c]).reshape(NB, BK)  # one for all rows, or one for each
        if MASK:  # beyond are other weights, not zeros
            scale = tl.where((c + tl.arange(0, BK) < G2)[None, :], scale, 0.0).to(scale.dtype)
        weight = w.load([first2 + c, ky * KW + kx, first]).reshape(BK, BN)
        total = tl.dot((rows * scale).to(weight.dtype), weight, total, input_precision=PRECISION)
        _finish(HOPPER)
        j, c = tl.where(c + BK < G2, j, j + 1), tl.where(c + BK < G2, c + BK, 0)
    y, z = y * S + a, z * S + e
    if cells is not None:
        if NB == 1:
            total = _add_cells(total, values, y, z, H, W, KH, KW)
        else:
            there = (n < N)[:, None] & (c1 < last)[None, :]
            for t in range(KH * KW):
                if _inside(t, y0 * S + a, x0 * S + e, H, W, KH, KW):  # one position, of many samples
                    total += tl.load(cells + (n * KH * KW + t)[:, None] * C1 + c1[None, :], mask=there, other=0.0)
    there = (n < N) & (y < H) & (z < W)
    to = dx + (((n * H + y) * W + z) * C1)[:, None] + c1[None, :]
    tl.store(to, total.to(dx.dtype.element_ty), mask=there[:, None] & (c1 < last)[None, :])


@triton.jit
def _weights(c2, j2, j1, t, C2, G1, G2, CG, OG, T: tl.constexpr, GROUPED: tl.constexpr):
    """Offsets in weights (C2, T, CG) at kernel position t, and which of them are there.

    c2 are output channels of a tile, j2 the same within their super-group, and j1 input channels within it. A group has
    CG input and OG output channels; GROUPED says whether there is more than one.
    """
    there = ((c2 < C2) & (j2 < G2))[:, None] & (j1 < G1)[None, :]
    if GROUPED:
        there = there & ((j2 // OG)[:, None] == (j1 // CG)[None, :])
        return ((c2 * T + t) * CG)[:, None] + (j1 % CG)[None, :], there
    else:
        return ((c2 * T + t) * G1)[:, None] + j1[None, :], there


@triton.jit(do_not_specialize=SIZES + CHANNELS)
def weight_grad(
    g, x, w, s, dw, ds, N, OH, OW, SPLITS, C1, C2, G1, G2, CG, OG, UNIT: tl.constexpr, GROUPED: tl.constexpr,
    S: tl.constexpr, PY: tl.constexpr, PX: tl.constexpr, DY: tl.constexpr, DX: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, STEPS: tl.constexpr, PRECISION: tl.constexpr, FLAT: tl.constexpr,
    TH: tl.constexpr, TW: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """∂s and part ``split`` of ∂K of one kernel position, one sample after the other.

    FLAT: ∂O is padded so that the boxes are consecutive rows of a matrix; it then goes straight from shared memory into
    the product, as the image does.
    """
    T: tl.constexpr = KH * KW
    BK: tl.constexpr = TH * TW
    C1, C2, G1, G2 = _channels(C1, C2, G1, G2, UNIT)
    t, split = tl.program_id(2) % T, tl.program_id(2) // T
    group, first2 = _tile(tl.program_id(0), G2, BP)
    first1 = tl.program_id(1) * BC
    j2, j1 = first2 + tl.arange(0, BP), first1 + tl.arange(0, BC)
    first2 += group * G2
    first1 += group * G1
    c2 = group * G2 + j2
    row = (c2 < C2) & (j2 < G2)
    at, there = _weights(c2, j2, j1, t, C2, G1, G2, CG, OG, T, GROUPED)
    weight = tl.load(w + ((c2 * T + t) * G1)[:, None] + j1[None, :], mask=there, other=0.0)  # of the packed kernel
    dy, dx = t // KW * DY - PY + S * PY, t % KW * DX - PX + S * PX  # not negative
    across = tl.cdiv(OW, TW)
    begin, end = split * N // SPLITS, (split + 1) * N // SPLITS
    total = tl.zeros((BP, BC), tl.float32)
    part = tl.zeros((BP, BC), tl.float32)
    for i in range(begin * STEPS, end * STEPS):
        n, j = i // STEPS, i % STEPS  # boxes of one sample follow each other
        y, z = j // across * TH, j % across * TW
        gradient = g.load([i * BK, first2]) if FLAT else g.load([n, y, z, first2]).reshape(BK, BP)
        image = x.load([n, y + dy // S - PY, dy % S, z + dx // S - PX, dx % S * C1 + first1]).reshape(BK, BC)
        part = tl.dot(gradient.T, image, part, input_precision=PRECISION)
        if STEPS == 1 or j == STEPS - 1:  # this sample's own weight gradient is complete
            scale = tl.load(s + (n * T + t) * C2 + c2, mask=row, other=0.0).to(tl.float32)
            to = ds + ((tl.program_id(1) * N + n) * T + t) * C2 + c2
            tl.store(to, tl.sum(part * weight.to(tl.float32), 1).to(ds.dtype.element_ty), mask=row)
            total += part * scale[:, None]
            part = tl.zeros((BP, BC), tl.float32)
    tl.store(dw + split * C2 * T * CG + at, total.to(dw.dtype.element_ty), mask=there)


@triton.jit
def _output_span(k, SIZE, OUT, S: tl.constexpr, P: tl.constexpr, D: tl.constexpr):
    """First and number of the OUT output positions whose kernel position ``k`` falls on a map of SIZE."""
    low = tl.cdiv(tl.maximum(P - k * D, 0), S)
    high = tl.minimum(OUT, (tl.maximum(SIZE - 1 + P - k * D, -S) + S) // S)
    return low, tl.maximum(high - low, 0)


@triton.jit
def _share(H, W, OH, OW, SPLITS, S: tl.constexpr, PY: tl.constexpr, PX: tl.constexpr, DY: tl.constexpr,
           DX: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr):  # fmt: skip
    """What this program sums: of the output positions of kernel position t, row by row, ``begin`` to ``end``.

    Returns:
        t, the number of the part, ``begin``, ``end``, the first row and column, and the number of columns.
    """
    t, split = tl.program_id(2) % (KH * KW), tl.program_id(2) // (KH * KW)
    low_y, many_y = _output_span(t // KW, H, OH, S, PY, DY)
    low_x, many_x = _output_span(t % KW, W, OW, S, PX, DX)
    begin, end = split * many_y * many_x // SPLITS, (split + 1) * many_y * many_x // SPLITS
    return t, split, begin, end, low_y, low_x, many_x


@triton.jit(do_not_specialize=SIZES + CHANNELS)
def kernel_grad(
    g, x, s, dw, N, H, W, OH, OW, SPLITS, C1, C2, G1, G2, CG, OG, UNIT: tl.constexpr, GROUPED: tl.constexpr,
    S: tl.constexpr, PY: tl.constexpr, PX: tl.constexpr, DY: tl.constexpr, DX: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, PRECISION: tl.constexpr, HOPPER: tl.constexpr,
    NB: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """∂K of one kernel position, NB samples at a time; part ``split`` of the sum over the map."""
    T: tl.constexpr = KH * KW
    C1, C2, G1, G2 = _channels(C1, C2, G1, G2, UNIT)
    t, split, begin, end, low_y, low_x, many_x = _share(H, W, OH, OW, SPLITS, S, PY, PX, DY, DX, KH, KW)
    group, j2 = _tile(tl.program_id(0), G2, BP)
    j1 = tl.program_id(1) * BC
    first2, first1 = group * G2 + j2, group * G1 + j1
    total = tl.zeros((BP, BC), tl.float32)
    for n in range(0, N, NB):
        scale = s.load([n, t, first2]).reshape(NB, BP)
        for j in range(begin, end):
            y, z = low_y + j // many_x, low_x + j % many_x
            at = _offset(y, z, t // KW, t % KW, W, C1, S, PY, PX, DY, DX)
            gradient, image = g.load([n, (y * OW + z) * C2 + first2]), x.load([n, at + first1])
            total = tl.dot((gradient * scale).to(image.dtype).T, image, total, input_precision=PRECISION)
            _finish(HOPPER)
    rows, columns = tl.arange(0, BP), tl.arange(0, BC)
    at, there = _weights(first2 + rows, j2 + rows, j1 + columns, t, C2, G1, G2, CG, OG, T, GROUPED)
    tl.store(dw + split * C2 * T * CG + at, total.to(dw.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=SIZES + CHANNELS)
def scale_grad(
    g, x, w, ds, N, H, W, OH, OW, SPLITS, C1, C2, G1, G2, UNIT: tl.constexpr,
    S: tl.constexpr, PY: tl.constexpr, PX: tl.constexpr, DY: tl.constexpr, DX: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, PRECISION: tl.constexpr,
    NB: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """∂s of one kernel position, NB samples a tile; part ``split`` of the sum over the map."""
    T: tl.constexpr = KH * KW
    C1, C2, G1, G2 = _channels(C1, C2, G1, G2, UNIT)
    t, split, begin, end, low_y, low_x, many_x = _share(H, W, OH, OW, SPLITS, S, PY, PX, DY, DX, KH, KW)
    group, first = _tile(tl.program_id(1), G2, BN)
    n0, first1, last = tl.program_id(0) * NB, group * G1, tl.minimum((group + 1) * G2, C2)
    first += group * G2
    total = tl.zeros((NB, BN), tl.float32)
    for j in range(begin, end):
        y, z = low_y + j // many_x, low_x + j % many_x
        at = first1 + _offset(y, z, t // KW, t % KW, W, C1, S, PY, PX, DY, DX)
        part = _product(x, w, n0, at, t, first, G1, PRECISION, NB, BN, BK)
        total += part * g.load([n0, (y * OW + z) * C2 + first]).to(tl.float32)
    n, c2 = n0 + tl.arange(0, NB), first + tl.arange(0, BN)
    there = (n < N)[:, None] & (c2 < last)[None, :]
    tl.store(ds + (((split * N + n) * T + t) * C2)[:, None] + c2[None, :], total.to(ds.dtype.element_ty), mask=there)
