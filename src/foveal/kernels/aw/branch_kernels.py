"""Triton kernels of the attention branch of an AW-convolution, forward.

A *row* is one pooled cell of one sample: M = N·h·w rows. The branch is small (C1 → C2/16 → C2 channels) and its norms
take statistics over all rows, so that programs, which cannot wait for each other, compute them again and again: those
of the first norm from moments that the programs before kept of their own rows, those of the second in one pass over all
rows. Sums over rows are kept for every row of a tile and added up at the end: warps do not wait for each other in
between. Kernels are compiled for tiles, not for shapes. What is hidden, with HIDDEN channels, is kept in rows of BH,
the next power of two: the compiler knows that they are aligned, and nothing is read one number at a time.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

EXACT = tl.constexpr("tf32x3")  # three products on tensor cores: as exact as float32
STAGES = tl.constexpr(3)  # loads that are on their way at a time, in loops over rows


@triton.jit
def _edges(i, H, KH: tl.constexpr):
    """First and last row, or column, of cell i of KH, as ``adaptive_avg_pool2d`` has them."""
    return i * H // KH, ((i + 1) * H + KH - 1) // KH


@triton.jit
def _area(t, H, W, KH: tl.constexpr, KW: tl.constexpr):
    """Number of positions of cell t, float32."""
    top, bottom = _edges(t // KW, H, KH)
    left, right = _edges(t % KW, W, KW)
    return ((bottom - top) * (right - left)).to(tl.float32)


@triton.jit
def _inside(t, y, z, H, W, KH: tl.constexpr, KW: tl.constexpr):
    """Whether the position in row y and column z belongs to cell t; all three broadcast."""
    top, bottom = _edges(t // KW, H, KH)
    left, right = _edges(t % KW, W, KW)
    return (y >= top) & (y < bottom) & (z >= left) & (z < right) & (t < KH * KW)


@triton.jit
def _own_cells(KH: tl.constexpr, KW: tl.constexpr, BAND: tl.constexpr, T: tl.constexpr):
    """Sample and cells of this program, (T,), and which of them it has: all, or with BAND one row of them."""
    t = tl.arange(0, T)
    if BAND:
        return tl.program_id(0) // KH, tl.program_id(0) % KH * KW + t, t < KW
    else:
        return tl.program_id(0), t, t < KH * KW


@triton.jit
def _squeeze(
    x, w1, rows, z1, H, W, C, HIDDEN,
    KH: tl.constexpr, KW: tl.constexpr, BAND: tl.constexpr, PRECISION: tl.constexpr,
    T: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr, BH: tl.constexpr,
):  # fmt: skip
    """What :func:`squeeze` stores of z1, (T, BH)."""
    k, top, bottom = tl.arange(0, BH), 0, H
    n, t, own = _own_cells(KH, KW, BAND, T)
    if BAND:
        top, bottom = _edges(tl.program_id(0) % KH, H, KH)
    hidden = tl.zeros((T, BH), tl.float32)
    for first in range(0, C, BC):
        c = first + tl.arange(0, BC)
        total = tl.zeros((T, BC), tl.float32)
        for start in range(top * W, bottom * W, BP):
            p = start + tl.arange(0, BP)
            inside = _inside(t[:, None], (p // W)[None, :], (p % W)[None, :], H, W, KH, KW)
            there = (p < bottom * W)[:, None] & (c < C)[None, :]
            values = tl.load(x + (n * H * W + p)[:, None] * C + c[None, :], mask=there, other=0.0)
            total = tl.dot(inside.to(values.dtype), values, total, input_precision=PRECISION)
        mean = total / _area(t, H, W, KH, KW)[:, None]
        tl.store(rows + (n * KH * KW + t)[:, None] * C + c[None, :], mean, mask=own[:, None] & (c < C)[None, :])
        kernel = tl.load(w1 + k[None, :] * C + c[:, None], mask=(k < HIDDEN)[None, :] & (c < C)[:, None], other=0.0)
        hidden = tl.dot(mean, kernel, hidden, input_precision=EXACT)
    tl.store(z1 + (n * KH * KW + t)[:, None] * BH + k[None, :], hidden, mask=own[:, None])
    return hidden


@triton.jit
def _store_moments(moments, hidden, KH: tl.constexpr, KW: tl.constexpr, BAND: tl.constexpr):
    """Mean and sum of squared distances of this program's rows of z1, to (programs, 2, BH)."""
    _, _, own = _own_cells(KH, KW, BAND, hidden.shape[0])
    mean = tl.sum(tl.where(own[:, None], hidden, 0.0), 0) / (KW if BAND else KH * KW)
    distance = tl.where(own[:, None], hidden - mean[None, :], 0.0)
    to = moments + tl.program_id(0) * 2 * hidden.shape[1] + tl.arange(0, hidden.shape[1])
    tl.store(to, mean)
    tl.store(to + hidden.shape[1], tl.sum(distance * distance, 0))


@triton.jit(do_not_specialize=["H", "W", "HIDDEN"])
def squeeze(
    x, w1, rows, z1, moments, H, W, C, HIDDEN,
    KH: tl.constexpr, KW: tl.constexpr, BAND: tl.constexpr, PRECISION: tl.constexpr,
    T: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr, BH: tl.constexpr,
):  # fmt: skip
    """A0, the mean of x (N, H, W, C) in each cell, and z1 = W1 A0: float32 (N·KH·KW, C) and (N·KH·KW, BH).

    A program does one sample, or with BAND one row of its cells. The mean is a product with the cells' windows.
    ``moments`` (programs, 2, BH) get mean and sum of squared distances of a program's rows of z1.
    """
    hidden = _squeeze(x, w1, rows, z1, H, W, C, HIDDEN, KH, KW, BAND, PRECISION, T, BP, BC, BH)
    _store_moments(moments, hidden, KH, KW, BAND)


@triton.jit
def _rows_of(z, m, k, M, K):
    """Rows ``m`` and columns ``k`` of z (M, K), zero outside."""
    return tl.load(z + m[:, None] * K + k[None, :], mask=(m < M)[:, None] & (k < K)[None, :], other=0.0)


@triton.jit
def _hidden_rows(z, m, M, BH: tl.constexpr):
    """Rows ``m`` of z (M, BH), zero outside."""
    return tl.load(z + m[:, None] * BH + tl.arange(0, BH)[None, :], mask=(m < M)[:, None], other=0.0)


@triton.jit
def _relu(y):
    return tl.maximum(y, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _sigmoid(y):
    return 1.0 / (1.0 + tl.exp(-y))


@triton.jit
def _multiplier(y, amount, RESIDUAL: tl.constexpr):
    """The multiplier from what the second norm gives."""
    value = _sigmoid(y)
    if amount is not None:
        value = 1.0 + tl.load(amount) * (value if RESIDUAL else value - 1.0)
    else:
        value = value + 1.0 if RESIDUAL else value
    return value


@triton.jit
def _update(running_mean, running_var, tracked, mean, var, k, K, M, momentum, first):
    """Running statistics and number of batches, as ``nn.BatchNorm2d`` keeps them."""
    own = k < K
    old_mean, old_var = tl.load(running_mean + k, mask=own), tl.load(running_var + k, mask=own)
    tl.store(running_mean + k, (1 - momentum) * old_mean + momentum * mean, mask=own)
    tl.store(running_var + k, (1 - momentum) * old_var + momentum * var * (M / (M - 1.0)), mask=own)
    if first:
        tl.store(tracked, tl.load(tracked) + 1)


@triton.jit
def _hidden(z1, m, M, mean, scale, beta, BH: tl.constexpr):
    """A1 = ReLU(BN(z1)) of rows ``m``: (BM, BH)."""
    return _relu((_hidden_rows(z1, m, M, BH) - mean[None, :]) * scale[None, :] + beta[None, :])


@triton.jit
def _merged(moments, M, MANY, BM: tl.constexpr, BH: tl.constexpr):
    """Mean and variance of M rows from the moments (MANY, 2, BH) of groups of them, which are equally large."""
    k, each = tl.arange(0, BH), M // MANY
    origin = tl.load(moments + k)
    sums, squares = tl.zeros((BM, BH), tl.float32), tl.zeros((BM, BH), tl.float32)
    for start in tl.range(0, MANY, BM, num_stages=STAGES):
        q = start + tl.arange(0, BM)
        there, at = (q < MANY)[:, None], moments + q[:, None] * 2 * BH + k[None, :]
        distance = tl.where(there, tl.load(at, mask=there, other=0.0) - origin[None, :], 0.0)
        sums += distance
        squares += each * distance * distance + tl.load(at + BH, mask=there, other=0.0)
    shift = tl.sum(sums, 0) / MANY
    return origin + shift, tl.maximum(tl.sum(squares, 0) / M - shift * shift, 0.0)


@triton.jit(do_not_specialize=["M", "HIDDEN", "MANY"])
def attend(
    z1, moments, gamma1, beta1, mean1, var1, tracked1, w2, gamma2, beta2, mean2, var2, tracked2, amount,
    multiplier, stats1, stats2, M, HIDDEN, C2, MANY, eps1, momentum1, eps2, momentum2,
    BATCH1: tl.constexpr, BATCH2: tl.constexpr, RESIDUAL: tl.constexpr,
    BM: tl.constexpr, BH: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """The kernel's multiplier (M, C2) from z1 = W1 A0 (M, BH), float32.

    A program does BC columns of BM rows. BATCH1, BATCH2: whether a norm takes its statistics from the batch, and
    updates the running ones if ``tracked`` is given. ``stats`` get mean and inverse standard deviation, (2, HIDDEN) and
    (2, C2). Variances are sums of squares around the first row, which one pass can compute without cancellation.
    """
    k, c = tl.arange(0, BH), tl.program_id(0) * BC + tl.arange(0, BC)
    in_k, in_c, first = k < HIDDEN, c < C2, tl.program_id(1) == 0
    if BATCH1:
        mean, var = _merged(moments, M, MANY, BM, BH)
    else:
        mean, var = tl.load(mean1 + k, mask=in_k, other=0.0), tl.load(var1 + k, mask=in_k, other=0.0)
    inverse = 1.0 / tl.sqrt(var + eps1)
    if first & (tl.program_id(0) == 0):
        tl.store(stats1 + k, mean, mask=in_k)
        tl.store(stats1 + HIDDEN + k, inverse, mask=in_k)
        if BATCH1 and tracked1 is not None:
            _update(mean1, var1, tracked1, mean, var, k, HIDDEN, M, momentum1, True)
    scale = inverse * tl.load(gamma1 + k, mask=in_k, other=0.0)
    beta = tl.load(beta1 + k, mask=in_k, other=0.0)
    kernel = tl.load(w2 + c[None, :] * HIDDEN + k[:, None], mask=in_k[:, None] & in_c[None, :], other=0.0)
    if BATCH2:
        one = _relu((tl.load(z1 + k) - mean) * scale + beta)
        origin = tl.sum(one[:, None] * kernel, 0)
        sums, squares = tl.zeros((BM, BC), tl.float32), tl.zeros((BM, BC), tl.float32)
        for start in tl.range(0, M, BM, num_stages=STAGES):
            m = start + tl.arange(0, BM)
            z2 = tl.dot(_hidden(z1, m, M, mean, scale, beta, BH), kernel, input_precision=EXACT)
            distance = tl.where((m < M)[:, None], z2 - origin[None, :], 0.0)
            sums += distance
            squares += distance * distance
        shift = tl.sum(sums, 0) / M
        center, spread = origin + shift, tl.maximum(tl.sum(squares, 0) / M - shift * shift, 0.0)
        if tracked2 is not None:  # noqa: SIM102, the compiler decides this one, the program the next
            if first:
                _update(mean2, var2, tracked2, center, spread, c, C2, M, momentum2, tl.program_id(0) == 0)
    else:
        center, spread = tl.load(mean2 + c, mask=in_c, other=0.0), tl.load(var2 + c, mask=in_c, other=0.0)
    inverse2 = 1.0 / tl.sqrt(spread + eps2)
    if first:
        tl.store(stats2 + c, center, mask=in_c)
        tl.store(stats2 + C2 + c, inverse2, mask=in_c)
    scale2 = inverse2 * tl.load(gamma2 + c, mask=in_c, other=0.0)
    beta_2 = tl.load(beta2 + c, mask=in_c, other=0.0)
    m = tl.program_id(1) * BM + tl.arange(0, BM)
    z2 = tl.dot(_hidden(z1, m, M, mean, scale, beta, BH), kernel, input_precision=EXACT)
    value = _multiplier((z2 - center[None, :]) * scale2[None, :] + beta_2[None, :], amount, RESIDUAL)
    at = m[:, None] * C2 + c[None, :]
    tl.store(multiplier + at, value.to(multiplier.dtype.element_ty), mask=(m < M)[:, None] & in_c[None, :])
