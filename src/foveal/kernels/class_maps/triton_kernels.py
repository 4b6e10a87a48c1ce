"""Triton kernels of class attention maps, the losses on them, and the derivatives of these.

Maps are small, so that a program has a whole map in registers. Sizes, with P true classes of an image::

    features, gradient      (N, C, S) in any layout: S positions
    weights                 (K, N, C): α of each of K classes; K = P + 1 with the confusing class, which is the last
    maps                    (N, K, S)
    slopes of separability  (N, K, S), of consistency (N, P, S): derivative of an image's loss in its maps before ReLU
    table                   (6, N): losses of images, three terms, then 1 for the images that count
    rates                   (3): one over the number of images that count
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def choice_kernel(logits, target, classes, known, step, C, BLOCK: tl.constexpr):
    """A program for every image: its true class, 0 if unknown, and the best-scoring other one."""
    n, c = tl.program_id(0), tl.arange(0, BLOCK)
    label = tl.load(target + n).to(tl.int64)
    true = tl.maximum(label, 0)
    scores = tl.load(logits + n * step + c, mask=c < C, other=0.0).to(tl.float32)
    scores = tl.where(scores == scores, scores, 0.0)  # NaN counts as 0
    scores = tl.minimum(tl.maximum(scores, -3e38), 3e38)
    rival = tl.argmax(tl.where((c < C) & (c != true), scores, -float("inf")), 0)
    tl.store(classes + 2 * n, true)
    tl.store(classes + 2 * n + 1, rival.to(tl.int64))
    tl.store(known + n, label >= 0)


@triton.jit
def _map(
    features, gradient, weights, maps, n, k, N, K, fn, fc, fp, gn, gc, gp,
    C: tl.constexpr, S: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_S: tl.constexpr, POSITIVE: tl.constexpr,
):  # fmt: skip
    """Weights and map of class ``k`` of image ``n``; steps ``fn``, ``fc``, ``fp`` of N, C and S in memory."""
    s = tl.arange(0, BLOCK_S)
    total = tl.zeros([BLOCK_C, BLOCK_S], tl.float32)
    wrong = tl.zeros([BLOCK_C], tl.int32)
    for first in range(0, C, BLOCK_C):
        c = first + tl.arange(0, BLOCK_C)
        inside = (c < C)[:, None] & (s < S)[None, :]
        g = tl.load(gradient + n * gn + c[:, None] * gc + s[None, :] * gp, mask=inside, other=0.0).to(tl.float32)
        if POSITIVE:
            g = tl.where(g <= 0, 0.0, g)  # NaN stays
        weight = tl.sum(g, 1) / S
        wrong += tl.where(tl.abs(weight) < float("inf"), 0, 1)
        tl.store(weights + (k * N + n) * C + c, weight, mask=c < C)
        f = tl.load(features + n * fn + c[:, None] * fc + s[None, :] * fp, mask=inside, other=0.0).to(tl.float32)
        total += weight[:, None] * f
    overflow = tl.sum(wrong, 0) > 0
    values = tl.sum(total, 0)
    values = tl.where(overflow | (values <= 0), 0.0, values)  # NaN stays
    tl.store(maps + (n * K + k) * S + s, values, mask=s < S)
    if overflow:
        tl.debug_barrier()
        for first in range(0, C, BLOCK_C):
            c = first + tl.arange(0, BLOCK_C)
            tl.store(weights + (k * N + n) * C + c, tl.zeros([BLOCK_C], tl.float32), mask=c < C)


@triton.jit(do_not_specialize=["k"])
def maps_kernel(
    features0, gradient0, weights0, maps0, features1, gradient1, weights1, maps1, k, N, K,
    fn0, fc0, fp0, gn0, gc0, gp0, fn1, fc1, fp1, gn1, gc1, gp1,
    C0: tl.constexpr, S0: tl.constexpr, BLOCK_C0: tl.constexpr, BLOCK_S0: tl.constexpr,
    C1: tl.constexpr, S1: tl.constexpr, BLOCK_C1: tl.constexpr, BLOCK_S1: tl.constexpr, POSITIVE: tl.constexpr,
):  # fmt: skip
    """A program for every image and layer: weights and map of class ``k``."""
    n = tl.program_id(0)
    if tl.program_id(1) == 0:
        _map(features0, gradient0, weights0, maps0, n, k, N, K, fn0, fc0, fp0, gn0, gc0, gp0,
             C0, S0, BLOCK_C0, BLOCK_S0, POSITIVE)  # fmt: skip
    else:
        _map(features1, gradient1, weights1, maps1, n, k, N, K, fn1, fc1, fp1, gn1, gc1, gp1,
             C1, S1, BLOCK_C1, BLOCK_S1, POSITIVE)  # fmt: skip


@triton.jit
def _not_zero(value):
    return tl.where(value == 0, 1.0, value)


@triton.jit
def _mask(values, peak, sigma, omega):
    return tl.sigmoid(omega * (values / peak - sigma))


@triton.jit
def _comparable(maps, confuser, counts, n, p, s, has, K: tl.constexpr, S: tl.constexpr):
    """Map of true class ``p``, and whether it is compared with the confuser's, which sums to ``confuser``."""
    target = tl.load(maps + (n * K + p) * S + s, mask=s < S, other=0.0)
    amount = tl.sum(target, 0)
    valid = (amount > 0) & (tl.abs(amount + confuser) < float("inf"))
    return target, valid & has & (tl.load(counts + n * (K - 1) + p) != 0)


@triton.jit
def _separability(
    maps, counts, confusers, slopes, table, n, N, sigma, omega, K: tl.constexpr, S: tl.constexpr, BLOCK: tl.constexpr
):
    """Separability of image ``n``; ``table`` is the term's row."""
    s = tl.arange(0, BLOCK)
    rival = tl.load(maps + (n * K + K - 1) * S + s, mask=s < S, other=0.0)
    amount, has = tl.sum(rival, 0), tl.load(confusers + n) != 0
    number = 0.0
    for p in range(K - 1):
        _, valid = _comparable(maps, amount, counts, n, p, s, has, K, S)
        number += tl.where(valid, 1.0, 0.0)
    share, loss, rival_slope = 1.0 / tl.maximum(number, 1.0), 0.0, tl.zeros([BLOCK], tl.float32)
    for p in range(K - 1):
        target, valid = _comparable(maps, amount, counts, n, p, s, has, K, S)
        t, c = tl.where(valid, target, 0.0), tl.where(valid, rival, 0.0)
        scale = _not_zero(tl.max(tl.maximum(t, c), 0))
        t, c = t / scale, c / scale
        mask = _mask(t, _not_zero(tl.max(t, 0)), sigma, omega)
        whole = _not_zero(tl.sum(t + c, 0))
        ratio = tl.sum(tl.minimum(t, c) * mask, 0) / whole
        loss += 2.0 * ratio * share
        factor = tl.where(valid, 2.0 * share / whole / scale, 0.0)
        half = tl.where(t == c, 0.5 * mask, 0.0)
        slope = factor * (tl.where(t < c, mask, half) - ratio)
        tl.store(slopes + (n * K + p) * S + s, tl.where(t > 0, slope, 0.0), mask=s < S)
        slope = factor * (tl.where(c < t, mask, half) - ratio)
        rival_slope += tl.where(c > 0, slope, 0.0)
    tl.store(slopes + (n * K + K - 1) * S + s, rival_slope, mask=s < S)
    tl.store(table + n, loss)
    tl.store(table + 3 * N + n, tl.where(number > 0, 1.0, 0.0))


@triton.jit
def _resized_mask(
    maps, peak, s, sigma, omega, S: tl.constexpr,
    H: tl.constexpr, W: tl.constexpr, MASK_H: tl.constexpr, MASK_W: tl.constexpr,
):  # fmt: skip
    """The mask of a map MASK_H×MASK_W, brought to H×W bilinearly, at the positions ``s``."""
    if H == MASK_H and W == MASK_W:
        return _mask(tl.load(maps + s, mask=s < S, other=0.0), peak, sigma, omega)
    y = tl.maximum((s // W + 0.5) * (MASK_H / H) - 0.5, 0.0)
    x = tl.maximum((s % W + 0.5) * (MASK_W / W) - 0.5, 0.0)
    top, left = tl.minimum(y.to(tl.int32), MASK_H - 1), tl.minimum(x.to(tl.int32), MASK_W - 1)
    below, right = tl.minimum(top + 1, MASK_H - 1), tl.minimum(left + 1, MASK_W - 1)
    y, x = y - top, x - left
    first = maps + top * MASK_W
    second = maps + below * MASK_W
    a = _mask(tl.load(first + left, mask=s < S, other=0.0), peak, sigma, omega)
    b = _mask(tl.load(first + right, mask=s < S, other=0.0), peak, sigma, omega)
    c = _mask(tl.load(second + left, mask=s < S, other=0.0), peak, sigma, omega)
    d = _mask(tl.load(second + right, mask=s < S, other=0.0), peak, sigma, omega)
    return (1 - y) * ((1 - x) * a + x * b) + y * ((1 - x) * c + x * d)


@triton.jit
def _attending(inner, last, counts, at, s, t, S: tl.constexpr, T: tl.constexpr):
    """Map of a true class at the inner layer, the largest value of that at the last, and whether both are usable."""
    a = tl.load(inner + s, mask=s < S, other=0.0)
    b = tl.load(last + t, mask=t < T, other=0.0)
    first, second = tl.sum(a, 0), tl.sum(b, 0)
    valid = (first > 0) & (second > 0) & (first + second < float("inf")) & (tl.load(counts + at) != 0)
    return a, tl.max(b, 0), valid


@triton.jit
def _consistency(
    inner, last, counts, slopes, table, n, N, theta, sigma, omega,
    K: tl.constexpr, P: tl.constexpr, H: tl.constexpr, W: tl.constexpr, BLOCK: tl.constexpr,
    LAST_H: tl.constexpr, LAST_W: tl.constexpr, LAST_BLOCK: tl.constexpr, OWN: tl.constexpr, HINGE: tl.constexpr,
):  # fmt: skip
    """Consistency of image ``n``; OWN: with the inner layer's own mask; ``table`` is the term's row."""
    S: tl.constexpr = H * W
    T: tl.constexpr = LAST_H * LAST_W
    s, t = tl.arange(0, BLOCK), tl.arange(0, LAST_BLOCK)
    number, loss = 0.0, 0.0
    for p in range(P):
        at = n * K + p
        _, _, valid = _attending(inner + at * S, last + at * T, counts, n * P + p, s, t, S, T)
        number += tl.where(valid, 1.0, 0.0)
    share = 1.0 / tl.maximum(number, 1.0)
    for p in range(P):
        at = n * K + p
        a, peak, valid = _attending(inner + at * S, last + at * T, counts, n * P + p, s, t, S, T)
        a = tl.where(valid, a, 0.0)
        scale = _not_zero(tl.max(a, 0))
        if OWN:
            mask = _mask(a, scale, sigma, omega)
        else:
            mask = _resized_mask(last + at * T, _not_zero(peak), s, sigma, omega, S, H, W, LAST_H, LAST_W)
        mask = tl.where(valid, mask, 0.0)
        a = a / scale
        whole = _not_zero(tl.sum(a, 0))
        ratio = tl.sum(a * mask, 0) / whole
        counted = valid
        if HINGE:
            counted = valid & (theta > ratio)
        loss += tl.where(counted, (theta - ratio) * share, 0.0)
        slope = tl.where(counted, share / whole / scale, 0.0) * (ratio - mask)
        tl.store(slopes + (n * P + p) * S + s, tl.where(a > 0, slope, 0.0), mask=s < S)
    tl.store(table + n, loss)
    tl.store(table + 3 * N + n, tl.where(number > 0, 1.0, 0.0))


@triton.jit
def losses_kernel(
    maps0, maps1, counts, confusers, slopes0, slopes1, slopes2, table, N, theta, sigma, omega,
    K: tl.constexpr, P: tl.constexpr, H0: tl.constexpr, W0: tl.constexpr, BLOCK0: tl.constexpr,
    H1: tl.constexpr, W1: tl.constexpr, BLOCK1: tl.constexpr,
    TERM0: tl.constexpr, TERM1: tl.constexpr, TERM2: tl.constexpr, OWN: tl.constexpr, HINGE: tl.constexpr,
):  # fmt: skip
    """A program for every image: separability of the inner and the last layer and consistency, with all slopes."""
    n = tl.program_id(0)
    if TERM0:
        _separability(maps0, counts, confusers, slopes0, table, n, N, sigma, omega, K, H0 * W0, BLOCK0)
    if TERM1:
        _separability(maps1, counts, confusers, slopes1, table + N, n, N, sigma, omega, K, H1 * W1, BLOCK1)
    if TERM2:
        _consistency(maps0, maps1, counts, slopes2, table + 2 * N, n, N, theta, sigma, omega,
                     K, P, H0, W0, BLOCK0, H1, W1, BLOCK1, OWN, HINGE)  # fmt: skip


@triton.jit
def means_kernel(loss0, loss1, loss2, table, rates, N, BLOCK: tl.constexpr, TERMS: tl.constexpr):
    """A program for every term: its mean over the images that count; TERMS has a bit for each that there is."""
    term = tl.program_id(0)
    if (TERMS >> term) & 1:
        total, number = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
        for first in range(0, N, BLOCK):
            n = first + tl.arange(0, BLOCK)
            total += tl.load(table + term * N + n, mask=n < N, other=0.0)
            number += tl.load(table + (3 + term) * N + n, mask=n < N, other=0.0)
        rate = 1.0 / tl.maximum(tl.sum(number, 0), 1.0)
        loss = tl.sum(total, 0) * rate
        tl.store(rates + term, rate)
        if term == 0:
            tl.store(loss0, loss)
        elif term == 1:
            tl.store(loss1, loss)
        else:
            tl.store(loss2, loss)


@triton.jit
def _spread(
    weights, slopes, rate, more, more_rate, out, n, block, N, sn, sc, sp,
    K: tl.constexpr, P: tl.constexpr, C: tl.constexpr, S: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_S: tl.constexpr,
    ONE: tl.constexpr, TWO: tl.constexpr,
):  # fmt: skip
    """Gradient of some channels of image ``n``: slopes of K maps, and ``more`` of the first P, times the weights."""
    s, c = tl.arange(0, BLOCK_S), block * BLOCK_C + tl.arange(0, BLOCK_C)
    total = tl.zeros([BLOCK_C, BLOCK_S], tl.float32)
    for k in range(K):
        slope = tl.zeros([BLOCK_S], tl.float32)
        if ONE:
            slope += rate * tl.load(slopes + (n * K + k) * S + s, mask=s < S, other=0.0)
        if TWO and k < P:
            slope += more_rate * tl.load(more + (n * P + k) * S + s, mask=s < S, other=0.0)
        weight = tl.load(weights + (k * N + n) * C + c, mask=c < C, other=0.0)
        total += weight[:, None] * slope[None, :]
    at = out + n * sn + c[:, None] * sc + s[None, :] * sp
    tl.store(at, total.to(out.dtype.element_ty), mask=(c < C)[:, None] & (s < S)[None, :])


@triton.jit
def gradients_kernel(
    weights0, slopes0, slopes2, out0, weights1, slopes1, out1, grad0, grad1, grad2, rates, N,
    sn0, sc0, sp0, sn1, sc1, sp1, BLOCKS,
    C0: tl.constexpr, S0: tl.constexpr, BLOCK_C0: tl.constexpr, BLOCK_S0: tl.constexpr,
    C1: tl.constexpr, S1: tl.constexpr, BLOCK_C1: tl.constexpr, BLOCK_S1: tl.constexpr,
    K: tl.constexpr, P: tl.constexpr, TERM0: tl.constexpr, TERM1: tl.constexpr, TERM2: tl.constexpr,
):  # fmt: skip
    """Gradients of both layers' features, a program for some channels of an image; the first BLOCKS are the inner's."""
    n, block = tl.program_id(0), tl.program_id(1)
    if block < BLOCKS:
        rate, more = 0.0, 0.0
        if TERM0:
            rate = tl.load(grad0).to(tl.float32) * tl.load(rates)
        if TERM2:
            more = tl.load(grad2).to(tl.float32) * tl.load(rates + 2)
        _spread(weights0, slopes0, rate, slopes2, more, out0, n, block, N, sn0, sc0, sp0,
                K, P, C0, S0, BLOCK_C0, BLOCK_S0, TERM0, TERM2)  # fmt: skip
    else:
        rate = 0.0
        if TERM1:
            rate = tl.load(grad1).to(tl.float32) * tl.load(rates + 1)
        _spread(weights1, slopes1, rate, slopes1, rate, out1, n, block - BLOCKS, N, sn1, sc1, sp1,
                K, P, C1, S1, BLOCK_C1, BLOCK_S1, TERM1, False)  # fmt: skip
