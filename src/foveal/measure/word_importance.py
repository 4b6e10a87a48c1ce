"""Importance of each entity in pairwise attention, of words above all.

Wang, Samari, Kim, Chaudhuri, Siddiqi: "FAN: Focused Attention Networks" (https://arxiv.org/abs/1905.11498).
"""

from __future__ import annotations

import torch
from torch import Tensor

from foveal.attention.records.record import AttentionRecord
from foveal.errors import UserError
from foveal.measure._inputs import at_least_float32


def word_importance(weights: Tensor | AttentionRecord, mask: Tensor | None = None) -> Tensor:
    """How much attention each entity receives from all: β_n = Σ_m w_mn.

    The sum of the aggregated features is Σ_n β_n f_n, so β is the contribution of a word to its sentence. The β of a
    sentence sum to its number of words, and 1 is the average.

    Args:
        weights: (..., N, N), not negative, each row a softmax: row m attends to column n. With heads, take their
            mean. Or a pairwise record of :func:`foveal.watch`, of whose heads the mean is taken.
        mask: bool (..., N), true for real entities; padding neither gives nor receives.

    Returns:
        β (..., N), zero for padding; differentiable in ``weights``.

    >>> word_importance(torch.tensor([[0.9, 0.1], [0.6, 0.4]]))
    tensor([1.5000, 0.5000])
    """
    if isinstance(weights, AttentionRecord):
        weights = torch.stack([weights.matrix(sample) for sample in range(weights.shape[0])])
    if weights.ndim < 2 or weights.shape[-1] != weights.shape[-2] or not weights.is_floating_point():
        raise UserError(f"weights must be floating point (..., N, N), got {weights.dtype} {tuple(weights.shape)}")
    if not bool(((weights >= 0) & weights.isfinite()).all()):
        raise UserError("weights must be finite and not negative; give attention after the softmax of each row")
    weights = at_least_float32(weights)
    if mask is None:
        return weights.sum(-2)
    if mask.dtype != torch.bool or mask.shape != weights.shape[:-1]:
        raise UserError(f"mask must be bool {tuple(weights.shape[:-1])}, got {mask.dtype} {tuple(mask.shape)}")
    return (weights * mask[..., None]).sum(-2) * mask
