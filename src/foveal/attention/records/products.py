"""What the attention functions of PyTorch are called with, as lazy attention."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from foveal.attention.records.dot_product import DotProduct
from foveal.attention.records.record import LazyValues


class Product(NamedTuple):
    """Attention, and the values (..., N_k, C) that it weighs, if they are known."""

    attention: LazyValues | Tensor
    values: Tensor | None


def of_scaled_dot_product(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    **_options: Any,
) -> Product:
    """The attention of a call of ``scaled_dot_product_attention``, without its dropout; the same arguments.

    (..., heads, N_q, N_k) for four and more dimensions, (B, N_q, N_k) for three, (1, N_q, N_k) for two.
    """
    causal = 0 if is_causal else None
    bias = sys.modules.get("torch.nn.attention.bias")  # its import takes seconds; who made such a mask imported it
    if bias is not None and isinstance(attn_mask, bias.CausalBias):
        upper_left = attn_mask.variant == bias.CausalVariant.UPPER_LEFT
        causal = 0 if upper_left else key.shape[-2] - query.shape[-2]
        attn_mask = None
    if query.ndim == 2:
        query, key = query[None], key[None]
    batch = torch.broadcast_shapes(query.shape[:-3], key.shape[:-3])
    query, key = (side.expand(*batch, *side.shape[-3:]) for side in (query, key))
    masks = () if attn_mask is None else (attn_mask,)
    return Product(DotProduct(query, key, scale=scale, heads=query.ndim > 3, masks=masks, causal=causal), value)


def of_multi_head(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    *_: Any,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    is_causal: bool = False,
    **_options: Any,
) -> Product:
    """The attention of a call of ``multi_head_attention_forward``, the function of ``nn.MultiheadAttention``.

    PyTorch shows the call as a whole, so that queries and keys are projected once more here. The arguments are the
    same, all but ``training`` by name after ``out_proj_bias``; query and key are (N, B, C), or (N, C) for one sample.

    Returns:
        (B, heads, N_q, N_k); keys that ``bias_k`` and ``add_zero_attn`` add come last.
    """
    if query.ndim == 2:
        query, key = query[:, None], key[:, None]
        key_padding_mask = None if key_padding_mask is None else key_padding_mask[None]
    batch = query.shape[1]
    if not use_separate_proj_weight:
        assert in_proj_weight is not None
        q_proj_weight, k_proj_weight, _v = in_proj_weight.chunk(3)
    assert q_proj_weight is not None
    assert k_proj_weight is not None
    biases = (None, None) if in_proj_bias is None else in_proj_bias.chunk(3)
    q, k = F.linear(query, q_proj_weight, biases[0]), F.linear(key, k_proj_weight, biases[1])
    if bias_k is not None:
        k = torch.cat([k, bias_k.expand(1, batch, -1)])
    q, k = (side.unflatten(-1, (num_heads, -1)).permute(1, 2, 0, 3) for side in (q, k))  # (B, heads, N, d)
    if static_k is not None:
        k = static_k.unflatten(0, (batch, num_heads))
    if add_zero_attn:
        k = F.pad(k, (0, 0, 0, 1))
    hint = is_causal and key_padding_mask is None and not need_weights  # then PyTorch does not read the mask
    masks = []
    if attn_mask is not None and not hint:
        per_head = attn_mask.ndim == 3
        masks.append(_for_keys(attn_mask.unflatten(0, (batch, num_heads)) if per_head else attn_mask, k.shape[-2]))
    if key_padding_mask is not None:
        masks.append(_for_keys(key_padding_mask[:, None, None], k.shape[-2]))
    return Product(DotProduct(q, k, heads=True, masks=masks, causal=0 if hint else None), None)


def _for_keys(mask: Tensor, keys: int) -> Tensor:
    """A mask of ``nn.MultiheadAttention`` as that of a :class:`DotProduct`, where true is free, as added keys are."""
    mask = ~mask if mask.dtype == torch.bool else mask
    return F.pad(mask, (0, keys - mask.shape[-1]), value=mask.dtype == torch.bool)
