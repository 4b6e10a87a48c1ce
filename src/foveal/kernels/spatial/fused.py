"""Spatial attention as one scaled dot product, without a tensor of N·N' numbers.

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
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from foveal.kernels.aw.plain import first_order_suffices
from foveal.kernels.spatial.plain import Factors
from foveal.kernels.spatial.tables import one_hot

FAR = -1e4  # energy of a key out of range: finite in half precision, and its weight is zero
WIDEST = 256  # columns that flash attention can have


def attend(factors: Factors, values: Tensor, *, widen: bool | None = None, dropout: float = 0.0) -> Tensor:
    """Attention by one call of ``scaled_dot_product_attention``.

    Args:
        factors: of the terms.
        values: V x, (B, h', w', M, d).
        widen: give the values as many columns as the keys, which flash attention requires, on a CPU as well. Otherwise
            the memory-efficient kernel runs on a GPU. By default where flash attention can have them.
        dropout: probability that a weight is dropped.

    Returns:
        (B, h, w, M, d).
    """
    q, k = columns(factors, values)
    width = q.shape[-1]
    if widen is None:
        half = values.dtype in (torch.bfloat16, torch.float16)
        widen = not values.is_cuda or (half and width <= WIDEST)
    v = values.flatten(1, 2).transpose(1, 2)
    v = F.pad(v, (0, (width if widen else _eights(v.shape[-1])) - v.shape[-1]))
    with nullcontext() if first_order_suffices() else sdpa_kernel(SDPBackend.MATH):  # others have no second derivative
        gathered = F.scaled_dot_product_attention(
            q, k, v, scale=factors.scale, dropout_p=dropout, is_causal=factors.causal
        )
    return gathered[..., : values.shape[-1]].transpose(1, 2).unflatten(1, factors.size[:2])


def pool_by_salience(maps: Tensor, salience: Tensor, value: Tensor, scale: float) -> Tensor:
    """E3 alone: all queries have the same weights, so one sum for each head is the result.

    The sum is taken before the values are projected, and no key is projected at all.

    Args:
        maps: content of the keys, (B, N', C).
        salience: uᵀ V^C, (M, C).
        value: V, (M, d, C).
        scale: of the energies.

    Returns:
        (B, M · d).
    """
    energy = F.linear(maps, salience) * scale
    attention = energy.softmax(1, dtype=torch.promote_types(energy.dtype, torch.float32)).to(maps.dtype)
    return torch.einsum("bmc,mdc->bmd", attention.mT @ maps, value).flatten(1)


def columns(factors: Factors, values: Tensor) -> tuple[Tensor, Tensor]:
    """Both sides of the product: (B, M, N, columns) and (B, M, N', columns), no fewer columns than values have."""
    f, dtype = factors, values.dtype
    batch, heads, (h, w, h_keys, w_keys) = f.batch, f.heads, f.size
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
        waves = f.waves.of_queries(against)
        of_query.append(waves.to(dtype).expand(batch, h, w, heads, -1))
        of_key.append(f.waves.keys.to(dtype)[:, None].expand(batch, h_keys, w_keys, heads, -1))
    if f.valid is not None:
        of_query.append(values.new_ones(()).expand(batch, h, w, heads, 1))
        far = torch.where(f.valid, 0.0, FAR).to(dtype)
        of_key.append(far.view(batch, h_keys, w_keys, 1, 1).expand(-1, -1, -1, heads, -1))
    x, y = _axis(f, sought, f.across, f.near_x, "w", dtype), _axis(f, sought, f.down, f.near_y, "h", dtype)
    for part in (x, y):
        if part is not None:
            of_query.append(part.expand(batch, h, w, heads, -1))
    width = sum(part.shape[-1] for part in of_query)
    empty = _eights(max(width, values.shape[-1])) - width
    if empty:
        of_query.append(values.new_zeros(()).expand(batch, h, w, heads, empty))
    across, down = (0 if part is None else part.shape[-1] for part in (x, y))
    if across + down + empty:
        own_columns = one_hot(h_keys, w_keys, across, down, empty, dtype, values.device)
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
        assert f.position_bias is not None
        part = torch.einsum("md,qkmd->qmk", f.position_bias.to(table.dtype), table).to(dtype)
        part = part[None, None] if axis == "w" else part[None, :, None]
    if visible is None:
        return part
    far = torch.where(visible, 0.0, FAR).to(dtype)[:, None]  # (queries, 1, keys)
    far = far[None, None] if axis == "w" else far[None, :, None]
    return far if part is None else F.pad(part, (1, 0)) + far


def _eights(count: int) -> int:
    """The next multiple of eight, which the kernels on GPUs require."""
    return -(-count // 8) * 8
