"""Triton kernels of the perceptron of a channel gate, from poolings that are known.

Many samples share a program, so that the weights are read once for all of them, not once for each.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _product(pooled, w1, n, d, rows, exists, C, BC: tl.constexpr):
    """Samples ``n`` of a pooling (N, C) times hidden channels ``d`` of W1 (D, C)."""
    total = tl.zeros((n.shape[0], d.shape[0]), tl.float32)
    for start in range(0, C, BC):
        c = start + tl.arange(0, BC)
        known = (c < C)[None, :]
        values = tl.load(pooled + n[:, None] * C + c[None, :], mask=rows[:, None] & known, other=0.0).to(tl.float32)
        weights = tl.load(w1 + d[:, None] * C + c[None, :], mask=exists[:, None] & known, other=0.0).to(tl.float32)
        total += tl.dot(values, tl.trans(weights), input_precision="ieee")
    return total


@triton.jit(do_not_specialize=("N", "D"))
def squeeze(
    w1, b1, mean, top, hidden, N, C, D,
    AVG: tl.constexpr, MAX: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Σ over poolings of relu(W1 pooled + b1): (N, D), float32."""
    n, d = tl.program_id(0) * BN + tl.arange(0, BN), tl.program_id(1) * BD + tl.arange(0, BD)
    rows, exists = n < N, d < D
    bias = tl.load(b1 + d, mask=exists, other=0.0).to(tl.float32)[None, :]
    total = tl.zeros((BN, BD), tl.float32)
    if AVG:
        total += tl.maximum(_product(mean, w1, n, d, rows, exists, C, BC) + bias, 0.0)
    if MAX:
        total += tl.maximum(_product(top, w1, n, d, rows, exists, C, BC) + bias, 0.0)
    tl.store(hidden + n[:, None] * D + d[None, :], total, mask=rows[:, None] & exists[None, :])


@triton.jit(do_not_specialize=("N", "D", "POOLINGS"))
def excite(hidden, w2, b2, gate, N, C, D, POOLINGS, BN: tl.constexpr, BC: tl.constexpr, BD: tl.constexpr):
    """Sigmoid(W2 hidden + b2), where b2 counts once for each pooling: (N, C)."""
    n, c = tl.program_id(0) * BN + tl.arange(0, BN), tl.program_id(1) * BC + tl.arange(0, BC)
    rows, known = n < N, c < C
    logits = tl.zeros((BN, BC), tl.float32) + tl.load(b2 + c, mask=known, other=0.0).to(tl.float32)[None, :] * POOLINGS
    for start in range(0, D, BD):
        d = start + tl.arange(0, BD)
        exists = (d < D)[None, :]
        values = tl.load(hidden + n[:, None] * D + d[None, :], mask=rows[:, None] & exists, other=0.0)
        weights = tl.load(w2 + c[:, None] * D + d[None, :], mask=known[:, None] & exists, other=0.0).to(tl.float32)
        logits += tl.dot(values, tl.trans(weights), input_precision="ieee")
    tl.store(gate + n[:, None] * C + c[None, :], tl.sigmoid(logits), mask=rows[:, None] & known[None, :])
