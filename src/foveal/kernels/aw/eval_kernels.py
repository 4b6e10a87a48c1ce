"""The attention branch of an AW-convolution in eval mode, as one kernel: samples do not depend on each other there."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

from foveal.kernels.aw.branch_kernels import EXACT, _multiplier, _own_cells, _relu, _squeeze


@triton.jit
def _running(mean, var, eps, stats, k, K, first):
    """Mean and inverse standard deviation of a norm that takes running statistics; the first program keeps them."""
    own = k < K
    center = tl.load(mean + k, mask=own, other=0.0)
    inverse = 1.0 / tl.sqrt(tl.load(var + k, mask=own, other=0.0) + eps)
    if first:
        tl.store(stats + k, center, mask=own)
        tl.store(stats + K + k, inverse, mask=own)
    return center, inverse


@triton.jit
def _attend(
    hidden, gamma1, beta1, mean1, var1, w2, gamma2, beta2, mean2, var2, amount, multiplier, stats1, stats2,
    HIDDEN, C2, eps1, eps2,
    KH: tl.constexpr, KW: tl.constexpr, BAND: tl.constexpr, RESIDUAL: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """The multiplier of this program's cells from their rows of z1, (T, BH)."""
    n, t, own = _own_cells(KH, KW, BAND, hidden.shape[0])
    k, first = tl.arange(0, hidden.shape[1]), tl.program_id(0) == 0
    in_k = k < HIDDEN
    mean, inverse = _running(mean1, var1, eps1, stats1, k, HIDDEN, first)
    scale = inverse * tl.load(gamma1 + k, mask=in_k, other=0.0)
    hidden = _relu((hidden - mean[None, :]) * scale[None, :] + tl.load(beta1 + k, mask=in_k, other=0.0)[None, :])
    for start in range(0, C2, BC):
        c = start + tl.arange(0, BC)
        in_c = c < C2
        center, inverse2 = _running(mean2, var2, eps2, stats2, c, C2, first)
        scale2 = inverse2 * tl.load(gamma2 + c, mask=in_c, other=0.0)
        kernel = tl.load(w2 + c[None, :] * HIDDEN + k[:, None], mask=in_k[:, None] & in_c[None, :], other=0.0)
        z2 = tl.dot(hidden, kernel, input_precision=EXACT)
        y = (z2 - center[None, :]) * scale2[None, :] + tl.load(beta2 + c, mask=in_c, other=0.0)[None, :]
        at = (n * KH * KW + t)[:, None] * C2 + c[None, :]
        value = _multiplier(y, amount, RESIDUAL).to(multiplier.dtype.element_ty)
        tl.store(multiplier + at, value, mask=own[:, None] & in_c[None, :])


@triton.jit(do_not_specialize=["H", "W", "HIDDEN"])
def squeeze_and_attend(
    x, w1, rows, z1, gamma1, beta1, mean1, var1, w2, gamma2, beta2, mean2, var2, amount, multiplier, stats1, stats2,
    H, W, C, HIDDEN, C2, eps1, eps2,
    KH: tl.constexpr, KW: tl.constexpr, BAND: tl.constexpr, PRECISION: tl.constexpr, RESIDUAL: tl.constexpr,
    T: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr, BH: tl.constexpr, BC2: tl.constexpr,
):  # fmt: skip
    """What ``squeeze`` and ``attend`` of :mod:`foveal.kernels.aw.branch_kernels` compute."""
    hidden = _squeeze(x, w1, rows, z1, H, W, C, HIDDEN, KH, KW, BAND, PRECISION, T, BP, BC, BH)
    _attend(
        hidden, gamma1, beta1, mean1, var1, w2, gamma2, beta2, mean2, var2, amount, multiplier, stats1, stats2,
        HIDDEN, C2, eps1, eps2, KH, KW, BAND, RESIDUAL, BC2,
    )  # fmt: skip
