"""Triton kernels of the gradients of the channel gate, and of the multiplication of a map by gates.

Tiles, parts, rows and flags are those of :mod:`.channel_kernels`. Between the kernels lie, in float32::

    logits:  parts of the gradient of the channel gate's logits, (N, PARTS, C)
    hidden:  parts of that of its hidden values, after the ReLU, (N, ROWS, D)
    grads:   sums of both, (N, C + D)
    shares:  with BLEND, but not with SPATIAL: parts of the gradient of the amount, (N, ROWS)
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

from foveal.kernels.gates.channel_kernels import _sum_rows
from foveal.kernels.gates.spatial_kernels import _spatial_gate

SIZES = ("N", "HW", "STEPS", "PARTS", "ROWS", "WEIGHT_ROWS", "TAPS", "EXTRA")
"""As in :mod:`.channel_kernels`."""


@triton.jit(do_not_specialize=SIZES)
def gate_grad(
    g, x, state, w2, logits, hidden, shares, amount, maps, dmaps, moments, HW, C, D, SP, SC, STEPS,
    BLEND: tl.constexpr, SPATIAL: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Gradient of the logits from a part of the positions, and what it is of the hidden values."""
    n, block, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    c = block * BC + tl.arange(0, BC)
    known = c < C
    x += n.to(tl.int64) * HW * C
    g += n.to(tl.int64) * HW * C
    share = tl.load(amount).to(tl.float32) if BLEND else 1.0
    if SPATIAL:
        maps += n.to(tl.int64) * 4 * HW
        dmaps += n.to(tl.int64) * 3 * HW
        mean, scale, shift = tl.load(moments), tl.load(moments + 2), tl.load(moments + 3)
    total = tl.zeros((BP, BC), tl.float32)
    for i in range(STEPS):
        p = (part * STEPS + i) * BP + tl.arange(0, BP)
        here = p < HW
        inside, at = here[:, None] & known[None, :], p[:, None] * SP + c[None, :] * SC
        value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        gradient = tl.load(g + at, mask=inside, other=0.0).to(tl.float32)
        if SPATIAL:
            spatial = share * _spatial_gate(maps, p, here, HW, mean, scale, shift)
            gradient = gradient * spatial[:, None] + _attended_grad(maps, dmaps, p, here, c, HW, C)
        total += gradient * value
    of_gate = tl.sum(total, 0)
    gate = tl.load(state + n * (4 * C + 2 * D) + c, mask=known, other=0.0)
    to = n * tl.num_programs(2) + part
    row = to * tl.num_programs(1) + block
    if BLEND and not SPATIAL:
        tl.store(shares + row, tl.sum(tl.where(known, of_gate * (gate - 1), 0.0), 0))
        of_gate *= share
    of_logits = of_gate * gate * (1 - gate)
    tl.store(logits + to * C + c, of_logits, mask=known)
    for start in range(0, D, BD):
        d = start + tl.arange(0, BD)
        both = known[:, None] & (d < D)[None, :]
        out = tl.load(w2 + c[:, None] * D + d[None, :], mask=both, other=0.0).to(tl.float32)
        tl.store(hidden + row * D + d, tl.sum(out * of_logits[:, None], 0), mask=d < D)


@triton.jit
def _attended_grad(maps, dmaps, p, here, c, HW, C):
    """What the spatial gate's pooling over channels hands back to x times channel gate, (BP, BC)."""
    winner = tl.load(maps + 2 * HW + p, mask=here, other=-1.0).to(tl.int32)
    of_max = tl.load(dmaps + HW + p, mask=here, other=0.0)
    of_mean = tl.load(dmaps + 2 * HW + p, mask=here, other=0.0) / C
    return of_mean[:, None] + tl.where(winner[:, None] == c[None, :], of_max[:, None], 0.0)


@triton.jit
def _pooled_grad(
    state, w1, logits, hidden, grads, n, c, known, first, block, HW, C, D, PARTS, ROWS,
    AVG: tl.constexpr, MAX: tl.constexpr, BC: tl.constexpr, BD: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    """Gradients of the mean, divided by H·W, and of the maximum of channels; the ``first`` program stores ``grads``."""
    hidden += n * ROWS * D
    grads += n * (C + D)
    if first:
        total = tl.zeros((BC,), tl.float32)
        for i in range(PARTS):
            total += tl.load(logits + (n * PARTS + i) * C + c, mask=known, other=0.0)
        tl.store(grads + c, total, mask=known)
    to_mean, to_top = tl.zeros((BD, BC), tl.float32), tl.zeros((BD, BC), tl.float32)  # added up at the end
    for start in range(0, D, BD):
        d = start + tl.arange(0, BD)
        exists = d < D
        into = tl.load(w1 + d[:, None] * C + c[None, :], mask=exists[:, None] & known[None, :], other=0.0)
        into = into.to(tl.float32)
        grad = _sum_rows(hidden, d, exists, ROWS, D, BR)
        if (block == 0) & first:
            tl.store(grads + C + d, grad, mask=exists)
        if AVG:
            alive = tl.load(state + 4 * C + d, mask=exists, other=0.0) > 0
            to_mean += into * tl.where(alive, grad, 0.0)[:, None]
        if MAX:
            alive = tl.load(state + 4 * C + D + d, mask=exists, other=0.0) > 0
            to_top += into * tl.where(alive, grad, 0.0)[:, None]
    return tl.sum(to_mean, 0) / HW, tl.sum(to_top, 0)


@triton.jit(do_not_specialize=SIZES)
def input_grad(
    g, dx, state, w1, logits, hidden, grads, amount, maps, dmaps, moments, HW, C, D, SP, SC, STEPS, PARTS, ROWS,
    AVG: tl.constexpr, MAX: tl.constexpr, BLEND: tl.constexpr, SPATIAL: tl.constexpr,
    BP: tl.constexpr, BC: tl.constexpr, BD: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    """Gradient of x, and the sums ``grads``."""
    n, block, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    c = block * BC + tl.arange(0, BC)
    known = c < C
    g += n.to(tl.int64) * HW * C
    dx += n.to(tl.int64) * HW * C
    state += n * (4 * C + 2 * D)
    of_mean, of_top = _pooled_grad(
        state, w1, logits, hidden, grads, n, c, known, part == 0, block, HW, C, D, PARTS, ROWS, AVG, MAX, BC, BD, BR
    )
    factor = tl.load(state + c, mask=known, other=0.0)[None, :]
    share = tl.load(amount).to(tl.float32) if BLEND else 1.0
    if MAX:
        place = tl.load(state + 3 * C + c, mask=known, other=-1.0).to(tl.int32)[None, :]
    if SPATIAL:
        maps += n.to(tl.int64) * 4 * HW
        dmaps += n.to(tl.int64) * 3 * HW
        mean, scale, shift = tl.load(moments), tl.load(moments + 2), tl.load(moments + 3)
    for i in range(STEPS):
        p = (part * STEPS + i) * BP + tl.arange(0, BP)
        here = p < HW
        inside, at = here[:, None] & known[None, :], p[:, None] * SP + c[None, :] * SC
        value = tl.load(g + at, mask=inside, other=0.0).to(tl.float32)
        total = value * share
        if SPATIAL:
            spatial = share * _spatial_gate(maps, p, here, HW, mean, scale, shift)
            total = value * spatial[:, None] + _attended_grad(maps, dmaps, p, here, c, HW, C)
        total *= factor
        if BLEND:
            total += value * (1 - share)
        if AVG:
            total += of_mean[None, :]
        if MAX:
            total += tl.where(place == p[:, None], of_top[None, :], 0.0)
        tl.store(dx + at, total.to(dx.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=(*SIZES, "D"))
def parameter_grad(
    state, grads, shares, taps, dw1, db1, dw2, db2, damount, dweight, N, C, D, ROWS, WEIGHT_ROWS, TAPS, EXTRA,
    AVG: tl.constexpr, MAX: tl.constexpr, BLEND: tl.constexpr, SPATIAL: tl.constexpr,
    BN: tl.constexpr, BC: tl.constexpr, BD: tl.constexpr, BR: tl.constexpr, BT: tl.constexpr,
):  # fmt: skip
    """Gradients of all parameters: sums over the samples.

    With SPATIAL the first EXTRA programs add up the parts of that of the convolution's weight, (WEIGHT_ROWS, TAPS), BT
    taps each.
    """
    tile = tl.program_id(0) - EXTRA
    if tile >= 0:
        _perceptron_grad(state, grads, dw1, db1, dw2, db2, tile, N, C, D, AVG, MAX, BN, BC, BD)
        if BLEND and not SPATIAL:  # noqa: SIM102, what is known to the compiler decides first
            if tile == 0:
                one = tl.arange(0, 1)
                total = _sum_rows(shares, one, one == 0, N * ROWS, 1, BR)
                tl.store(damount + one, total.to(damount.dtype.element_ty))
    elif SPATIAL:
        tap = tl.program_id(0) * BT + tl.arange(0, BT)
        total = _sum_rows(taps, tap, tap < TAPS, WEIGHT_ROWS, TAPS, BR)
        tl.store(dweight + tap, total.to(dweight.dtype.element_ty), mask=tap < TAPS)


@triton.jit
def _perceptron_grad(
    state, grads, dw1, db1, dw2, db2, tile, N, C, D,
    AVG: tl.constexpr, MAX: tl.constexpr, BN: tl.constexpr, BC: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Gradients of a tile of the perceptron's weights, and of its biases."""
    across = tl.cdiv(D, BD)
    block_c, block_d = tile // across, tile % across
    c, d = block_c * BC + tl.arange(0, BC), block_d * BD + tl.arange(0, BD)
    known, exists = c < C, d < D
    out, into = tl.zeros((BC, BD), tl.float32), tl.zeros((BD, BC), tl.float32)
    bias_out, bias_into = tl.zeros((BC,), tl.float32), tl.zeros((BD,), tl.float32)
    for start in range(0, N, BN):
        n = start + tl.arange(0, BN)
        real = n < N
        wide, narrow = real[:, None] & known[None, :], real[:, None] & exists[None, :]
        row, column = (n * (4 * C + 2 * D))[:, None], (n * (C + D))[:, None]
        of_logits = tl.load(grads + column + c[None, :], mask=wide, other=0.0)
        of_hidden = tl.load(grads + column + C + d[None, :], mask=narrow, other=0.0)
        hidden = tl.zeros((BN, BD), tl.float32)
        if AVG:
            value = tl.load(state + row + 4 * C + d[None, :], mask=narrow, other=0.0)
            pooled = tl.load(state + row + C + c[None, :], mask=wide, other=0.0)
            grad = tl.where(value > 0, of_hidden, 0.0)
            into = tl.dot(tl.trans(grad), pooled, into, input_precision="ieee")
            bias_into += tl.sum(grad, 0)
            hidden += value
        if MAX:
            value = tl.load(state + row + 4 * C + D + d[None, :], mask=narrow, other=0.0)
            pooled = tl.load(state + row + 2 * C + c[None, :], mask=wide, other=0.0)
            grad = tl.where(value > 0, of_hidden, 0.0)
            into = tl.dot(tl.trans(grad), pooled, into, input_precision="ieee")
            bias_into += tl.sum(grad, 0)
            hidden += value
        out = tl.dot(tl.trans(of_logits), hidden, out, input_precision="ieee")
        bias_out += tl.sum(of_logits, 0)
    if AVG and MAX:
        bias_out *= 2
    tl.store(dw2 + c[:, None] * D + d[None, :], out.to(dw2.dtype.element_ty), mask=known[:, None] & exists[None, :])
    tl.store(dw1 + d[:, None] * C + c[None, :], into.to(dw1.dtype.element_ty), mask=exists[:, None] & known[None, :])
    if block_d == 0:
        tl.store(db2 + c, bias_out.to(db2.dtype.element_ty), mask=known)
    if block_c == 0:
        tl.store(db1 + d, bias_into.to(db1.dtype.element_ty), mask=exists)
