"""Triton kernels of the spatial gate: pooling over channels, a K×K convolution of two maps to one, norm and sigmoid.

What is as large as a map of one channel lies in four maps of float32 a sample, (N, 4, H·W)::

    maximum over channels, mean over channels, channel of the maximum, output of the convolution

and their gradients in three, (N, 3, H·W): of the norm's output, of the maximum, of the mean. The gate is computed from
the convolution's output wherever it is needed, by ``moments`` (4,): mean, 1/deviation, weight/deviation, bias. Tiles
and flags are those of :mod:`.channel_kernels`. MEAN_AT and TAP_STEP are the strides of the convolution's weight, which
may be channels-last.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

SIZES = (
    "M", "HW", "H", "W", "ROW", "STEPS", "PARTS", "BLOCKS", "CHUNKS", "EXTRA", "MEAN_AT", "TAP_STEP", "momentum",
    "eps",
)  # fmt: skip
"""As in :mod:`.channel_kernels`."""


@triton.jit(do_not_specialize=SIZES)
def pool_channels(x, state, maps, HW, C, ROW, SP, SC, BP: tl.constexpr, BC: tl.constexpr):
    """Maximum, mean and first channel of the maximum of x times channel gate, at each of BP positions."""
    n = tl.program_id(1)
    p = tl.program_id(0) * BP + tl.arange(0, BP)
    here = p < HW
    x += n.to(tl.int64) * HW * C
    state += n * ROW
    total, best = tl.zeros((BP,), tl.float32), tl.full((BP,), float("-inf"), tl.float32)
    place = tl.zeros((BP,), tl.int32)
    for start in range(0, C, BC):
        c = start + tl.arange(0, BC)
        known = c < C
        inside = here[:, None] & known[None, :]
        value = tl.load(x + p[:, None] * SP + c[None, :] * SC, mask=inside, other=0.0).to(tl.float32)
        value *= tl.load(state + c, mask=known, other=0.0)[None, :]
        total += tl.sum(value, 1)
        value = tl.where(known[None, :], value, float("-inf"))
        top = tl.max(value, 1)
        first = tl.min(tl.where(value == top[:, None], c[None, :], 2147483647), 1)
        place = tl.where(top > best, first, place)
        best = tl.maximum(top, best)
    to = maps + n.to(tl.int64) * 4 * HW + p
    tl.store(to, best, mask=here)
    tl.store(to + HW, total / C, mask=here)
    tl.store(to + 2 * HW, place.to(tl.float32), mask=here)


@triton.jit(do_not_specialize=SIZES)
def convolve(
    maps, weight, partial, H, W, MEAN_AT, TAP_STEP,
    K: tl.constexpr, TRAINING: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    """The convolution; in training also count, mean and sum of squared deviations of its output, partial (3, parts)."""
    n, HW = tl.program_id(0), H * W
    p = tl.program_id(1) * BP + tl.arange(0, BP)
    here, row, column = p < HW, p // W, p % W
    maps += n.to(tl.int64) * 4 * HW
    total = tl.zeros((BP,), tl.float32)
    for i in range(K):
        y = row + i - K // 2
        line = here & (y >= 0) & (y < H)
        for j in tl.static_range(K):
            z = column + j - K // 2
            inside = line & (z >= 0) & (z < W)
            at = maps + y * W + z
            factor = weight + (i * K + j) * TAP_STEP
            total += tl.load(factor).to(tl.float32) * tl.load(at, mask=inside, other=0.0)
            total += tl.load(factor + MEAN_AT).to(tl.float32) * tl.load(at + HW, mask=inside, other=0.0)
    tl.store(maps + 3 * HW + p, total, mask=here)
    if TRAINING:
        count = tl.sum(here.to(tl.float32), 0)
        mean = tl.sum(tl.where(here, total, 0.0), 0) / count
        spread = tl.sum(tl.where(here, (total - mean) * (total - mean), 0.0), 0)
        parts = tl.num_programs(0) * tl.num_programs(1)
        to = partial + n * tl.num_programs(1) + tl.program_id(1)
        tl.store(to, count)
        tl.store(to + parts, mean)
        tl.store(to + 2 * parts, spread)


@triton.jit
def _moments(
    partial, gamma, beta, running_mean, running_var, batches, moments, first, M, PARTS, momentum, eps,
    TRAINING: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    """Mean, weight/deviation and bias of the norm; the ``first`` program stores them and updates running statistics.

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
        if first:
            old = tl.load(running_mean).to(tl.float32)
            tl.store(running_mean, (old + momentum * (mean - old)).to(running_mean.dtype.element_ty))
            old = tl.load(running_var).to(tl.float32)
            tl.store(running_var, (old + momentum * (spread / (M - 1) - old)).to(running_var.dtype.element_ty))
            tl.store(batches, tl.load(batches) + 1)
    else:
        mean = tl.load(running_mean).to(tl.float32)
        inverse = tl.rsqrt(tl.load(running_var).to(tl.float32) + eps)
    scale, shift = tl.load(gamma).to(tl.float32) * inverse, tl.load(beta).to(tl.float32)
    if first:
        tl.store(moments, mean)
        tl.store(moments + 1, inverse)
        tl.store(moments + 2, scale)
        tl.store(moments + 3, shift)
    return mean, scale, shift


@triton.jit(do_not_specialize=SIZES)
def norm(partial, gamma, beta, running_mean, running_var, batches, moments, M, PARTS, momentum, eps, BR: tl.constexpr):
    """``moments`` of the convolution's output, and new running statistics."""
    _moments(partial, gamma, beta, running_mean, running_var, batches, moments, True, M, PARTS, momentum, eps, True, BR)


@triton.jit
def _spatial_gate(maps, p, here, HW, mean, scale, shift):
    """The spatial gate at positions of one sample."""
    return tl.sigmoid((tl.load(maps + 3 * HW + p, mask=here, other=0.0) - mean) * scale + shift)


@triton.jit(do_not_specialize=SIZES)
def spatial_grad(
    g, x, state, maps, dmaps, moments, amount, partial, HW, C, ROW, SP, SC, STEPS,
    BLEND: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Gradient of the norm's output; partial (3, parts): sums of it, of it times normalised value, of the amount."""
    n, part = tl.program_id(0), tl.program_id(1)
    x += n.to(tl.int64) * HW * C
    g += n.to(tl.int64) * HW * C
    maps += n.to(tl.int64) * 4 * HW
    dmaps += n.to(tl.int64) * 3 * HW
    state += n * ROW
    share = tl.load(amount).to(tl.float32) if BLEND else 1.0
    mean, inverse, scale, shift = tl.load(moments), tl.load(moments + 1), tl.load(moments + 2), tl.load(moments + 3)
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
            if BLEND:
                plain += product
            gated += product * tl.load(state + c, mask=known, other=0.0)[None, :]
        gate = _spatial_gate(maps, p, here, HW, mean, scale, shift)
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
def convolution_grad(
    dmaps, maps, weight, taps, partial, moments, dgamma, dbeta, damount,
    M, H, W, MEAN_AT, TAP_STEP, STEPS, BLOCKS, CHUNKS, EXTRA, PARTS,
    K: tl.constexpr, WEIGHT: tl.constexpr, TRAINING: tl.constexpr, BLEND: tl.constexpr,
    BP: tl.constexpr, BT: tl.constexpr, BQ: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    """Gradients of the maximum and the mean over channels; with WEIGHT, the first EXTRA programs compute that of it.

    The first program stores those of the norm's parameters and, with BLEND, of the amount. BLOCKS of positions follow
    each other for each sample, and CHUNKS where the gradient of the weight is computed.
    """
    program = tl.program_id(0)
    # The gradient of the convolution's output is that of the norm's·scale − offset − (output − mean)·slope.
    mean, scale = tl.load(moments), tl.load(moments + 2)
    of_beta, of_gamma, of_amount = _norm_grad(partial, PARTS, BLEND, BR)
    offset, slope = of_beta / M * scale, of_gamma / M * scale * tl.load(moments + 1)
    if program == 0:
        tl.store(dbeta, of_beta.to(dbeta.dtype.element_ty))
        tl.store(dgamma, of_gamma.to(dgamma.dtype.element_ty))
        if BLEND:
            tl.store(damount, of_amount.to(damount.dtype.element_ty))
    program -= EXTRA
    if program >= 0:
        n = (program // BLOCKS).to(tl.int64)
        _pair_grad(
            dmaps + n * 3 * H * W, maps + n * 4 * H * W, weight, program % BLOCKS, H, W, scale, offset, mean, slope,
            MEAN_AT, TAP_STEP, K, TRAINING, BP,
        )  # fmt: skip
    elif WEIGHT:
        chunk = program + EXTRA
        n = (chunk // CHUNKS).to(tl.int64)
        _weight_grad(
            dmaps + n * 3 * H * W, maps + n * 4 * H * W, taps + chunk * 2 * K * K, chunk % CHUNKS, H, W,
            scale, offset, mean, slope, MEAN_AT, TAP_STEP, STEPS, K, TRAINING, BT, BQ,
        )  # fmt: skip


@triton.jit
def _norm_grad(partial, PARTS, BLEND: tl.constexpr, BR: tl.constexpr):
    """Gradients of the norm's bias and weight and of the amount."""
    bias, slope, blend = tl.zeros((BR,), tl.float32), tl.zeros((BR,), tl.float32), tl.zeros((BR,), tl.float32)
    for start in range(0, PARTS, BR):
        r = start + tl.arange(0, BR)
        bias += tl.load(partial + r, mask=r < PARTS, other=0.0)
        slope += tl.load(partial + PARTS + r, mask=r < PARTS, other=0.0)
        if BLEND:
            blend += tl.load(partial + 2 * PARTS + r, mask=r < PARTS, other=0.0)
    return tl.sum(bias, 0), tl.sum(slope, 0), tl.sum(blend, 0)


@triton.jit
def _output_grad(dmaps, maps, at, inside, HW, scale, offset, mean, slope, TRAINING: tl.constexpr):
    """Gradient of the convolution's output."""
    gradient = tl.load(dmaps + at, mask=inside, other=0.0) * scale
    if TRAINING:
        output = tl.load(maps + 3 * HW + at, mask=inside, other=0.0)
        gradient = tl.where(inside, gradient - offset - (output - mean) * slope, 0.0)
    return gradient


@triton.jit
def _pair_grad(
    dmaps, maps, weight, block, H, W, scale, offset, mean, slope, MEAN_AT, TAP_STEP,
    K: tl.constexpr, TRAINING: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    """Gradients of the maximum and the mean at BP positions of one sample."""
    HW = H * W
    p = block * BP + tl.arange(0, BP)
    here, row, column = p < HW, p // W, p % W
    of_max, of_mean = tl.zeros((BP,), tl.float32), tl.zeros((BP,), tl.float32)
    for i in range(K):
        y = row - i + K // 2
        line = here & (y >= 0) & (y < H)
        for j in tl.static_range(K):
            z = column - j + K // 2
            inside = line & (z >= 0) & (z < W)
            gradient = _output_grad(dmaps, maps, y * W + z, inside, HW, scale, offset, mean, slope, TRAINING)
            factor = weight + (i * K + j) * TAP_STEP
            of_max += tl.load(factor).to(tl.float32) * gradient
            of_mean += tl.load(factor + MEAN_AT).to(tl.float32) * gradient
    tl.store(dmaps + HW + p, of_max, mask=here)
    tl.store(dmaps + 2 * HW + p, of_mean, mask=here)


@triton.jit
def _weight_grad(
    dmaps, maps, taps, chunk, H, W, scale, offset, mean, slope, MEAN_AT, TAP_STEP, STEPS,
    K: tl.constexpr, TRAINING: tl.constexpr, BT: tl.constexpr, BQ: tl.constexpr,
):  # fmt: skip
    """Gradient of the weight from STEPS tiles of BQ positions of one sample: ``taps``, laid out as the weight is."""
    HW = H * W
    tap = tl.arange(0, BT)
    used, source = tap < 2 * K * K, tap // (K * K)
    down, right = tap % (K * K) // K - K // 2, tap % K - K // 2
    shift = source * HW + down * W + right
    total = tl.zeros((BT, BQ), tl.float32)
    for i in range(STEPS):
        p = (chunk * STEPS + i) * BQ + tl.arange(0, BQ)
        here = p < HW
        gradient = _output_grad(dmaps, maps, p, here, HW, scale, offset, mean, slope, TRAINING)
        y, z = (p // W)[None, :] + down[:, None], (p % W)[None, :] + right[:, None]
        inside = here[None, :] & used[:, None] & (y >= 0) & (y < H) & (z >= 0) & (z < W)
        value = tl.load(maps + shift[:, None] + p[None, :], mask=inside, other=0.0)
        total += value * gradient[None, :]
    to = source * MEAN_AT + tap % (K * K) * TAP_STEP
    tl.store(taps + to, tl.sum(total, 1), mask=used)
