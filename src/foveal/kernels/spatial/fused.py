"""Spatial attention as one scaled dot product, without a tensor of N·N' numbers; saliency alone as a weighted mean."""

from __future__ import annotations

from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from foveal.kernels.aw.plain import first_order_suffices
from foveal.kernels.spatial.columns import columns, widths
from foveal.kernels.spatial.plain import Factors

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
    d = values.shape[-1]
    if widen is None:
        half = values.dtype in (torch.bfloat16, torch.float16)
        widen = not values.is_cuda or (half and widths(factors, d, True).all <= WIDEST)
    q, k, v = columns(factors, values, widen=widen)
    with nullcontext() if first_order_suffices() else sdpa_kernel(SDPBackend.MATH):  # others have no second derivative
        gathered = F.scaled_dot_product_attention(
            q, k, v, scale=factors.scale, dropout_p=dropout, is_causal=factors.causal
        )
    return gathered[..., :d].transpose(1, 2).unflatten(1, factors.size[:2])


def pool_by_salience(maps: Tensor, salience: Tensor, value: Tensor) -> Tensor:
    """E3 alone: all queries have the same weights, so one sum for each head is the result.

    The sum is taken before the values are projected, and no key is projected at all.

    Args:
        maps: content of the keys, (B, N', C).
        salience: uᵀ V^C, times the scale of the energies, (M, C).
        value: V, (M, d, C).

    Returns:
        (B, M · d).
    """
    energy = F.linear(maps, salience)
    attention = energy.softmax(1, dtype=torch.promote_types(energy.dtype, torch.float32)).to(maps.dtype)
    pooled = attention.mT @ maps  # (B, M, C)
    return (pooled.transpose(0, 1) @ value.mT).transpose(0, 1).flatten(1)
