"""The second derivative of batch norm in Triton, two kernels: sums of every channel, then what is made of them.

Formulas and names as in :mod:`foveal.kernels.batch_norm`. Rows are the M values of a channel. Every program has a block
of channels and one of several parts of the rows; the sums of parts are added up by whoever needs them, in order, so
that results repeat exactly.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from foveal.kernels.support import on_its_device

PROGRAMS = 512  # about as many as keep a large GPU busy
PARTS = 64  # at most, since every program adds them up


@triton.jit
def _at(rows, channels, C, S, LAST: tl.constexpr):
    """Where the values of ``rows`` and ``channels`` lie, (rows, channels)."""
    if LAST:
        return rows[:, None].to(tl.int64) * C + channels[None, :]
    return (rows[:, None].to(tl.int64) // S * C + channels[None, :]) * S + rows[:, None] % S


@triton.jit
def _load(pointer, at, inside):
    return tl.load(pointer + at, mask=inside, other=0).to(tl.float32)


@triton.jit
def _sums(v, g, x, mean, spread, sums, M, C, S, LENGTH, ROWS: tl.constexpr, WIDTH: tl.constexpr, LAST: tl.constexpr):
    part = tl.program_id(1)
    channels = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    known = channels < C
    mu, r = _load(mean, channels, known), _load(spread, channels, known)
    of_g = tl.zeros([ROWS, WIDTH], tl.float32)
    of_gx, of_v, of_vx, of_vg = of_g, of_g, of_g, of_g
    for start in range(part * LENGTH, min(part * LENGTH + LENGTH, M), ROWS):
        rows = start + tl.arange(0, ROWS)
        inside = (rows < M)[:, None] & known[None, :]
        at = _at(rows, channels, C, S, LAST)
        gs, vs = _load(g, at, inside), _load(v, at, inside)
        unit = (_load(x, at, inside) - mu[None, :]) * r[None, :]
        of_g += gs
        of_gx += gs * unit
        of_v += vs
        of_vx += vs * unit
        of_vg += vs * gs
    to = sums + part * 5 * C + channels
    tl.store(to, tl.sum(of_g, 0), mask=known)
    tl.store(to + C, tl.sum(of_gx, 0), mask=known)
    tl.store(to + 2 * C, tl.sum(of_v, 0), mask=known)
    tl.store(to + 3 * C, tl.sum(of_vx, 0), mask=known)
    tl.store(to + 4 * C, tl.sum(of_vg, 0), mask=known)


@triton.jit
def _results(
    v, g, x, weight, mean, spread, sums, of_g, of_x, of_weight, M, C, S, LENGTH, PARTS,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(1)
    channels = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    known = channels < C
    mu, r, scale = _load(mean, channels, known), _load(spread, channels, known), _load(weight, channels, known)
    a = tl.zeros([WIDTH], tl.float32)
    b, p, q, c = a, a, a, a
    for i in range(PARTS):
        start = i * 5 * C + channels
        a += _load(sums, start, known)
        b += _load(sums, start + C, known)
        p += _load(sums, start + 2 * C, known)
        q += _load(sums, start + 3 * C, known)
        c += _load(sums, start + 4 * C, known)
    a, b, p, q, c = a / M, b / M, p / M, q / M, c / M
    if part == 0:
        tl.store(of_weight + channels, (M * r * (c - p * a - q * b)).to(of_weight.dtype.element_ty), mask=known)
    for start in range(part * LENGTH, min(part * LENGTH + LENGTH, M), ROWS):
        rows = start + tl.arange(0, ROWS)
        inside = (rows < M)[:, None] & known[None, :]
        at = _at(rows, channels, C, S, LAST)
        gs, vs = _load(g, at, inside), _load(v, at, inside)
        unit = (_load(x, at, inside) - mu[None, :]) * r[None, :]
        dg = (scale * r)[None, :] * (vs - p[None, :] - unit * q[None, :])
        inner = (
            unit * (c - p * a - 3 * q * b)[None, :] + b[None, :] * (vs - p[None, :]) + q[None, :] * (gs - a[None, :])
        )
        tl.store(of_g + at, dg.to(of_g.dtype.element_ty), mask=inside)
        tl.store(of_x + at, (-(scale * r * r)[None, :] * inner).to(of_x.dtype.element_ty), mask=inside)


@on_its_device
def second_order(
    x: Tensor, v: Tensor, g: Tensor, weight: Tensor, mean: Tensor, spread: Tensor, last: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of g, x and the weight, from ``v``, the gradient of the first derivative of x.

    Args:
        x: (N, C, ...), as v and g.
        v: see above.
        g: gradient of the output.
        weight: γ, (C,).
        mean: μ, (C,).
        spread: r, (C,).
        last: whether x, v and g are channels-last, otherwise contiguous.
    """
    m, c = x.numel() // x.shape[1], x.shape[1]
    width, rows = (64, 32) if last else (4, 256)
    blocks = -(-c // width)
    parts = max(1, min(PARTS, -(-PROGRAMS // blocks), -(-m // rows)))
    length = -(-m // (parts * rows)) * rows
    parts = -(-m // length)
    sums = torch.empty((parts, 5, c), dtype=torch.float32, device=x.device)
    of_g, of_x, of_weight = torch.empty_like(g), torch.empty_like(x), torch.empty_like(weight)
    grid, inner = (blocks, parts), m // x.shape[0]
    _sums[grid](v, g, x, mean, spread, sums, m, c, inner, length, rows, width, last)
    _results[grid](
        v, g, x, weight, mean, spread, sums, of_g, of_x, of_weight, m, c, inner, length, parts, rows, width, last
    )
    return of_g, of_x, of_weight
