"""Triton kernels of the channel gate, and of the multiplication of a map by channel and spatial gates.

A map x (N, C, H, W) is read in tiles of BP positions and BC channels; the step from one position to the next is SP and
that from one channel to the next SC, so that both memory layouts are served. All arithmetic is in float32; the output
is rounded once. Sums over positions come in PARTS, which are added in a fixed order: results are deterministic.

What is small lies in one row of float32 a sample (numbers that are indices are exact below 2²⁴)::

    state:     gate (C), mean (C), maximum (C), position of the maximum (C), hidden of the mean (D), of the maximum (D)
    gradient:  logits (C), mean (C) over H·W, maximum (C), amount (1), –, hidden of the mean (D), of the maximum (D)

The maps of the spatial gate are described in :mod:`.spatial_kernels`. Flags: AVG and MAX say which poolings there are,
BLEND that the multiplier is 1 + amount·(gate − 1), SPATIAL that there is a spatial gate.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

SIZES = ("N", "HW", "D", "STEPS", "PARTS")
"""Arguments whose values Triton does not compile kernels of their own for: that would only slow the first step."""


@triton.jit(do_not_specialize=SIZES)
def pool(x, partial, HW, C, SP, SC, STEPS, MAX: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr):
    """Sum, maximum and its first position of a part of the positions: partial (N, PARTS, 3, C)."""
    n, part = tl.program_id(0), tl.program_id(2)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
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
    to = partial + (n * tl.num_programs(2) + part) * 3 * C + c
    tl.store(to, tl.sum(total, 0), mask=known)
    if MAX:
        top = tl.max(best, 0)
        tl.store(to + C, top, mask=known)
        earliest = tl.min(tl.where(best == top[None, :], place, 2147483647), 0)
        tl.store(to + 2 * C, earliest.to(tl.float32), mask=known)


@triton.jit(do_not_specialize=SIZES)
def perceptron(
    partial, state, w1, b1, w2, b2, HW, C, D, PARTS,
    AVG: tl.constexpr, MAX: tl.constexpr, BC: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """The channel gate of one sample: sigmoid of Σ over poolings of W2 relu(W1 pooled + b1) + b2."""
    n = tl.program_id(0)
    c = tl.arange(0, BC)
    known = c < C
    partial += n * PARTS * 3 * C
    state += n * (4 * C + 2 * D)
    mean, place = tl.zeros((BC,), tl.float32), tl.zeros((BC,), tl.float32)
    top = tl.full((BC,), float("-inf"), tl.float32)
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
            of_top = tl.maximum(tl.sum(into * tl.where(known, top, 0.0)[None, :], 1) + bias, 0.0)
            tl.store(state + 4 * C + D + d, of_top, mask=exists)
            hidden += of_top
        out = tl.load(w2 + c[None, :] * D + d[:, None], mask=both, other=0.0).to(tl.float32)
        logits += tl.sum(out * hidden[:, None], 0)
    tl.store(state + c, tl.sigmoid(logits), mask=known)


@triton.jit(do_not_specialize=SIZES)
def multiply(
    x, out, state, maps, amount, HW, C, D, SP, SC, STEPS,
    BLEND: tl.constexpr, SPATIAL: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """The output: x times gates, or times 1 + amount·(gates − 1)."""
    n, part = tl.program_id(0), tl.program_id(2)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    known = c < C
    x += n.to(tl.int64) * HW * C
    out += n.to(tl.int64) * HW * C
    maps += n.to(tl.int64) * 5 * HW
    factor = tl.load(state + n * (4 * C + 2 * D) + c, mask=known, other=0.0)[None, :]
    share = tl.load(amount).to(tl.float32) if BLEND else 1.0
    for i in range(STEPS):
        p = (part * STEPS + i) * BP + tl.arange(0, BP)
        here = p < HW
        inside, at = here[:, None] & known[None, :], p[:, None] * SP + c[None, :] * SC
        value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        gate = factor
        if SPATIAL:
            gate = factor * tl.load(maps + 4 * HW + p, mask=here, other=0.0)[:, None]
        if BLEND:
            gate = 1 + share * (gate - 1)
        tl.store(out + at, (value * gate).to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=SIZES)
def gate_grad(
    g, x, maps, dmaps, amount, partial, HW, C, SP, SC, STEPS,
    BLEND: tl.constexpr, SPATIAL: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Gradient of the multiplier, or with a spatial gate of the channel gate: sums of parts, partial (N, PARTS, C)."""
    n, part = tl.program_id(0), tl.program_id(2)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    known = c < C
    x += n.to(tl.int64) * HW * C
    g += n.to(tl.int64) * HW * C
    maps += n.to(tl.int64) * 5 * HW
    dmaps += n.to(tl.int64) * 3 * HW
    share = tl.load(amount).to(tl.float32) if BLEND else 1.0
    total = tl.zeros((BP, BC), tl.float32)
    for i in range(STEPS):
        p = (part * STEPS + i) * BP + tl.arange(0, BP)
        here = p < HW
        inside, at = here[:, None] & known[None, :], p[:, None] * SP + c[None, :] * SC
        value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        gradient = tl.load(g + at, mask=inside, other=0.0).to(tl.float32)
        if SPATIAL:
            spatial = tl.load(maps + 4 * HW + p, mask=here, other=0.0)
            gradient = gradient * (share * spatial)[:, None] + _attended_grad(maps, dmaps, p, here, c, HW, C)
        total += gradient * value
    tl.store(partial + (n * tl.num_programs(2) + part) * C + c, tl.sum(total, 0), mask=known)


@triton.jit
def _attended_grad(maps, dmaps, p, here, c, HW, C):
    """What the spatial gate's pooling over channels hands back to x times channel gate, (BP, BC)."""
    winner = tl.load(maps + 2 * HW + p, mask=here, other=-1.0).to(tl.int32)
    of_max = tl.load(dmaps + HW + p, mask=here, other=0.0)
    of_mean = tl.load(dmaps + 2 * HW + p, mask=here, other=0.0) / C
    return of_mean[:, None] + tl.where(winner[:, None] == c[None, :], of_max[:, None], 0.0)


@triton.jit(do_not_specialize=SIZES)
def perceptron_grad(
    partial, state, grads, w1, w2, amount, HW, C, D, PARTS,
    AVG: tl.constexpr, MAX: tl.constexpr, BLEND: tl.constexpr, SPATIAL: tl.constexpr,
    BC: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Gradients of one sample's logits, hidden values and poolings: a row of ``grads``."""
    n = tl.program_id(0)
    c = tl.arange(0, BC)
    known = c < C
    partial += n * PARTS * C
    state += n * (4 * C + 2 * D)
    grads += n * (4 * C + 2 * D)
    total = tl.zeros((BC,), tl.float32)
    for part in range(PARTS):
        total += tl.load(partial + part * C + c, mask=known, other=0.0)
    gate = tl.load(state + c, mask=known, other=0.0)
    if BLEND and not SPATIAL:
        tl.store(grads + 3 * C, tl.sum(tl.where(known, total * (gate - 1), 0.0), 0))
        total *= tl.load(amount).to(tl.float32)
    logits = total * gate * (1 - gate)
    tl.store(grads + c, logits, mask=known)
    of_mean, of_top = tl.zeros((BC,), tl.float32), tl.zeros((BC,), tl.float32)
    for start in range(0, D, BD):
        d = start + tl.arange(0, BD)
        exists = d < D
        both = exists[:, None] & known[None, :]
        out = tl.load(w2 + c[None, :] * D + d[:, None], mask=both, other=0.0).to(tl.float32)
        hidden = tl.sum(out * logits[None, :], 1)
        into = tl.load(w1 + d[:, None] * C + c[None, :], mask=both, other=0.0).to(tl.float32)
        if AVG:
            alive = tl.load(state + 4 * C + d, mask=exists, other=0.0) > 0
            part_mean = tl.where(alive, hidden, 0.0)
            tl.store(grads + 4 * C + d, part_mean, mask=exists)
            of_mean += tl.sum(into * part_mean[:, None], 0)
        if MAX:
            alive = tl.load(state + 4 * C + D + d, mask=exists, other=0.0) > 0
            part_top = tl.where(alive, hidden, 0.0)
            tl.store(grads + 4 * C + D + d, part_top, mask=exists)
            of_top += tl.sum(into * part_top[:, None], 0)
    if AVG:
        tl.store(grads + C + c, of_mean / HW, mask=known)
    if MAX:
        tl.store(grads + 2 * C + c, of_top, mask=known)


@triton.jit(do_not_specialize=SIZES)
def input_grad(
    g, dx, state, grads, maps, dmaps, amount, HW, C, D, SP, SC, STEPS,
    AVG: tl.constexpr, MAX: tl.constexpr, BLEND: tl.constexpr, SPATIAL: tl.constexpr,
    BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Gradient of x."""
    n, part = tl.program_id(0), tl.program_id(2)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    known = c < C
    g += n.to(tl.int64) * HW * C
    dx += n.to(tl.int64) * HW * C
    maps += n.to(tl.int64) * 5 * HW
    dmaps += n.to(tl.int64) * 3 * HW
    state += n * (4 * C + 2 * D)
    grads += n * (4 * C + 2 * D)
    factor = tl.load(state + c, mask=known, other=0.0)[None, :]
    share = tl.load(amount).to(tl.float32) if BLEND else 1.0
    if AVG:
        of_mean = tl.load(grads + C + c, mask=known, other=0.0)[None, :]
    if MAX:
        of_top = tl.load(grads + 2 * C + c, mask=known, other=0.0)[None, :]
        place = tl.load(state + 3 * C + c, mask=known, other=-1.0).to(tl.int32)[None, :]
    for i in range(STEPS):
        p = (part * STEPS + i) * BP + tl.arange(0, BP)
        here = p < HW
        inside, at = here[:, None] & known[None, :], p[:, None] * SP + c[None, :] * SC
        gate = factor
        if SPATIAL:
            gate = factor * tl.load(maps + 4 * HW + p, mask=here, other=0.0)[:, None]
        if BLEND:
            gate = 1 + share * (gate - 1)
        total = tl.load(g + at, mask=inside, other=0.0).to(tl.float32) * gate
        if SPATIAL:
            total += factor * _attended_grad(maps, dmaps, p, here, c, HW, C)
        if AVG:
            total += of_mean
        if MAX:
            total += tl.where(place == p[:, None], of_top, 0.0)
        tl.store(dx + at, total.to(dx.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=SIZES)
def parameter_grad(
    state, grads, dw1, db1, dw2, db2, damount, N, C, D,
    AVG: tl.constexpr, MAX: tl.constexpr, BLEND: tl.constexpr,
    BN: tl.constexpr, BC: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Gradients of the perceptron's weights and biases and, with BLEND, of the amount: sums over the samples."""
    c, d = tl.program_id(0) * BC + tl.arange(0, BC), tl.program_id(1) * BD + tl.arange(0, BD)
    known, exists = c < C, d < D
    out, into = tl.zeros((BC, BD), tl.float32), tl.zeros((BD, BC), tl.float32)
    bias_out, bias_into = tl.zeros((BC,), tl.float32), tl.zeros((BD,), tl.float32)
    share = tl.zeros((BN,), tl.float32)
    for start in range(0, N, BN):
        n = start + tl.arange(0, BN)
        real = n < N
        wide, narrow = real[:, None] & known[None, :], real[:, None] & exists[None, :]
        row = n * (4 * C + 2 * D)
        of_c, of_d = row[:, None] + c[None, :], row[:, None] + 4 * C + d[None, :]
        logits = tl.load(grads + of_c, mask=wide, other=0.0)
        hidden = tl.zeros((BN, BD), tl.float32)
        if AVG:
            hidden += tl.load(state + of_d, mask=narrow, other=0.0)
            grad = tl.load(grads + of_d, mask=narrow, other=0.0)
            pooled = tl.load(state + C + of_c, mask=wide, other=0.0)
            into = tl.dot(tl.trans(grad), pooled, into, input_precision="ieee")
            bias_into += tl.sum(grad, 0)
        if MAX:
            hidden += tl.load(state + D + of_d, mask=narrow, other=0.0)
            grad = tl.load(grads + D + of_d, mask=narrow, other=0.0)
            pooled = tl.load(state + 2 * C + of_c, mask=wide, other=0.0)
            into = tl.dot(tl.trans(grad), pooled, into, input_precision="ieee")
            bias_into += tl.sum(grad, 0)
        out = tl.dot(tl.trans(logits), hidden, out, input_precision="ieee")
        bias_out += tl.sum(logits, 0)
        if BLEND:
            share += tl.load(grads + row + 3 * C, mask=real, other=0.0)
    if AVG and MAX:
        bias_out *= 2
    tl.store(dw2 + c[:, None] * D + d[None, :], out.to(dw2.dtype.element_ty), mask=known[:, None] & exists[None, :])
    tl.store(dw1 + d[:, None] * C + c[None, :], into.to(dw1.dtype.element_ty), mask=exists[:, None] & known[None, :])
    if tl.program_id(1) == 0:
        tl.store(db2 + c, bias_out.to(db2.dtype.element_ty), mask=known)
    if tl.program_id(0) == 0:
        tl.store(db1 + d, bias_into.to(db1.dtype.element_ty), mask=exists)
        if BLEND and tl.program_id(1) == 0:
            tl.store(damount, tl.sum(share, 0).to(damount.dtype.element_ty))
