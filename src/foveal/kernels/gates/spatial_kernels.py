"""Triton kernels of the spatial gate: pooling over channels, a K×K convolution of two maps to one, norm and sigmoid.

What is as large as a map of one channel lies in five maps of float32 a sample, (N, 5, H·W)::

    maximum over channels, mean over channels, channel of the maximum, output of the convolution, gate

and their gradients in three, (N, 3, H·W): of the convolution's output, of the maximum, of the mean. Tiles and flags are
those of :mod:`.channel_kernels`. The convolution is also an operator of its own: its kernels take the distance between
samples of each argument, OUT_AT, where the first of the output is, and MEAN_AT and TAP_STEP, the strides of the weight,
which may be channels-last.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

SIZES = (
    "M", "HW", "H", "W", "ROW", "STEPS", "PARTS", "PAIR_STEP", "OUT_STEP", "G_STEP", "OUT_AT", "MEAN_AT", "TAP_STEP",
    "momentum", "eps",
)  # fmt: skip
"""As in :mod:`.channel_kernels`."""


@triton.jit(do_not_specialize=SIZES)
def pool_channels(x, state, maps, HW, C, ROW, SP, SC, BP: tl.constexpr, BC: tl.constexpr):
    """Maximum, mean and first channel of the maximum of x times channel gate, at each of BP positions."""
    n = tl.program_id(0)
    p = tl.program_id(1) * BP + tl.arange(0, BP)
    here = p < HW
    x += n.to(tl.int64) * HW * C
    state += n * ROW
    total = tl.zeros((BP, BC), tl.float32)
    best = tl.full((BP, BC), float("-inf"), tl.float32)
    place = tl.zeros((BP, BC), tl.int32) + tl.arange(0, BC)[None, :]
    for start in range(0, C, BC):
        c = start + tl.arange(0, BC)
        known = c < C
        inside = here[:, None] & known[None, :]
        value = tl.load(x + p[:, None] * SP + c[None, :] * SC, mask=inside, other=0.0).to(tl.float32)
        value *= tl.load(state + c, mask=known, other=0.0)[None, :]
        total += value
        better = inside & (value > best)
        best = tl.where(better, value, best)
        place = tl.where(better, c[None, :], place)
    top = tl.max(best, 1)
    first = tl.min(tl.where(best == top[:, None], place, 2147483647), 1)
    to = maps + n.to(tl.int64) * 5 * HW + p
    tl.store(to, top, mask=here)
    tl.store(to + HW, tl.sum(total, 1) / C, mask=here)
    tl.store(to + 2 * HW, first.to(tl.float32), mask=here)


@triton.jit(do_not_specialize=SIZES)
def convolve(
    pair, weight, out, partial, H, W, PAIR_STEP, OUT_STEP, OUT_AT, MEAN_AT, TAP_STEP,
    K: tl.constexpr, TRAINING: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    """The convolution; in training also count, mean and sum of squared deviations of its output, partial (3, parts)."""
    n, HW = tl.program_id(0), H * W
    p = tl.program_id(1) * BP + tl.arange(0, BP)
    here, row, column = p < HW, p // W, p % W
    pair += n.to(tl.int64) * PAIR_STEP
    total = tl.zeros((BP,), tl.float32)
    for tap in range(K * K):
        y, z = row + tap // K - K // 2, column + tap % K - K // 2
        inside = here & (y >= 0) & (y < H) & (z >= 0) & (z < W)
        at = pair + y * W + z
        factor = weight + tap * TAP_STEP
        total += tl.load(factor).to(tl.float32) * tl.load(at, mask=inside, other=0.0).to(tl.float32)
        value = tl.load(at + HW, mask=inside, other=0.0).to(tl.float32)
        total += tl.load(factor + MEAN_AT).to(tl.float32) * value
    tl.store(out + n.to(tl.int64) * OUT_STEP + OUT_AT + p, total, mask=here)
    if TRAINING:
        count = tl.sum(here.to(tl.float32), 0)
        mean = tl.sum(tl.where(here, total, 0.0), 0) / count
        spread = tl.sum(tl.where(here, (total - mean) * (total - mean), 0.0), 0)
        parts = tl.num_programs(0) * tl.num_programs(1)
        to = partial + n * tl.num_programs(1) + tl.program_id(1)
        tl.store(to, count)
        tl.store(to + parts, mean)
        tl.store(to + 2 * parts, spread)


@triton.jit(do_not_specialize=SIZES)
def normalise(
    maps, partial, gamma, beta, running_mean, running_var, batches, moments, M, HW, PARTS, momentum, eps,
    TRAINING: tl.constexpr, BP: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    """Batch norm and sigmoid: the gate. The first program stores mean and 1/deviation, and updates running statistics.

    M is N·H·W, the number of values.
    """
    if TRAINING:
        total = tl.zeros((BR,), tl.float32)
        for start in range(0, PARTS, BR):
            r = start + tl.arange(0, BR)
            count = tl.load(partial + r, mask=r < PARTS, other=0.0)
            total += count * tl.load(partial + PARTS + r, mask=r < PARTS, other=0.0)
        mean = tl.sum(total, 0) / M
        squares = tl.zeros((BR,), tl.float32)
        for start in range(0, PARTS, BR):
            r = start + tl.arange(0, BR)
            count = tl.load(partial + r, mask=r < PARTS, other=0.0)
            apart = tl.load(partial + PARTS + r, mask=r < PARTS, other=0.0) - mean
            squares += tl.load(partial + 2 * PARTS + r, mask=r < PARTS, other=0.0) + count * apart * apart
        spread = tl.sum(squares, 0)
        inverse = tl.rsqrt(spread / M + eps)
        if tl.program_id(0) == 0:
            old = tl.load(running_mean).to(tl.float32)
            tl.store(running_mean, (old + momentum * (mean - old)).to(running_mean.dtype.element_ty))
            old = tl.load(running_var).to(tl.float32)
            tl.store(running_var, (old + momentum * (spread / (M - 1) - old)).to(running_var.dtype.element_ty))
            tl.store(batches, tl.load(batches) + 1)
    else:
        mean = tl.load(running_mean).to(tl.float32)
        inverse = tl.rsqrt(tl.load(running_var).to(tl.float32) + eps)
    if tl.program_id(0) == 0:
        tl.store(moments, mean)
        tl.store(moments + 1, inverse)
    q = tl.program_id(0).to(tl.int64) * BP + tl.arange(0, BP)
    here = q < M
    at = maps + q // HW * 5 * HW + q % HW
    scale = tl.load(gamma).to(tl.float32) * inverse
    value = (tl.load(at + 3 * HW, mask=here, other=0.0) - mean) * scale + tl.load(beta).to(tl.float32)
    tl.store(at + 4 * HW, tl.sigmoid(value), mask=here)


@triton.jit(do_not_specialize=SIZES)
def spatial_grad(
    g, x, state, maps, dmaps, moments, amount, partial, HW, C, ROW, SP, SC, STEPS,
    BLEND: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Gradient of the norm's output; partial (3, parts): sums of it, of it times normalised value, of the amount."""
    n, part = tl.program_id(0), tl.program_id(1)
    x += n.to(tl.int64) * HW * C
    g += n.to(tl.int64) * HW * C
    maps += n.to(tl.int64) * 5 * HW
    dmaps += n.to(tl.int64) * 3 * HW
    state += n * ROW
    share = tl.load(amount).to(tl.float32) if BLEND else 1.0
    mean, inverse = tl.load(moments), tl.load(moments + 1)
    bias, slope, blend = tl.zeros((BP,), tl.float32), tl.zeros((BP,), tl.float32), tl.zeros((BP,), tl.float32)
    for i in range(STEPS):
        p = (part * STEPS + i) * BP + tl.arange(0, BP)
        here = p < HW
        gated, plain = tl.zeros((BP, BC), tl.float32), tl.zeros((BP, BC), tl.float32)
        for start in range(0, C, BC):
            c = start + tl.arange(0, BC)
            known = c < C
            inside, at = here[:, None] & known[None, :], p[:, None] * SP + c[None, :] * SC
            product = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
            product *= tl.load(g + at, mask=inside, other=0.0).to(tl.float32)
            plain += product
            gated += product * tl.load(state + c, mask=known, other=0.0)[None, :]
        gate = tl.load(maps + 4 * HW + p, mask=here, other=0.0)
        unit = (tl.load(maps + 3 * HW + p, mask=here, other=0.0) - mean) * inverse
        of_gate = tl.sum(gated, 1)
        of_norm = share * of_gate * gate * (1 - gate)
        tl.store(dmaps + p, of_norm, mask=here)
        bias += of_norm
        slope += tl.where(here, of_norm * unit, 0.0)
        if BLEND:
            blend += gate * of_gate - tl.sum(plain, 1)
    parts = tl.num_programs(0) * tl.num_programs(1)
    to = partial + n * tl.num_programs(1) + part
    tl.store(to, tl.sum(bias, 0))
    tl.store(to + parts, tl.sum(slope, 0))
    if BLEND:
        tl.store(to + 2 * parts, tl.sum(blend, 0))


@triton.jit(do_not_specialize=SIZES)
def norm_grad(
    maps, dmaps, partial, gamma, moments, dgamma, dbeta, damount, M, HW, PARTS,
    TRAINING: tl.constexpr, BLEND: tl.constexpr, BP: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    """Gradient of the convolution's output, in place of that of the norm's; the first program: of norm and amount."""
    bias, slope, blend = tl.zeros((BR,), tl.float32), tl.zeros((BR,), tl.float32), tl.zeros((BR,), tl.float32)
    for start in range(0, PARTS, BR):
        r = start + tl.arange(0, BR)
        bias += tl.load(partial + r, mask=r < PARTS, other=0.0)
        slope += tl.load(partial + PARTS + r, mask=r < PARTS, other=0.0)
        if BLEND:
            blend += tl.load(partial + 2 * PARTS + r, mask=r < PARTS, other=0.0)
    of_beta, of_gamma = tl.sum(bias, 0), tl.sum(slope, 0)
    if tl.program_id(0) == 0:
        tl.store(dbeta, of_beta.to(dbeta.dtype.element_ty))
        tl.store(dgamma, of_gamma.to(dgamma.dtype.element_ty))
        if BLEND:
            tl.store(damount, tl.sum(blend, 0).to(damount.dtype.element_ty))
    q = tl.program_id(0).to(tl.int64) * BP + tl.arange(0, BP)
    here, n, p = q < M, q // HW, q % HW
    mean, inverse = tl.load(moments), tl.load(moments + 1)
    at = dmaps + n * 3 * HW + p
    value = tl.load(at, mask=here, other=0.0)
    if TRAINING:
        unit = (tl.load(maps + (n * 5 + 3) * HW + p, mask=here, other=0.0) - mean) * inverse
        value -= of_beta / M + unit * (of_gamma / M)
    tl.store(at, value * tl.load(gamma).to(tl.float32) * inverse, mask=here)


@triton.jit(do_not_specialize=SIZES)
def convolution_input_grad(
    g, weight, dpair, H, W, G_STEP, PAIR_STEP, OUT_AT, MEAN_AT, TAP_STEP, K: tl.constexpr, BP: tl.constexpr
):
    """Gradients of the maximum and the mean over channels."""
    n, HW = tl.program_id(0), H * W
    p = tl.program_id(1) * BP + tl.arange(0, BP)
    here, row, column = p < HW, p // W, p % W
    g += n.to(tl.int64) * G_STEP
    of_max, of_mean = tl.zeros((BP,), tl.float32), tl.zeros((BP,), tl.float32)
    for tap in range(K * K):
        y, z = row - tap // K + K // 2, column - tap % K + K // 2
        inside = here & (y >= 0) & (y < H) & (z >= 0) & (z < W)
        gradient = tl.load(g + y * W + z, mask=inside, other=0.0)
        factor = weight + tap * TAP_STEP
        of_max += tl.load(factor).to(tl.float32) * gradient
        of_mean += tl.load(factor + MEAN_AT).to(tl.float32) * gradient
    to = dpair + n.to(tl.int64) * PAIR_STEP + OUT_AT + p
    tl.store(to, of_max.to(dpair.dtype.element_ty), mask=here)
    tl.store(to + HW, of_mean.to(dpair.dtype.element_ty), mask=here)


@triton.jit(do_not_specialize=SIZES)
def convolution_weight_grad(
    pair, g, partial, M, H, W, PAIR_STEP, G_STEP, MEAN_AT, TAP_STEP, STEPS,
    K: tl.constexpr, BP: tl.constexpr, BT: tl.constexpr,
):  # fmt: skip
    """Gradient of the weight from STEPS tiles of BP of the M = N·H·W positions: a row of partial, laid out as it is."""
    HW = H * W
    tap = tl.arange(0, BT)
    used, source = tap < 2 * K * K, tap // (K * K)
    down, right = tap % (K * K) // K - K // 2, tap % K - K // 2
    total = tl.zeros((BP, BT), tl.float32)
    for i in range(STEPS):
        q = (tl.program_id(0).to(tl.int64) * STEPS + i) * BP + tl.arange(0, BP)
        here, n, p = q < M, q // HW, (q % HW).to(tl.int32)
        gradient = tl.load(g + n * G_STEP + p, mask=here, other=0.0)
        y, z = (p // W)[:, None] + down[None, :], (p % W)[:, None] + right[None, :]
        inside = here[:, None] & used[None, :] & (y >= 0) & (y < H) & (z >= 0) & (z < W)
        at = pair + (n * PAIR_STEP)[:, None] + source[None, :] * HW + y * W + z
        total += tl.load(at, mask=inside, other=0.0).to(tl.float32) * gradient[:, None]
    at = source * MEAN_AT + tap % (K * K) * TAP_STEP
    tl.store(partial + tl.program_id(0) * 2 * K * K + at, tl.sum(total, 0), mask=used)
