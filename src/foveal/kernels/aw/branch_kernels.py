"""Triton kernels of the attention branch of an AW-convolution.

A *row* is one pooled cell of one sample: M = N·h·w rows. The branch is small (C1 → C2/16 → C2 channels) and its norms
take statistics over all rows, so a program owns whole columns: no program waits for another. The first norm has so few
columns that every program computes its statistics for itself. Sums over rows are kept for every row of a tile and added
up at the end: warps do not wait for each other in between. Kernels are compiled for tiles, not for shapes.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

EXACT = tl.constexpr("tf32x3")  # three products on tensor cores: as exact as float32


@triton.jit
def _cells(H, W, KH: tl.constexpr, KW: tl.constexpr, T: tl.constexpr):
    """First and last row and column of each of KH·KW cells, as ``adaptive_avg_pool2d`` has them: four (T,)."""
    t = tl.arange(0, T)
    i, j = t // KW, t % KW
    return i * H // KH, ((i + 1) * H + KH - 1) // KH, j * W // KW, ((j + 1) * W + KW - 1) // KW


@triton.jit
def _squeeze(
    x, w1, rows, z1, H, W, C, HIDDEN,
    KH: tl.constexpr, KW: tl.constexpr, PRECISION: tl.constexpr,
    T: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr, BH: tl.constexpr,
):  # fmt: skip
    """What :func:`squeeze` stores of z1, (T, BH)."""
    n, t, k = tl.program_id(0), tl.arange(0, T), tl.arange(0, BH)
    top, bottom, left, right = _cells(H, W, KH, KW, T)
    area = ((bottom - top) * (right - left)).to(tl.float32)
    own = t < KH * KW
    hidden = tl.zeros((T, BH), tl.float32)
    for first in range(0, C, BC):
        c = first + tl.arange(0, BC)
        total = tl.zeros((T, BC), tl.float32)
        for start in range(0, H * W, BP):
            p = start + tl.arange(0, BP)
            y, z = (p // W)[None, :], (p % W)[None, :]
            inside = (y >= top[:, None]) & (y < bottom[:, None]) & (z >= left[:, None]) & (z < right[:, None])
            there = (p < H * W)[:, None] & (c < C)[None, :]
            values = tl.load(x + (n * H * W + p)[:, None] * C + c[None, :], mask=there, other=0.0)
            total = tl.dot(inside.to(values.dtype), values, total, input_precision=PRECISION)
        mean = total / area[:, None]
        tl.store(rows + (n * KH * KW + t)[:, None] * C + c[None, :], mean, mask=own[:, None] & (c < C)[None, :])
        kernel = tl.load(w1 + k[None, :] * C + c[:, None], mask=(k < HIDDEN)[None, :] & (c < C)[:, None], other=0.0)
        hidden = tl.dot(mean, kernel, hidden, input_precision=EXACT)
    at = (n * KH * KW + t)[:, None] * HIDDEN + k[None, :]
    tl.store(z1 + at, hidden, mask=own[:, None] & (k < HIDDEN)[None, :])
    return hidden


@triton.jit(do_not_specialize=["H", "W", "HIDDEN"])
def squeeze(
    x, w1, rows, z1, H, W, C, HIDDEN,
    KH: tl.constexpr, KW: tl.constexpr, PRECISION: tl.constexpr,
    T: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr, BH: tl.constexpr,
):  # fmt: skip
    """A0, the mean of x (N, H, W, C) in each cell, and z1 = W1 A0: float32 (N·KH·KW, C) and (N·KH·KW, HIDDEN).

    A program does one sample. The mean is a product with the cells' windows.
    """
    _squeeze(x, w1, rows, z1, H, W, C, HIDDEN, KH, KW, PRECISION, T, BP, BC, BH)


@triton.jit(do_not_specialize=["H", "W", "HIDDEN"])
def pool_grad(
    dz1, w1, dx, H, W, C, HIDDEN,
    ADD: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    T: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr, BH: tl.constexpr,
):  # fmt: skip
    """Gradient of x (N, H, W, C) through the pooled cells, ∂A0 = ∂z1 W1; written to ``dx`` or added to it."""
    n, p = tl.program_id(0), tl.program_id(1) * BP + tl.arange(0, BP)
    c = tl.program_id(2) * BC + tl.arange(0, BC)
    t, k = tl.arange(0, T), tl.arange(0, BH)
    top, bottom, left, right = _cells(H, W, KH, KW, T)
    of_rows = (t < KH * KW)[:, None] & (k < HIDDEN)[None, :]
    gradient = tl.load(dz1 + (n * KH * KW + t)[:, None] * HIDDEN + k[None, :], mask=of_rows, other=0.0)
    kernel = tl.load(w1 + k[:, None] * C + c[None, :], mask=(k < HIDDEN)[:, None] & (c < C)[None, :], other=0.0)
    area = ((bottom - top) * (right - left)).to(tl.float32)
    da0 = tl.dot(gradient, kernel, input_precision=EXACT) / area[:, None]
    y, z = (p // W)[:, None], (p % W)[:, None]
    inside = (y >= top[None, :]) & (y < bottom[None, :]) & (z >= left[None, :]) & (z < right[None, :])
    inside = inside & (t < KH * KW)[None, :]
    total = tl.dot(inside.to(tl.float32), da0, input_precision=EXACT)
    at = dx + (n * H * W + p)[:, None] * C + c[None, :]
    there = (p < H * W)[:, None] & (c < C)[None, :]
    if ADD:
        total += tl.load(at, mask=there, other=0.0).to(tl.float32)
    tl.store(at, total.to(dx.dtype.element_ty), mask=there)


@triton.jit
def _rows_of(z, m, k, M, K):
    """Rows ``m`` and columns ``k`` of z (M, K), zero outside."""
    return tl.load(z + m[:, None] * K + k[None, :], mask=(m < M)[:, None] & (k < K)[None, :], other=0.0)


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
def _hidden(z1, m, k, M, HIDDEN, mean, scale, beta):
    """A1 = ReLU(BN(z1)) of rows ``m``: (BM, BH)."""
    return _relu((_rows_of(z1, m, k, M, HIDDEN) - mean[None, :]) * scale[None, :] + beta[None, :])


@triton.jit(do_not_specialize=["M", "HIDDEN"])
def attend(
    z1, gamma1, beta1, mean1, var1, tracked1, w2, gamma2, beta2, mean2, var2, tracked2, amount,
    multiplier, stats1, stats2, M, HIDDEN, C2, eps1, momentum1, eps2, momentum2,
    BATCH1: tl.constexpr, BATCH2: tl.constexpr, RESIDUAL: tl.constexpr,
    BM: tl.constexpr, BH: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """The kernel's multiplier (M, C2) from z1 = W1 A0 (M, HIDDEN), float32.

    BATCH1, BATCH2: whether a norm takes its statistics from the batch, and updates the running ones if ``tracked`` is
    given. ``stats`` get mean
    and inverse standard deviation, (2, HIDDEN) and (2, C2). Variances are sums of squares around the first row, which
    one pass can compute without cancellation.
    """
    k, c = tl.arange(0, BH), tl.program_id(0) * BC + tl.arange(0, BC)
    in_k, in_c = k < HIDDEN, c < C2
    if BATCH1:
        origin = tl.load(z1 + k, mask=in_k, other=0.0)
        sums, sums2 = tl.zeros((BM, BH), tl.float32), tl.zeros((BM, BH), tl.float32)
        for start in range(0, M, BM):
            m = start + tl.arange(0, BM)
            distance = tl.where((m < M)[:, None], _rows_of(z1, m, k, M, HIDDEN) - origin[None, :], 0.0)
            sums += distance
            sums2 += distance * distance
        total, squares = tl.sum(sums, 0), tl.sum(sums2, 0)
        mean, var = origin + total / M, tl.maximum(squares / M - (total / M) * (total / M), 0.0)
    else:
        mean, var = tl.load(mean1 + k, mask=in_k, other=0.0), tl.load(var1 + k, mask=in_k, other=0.0)
    inverse = 1.0 / tl.sqrt(var + eps1)
    if tl.program_id(0) == 0:
        tl.store(stats1 + k, mean, mask=in_k)
        tl.store(stats1 + HIDDEN + k, inverse, mask=in_k)
        if BATCH1 and tracked1 is not None:
            _update(mean1, var1, tracked1, mean, var, k, HIDDEN, M, momentum1, True)
    scale = inverse * tl.load(gamma1 + k, mask=in_k, other=0.0)
    beta = tl.load(beta1 + k, mask=in_k, other=0.0)
    kernel = tl.load(w2 + c[None, :] * HIDDEN + k[:, None], mask=in_k[:, None] & in_c[None, :], other=0.0)
    if BATCH2:
        first = _relu((tl.load(z1 + k, mask=in_k, other=0.0) - mean) * scale + beta)
        origin2 = tl.sum(first[:, None] * kernel, 0)
        parts2, spreads2 = tl.zeros((BM, BC), tl.float32), tl.zeros((BM, BC), tl.float32)
        for start in range(0, M, BM):
            m = start + tl.arange(0, BM)
            z2 = tl.dot(_hidden(z1, m, k, M, HIDDEN, mean, scale, beta), kernel, input_precision=EXACT)
            distance2 = tl.where((m < M)[:, None], z2 - origin2[None, :], 0.0)
            parts2 += distance2
            spreads2 += distance2 * distance2
        total2, squares2 = tl.sum(parts2, 0), tl.sum(spreads2, 0)
        center, spread = origin2 + total2 / M, tl.maximum(squares2 / M - (total2 / M) * (total2 / M), 0.0)
        if tracked2 is not None:
            _update(mean2, var2, tracked2, center, spread, c, C2, M, momentum2, tl.program_id(0) == 0)
    else:
        center, spread = tl.load(mean2 + c, mask=in_c, other=0.0), tl.load(var2 + c, mask=in_c, other=0.0)
    inverse2 = 1.0 / tl.sqrt(spread + eps2)
    tl.store(stats2 + c, center, mask=in_c)
    tl.store(stats2 + C2 + c, inverse2, mask=in_c)
    scale2 = inverse2 * tl.load(gamma2 + c, mask=in_c, other=0.0)
    beta_2 = tl.load(beta2 + c, mask=in_c, other=0.0)
    for start in range(0, M, BM):
        m = start + tl.arange(0, BM)
        z2 = tl.dot(_hidden(z1, m, k, M, HIDDEN, mean, scale, beta), kernel, input_precision=EXACT)
        value = _multiplier((z2 - center[None, :]) * scale2[None, :] + beta_2[None, :], amount, RESIDUAL)
        at = m[:, None] * C2 + c[None, :]
        tl.store(multiplier + at, value.to(multiplier.dtype.element_ty), mask=(m < M)[:, None] & in_c[None, :])


@triton.jit
def _sum_of_parts(z, m, k, M, K, PARTS, BM: tl.constexpr, BK: tl.constexpr):
    """Σ over parts of rows ``m`` and columns ``k`` of z (PARTS, M, K), float32, zero outside."""
    total = tl.zeros((BM, BK), tl.float32)
    for part in range(0, PARTS):
        total += _rows_of(z + part * M * K, m, k, M, K).to(tl.float32)
    return total


@triton.jit(do_not_specialize=["M", "HIDDEN", "PARTS"])
def attend_grad(
    gradient, z1, gamma1, beta1, w2, gamma2, beta2, amount, stats1, stats2,
    dz2, dw2, dgamma2, dbeta2, damount, M, HIDDEN, C2, PARTS,
    BATCH2: tl.constexpr, RESIDUAL: tl.constexpr, BM: tl.constexpr, BH: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """From parts of ∂multiplier, (PARTS, M, C2): ∂z2, ∂W2, ∂γ2, ∂β2, and each program's part of ∂amount."""
    k, c = tl.arange(0, BH), tl.program_id(0) * BC + tl.arange(0, BC)
    in_k, in_c = k < HIDDEN, c < C2
    mean = tl.load(stats1 + k, mask=in_k, other=0.0)
    scale = tl.load(stats1 + HIDDEN + k, mask=in_k, other=0.0) * tl.load(gamma1 + k, mask=in_k, other=0.0)
    beta = tl.load(beta1 + k, mask=in_k, other=0.0)
    kernel = tl.load(w2 + c[None, :] * HIDDEN + k[:, None], mask=in_k[:, None] & in_c[None, :], other=0.0)
    center, inverse = tl.load(stats2 + c, mask=in_c, other=0.0), tl.load(stats2 + C2 + c, mask=in_c, other=0.0)
    gamma, shift = tl.load(gamma2 + c, mask=in_c, other=0.0), tl.load(beta2 + c, mask=in_c, other=0.0)
    factor = 1.0
    if amount is not None:
        factor = tl.load(amount)
    sums, slopes = tl.zeros((BM, BC), tl.float32), tl.zeros((BM, BC), tl.float32)
    blends = tl.zeros((BM, BC), tl.float32)
    for start in range(0, M, BM):
        m = start + tl.arange(0, BM)
        z2 = tl.dot(_hidden(z1, m, k, M, HIDDEN, mean, scale, beta), kernel, input_precision=EXACT)
        unit = (z2 - center[None, :]) * inverse[None, :]
        value = _sigmoid(unit * gamma[None, :] + shift[None, :])
        g = _sum_of_parts(gradient, m, c, M, C2, PARTS, BM, BC)  # zero outside
        blends += g * (value if RESIDUAL else value - 1.0)
        dy = g * factor * value * (1.0 - value)
        sums += dy
        slopes += dy * unit
    of_beta, of_gamma = tl.sum(sums, 0), tl.sum(slopes, 0)
    tl.store(dgamma2 + c, of_gamma, mask=in_c)
    tl.store(dbeta2 + c, of_beta, mask=in_c)
    if amount is not None:
        tl.store(damount + tl.program_id(0), tl.sum(tl.sum(blends, 0), 0))
    of_kernel = tl.zeros((BC, BH), tl.float32)
    for start in range(0, M, BM):
        m = start + tl.arange(0, BM)
        hidden = _hidden(z1, m, k, M, HIDDEN, mean, scale, beta)
        unit = (tl.dot(hidden, kernel, input_precision=EXACT) - center[None, :]) * inverse[None, :]
        value = _sigmoid(unit * gamma[None, :] + shift[None, :])
        dy = _sum_of_parts(gradient, m, c, M, C2, PARTS, BM, BC) * factor * value * (1.0 - value)
        if BATCH2:
            dy = dy - (of_beta[None, :] + unit * of_gamma[None, :]) / M
        dz = tl.where((m < M)[:, None], dy * (gamma * inverse)[None, :], 0.0)
        of_kernel = tl.dot(tl.trans(dz), hidden, of_kernel, input_precision=EXACT)
        tl.store(dz2 + m[:, None] * C2 + c[None, :], dz, mask=(m < M)[:, None] & in_c[None, :])
    tl.store(dw2 + c[:, None] * HIDDEN + k[None, :], of_kernel, mask=in_c[:, None] & in_k[None, :])


@triton.jit(do_not_specialize=["M", "HIDDEN", "PARTS"])
def squeeze_grad(
    dz1, z1, gamma1, beta1, stats1, dgamma1, dbeta1, parts, damount, M, HIDDEN, PARTS,
    BATCH1: tl.constexpr, BM: tl.constexpr, BH: tl.constexpr, BL: tl.constexpr,
):  # fmt: skip
    """From ∂A1 (M, HIDDEN): ∂z1 in the same memory, ∂γ1 and ∂β1; and ∂amount, the sum of ``parts``."""
    k = tl.program_id(0) * BH + tl.arange(0, BH)
    in_k = k < HIDDEN
    mean, inverse = tl.load(stats1 + k, mask=in_k, other=0.0), tl.load(stats1 + HIDDEN + k, mask=in_k, other=0.0)
    gamma, shift = tl.load(gamma1 + k, mask=in_k, other=0.0), tl.load(beta1 + k, mask=in_k, other=0.0)
    sums, slopes = tl.zeros((BM, BH), tl.float32), tl.zeros((BM, BH), tl.float32)
    for start in range(0, M, BM):
        m = start + tl.arange(0, BM)
        unit = (_rows_of(z1, m, k, M, HIDDEN) - mean[None, :]) * inverse[None, :]
        dy = tl.where(unit * gamma[None, :] + shift[None, :] > 0, _rows_of(dz1, m, k, M, HIDDEN), 0.0)
        sums += dy
        slopes += dy * unit
    of_beta, of_gamma = tl.sum(sums, 0), tl.sum(slopes, 0)
    tl.store(dgamma1 + k, of_gamma, mask=in_k)
    tl.store(dbeta1 + k, of_beta, mask=in_k)
    for start in range(0, M, BM):
        m = start + tl.arange(0, BM)
        unit = (_rows_of(z1, m, k, M, HIDDEN) - mean[None, :]) * inverse[None, :]
        dy = tl.where(unit * gamma[None, :] + shift[None, :] > 0, _rows_of(dz1, m, k, M, HIDDEN), 0.0)
        if BATCH1:
            dy = dy - (of_beta[None, :] + unit * of_gamma[None, :]) / M
        there = (m < M)[:, None] & in_k[None, :]
        tl.store(dz1 + m[:, None] * HIDDEN + k[None, :], dy * (gamma * inverse)[None, :], mask=there)
    if parts is not None:  # noqa: SIM102, the compiler decides this one, the program the next
        if tl.program_id(0) == 0:
            part = tl.arange(0, BL)
            tl.store(damount, tl.sum(tl.load(parts + part, mask=part < PARTS, other=0.0), 0))


@triton.jit(do_not_specialize=["M", "N", "K", "ROW", "STEP"])
def product(a, b, out, M, N, K, ROW, STEP, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """The product (M, N) of a (M, K), whose strides are ROW and STEP, and b (K, N); as exact as float32."""
    m, n = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        left = tl.load(a + m[:, None] * ROW + k[None, :] * STEP, mask=(m < M)[:, None] & (k < K)[None, :], other=0.0)
        total = tl.dot(left, _rows_of(b, k, n, K, N), total, input_precision=EXACT)
    tl.store(out + m[:, None] * N + n[None, :], total, mask=(m < M)[:, None] & (n < N)[None, :])
