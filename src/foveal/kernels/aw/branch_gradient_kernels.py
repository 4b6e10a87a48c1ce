"""Triton kernels of the attention branch of an AW-convolution, backward.

The chain ∂multiplier → ∂z2 → ∂A1 → ∂z1 → ∂A0 has three sums over all rows in it, two of the norms and one of each
product's weights. Each kernel keeps sums of its own rows as parts, which every program of the next one adds up.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

from foveal.kernels.aw.branch_kernels import EXACT, STAGES, _area, _hidden, _hidden_rows, _inside, _rows_of, _sigmoid
from foveal.kernels.aw.triton_kernels import _finish
from foveal.kernels.copy_kernels import _sum_parts


@triton.jit
def _sum_of_parts(z, m, k, M, K, PARTS, BM: tl.constexpr, BK: tl.constexpr):
    """Σ over parts of rows ``m`` and columns ``k`` of z (PARTS, M, K), float32, zero outside."""
    total = tl.zeros((BM, BK), tl.float32)
    for part in range(0, PARTS):
        total += _rows_of(z + part * M * K, m, k, M, K).to(tl.float32)
    return total


@triton.jit
def _two_sums(parts, c, C, PARTS, BL: tl.constexpr):
    """Columns c of the sums over parts (PARTS, 2, C); BL parts at a time."""
    one, two = tl.zeros_like(c).to(tl.float32), tl.zeros_like(c).to(tl.float32)
    for start in range(0, PARTS, BL):
        part = start + tl.arange(0, BL)
        there = (part < PARTS)[:, None] & (c < C)[None, :]
        at = parts + part[:, None] * 2 * C + c[None, :]
        one += tl.sum(tl.load(at, mask=there, other=0.0), 0)
        two += tl.sum(tl.load(at + C, mask=there, other=0.0), 0)
    return one, two


@triton.jit
def _store_two_sums(parts, part, dy, unit, c, C):
    """One of the parts that :func:`_two_sums` adds up: sums over rows of dy and of dy · unit."""
    tl.store(parts + part * 2 * C + c, tl.sum(dy, 0), mask=c < C)
    tl.store(parts + (part * 2 + 1) * C + c, tl.sum(dy * unit, 0), mask=c < C)


@triton.jit
def _first_norm(gamma1, beta1, stats1, k, HIDDEN):
    """Mean, scale and shift of the first norm."""
    own = k < HIDDEN
    scale = tl.load(stats1 + HIDDEN + k, mask=own, other=0.0) * tl.load(gamma1 + k, mask=own, other=0.0)
    return tl.load(stats1 + k, mask=own, other=0.0), scale, tl.load(beta1 + k, mask=own, other=0.0)


@triton.jit(do_not_specialize=["M", "HIDDEN", "PARTS"])
def attend_grad(
    gradient, z1, gamma1, beta1, w2, gamma2, beta2, amount, stats1, stats2, dy2, unit2, sums, damount,
    M, HIDDEN, C2, PARTS,
    RESIDUAL: tl.constexpr, BM: tl.constexpr, BH: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """From parts of ∂multiplier, (PARTS, M, C2): the gradient after the second norm, its normalised input, and sums.

    ``dy2`` and ``unit2`` are (M, C2); ``sums`` (row tiles, 2, C2) get each program's sums of dy2 and of dy2 · unit2,
    ``damount`` its part of ∂amount.
    """
    k, c = tl.arange(0, BH), tl.program_id(0) * BC + tl.arange(0, BC)
    m = tl.program_id(1) * BM + tl.arange(0, BM)
    in_k, in_c = k < HIDDEN, c < C2
    mean, scale, beta = _first_norm(gamma1, beta1, stats1, k, HIDDEN)
    kernel = tl.load(w2 + c[None, :] * HIDDEN + k[:, None], mask=in_k[:, None] & in_c[None, :], other=0.0)
    center, inverse = tl.load(stats2 + c, mask=in_c, other=0.0), tl.load(stats2 + C2 + c, mask=in_c, other=0.0)
    gamma, shift = tl.load(gamma2 + c, mask=in_c, other=0.0), tl.load(beta2 + c, mask=in_c, other=0.0)
    z2 = tl.dot(_hidden(z1, m, M, mean, scale, beta, BH), kernel, input_precision=EXACT)
    unit = (z2 - center[None, :]) * inverse[None, :]
    value = _sigmoid(unit * gamma[None, :] + shift[None, :])
    g = _sum_of_parts(gradient, m, c, M, C2, PARTS, BM, BC)  # zero outside
    dy = g * value * (1.0 - value)
    if amount is not None:
        dy = dy * tl.load(amount)
        blend = tl.sum(tl.sum(g * (value if RESIDUAL else value - 1.0), 0), 0)
        tl.store(damount + tl.program_id(1) * tl.num_programs(0) + tl.program_id(0), blend)
    at, there = m[:, None] * C2 + c[None, :], (m < M)[:, None] & in_c[None, :]
    tl.store(dy2 + at, dy, mask=there)
    tl.store(unit2 + at, unit, mask=there)
    _store_two_sums(sums, tl.program_id(1), dy, unit, c, C2)


@triton.jit
def _second_norm_grad(
    dy2, unit2, gamma2, stats2, sums, m, c, M, C2, PARTS, BATCH2: tl.constexpr, BL: tl.constexpr
):  # fmt: skip
    """∂z2 of rows m and columns c, zero outside."""
    in_c = c < C2
    dz = _rows_of(dy2, m, c, M, C2)
    if BATCH2:
        of_beta, of_gamma = _two_sums(sums, c, C2, PARTS, BL)
        dz = dz - (of_beta[None, :] + _rows_of(unit2, m, c, M, C2) * of_gamma[None, :]) / M
    scale = tl.load(gamma2 + c, mask=in_c, other=0.0) * tl.load(stats2 + C2 + c, mask=in_c, other=0.0)
    return tl.where((m < M)[:, None], dz * scale[None, :], 0.0)


@triton.jit
def _hidden_grad(
    dy2, unit2, sums, z1, gamma1, beta1, stats1, w2, gamma2, stats2, dy1, sums1, tile, M, HIDDEN, C2, PARTS,
    BATCH2: tl.constexpr, HOPPER: tl.constexpr, BM: tl.constexpr, BH: tl.constexpr, BC: tl.constexpr, BL: tl.constexpr,
):  # fmt: skip
    """The gradient after the first norm of BM rows, through the ReLU, and its sums."""
    m, k = tile * BM + tl.arange(0, BM), tl.arange(0, BH)
    mean, scale, beta = _first_norm(gamma1, beta1, stats1, k, HIDDEN)
    total = tl.zeros((BM, BH), tl.float32)
    for start in tl.range(0, C2, BC, num_stages=STAGES):
        c = start + tl.arange(0, BC)
        dz = _second_norm_grad(dy2, unit2, gamma2, stats2, sums, m, c, M, C2, PARTS, BATCH2, BL)
        total = tl.dot(dz, _rows_of(w2, c, k, C2, HIDDEN), total, input_precision=EXACT)
        _finish(HOPPER)
    distance = _hidden_rows(z1, m, M, BH) - mean[None, :]
    dy = tl.where((distance * scale[None, :] + beta[None, :] > 0) & (m < M)[:, None], total, 0.0)
    unit = distance * tl.load(stats1 + HIDDEN + k, mask=k < HIDDEN, other=0.0)[None, :]
    tl.store(dy1 + m[:, None] * BH + k[None, :], dy, mask=(m < M)[:, None])
    _store_two_sums(sums1, tile, dy, unit, k, BH)


@triton.jit
def _excite_weight_grad(
    dy2, unit2, sums, z1, gamma1, beta1, stats1, gamma2, stats2, dw2, dgamma2, dbeta2, part, across,
    M, HIDDEN, C2, PARTS,
    BATCH2: tl.constexpr, BM: tl.constexpr, BH: tl.constexpr, BC: tl.constexpr, BL: tl.constexpr,
):  # fmt: skip
    """Part ``part`` of ∂W2, of BM rows, and with the first ∂γ2 and ∂β2; all of BC columns."""
    m, c, k = part * BM + tl.arange(0, BM), across * BC + tl.arange(0, BC), tl.arange(0, BH)
    mean, scale, beta = _first_norm(gamma1, beta1, stats1, k, HIDDEN)
    dz = _second_norm_grad(dy2, unit2, gamma2, stats2, sums, m, c, M, C2, PARTS, BATCH2, BL)
    hidden = _hidden(z1, m, M, mean, scale, beta, BH)
    of_kernel = tl.dot(tl.trans(dz), hidden, input_precision=EXACT)
    to = dw2 + ((part * C2 + c) * HIDDEN)[:, None] + k[None, :]
    tl.store(to, of_kernel, mask=(c < C2)[:, None] & (k < HIDDEN)[None, :])
    if part == 0:
        of_beta, of_gamma = _two_sums(sums, c, C2, PARTS, BL)
        tl.store(dgamma2 + c, of_gamma, mask=c < C2)
        tl.store(dbeta2 + c, of_beta, mask=c < C2)


@triton.jit(do_not_specialize=["M", "HIDDEN", "PARTS", "TILES", "ACROSS"])
def excite_grad(
    dy2, unit2, sums, z1, gamma1, beta1, stats1, w2, gamma2, stats2, dy1, sums1, dw2, dgamma2, dbeta2,
    M, HIDDEN, C2, PARTS, TILES, ACROSS,
    BATCH2: tl.constexpr, HOPPER: tl.constexpr,
    BR: tl.constexpr, BM: tl.constexpr, BH: tl.constexpr, BC: tl.constexpr, BW: tl.constexpr, BL: tl.constexpr,
):  # fmt: skip
    """From what :func:`attend_grad` kept: the gradient after the first norm, with its sums, and ∂W2, ∂γ2, ∂β2.

    The first TILES programs do BR rows each: ``dy1`` (M, BH), through the ReLU, and ``sums1`` (TILES, 2, BH) as above.
    The others do BC columns of BM rows of the gradients of parameters, with ACROSS tiles of columns; ``dw2`` are
    parts (row tiles, C2, HIDDEN).
    """
    pid = tl.program_id(0)
    if pid < TILES:
        _hidden_grad(
            dy2, unit2, sums, z1, gamma1, beta1, stats1, w2, gamma2, stats2, dy1, sums1, pid, M, HIDDEN, C2, PARTS,
            BATCH2, HOPPER, BR, BH, BW, BL,
        )  # fmt: skip
    else:
        _excite_weight_grad(
            dy2, unit2, sums, z1, gamma1, beta1, stats1, gamma2, stats2, dw2, dgamma2, dbeta2, (pid - TILES) // ACROSS,
            (pid - TILES) % ACROSS, M, HIDDEN, C2, PARTS, BATCH2, BM, BH, BC, BL,
        )  # fmt: skip


@triton.jit
def _first_norm_sums(sums1, gamma1, stats1, HIDDEN, TILES, BH: tl.constexpr, BL: tl.constexpr):
    """Mean, inverse deviation and scale of the first norm, and the sums for its gradient."""
    k = tl.arange(0, BH)
    own = k < HIDDEN
    mean, inverse = tl.load(stats1 + k, mask=own, other=0.0), tl.load(stats1 + HIDDEN + k, mask=own, other=0.0)
    of_beta, of_gamma = _two_sums(sums1, k, BH, TILES, BL)
    return mean, inverse, inverse * tl.load(gamma1 + k, mask=own, other=0.0), of_beta, of_gamma


@triton.jit
def _first_norm_grad(
    dy1, z1, m, M, mean, inverse, scale, of_beta, of_gamma, BATCH1: tl.constexpr, BH: tl.constexpr
):  # fmt: skip
    """∂z1 of rows m, zero outside."""
    dz = _hidden_rows(dy1, m, M, BH)
    if BATCH1:
        unit = (_hidden_rows(z1, m, M, BH) - mean[None, :]) * inverse[None, :]
        dz = dz - (of_beta[None, :] + unit * of_gamma[None, :]) / M
    return tl.where((m < M)[:, None], dz * scale[None, :], 0.0)


@triton.jit
def _squeeze_weight_grad(
    dy1, sums1, z1, rows, gamma1, stats1, dw1, across, M, HIDDEN, C1, TILES,
    BATCH1: tl.constexpr, HOPPER: tl.constexpr, BM: tl.constexpr, BH: tl.constexpr, BC: tl.constexpr, BL: tl.constexpr,
):  # fmt: skip
    """BC columns of ∂W1."""
    k, c = tl.arange(0, BH), across * BC + tl.arange(0, BC)
    mean, inverse, scale, of_beta, of_gamma = _first_norm_sums(sums1, gamma1, stats1, HIDDEN, TILES, BH, BL)
    of_kernel = tl.zeros((BH, BC), tl.float32)
    for start in tl.range(0, M, BM, num_stages=STAGES):
        m = start + tl.arange(0, BM)
        dz = _first_norm_grad(dy1, z1, m, M, mean, inverse, scale, of_beta, of_gamma, BATCH1, BH)
        of_kernel = tl.dot(tl.trans(dz), _rows_of(rows, m, c, M, C1), of_kernel, input_precision=EXACT)
        _finish(HOPPER)
    tl.store(dw1 + k[:, None] * C1 + c[None, :], of_kernel, mask=(k < HIDDEN)[:, None] & (c < C1)[None, :])


@triton.jit
def _cells_grad(
    dy1, sums1, z1, gamma1, stats1, w1, cells, down, across, M, HIDDEN, C1, TILES, H, W,
    BATCH1: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    BM: tl.constexpr, BH: tl.constexpr, BC: tl.constexpr, BL: tl.constexpr,
):  # fmt: skip
    """What each position of a cell gets: BM cells and BC channels."""
    m, k, c = down * BM + tl.arange(0, BM), tl.arange(0, BH), across * BC + tl.arange(0, BC)
    mean, inverse, scale, of_beta, of_gamma = _first_norm_sums(sums1, gamma1, stats1, HIDDEN, TILES, BH, BL)
    dz = _first_norm_grad(dy1, z1, m, M, mean, inverse, scale, of_beta, of_gamma, BATCH1, BH)
    da = tl.dot(dz, _rows_of(w1, k, c, HIDDEN, C1), input_precision=EXACT)
    da = da / _area(m % (KH * KW), H, W, KH, KW)[:, None]
    tl.store(cells + m[:, None] * C1 + c[None, :], da, mask=(m < M)[:, None] & (c < C1)[None, :])


@triton.jit
def _rest_of_first_norm(
    sums1, dgamma1, dbeta1, blends, damount, HIDDEN, TILES, BLENDS, BH: tl.constexpr, BL: tl.constexpr
):
    """∂γ1 and ∂β1, and ∂amount, the sum of the ``blends``."""
    k = tl.arange(0, BH)
    of_beta, of_gamma = _two_sums(sums1, k, BH, TILES, BL)
    tl.store(dgamma1 + k, of_gamma, mask=k < HIDDEN)
    tl.store(dbeta1 + k, of_beta, mask=k < HIDDEN)
    if blends is not None:
        total = tl.zeros((256,), tl.float32)
        for start in range(0, BLENDS, 256):
            part = start + tl.arange(0, 256)
            total += tl.load(blends + part, mask=part < BLENDS, other=0.0)
        tl.store(damount, tl.sum(total, 0))


@triton.jit(
    do_not_specialize=["M", "HIDDEN", "TILES", "PARTS", "BLENDS", "H", "W", "ACROSS", "DOWN", "COUNT", "SIZE"]
)  # fmt: skip
def squeeze_grad(
    dy1, sums1, z1, rows, gamma1, stats1, w1, dw1, dgamma1, dbeta1, cells, parts, dw2, blends, damount,
    kernels, dkernel,
    M, HIDDEN, C1, C2, TILES, PARTS, BLENDS, H, W, ACROSS, DOWN, COUNT, SIZE,
    BATCH1: tl.constexpr, HOPPER: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    BR: tl.constexpr, BM: tl.constexpr, BH: tl.constexpr, BC: tl.constexpr, BL: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """From the gradient after the first norm: ∂W1, ∂γ1, ∂β1, what each position of a cell gets; and sums of parts.

    The first ACROSS programs do BC columns of ∂W1 each, and the next ACROSS · DOWN ones BC columns of BR rows of
    ``cells`` (M, C1), ∂A0 = ∂z1 W1 divided by the cell's number of positions; DOWN is 0 if nobody needs them. The rest
    add up ``parts`` of ∂W2 and ``kernels`` (COUNT, SIZE), parts of ∂K or None, BLOCK numbers each.
    """
    pid = tl.program_id(0)
    rest = pid - ACROSS * (1 + DOWN)
    if pid < ACROSS:
        _squeeze_weight_grad(
            dy1, sums1, z1, rows, gamma1, stats1, dw1, pid, M, HIDDEN, C1, TILES, BATCH1, HOPPER, BM, BH, BC, BL
        )  # fmt: skip
    elif rest < 0:
        if cells is not None:
            _cells_grad(
                dy1, sums1, z1, gamma1, stats1, w1, cells, pid // ACROSS - 1, pid % ACROSS, M, HIDDEN, C1, TILES, H, W,
                BATCH1, KH, KW, BR, BH, BC, BL,
            )  # fmt: skip
    elif rest < tl.cdiv(C2 * HIDDEN, BLOCK):
        _sum_parts(parts, dw2, rest, PARTS, C2 * HIDDEN, ROWS, BLOCK)
        if rest == 0:
            _rest_of_first_norm(sums1, dgamma1, dbeta1, blends, damount, HIDDEN, TILES, BLENDS, BH, BL)
    elif kernels is not None:
        _sum_parts(kernels, dkernel, rest - tl.cdiv(C2 * HIDDEN, BLOCK), COUNT, SIZE, ROWS, BLOCK)


@triton.jit
def _load_cells(cells, n, c, last, C, KH: tl.constexpr, KW: tl.constexpr):
    """The cells of sample n, from (N·KH·KW, C), at channels c below ``last``: (16 or more, channels), float32."""
    T: tl.constexpr = 16 if KH * KW <= 16 else 32 if KH * KW <= 32 else 64
    t = tl.arange(0, T)
    there = (t < KH * KW)[:, None] & (c < last)[None, :]
    return tl.load(cells + (n * KH * KW + t)[:, None] * C + c[None, :], mask=there, other=0.0)


@triton.jit
def _add_cells(total, values, y, z, H, W, KH: tl.constexpr, KW: tl.constexpr):
    """``total`` (positions, channels) and what cells give to each position, in rows y and columns z.

    A product with zeros and ones, which are exact in TF32; the cells are split into two numbers of TF32.
    """
    inside = _inside(tl.arange(0, values.shape[0])[None, :], y[:, None], z[:, None], H, W, KH, KW).to(tl.float32)
    high = (values.to(tl.int32, bitcast=True) & -8192).to(tl.float32, bitcast=True)
    total = tl.dot(inside, high, total, input_precision="tf32")
    return tl.dot(inside, values - high, total, input_precision="tf32")


@triton.jit(do_not_specialize=["H", "W"])
def pool_grad(cells, dx, H, W, C, KH: tl.constexpr, KW: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr):
    """Gradient of x (N, H, W, C) through the pooled cells alone; ``cells`` as of :func:`squeeze_grad`."""
    n, p = tl.program_id(0), tl.program_id(1) * BP + tl.arange(0, BP)
    c = tl.program_id(2) * BC + tl.arange(0, BC)
    values = _load_cells(cells, n, c, C, C, KH, KW)
    total = _add_cells(tl.zeros((BP, BC), tl.float32), values, p // W, p % W, H, W, KH, KW)
    to = dx + (n * H * W + p)[:, None] * C + c[None, :]
    tl.store(to, total.to(dx.dtype.element_ty), mask=(p < H * W)[:, None] & (c < C)[None, :])
