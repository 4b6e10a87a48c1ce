"""The second derivative of batch norm in Triton, two kernels: the sums of every channel, then the gradients.

Formulas and names as in :mod:`foveal.kernels.second_order.batch_norm`. Rows are the M values of a channel. Every
program has a block of channels and one of several parts of the rows; the sums of the parts are added in a fixed order,
so that results are deterministic. Where rows are few, one kernel does both.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from foveal.kernels.support import on_its_device

FEW = 4096  # rows that one program handles alone, which saves a launch
PROGRAMS = 512  # about as many as keep a large GPU busy
PARTS = 64  # at most, since every program adds them up


@triton.jit
def _at(rows, channels, C, S, LAST: tl.constexpr):
    """Offsets of the values of ``rows`` and ``channels``, (rows, channels)."""
    if LAST:
        return rows[:, None].to(tl.int64) * C + channels[None, :]
    return (rows[:, None].to(tl.int64) // S * C + channels[None, :]) * S + rows[:, None] % S


@triton.jit
def _load(pointer, at, inside):
    return tl.load(pointer + at, mask=inside, other=0).to(tl.float32)


@triton.jit
def _add_up(v, g, x, mu, r, first, end, channels, C, S, ROWS: tl.constexpr, LAST: tl.constexpr):
    """Sums over rows ``first`` to ``end`` of g, g x̂, v, v x̂ and v g, for each of ``channels``."""
    of_g = tl.zeros([ROWS, channels.shape[0]], tl.float32)
    of_gx, of_v, of_vx, of_vg = of_g, of_g, of_g, of_g
    for start in range(first, end, ROWS):
        rows = start + tl.arange(0, ROWS)
        inside = (rows < end)[:, None] & (channels < C)[None, :]
        at = _at(rows, channels, C, S, LAST)
        gs, vs = _load(g, at, inside), _load(v, at, inside)
        unit = (_load(x, at, inside) - mu[None, :]) * r[None, :]
        of_g += gs
        of_gx += gs * unit
        of_v += vs
        of_vx += vs * unit
        of_vg += vs * gs
    return tl.sum(of_g, 0), tl.sum(of_gx, 0), tl.sum(of_v, 0), tl.sum(of_vx, 0), tl.sum(of_vg, 0)


@triton.jit
def _sums(
    v, g, x, mean, inverse_std, sums, M, C, S, LENGTH, ROWS: tl.constexpr, WIDTH: tl.constexpr, LAST: tl.constexpr
):
    part = tl.program_id(1)
    channels = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    known = channels < C
    mu, r = _load(mean, channels, known), _load(inverse_std, channels, known)
    first = part * LENGTH
    a, b, p, q, c = _add_up(v, g, x, mu, r, first, min(first + LENGTH, M), channels, C, S, ROWS, LAST)
    to = sums + part * 5 * C + channels
    tl.store(to, a, mask=known)
    tl.store(to + C, b, mask=known)
    tl.store(to + 2 * C, p, mask=known)
    tl.store(to + 3 * C, q, mask=known)
    tl.store(to + 4 * C, c, mask=known)


@triton.jit
def _results(
    v, g, x, weight, mean, inverse_std, sums, of_g, of_x, of_weight, M, C, S, LENGTH, PARTS,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, LAST: tl.constexpr, ALONE: tl.constexpr,
):  # fmt: skip
    """The gradients of g, x and the weight. ALONE: there is one part, whose sums are computed here."""
    part = tl.program_id(1)
    channels = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    known = channels < C
    mu, r, scale = _load(mean, channels, known), _load(inverse_std, channels, known), _load(weight, channels, known)
    if ALONE:
        a, b, p, q, c = _add_up(v, g, x, mu, r, 0, M, channels, C, S, ROWS, LAST)
    else:
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
        dx = unit * (c - p * a - 3 * q * b)[None, :] + b[None, :] * (vs - p[None, :]) + q[None, :] * (gs - a[None, :])
        tl.store(of_g + at, dg.to(of_g.dtype.element_ty), mask=inside)
        tl.store(of_x + at, (-(scale * r * r)[None, :] * dx).to(of_x.dtype.element_ty), mask=inside)


@on_its_device
def second_order(
    x: Tensor, v: Tensor, g: Tensor, weight: Tensor, mean: Tensor, inverse_std: Tensor, last: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of g, x and the weight, from ``v``, the gradient of the first derivative of x.

    Args:
        x: (N, C, ...), as v and g.
        v: the gradient of the first derivative of x.
        g: gradient of the output.
        weight: γ, (C,).
        mean: μ, (C,).
        inverse_std: r, (C,).
        last: whether x, v and g are channels-last, otherwise contiguous.
    """
    m, c, weight = x.numel() // x.shape[1], x.shape[1], weight.contiguous()
    alone = m <= FEW
    rows, width = (32, 64) if last and not alone else (256, 8 if last else 4)
    blocks = -(-c // width)
    length = m if alone else -(-m // (rows * min(PARTS, -(-PROGRAMS // blocks)))) * rows
    parts = -(-m // length)
    of_g, of_x, of_weight = torch.empty_like(g), torch.empty_like(x), torch.empty_like(weight)
    grid, inner, tile = (blocks, parts), m // x.shape[0], (rows, width, last)
    sums = of_weight  # not used
    if not alone:
        sums = torch.empty((parts, 5, c), dtype=torch.float32, device=x.device)
        _sums[grid](v, g, x, mean, inverse_std, sums, m, c, inner, length, *tile)
    _results[grid](
        v, g, x, weight, mean, inverse_std, sums, of_g, of_x, of_weight, m, c, inner, length, parts, *tile, alone
    )
    return of_g, of_x, of_weight
