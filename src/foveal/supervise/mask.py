"""Attention on a mask: a loss that raises the share of attention on the target's pixels.

With α the attention and m the mask of sample n, over the samples that have a target::

    L = −1/N Σ_n log ( Σ_ij m_ij α_ij / Σ_ij α_ij )

The share is the true-positive strength of Seo, Lin, Cohen, Shen, Han: "Hierarchical Attention Networks"
(https://arxiv.org/abs/1606.02393), who measure it. To train on it is not in the paper.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from foveal.attention.records.placement import place
from foveal.attention.records.record import AttentionRecord
from foveal.errors import UserError
from foveal.supervise._inputs import check_tensors, may_look, warn_not_finite
from foveal.supervise.registry import register_attention_loss


def mask_loss(attention: Tensor | AttentionRecord, mask: Tensor, grid: tuple[float, float] | None = None) -> Tensor:
    """−log of the share of attention that rests on the mask.

    The attention is brought to the size of the mask first, as :func:`foveal.measure.attention_map` does. A map scaled
    by any positive factor has the same loss.

    Args:
        attention: (N, h, w), not negative, at any size; or a spatial record of :func:`foveal.watch`.
        mask: bool (N, H, W), true on the target, at the size of the model's input.
        grid: where in the input the values belong, as ``AttentionRecord.grid``; a record knows its own. None: they are
            stretched over the input.

    Returns:
        Scalar, the mean over samples that have a target and attention. A sample with an empty mask, or whose attention
        is zero everywhere or not finite, is skipped; 0, with a gradient of zero, if all are. Attention that misses its
        mask completely costs −log ε ≈ 16 and has no gradient. Computed in at least float32, also under autocast.

    >>> attention = torch.tensor([[[3.0, 1.0]]], requires_grad=True)
    >>> mask = torch.tensor([[[True, False]]])
    >>> loss = mask_loss(attention, mask)
    >>> round(loss.exp().item(), 4)  # 4/3: three quarters of the attention are on the mask
    1.3333
    >>> loss.backward()
    """
    values: Tensor
    if isinstance(attention, AttentionRecord):
        if attention.kind != "spatial":
            raise UserError(
                f"{attention.site} is {attention.kind} attention, which has no map; choose spatial sites, as with "
                "foveal.watch(model, at=…)"
            )
        values, grid = attention.values, attention.grid if grid is None else grid
    else:
        values = attention
    _check(values, mask)
    maps = values.to(torch.promote_types(values.dtype, torch.float32))
    amount = maps.detach().sum((1, 2))
    valid = (amount > 0) & (amount < torch.inf) & mask.flatten(1).any(1)
    maps = torch.where(valid[:, None, None], maps, 0)
    peak = maps.detach().amax((1, 2), keepdim=True)
    with torch.autocast(maps.device.type, enabled=False):
        maps = place(maps / peak.masked_fill(peak == 0, 1), (mask.shape[1], mask.shape[2]), grid)
    total = maps.sum((1, 2))
    valid = valid & (total > 0)  # a grid may lie outside the mask's image
    share = maps.masked_fill(~mask, 0).sum((1, 2)) / total.masked_fill(~valid, 1)
    loss = -share.clamp_min(torch.finfo(share.dtype).eps).log()
    return loss.masked_fill(~valid, 0).sum() / valid.sum().clamp_min(1)


def _check(attention: Tensor, mask: Tensor) -> None:
    check_tensors(attention=attention, mask=mask)
    if attention.ndim != 3 or 0 in attention.shape[1:] or not attention.is_floating_point():
        raise UserError(
            f"attention must be floating point (N, h, w), one map per sample, got {attention.dtype} "
            f"{tuple(attention.shape)}"
        )
    if mask.dtype != torch.bool:
        raise UserError(f"mask must be bool, got {mask.dtype}; compare it first, for example mask > 0")
    if mask.ndim != 3 or 0 in mask.shape[1:] or len(mask) != len(attention):
        raise UserError(f"mask must be ({len(attention)}, H, W), one per sample, got {tuple(mask.shape)}")
    if may_look(attention) and bool((attention < 0).any()):
        raise UserError("attention must not be negative; give probabilities (after sigmoid or softmax)")
    warn_not_finite(attention=attention)


@register_attention_loss("mask", needs_mask=True)
def mask_loss_of_batch(record: AttentionRecord, batch: Mapping[str, Tensor]) -> Tensor:
    """:func:`mask_loss` on ``batch["mask"]``, for ``loss.attention`` of a recipe."""
    if "mask" not in batch:
        raise UserError(
            f"the loss 'mask' needs batch['mask'], bool (N, H, W), got a batch of {', '.join(batch) or 'nothing'}; use "
            "a dataset that has masks"
        )
    return mask_loss(record, batch["mask"])
