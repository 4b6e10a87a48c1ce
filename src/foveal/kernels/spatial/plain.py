"""The four terms of spatial attention, straight from their equations.

Positions are those of a map: queries (h, w), keys (h', w'), M heads of width d. A sequence is a map of one row.
Energies have the size N·N' (N = h·w queries, N' = h'·w' keys), so this is the reference and what records show;
:mod:`foveal.kernels.spatial.fused` computes the same without them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from foveal.kernels.spatial.waves import Waves


class Factors(NamedTuple):
    """What the terms of one forward pass are made of; None where no term that is on uses it.

    A softmax over keys does not change if a number is added to all energies of a query. So positions are coded relative
    to the first key of each axis, whose own column would be zero and is left out.

    Attributes:
        terms: which of the four are on, as in ``"1111"``.
        query: U z, (B, h, w, M, d), for E1 and E2.
        key: V^C x, (B, h', w', M, d), for E1.
        salience: uᵀ V^C x, (B, h', w', M), for E3 without E1.
        key_bias: u, (M, d), for E3.
        position_bias: v, (M, d), for E4.
        across: V^R R along x, (w, w' − 1, M, d), for E2 and E4: key k + 1 relative to key 0.
        down: the same along y, (h, h' − 1, M, d); None for a sequence.
        near_x: bool (w, w'), true for keys within the range of a query along x; None without a range.
        near_y: bool (h, h').
        batch, heads: B and M.
        size: (h, w, h', w').
        scale: of the sum of energies.
        waves: V^R and the codes of positions of a long sequence, instead of ``across``.
        valid: bool (B, N'), false for keys that are padding; None if all are real.
        causal: whether a query sees keys up to its own position only; for a sequence.
    """

    terms: str
    query: Tensor | None
    key: Tensor | None
    salience: Tensor | None
    key_bias: Tensor | None
    position_bias: Tensor | None
    across: Tensor | None
    down: Tensor | None
    near_x: Tensor | None
    near_y: Tensor | None
    batch: int
    heads: int
    size: tuple[int, int, int, int]
    scale: float
    waves: Waves | None = None
    valid: Tensor | None = None
    causal: bool = False


def energies(factors: Factors, queries: Tensor | None = None) -> dict[str, Tensor]:
    """Each term that is on, by name.

    Args:
        factors: of a forward pass.
        queries: numbers of Q queries, int64 (Q,), row by row; None for all N of them.

    Returns:
        ``E1`` … ``E4``, each (B, M, Q, N'); E2 and E4 relative to the first key.
    """
    f = _one_dtype(factors)
    device = next(t for t in (f.key, f.query, f.salience, f.across, f.position_bias) if t is not None).device
    queries = torch.arange(f.size[0] * f.size[1], device=device) if queries is None else queries.to(device)
    rows, columns = queries // f.size[1], queries % f.size[1]
    query = None if f.query is None else f.query[:, rows, columns]  # (B, Q, M, d)
    result = {}
    if f.terms[0] == "1":
        assert query is not None
        assert f.key is not None
        result["E1"] = torch.einsum("bqmd,bkmd->bmqk", query, f.key.flatten(1, 2))
    if f.terms[1] == "1":
        assert query is not None
        result["E2"] = _position(f, query, rows, columns)
    if f.terms[2] == "1":
        result["E3"] = _salience(f)[:, :, None].expand(-1, -1, len(queries), -1)
    if f.terms[3] == "1":
        assert f.position_bias is not None
        result["E4"] = _position(f, f.position_bias.expand(1, len(queries), -1, -1), rows, columns)
    return {name: energy.expand(f.batch, -1, -1, -1) for name, energy in result.items()}


def _one_dtype(f: Factors) -> Factors:
    """Biases and tables in the precision of the projected maps."""
    projected = next((t for t in (f.key, f.query, f.salience) if t is not None), None)
    if projected is None:
        return f
    small = (None if t is None else t.to(projected.dtype) for t in (f.key_bias, f.position_bias, f.across, f.down))
    key_bias, position_bias, across, down = small
    return f._replace(key_bias=key_bias, position_bias=position_bias, across=across, down=down)


def _salience(f: Factors) -> Tensor:
    """E3, (B, M, N')."""
    if f.salience is not None:
        return f.salience.flatten(1, 2).mT
    assert f.key is not None
    assert f.key_bias is not None
    return torch.einsum("bkmd,md->bmk", f.key.flatten(1, 2), f.key_bias)


def _position(f: Factors, query: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Sum of the x part and the y part for queries (B, Q, M, d) at these rows and columns: (B, M, Q, N')."""
    if f.waves is not None:
        x = f.waves.energies(query, columns)
        return x - x[..., :1]
    assert f.across is not None
    whole = len(rows) == f.size[0] * f.size[1]  # of whole maps, tables need not be repeated for every query
    maps = query.unflatten(1, f.size[:2]) if whole else query
    if whole:
        x = torch.einsum("bhwmd,wkmd->bmhwk", maps, f.across).flatten(2, 3)
    else:
        x = torch.einsum("bqmd,qkmd->bmqk", query, f.across[columns])
    x = F.pad(x, (1, 0))  # the first key
    if f.down is None:
        return x
    if whole:
        y = torch.einsum("bhwmd,hkmd->bmhwk", maps, f.down).flatten(2, 3)
    else:
        y = torch.einsum("bqmd,qkmd->bmqk", query, f.down[rows])
    return (F.pad(y, (1, 0))[..., :, None] + x[..., None, :]).flatten(-2)


def near(factors: Factors, queries: Tensor | None = None) -> Tensor | None:
    """Which keys a query may see by their positions, bool (Q, N'); None for all."""
    f = factors
    if queries is None:
        queries = torch.arange(f.size[0] * f.size[1])
    if f.causal:
        return torch.arange(f.size[3], device=queries.device) <= queries[:, None]
    if f.near_x is None or f.near_y is None:
        return None
    queries = queries.to(f.near_x.device)
    x, y = f.near_x[queries % f.size[1]], f.near_y[queries // f.size[1]]
    return (y[:, :, None] & x[:, None, :]).flatten(1)


def weights(energy: Tensor, factors: Factors, queries: Tensor | None = None) -> Tensor:
    """Softmax over keys of energies (B, M, Q, N'), in float32 or wider."""
    energy = energy.to(torch.promote_types(energy.dtype, torch.float32)) * factors.scale
    visible = near(factors, queries)
    if visible is not None:
        energy = energy.masked_fill(~visible.to(energy.device), -torch.inf)
    if factors.valid is not None:
        energy = energy.masked_fill(~factors.valid[:, None, None].to(energy.device), -torch.inf)
    return energy.softmax(-1)


def attend(factors: Factors, values: Tensor) -> Tensor:
    """Attention with energies as tensors of N·N' numbers a head.

    Args:
        factors: of the terms.
        values: V x, (B, h', w', M, d).

    Returns:
        (B, h, w, M, d).
    """
    energy = sum(energies(factors).values())
    assert isinstance(energy, Tensor)
    attention = weights(energy, factors).to(values.dtype)
    gathered = torch.einsum("bmqk,bkmd->bqmd", attention, values.flatten(1, 2))
    return gathered.unflatten(1, factors.size[:2])
