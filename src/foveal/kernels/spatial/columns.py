"""The columns of queries, keys and values whose scaled dot product is spatial attention.

All four terms are inner products of a column for the query with a column for the key:

- E1, and E3 with it: (U z + u) · V^C x, d columns;
- E3 alone: 1 · (uᵀ V^C x), one column;
- E2 and E4 are the sum of a part along x and a part along y. The x part of a query is a number for every column of
  keys: these numbers are the query's columns, and a key has a one in the column of its own x and zeros elsewhere; the
  same along y. The first key of each axis is the reference that others are relative to, and needs no column.
- A range adds a large negative number to the same columns.
- In a sequence the x part alone needs a column for every key. Where the codes of positions have fewer numbers than
  there are keys, their numbers are the columns instead (:mod:`foveal.kernels.spatial.waves`).
- Padding is one more column: a large negative number for keys that are none.

So a query has d + (w' − 1) + (h' − 1) columns, filled up to a multiple of eight: 128 for a 97×97 map with 256 channels,
8 heads and keys at every second position. Memory is linear in the number of queries.

In eager mode each column is written once, where it belongs, and the backward pass is one node with as few launches as
it can have: small maps take as long as their launches. A compiler, a tracer, a transform and second derivatives get
plain operators.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from foveal.kernels.aw.plain import first_order_suffices
from foveal.kernels.spatial.plain import Factors
from foveal.kernels.spatial.tables import one_hot
from foveal.kernels.support import observed

FAR = -1e4  # energy of a key out of range: finite in half precision, and its weight is zero


class Widths(NamedTuple):
    """How the columns of a query and of a key are divided, in this order, and those of a value.

    Attributes:
        content: d with E1, 1 for E3 without it, otherwise 0.
        sequence: codes of positions in a sequence, and one for padding.
        x, y: numbers along each axis.
        empty: zeros up to a multiple of eight.
        values: columns of a value, of which the first d are its own.
    """

    content: int
    sequence: int
    x: int
    y: int
    empty: int
    values: int

    @property
    def all(self) -> int:
        """Columns of a query."""
        return self.content + self.sequence + self.x + self.y + self.empty

    @property
    def axes(self) -> tuple[slice, slice]:
        """Where the numbers along x and along y are."""
        first = self.content + self.sequence
        middle = first + self.x
        return slice(first, middle), slice(middle, middle + self.y)


def eights(count: int) -> int:
    """The next multiple of eight, which the kernels on GPUs require."""
    return -(-count // 8) * 8


def widths(f: Factors, d: int, widen: bool) -> Widths:
    """Of the terms ``f`` with values of ``d`` columns; ``widen`` gives values as many as queries."""
    content = d if f.key is not None else int(f.salience is not None)
    h_keys, w_keys = f.size[2:]
    x = y = 0
    if f.near_x is not None:
        x, y = w_keys, h_keys
    elif f.across is not None:
        x, y = w_keys - 1, h_keys - 1
    sequence = (0 if f.waves is None else f.waves.keys.shape[-1]) + (f.valid is not None)
    used = content + sequence + x + y
    total = eights(max(used, d))
    return Widths(content, sequence, x, y, total - used, total if widen else eights(d))


def columns(factors: Factors, values: Tensor, *, widen: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of one scaled dot product.

    Args:
        factors: of the terms.
        values: V x, (B, h', w', M, d).
        widen: give values as many columns as keys.

    Returns:
        (B, M, N, columns), (B, M, N', columns) and (B, M, N', d or more).
    """
    f, each = factors, widths(factors, values.shape[-1], widen)
    of_maps = f.near_x is None and not each.sequence and (f.across is None) == (f.down is None)  # no sequence, no range
    if of_maps and first_order_suffices() and not observed(values):
        across, down = (_numbers(f, table) for table in (f.across, f.down))
        return _Columns.apply(
            f.size, each, values, f.query, f.key, f.salience, f.key_bias, f.position_bias, across, down
        )
    v = values.flatten(1, 2).transpose(1, 2)
    return *_by_operators(f, values, each), F.pad(v, (0, each.values - v.shape[-1]))


# Operators that autograd, compilers and transforms go through -------------------------


def _by_operators(f: Factors, values: Tensor, each: Widths) -> tuple[Tensor, Tensor]:
    dtype, batch, heads, (h, w, h_keys, w_keys) = values.dtype, f.batch, f.heads, f.size
    of_query: list[Tensor] = []
    of_key: list[Tensor] = []
    if f.key is not None:
        assert f.query is not None
        of_query.append(f.query if f.key_bias is None else f.query + f.key_bias.to(dtype))
        of_key.append(f.key)
    elif f.salience is not None:
        of_query.append(values.new_ones(()).expand(batch, h, w, heads, 1))
        of_key.append(f.salience[..., None].to(dtype))
    sought = f.query if f.terms[1] == "1" else None  # what position is compared with, beside the bias
    if sought is not None and f.position_bias is not None:
        sought = sought + f.position_bias.to(dtype)
    if f.waves is not None:
        against = f.position_bias if sought is None else sought
        assert against is not None
        of_query.append(f.waves.of_queries(against).to(dtype).expand(batch, h, w, heads, -1))
        of_key.append(f.waves.keys.to(dtype)[:, None].expand(batch, h_keys, w_keys, heads, -1))
    if f.valid is not None:
        of_query.append(values.new_ones(()).expand(batch, h, w, heads, 1))
        far = torch.where(f.valid, 0.0, FAR).to(dtype)
        of_key.append(far.view(batch, h_keys, w_keys, 1, 1).expand(-1, -1, -1, heads, -1))
    for part in (_axis(f, sought, f.across, f.near_x, "w", dtype), _axis(f, sought, f.down, f.near_y, "h", dtype)):
        if part is not None:
            of_query.append(part.expand(batch, h, w, heads, -1))
    if each.empty:
        of_query.append(values.new_zeros(()).expand(batch, h, w, heads, each.empty))
    if each.x + each.y + each.empty:
        own_columns = one_hot(h_keys, w_keys, each.x, each.y, each.empty, dtype, values.device)
        of_key.append(own_columns.expand(batch, h_keys, w_keys, heads, -1))
    sides = (parts[0] if len(parts) == 1 else torch.cat(parts, -1) for parts in (of_query, of_key))
    q, k = (side.flatten(1, 2).transpose(1, 2) for side in sides)
    return q, k


def _axis(
    f: Factors, query: Tensor | None, table: Tensor | None, visible: Tensor | None, axis: str, dtype: torch.dtype
) -> Tensor | None:
    """The columns of one axis, (B, h, w, M, keys) or broadcastable to it; None if it has none.

    Without a range the first key of the axis is left out.
    """
    part = None
    if table is not None and query is not None:
        part = torch.einsum(f"bhwmd,{axis}kmd->bhwmk", query, table.to(dtype))
    elif table is not None:
        part = _numbers(f, table)
        assert part is not None
        part = part.to(dtype)
        part = part[None, None] if axis == "w" else part[None, :, None]
    if visible is None:
        return part
    far = torch.where(visible, 0.0, FAR).to(dtype)[:, None]  # (queries, 1, keys)
    far = far[None, None] if axis == "w" else far[None, :, None]
    return far if part is None else F.pad(part, (1, 0)) + far


def _numbers(f: Factors, table: Tensor | None) -> Tensor | None:
    """With E4 and without E2, the same numbers for all contents, (queries, M, keys); the table itself otherwise."""
    if table is None or f.terms[1] == "1":
        return table
    assert f.position_bias is not None
    return (table * f.position_bias.to(table.dtype)).sum(-1).transpose(1, 2)


# One node ------------------------------------------------------------------------------


class _Columns(torch.autograd.Function):
    """Columns written in place, each once."""

    @staticmethod
    def forward(
        ctx: Any,
        size: tuple[int, int, int, int],
        each: Widths,
        values: Tensor,
        query: Tensor | None,
        key: Tensor | None,
        salience: Tensor | None,
        key_bias: Tensor | None,
        position_bias: Tensor | None,
        across: Tensor | None,
        down: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        h, w, h_keys, w_keys = size
        batch, _, _, heads, d = values.shape
        q = values.new_empty(batch, h, w, heads, each.all)
        k = values.new_empty(batch, h_keys, w_keys, heads, each.all)
        v = values.new_empty(batch, h_keys, w_keys, heads, each.values)
        v[..., :d] = values
        v[..., d:] = 0
        if each.all > each.content:
            k[..., each.content :] = one_hot(h_keys, w_keys, each.x, each.y, each.empty, v.dtype, v.device)
            q[..., each.all - each.empty :] = 0
        if key is not None:
            assert query is not None
            k[..., :d] = key
            _add(query, key_bias, q[..., :d])
        elif salience is not None:
            k[..., 0], q[..., 0] = salience, 1
        kept: list[Tensor] = []
        if across is not None:
            assert down is not None
            x, y = (q[..., part] for part in each.axes)
            if across.ndim == 4:
                assert query is not None
                sought = query if position_bias is None else _add(query, position_bias, torch.empty_like(query))
                kept = [sought, _by_head(across, query.dtype), _by_head(down, query.dtype)]
                torch.bmm(_along_x(sought), kept[1].mT, out=_along_x(x))
                y.copy_(_back(_along_y(sought) @ kept[2].mT, y))
            else:
                x.copy_(across)
                y.copy_(down[:, None])
        ctx.save_for_backward(*kept)
        ctx.sizes, ctx.each, ctx.d, ctx.compares = (size[:2], size[2:]), each, d, key is not None
        ctx.dtypes = [None if t is None else t.dtype for t in (key_bias, position_bias, across)]
        q, k, v = (t.flatten(1, 2).transpose(1, 2) for t in (q, k, v))
        return q, k, v

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dq: Tensor, dk: Tensor, dv: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of all tensors."""
        each, d, (key_bias, position_bias, table) = ctx.each, ctx.d, ctx.dtypes
        dq = dq.transpose(1, 2).unflatten(1, ctx.sizes[0])
        dk, dv = (t.transpose(1, 2).unflatten(1, ctx.sizes[1]) for t in (dk, dv))
        dquery = dkey = dsalience = dkey_bias = dposition_bias = dacross = ddown = None
        x, y = (dq[..., part] for part in each.axes)
        if ctx.saved_tensors:
            sought, across, down = ctx.saved_tensors
            dquery, of_x, of_y = torch.empty_like(sought), _along_x(x), _along_y(y)
            torch.bmm(of_x, across, out=_along_x(dquery))
            dquery += _back(of_y @ down, dquery)
            dposition_bias = None if position_bias is None else dquery.sum((0, 1, 2), dtype=position_bias)
            of_tables = (of_x.mT @ _along_x(sought), of_y.mT @ _along_y(sought))  # as :func:`_by_head` makes them
            dacross, ddown = (t.unflatten(0, (-1, sought.shape[3])).transpose(1, 2).to(table) for t in of_tables)
        elif table is not None:
            dacross, ddown = x.sum((0, 1), dtype=table), y.sum((0, 2), dtype=table)
        if ctx.compares:
            content, dkey = dq[..., :d], dk[..., :d]
            dquery = content if dquery is None else dquery.add_(content)
            dkey_bias = None if key_bias is None else content.sum((0, 1, 2), dtype=key_bias)
        elif each.content:
            dsalience = dk[..., 0]
        return None, None, dv[..., :d], dquery, dkey, dsalience, dkey_bias, dposition_bias, dacross, ddown


def _add(maps: Tensor, bias: Tensor | None, out: Tensor) -> Tensor:
    """Write maps (B, h, w, M, d), with a bias (M, d) added, to ``out``."""
    return out.copy_(maps) if bias is None else torch.add(maps, bias, out=out)


def _along_x(maps: Tensor) -> Tensor:
    """(B, h, w, M, c), in this order in memory, as one matrix for each column and head: a view (w · M, B · h, c)."""
    b, h, w, m, c = maps.shape
    return maps.permute(2, 3, 0, 1, 4).reshape(w * m, b * h, c)


def _along_y(maps: Tensor) -> Tensor:
    """(B, h, w, M, c) as one matrix for each row and head, (h · M, B · w, c); a copy."""
    b, h, w, m, c = maps.shape
    return maps.permute(1, 3, 0, 2, 4).reshape(h * m, b * w, c)


def _back(matrices: Tensor, like: Tensor) -> Tensor:
    """The inverse of :func:`_along_y`, as a view."""
    b, h, w, m, c = like.shape
    return matrices.view(h, m, b, w, c).permute(2, 0, 3, 1, 4)


def _by_head(table: Tensor, dtype: torch.dtype) -> Tensor:
    """A table (queries, keys, M, d) as (queries, M, keys, d) in another precision, in one copy: (queries · M, …)."""
    laid = table.transpose(1, 2)
    return torch.empty(laid.shape, dtype=dtype, device=table.device).copy_(laid).flatten(0, 1)
