"""Triton kernels of the gradients of the channel gate, and of the multiplication of a map by gates.

Tiles, parts, rows and flags are those of :mod:`.channel_kernels`. Between the two kernels lie, in float32::

    logits:  gradient of the channel gate's logits, (N, PARTS, C)
    hidden:  gradient of its hidden values before the ReLU's, and of the amount, (N, ROWS, D + 1)
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

from foveal.kernels.gates.channel_kernels import _sum_rows
from foveal.kernels.gates.spatial_kernels import _spatial_gate

SIZES = ("N", "HW", "D", "STEPS", "PARTS", "ROWS", "BLOCKS", "EXTRA", "WEIGHT_ROWS", "TAPS")
"""As in :mod:`.channel_kernels`."""


@triton.jit(do_not_specialize=SIZES)
def gate_grad(
    g, x, state, w2, logits, hidden, amount, maps, dmaps, moments, HW, C, D, SP, SC, STEPS,
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
    row = hidden + (to * tl.num_programs(1) + block) * (D + 1)
    if BLEND and not SPATIAL:
        tl.store(row + D, tl.sum(tl.where(known, of_gate * (gate - 1), 0.0), 0))
        of_gate *= share
    of_logits = of_gate * gate * (1 - gate)
    tl.store(logits + to * C + c, of_logits, mask=known)
    for start in range(0, D, BD):
        d = start + tl.arange(0, BD)
        both = known[:, None] & (d < D)[None, :]
        out = tl.load(w2 + c[:, None] * D + d[None, :], mask=both, other=0.0).to(tl.float32)
        tl.store(row + d, tl.sum(out * of_logits[:, None], 0), mask=d < D)


@triton.jit
def _attended_grad(maps, dmaps, p, here, c, HW, C):
    """What the spatial gate's pooling over channels hands back to x times channel gate, (BP, BC)."""
    winner = tl.load(maps + 2 * HW + p, mask=here, other=-1.0).to(tl.int32)
    of_max = tl.load(dmaps + HW + p, mask=here, other=0.0)
    of_mean = tl.load(dmaps + 2 * HW + p, mask=here, other=0.0) / C
    return of_mean[:, None] + tl.where(winner[:, None] == c[None, :], of_max[:, None], 0.0)


@triton.jit(do_not_specialize=SIZES)
def input_grad(
    g, dx, state, w1, logits, hidden, amount, maps, dmaps, moments, taps, dw1, db1, dw2, db2, damount, dweight,
    N, HW, C, D, SP, SC, STEPS, PARTS, ROWS, BLOCKS, EXTRA, WEIGHT_ROWS, TAPS,
    AVG: tl.constexpr, MAX: tl.constexpr, BLEND: tl.constexpr, SPATIAL: tl.constexpr, PARAMETERS: tl.constexpr,
    BP: tl.constexpr, BC: tl.constexpr, BD: tl.constexpr, BR: tl.constexpr,
    PN: tl.constexpr, PC: tl.constexpr, PD: tl.constexpr, PR: tl.constexpr, BT: tl.constexpr,
):  # fmt: skip
    """Gradient of x; with PARAMETERS, the first EXTRA programs compute gradients of parameters.

    BLOCKS of channels and PARTS of positions follow each other for each sample. With SPATIAL the last program of EXTRA
    adds up the WEIGHT_ROWS rows of the gradient of the convolution's weight.
    """
    program = tl.program_id(0) - EXTRA
    if program >= 0:
        n, block, part = program // PARTS // BLOCKS, program // PARTS % BLOCKS, program % PARTS
        _input_grad(
            g, dx, state, w1, hidden, amount, maps, dmaps, moments, n, block, part, HW, C, D, SP, SC, STEPS, ROWS,
            AVG, MAX, BLEND, SPATIAL, BP, BC, BD, BR,
        )  # fmt: skip
    elif PARAMETERS:
        if SPATIAL:
            if program == -1:
                tap = tl.arange(0, BT)
                total = _sum_rows(taps, tap, tap < TAPS, WEIGHT_ROWS, TAPS, BR)
                tl.store(dweight + tap, total.to(dweight.dtype.element_ty), mask=tap < TAPS)
        if program < (-1 if SPATIAL else 0):
            _parameter_grad(
                state, logits, hidden, dw1, db1, dw2, db2, damount, program + EXTRA, N, C, D, PARTS, ROWS,
                AVG, MAX, BLEND and not SPATIAL, PN, PC, PD, PR,
            )  # fmt: skip


@triton.jit
def _input_grad(
    g, dx, state, w1, hidden, amount, maps, dmaps, moments, n, block, part, HW, C, D, SP, SC, STEPS, ROWS,
    AVG: tl.constexpr, MAX: tl.constexpr, BLEND: tl.constexpr, SPATIAL: tl.constexpr,
    BP: tl.constexpr, BC: tl.constexpr, BD: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    c = block * BC + tl.arange(0, BC)
    known = c < C
    g += n.to(tl.int64) * HW * C
    dx += n.to(tl.int64) * HW * C
    state += n * (4 * C + 2 * D)
    hidden += n * ROWS * (D + 1)
    of_mean, of_top = tl.zeros((BC,), tl.float32), tl.zeros((BC,), tl.float32)
    for start in range(0, D, BD):
        d = start + tl.arange(0, BD)
        exists = d < D
        into = tl.load(w1 + d[:, None] * C + c[None, :], mask=exists[:, None] & known[None, :], other=0.0)
        into = into.to(tl.float32)
        grad = _sum_rows(hidden, d, exists, ROWS, D + 1, BR)
        if AVG:
            alive = tl.load(state + 4 * C + d, mask=exists, other=0.0) > 0
            of_mean += tl.sum(into * tl.where(alive, grad, 0.0)[:, None], 0)
        if MAX:
            alive = tl.load(state + 4 * C + D + d, mask=exists, other=0.0) > 0
            of_top += tl.sum(into * tl.where(alive, grad, 0.0)[:, None], 0)
    of_mean /= HW
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
        gate = factor
        if SPATIAL:
            gate = factor * _spatial_gate(maps, p, here, HW, mean, scale, shift)[:, None]
        if BLEND:
            gate = 1 + share * (gate - 1)
        total = tl.load(g + at, mask=inside, other=0.0).to(tl.float32) * gate
        if SPATIAL:
            total += factor * _attended_grad(maps, dmaps, p, here, c, HW, C)
        if AVG:
            total += of_mean[None, :]
        if MAX:
            total += tl.where(place == p[:, None], of_top[None, :], 0.0)
        tl.store(dx + at, total.to(dx.dtype.element_ty), mask=inside)


@triton.jit
def _parameter_grad(
    state, logits, hidden, dw1, db1, dw2, db2, damount, tile, N, C, D, PARTS, ROWS,
    AVG: tl.constexpr, MAX: tl.constexpr, AMOUNT: tl.constexpr,
    BN: tl.constexpr, BC: tl.constexpr, BD: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    """Gradients of a tile of the perceptron's weights, its biases and, with AMOUNT, of the amount."""
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
        of_c = (n * (4 * C + 2 * D))[:, None] + c[None, :]
        of_d = (n * (4 * C + 2 * D) + 4 * C)[:, None] + d[None, :]
        of_logits = tl.zeros((BN, BC), tl.float32)
        for part in range(PARTS):
            of_logits += tl.load(logits + (n * PARTS + part)[:, None] * C + c[None, :], mask=wide, other=0.0)
        of_hidden = tl.zeros((BN, BD), tl.float32)
        for begin in range(0, ROWS, BR):
            r = begin + tl.arange(0, BR)
            at = hidden + ((n * ROWS)[:, None] + r[None, :])[:, :, None] * (D + 1) + d[None, None, :]
            there = (real[:, None] & (r < ROWS)[None, :])[:, :, None] & exists[None, None, :]
            of_hidden += tl.sum(tl.load(at, mask=there, other=0.0), 1)
        values = tl.zeros((BN, BD), tl.float32)
        if AVG:
            value = tl.load(state + of_d, mask=narrow, other=0.0)
            grad = tl.where(value > 0, of_hidden, 0.0)
            pooled = tl.load(state + C + of_c, mask=wide, other=0.0)
            into = tl.dot(tl.trans(grad), pooled, into, input_precision="ieee")
            bias_into += tl.sum(grad, 0)
            values += value
        if MAX:
            value = tl.load(state + D + of_d, mask=narrow, other=0.0)
            grad = tl.where(value > 0, of_hidden, 0.0)
            pooled = tl.load(state + 2 * C + of_c, mask=wide, other=0.0)
            into = tl.dot(tl.trans(grad), pooled, into, input_precision="ieee")
            bias_into += tl.sum(grad, 0)
            values += value
        out = tl.dot(tl.trans(of_logits), values, out, input_precision="ieee")
        bias_out += tl.sum(of_logits, 0)
    if AVG and MAX:
        bias_out *= 2
    tl.store(dw2 + c[:, None] * D + d[None, :], out.to(dw2.dtype.element_ty), mask=known[:, None] & exists[None, :])
    tl.store(dw1 + d[:, None] * C + c[None, :], into.to(dw1.dtype.element_ty), mask=exists[:, None] & known[None, :])
    if block_d == 0:
        tl.store(db2 + c, bias_out.to(db2.dtype.element_ty), mask=known)
    if block_c == 0:
        tl.store(db1 + d, bias_into.to(db1.dtype.element_ty), mask=exists)
    if AMOUNT:
        if tile == 0:
            shares = tl.zeros((BN * BR,), tl.float32)
            for start in range(0, N * ROWS, BN * BR):
                r = start + tl.arange(0, BN * BR)
                shares += tl.load(hidden + r * (D + 1) + D, mask=r < N * ROWS, other=0.0)
            tl.store(damount, tl.sum(shares, 0).to(damount.dtype.element_ty))
