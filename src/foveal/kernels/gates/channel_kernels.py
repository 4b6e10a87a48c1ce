"""Triton kernels of the channel gate, and of the multiplication of a map by channel and spatial gates.

A map x (N, C, H, W) is read in tiles of BP positions and BC channels; the step from one position to the next is SP and
that from one channel to the next SC, so that both memory layouts are served. All arithmetic is in float32; the output
is rounded once. Sums over positions come in PARTS, and sums over channels in ROWS, one for each part of each block of
channels; they are added in a fixed order: results are deterministic.

The perceptron has no kernel of its own where it can be avoided: the kernel that pools its input also multiplies what it
has by the first layer's weights, and the kernel that needs the gate by the second layer's.

What is small lies in one row of float32 a sample (numbers that are indices are exact below 2²⁴)::

    state:     gate (C), mean (C), maximum (C), position of the maximum (C), hidden of the mean (D), of the maximum (D)

Gradients are those of :mod:`.gradient_kernels`, the maps of the spatial gate are described in :mod:`.spatial_kernels`.
Flags: AVG and MAX say which poolings there are, BLEND that the multiplier is 1 + amount·(gate − 1), SPATIAL that there
is a spatial gate.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

from foveal.kernels.gates.spatial_kernels import _moments, _spatial_gate

SIZES = ("HW", "STEPS", "PARTS", "ROWS", "M", "MOMENTS", "momentum", "eps")
"""Arguments whose values Triton does not compile kernels of their own for: that would only slow the first step.

D is one of them where neither rows nor the second layer's weights, (C, D), are read: known to be a multiple of 16, it
lets four numbers be loaded at once.
"""


@triton.jit(do_not_specialize=(*SIZES, "D"))
def pool(
    x, partial, rows, w1, HW, C, D, SP, SC, STEPS,
    AVG: tl.constexpr, MAX: tl.constexpr, SQUEEZE: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Sum, maximum and its first position of a part of the positions: partial (N, PARTS, 3, C).

    With SQUEEZE also their products with the perceptron's first weights, rows (N, ROWS, 2, D), for mean and maximum.
    The maximum of a part is not that of all positions, so that MAX and SQUEEZE need PARTS = 1.
    """
    n, block, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    c = block * BC + tl.arange(0, BC)
    known = c < C
    x += n.to(tl.int64) * HW * C
    first = part * STEPS * BP + tl.arange(0, BP)
    total = tl.zeros((BP, BC), tl.float32)
    best = tl.full((BP, BC), float("-inf"), tl.float32)
    place = tl.zeros((BP, BC), tl.int32) + first[:, None]
    for i in range(STEPS):
        p = first + i * BP
        inside = (p < HW)[:, None] & known[None, :]
        value = tl.load(x + p[:, None] * SP + c[None, :] * SC, mask=inside, other=0.0).to(tl.float32)
        total += value
        if MAX:
            better = inside & (value > best)
            best = tl.where(better, value, best)
            place = tl.where(better, p[:, None], place)
    sums = tl.sum(total, 0)
    to = partial + (n * tl.num_programs(2) + part) * 3 * C + c
    tl.store(to, sums, mask=known)
    top = tl.max(best, 0)
    if MAX:
        tl.store(to + C, top, mask=known)
        earliest = tl.min(tl.where(best == top[None, :], place, 2147483647), 0)
        tl.store(to + 2 * C, earliest.to(tl.float32), mask=known)
    if SQUEEZE:
        rows += ((n * tl.num_programs(2) + part) * tl.num_programs(1) + block) * 2 * D
        top, mean = tl.where(known, top, 0.0), sums / HW
        for start in range(0, D, BD):
            d = start + tl.arange(0, BD)
            both = (d < D)[:, None] & known[None, :]
            into = tl.load(w1 + d[:, None] * C + c[None, :], mask=both, other=0.0).to(tl.float32)
            if AVG:
                tl.store(rows + d, tl.sum(into * mean[None, :], 1), mask=d < D)
            if MAX:
                tl.store(rows + D + d, tl.sum(into * top[None, :], 1), mask=d < D)


@triton.jit
def _sum_rows(rows, d, exists, ROWS, STEP, BR: tl.constexpr):
    """Sum over ROWS rows, STEP apart, of the columns ``d``."""
    total = tl.zeros((BR, d.shape[0]), tl.float32)
    for start in range(0, ROWS, BR):
        r = start + tl.arange(0, BR)
        both = (r < ROWS)[:, None] & exists[None, :]
        total += tl.load(rows + r[:, None] * STEP + d[None, :], mask=both, other=0.0)
    return tl.sum(total, 0)


@triton.jit
def _pooled(partial, state, c, known, HW, C, PARTS, MAX: tl.constexpr):
    """Mean and maximum of channels of one sample from all parts; they are also stored."""
    mean, place = tl.zeros(c.shape, tl.float32), tl.zeros(c.shape, tl.float32)
    top = tl.full(c.shape, float("-inf"), tl.float32)
    for part in range(PARTS):
        at = partial + part * 3 * C + c
        mean += tl.load(at, mask=known, other=0.0)
        if MAX:
            value, position = tl.load(at + C, mask=known, other=0.0), tl.load(at + 2 * C, mask=known, other=0.0)
            place = tl.where((part == 0) | (value > top), position, place)
            top = tl.maximum(value, top)
    mean /= HW
    tl.store(state + C + c, mean, mask=known)
    if MAX:
        tl.store(state + 2 * C + c, top, mask=known)
        tl.store(state + 3 * C + c, place, mask=known)
    return mean, tl.where(known, top, 0.0)


@triton.jit
def _excite(hidden, w2, d, exists, c, known, D):
    """What hidden values add to the logits of channels."""
    both = known[:, None] & exists[None, :]
    out = tl.load(w2 + c[:, None] * D + d[None, :], mask=both, other=0.0).to(tl.float32)
    return tl.sum(out * hidden[None, :], 1)


@triton.jit
def _gate(
    rows, state, b1, w2, b2, c, known, first, C, D, ROWS,
    AVG: tl.constexpr, MAX: tl.constexpr, BD: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    """The gate of channels of one sample after SQUEEZE; the ``first`` program of the sample stores hidden values."""
    logits = tl.load(b2 + c, mask=known, other=0.0).to(tl.float32)
    if AVG and MAX:
        logits *= 2
    for start in range(0, D, BD):
        d = start + tl.arange(0, BD)
        exists = d < D
        bias = tl.load(b1 + d, mask=exists, other=0.0).to(tl.float32)
        hidden = tl.zeros((BD,), tl.float32)
        if AVG:
            of_mean = tl.maximum(_sum_rows(rows, d, exists, ROWS, 2 * D, BR) + bias, 0.0)
            if first:
                tl.store(state + 4 * C + d, of_mean, mask=exists)
            hidden += of_mean
        if MAX:
            of_top = tl.maximum(_sum_rows(rows + D, d, exists, ROWS, 2 * D, BR) + bias, 0.0)
            if first:
                tl.store(state + 4 * C + D + d, of_top, mask=exists)
            hidden += of_top
        logits += _excite(hidden, w2, d, exists, c, known, D)
    return tl.sigmoid(logits)


@triton.jit(do_not_specialize=SIZES)
def excite(
    partial, rows, state, b1, w2, b2, HW, C, D, PARTS, ROWS,
    AVG: tl.constexpr, MAX: tl.constexpr, BC: tl.constexpr, BD: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    """The channel gate, where the pooling has multiplied by the perceptron's first weights."""
    n, block = tl.program_id(0), tl.program_id(1)
    c = block * BC + tl.arange(0, BC)
    known = c < C
    state += n * (4 * C + 2 * D)
    _pooled(partial + n * PARTS * 3 * C, state, c, known, HW, C, PARTS, MAX)
    rows += n * ROWS * 2 * D
    gate = _gate(rows, state, b1, w2, b2, c, known, block == 0, C, D, ROWS, AVG, MAX, BD, BR)
    tl.store(state + c, gate, mask=known)


@triton.jit(do_not_specialize=SIZES)
def perceptron(
    partial, state, w1, b1, w2, b2, HW, C, D, PARTS,
    AVG: tl.constexpr, MAX: tl.constexpr, BC: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """The channel gate of one sample: sigmoid of Σ over poolings of W2 relu(W1 pooled + b1) + b2."""
    n = tl.program_id(0)
    c = tl.arange(0, BC)
    known = c < C
    state += n * (4 * C + 2 * D)
    mean, top = _pooled(partial + n * PARTS * 3 * C, state, c, known, HW, C, PARTS, MAX)
    logits = tl.load(b2 + c, mask=known, other=0.0).to(tl.float32)
    if AVG and MAX:
        logits *= 2
    for start in range(0, D, BD):
        d = start + tl.arange(0, BD)
        exists = d < D
        both = exists[:, None] & known[None, :]
        into = tl.load(w1 + d[:, None] * C + c[None, :], mask=both, other=0.0).to(tl.float32)
        bias = tl.load(b1 + d, mask=exists, other=0.0).to(tl.float32)
        hidden = tl.zeros((BD,), tl.float32)
        if AVG:
            of_mean = tl.maximum(tl.sum(into * mean[None, :], 1) + bias, 0.0)
            tl.store(state + 4 * C + d, of_mean, mask=exists)
            hidden += of_mean
        if MAX:
            of_top = tl.maximum(tl.sum(into * top[None, :], 1) + bias, 0.0)
            tl.store(state + 4 * C + D + d, of_top, mask=exists)
            hidden += of_top
        logits += _excite(hidden, w2, d, exists, c, known, D)
    tl.store(state + c, tl.sigmoid(logits), mask=known)


@triton.jit(do_not_specialize=SIZES)
def multiply(
    x, out, state, partial, rows, b1, w2, b2, amount,
    maps, spread, gamma, beta, running_mean, running_var, batches, moments,
    HW, C, D, SP, SC, STEPS, PARTS, ROWS, M, MOMENTS, momentum, eps,
    AVG: tl.constexpr, MAX: tl.constexpr, EXCITE: tl.constexpr, BLEND: tl.constexpr, SPATIAL: tl.constexpr,
    TRAINING: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr, BD: tl.constexpr, BR: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """The output: x times gates, or times 1 + amount·(gates − 1).

    With EXCITE the channel gate is computed here, as in :func:`excite`. With SPATIAL the norm of the spatial gate is.
    """
    n, block, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    c = block * BC + tl.arange(0, BC)
    known = c < C
    x += n.to(tl.int64) * HW * C
    out += n.to(tl.int64) * HW * C
    state += n * (4 * C + 2 * D)
    if EXCITE:
        rows += n * ROWS * 2 * D
        first = (part == 0) & (block == 0)
        factor = _gate(rows, state, b1, w2, b2, c, known, first, C, D, ROWS, AVG, MAX, BD, BR)
        if part == 0:
            _pooled(partial + n * PARTS * 3 * C, state, c, known, HW, C, PARTS, MAX)
            tl.store(state + c, factor, mask=known)
    else:
        factor = tl.load(state + c, mask=known, other=0.0)
    if SPATIAL:
        maps += n.to(tl.int64) * 4 * HW
        first = (n == 0) & (block == 0) & (part == 0)
        mean, scale, shift = _moments(
            spread, gamma, beta, running_mean, running_var, batches, moments, first, M, MOMENTS, momentum, eps,
            TRAINING, BM,
        )  # fmt: skip
    share = tl.load(amount).to(tl.float32) if BLEND else 1.0
    for i in range(STEPS):
        p = (part * STEPS + i) * BP + tl.arange(0, BP)
        here = p < HW
        inside, at = here[:, None] & known[None, :], p[:, None] * SP + c[None, :] * SC
        value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        gate = factor[None, :]
        if SPATIAL:
            gate = gate * _spatial_gate(maps, p, here, HW, mean, scale, shift)[:, None]
        if BLEND:
            gate = 1 + share * (gate - 1)
        tl.store(out + at, (value * gate).to(out.dtype.element_ty), mask=inside)
