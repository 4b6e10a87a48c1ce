"""Precision and recall of attention as a detector of the target's pixels.

Seo, Lin, Cohen, Shen, Han: "Hierarchical Attention Networks" (https://arxiv.org/abs/1606.02393). The paper does not say
how maps of different models are brought to one scale; here each map is divided by its maximum by default.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torchmetrics import Metric

from foveal.errors import UserError
from foveal.measure._inputs import at_least_float32, check_maps, warn_without_target
from foveal.measure.info import MetricInfo, register_metric


def _levels(thresholds: int | Tensor | Sequence[float]) -> Tensor:
    """Thresholds as a sorted float32 tensor (T,)."""
    if isinstance(thresholds, int):
        if thresholds < 2:
            raise UserError(f"thresholds must be at least 2 to span [0, 1], got {thresholds}; or give a 1-D tensor")
        return torch.linspace(0, 1, thresholds)
    thresholds = torch.as_tensor(thresholds)
    if thresholds.ndim != 1 or not len(thresholds):
        raise UserError(f"thresholds must be an int or a 1-D tensor, got a tensor of shape {tuple(thresholds.shape)}")
    if not bool((thresholds.diff() >= 0).all()) or bool(thresholds.isnan().any()):
        raise UserError("thresholds must not decrease and not be nan; sort them with thresholds.sort().values")
    return thresholds.float()


def _update(attention: Tensor, mask: Tensor, levels: Tensor, normalise: bool) -> Tensor:
    """Histogram (2, T + 1): pixels off and on the target, by the number of thresholds that they reach."""
    attention = at_least_float32(attention)
    if normalise:
        peak = attention.amax((1, 2), keepdim=True)
        attention = attention / peak.masked_fill(peak == 0, 1)
    # Compared in float32, so that 0.3 in a float64 map still reaches a threshold of 0.3.
    reached = torch.bucketize(attention.float().contiguous(), levels, right=True, out_int32=True)
    bins = len(levels) + 1
    return torch.bincount((reached + bins * mask.int()).flatten(), minlength=2 * bins).view(2, bins)


def _compute(histogram: Tensor) -> tuple[Tensor, Tensor]:
    # Pixels that reach threshold t are those that reach more than t thresholds: a cumulative sum from the right.
    reaching = histogram.flip(1).cumsum(1).flip(1)
    predicted, hits = reaching.sum(0)[1:], reaching[1, 1:]
    precision = torch.where(predicted > 0, hits / predicted.clamp_min(1), 1.0)
    return precision, hits / reaching[1, 0]


def attention_precision_recall(
    attention: Tensor, mask: Tensor, thresholds: int | Tensor | Sequence[float] = 101, *, normalise: bool = True
) -> tuple[Tensor, Tensor]:
    """Pixel precision and recall of thresholded attention, pooled over samples.

    A pixel is predicted at threshold t if its attention is at least t::

        precision(t) = |{α ≥ t} ∩ mask| / |{α ≥ t}|,    recall(t) = |{α ≥ t} ∩ mask| / |mask|

    Pixels of all samples are counted together, so large targets count more than small ones.

    Args:
        attention: (N, H, W), finite and not negative; see :func:`foveal.measure.attention_map`.
        mask: bool (N, H, W), true on the target.
        thresholds: T, for T levels evenly spaced in [0, 1], or the levels themselves in increasing order, (T,).
        normalise: divide every map by its own maximum first. A softmax over many positions and a sigmoid have different
            scales; this makes their curves comparable. A map that is zero everywhere stays zero.

    Returns:
        Precision (T,), 1 where no pixel is predicted, and recall (T,), nan if no pixel is on a target.

    >>> attention = torch.tensor([[[0.8, 0.4], [0.2, 0.0]]])
    >>> mask = torch.tensor([[[True, False], [True, False]]])
    >>> precision, recall = attention_precision_recall(attention, mask, thresholds=3)
    >>> precision, recall
    (tensor([0.5000, 0.5000, 1.0000]), tensor([1.0000, 0.5000, 0.5000]))
    """
    check_maps(attention, mask)
    warn_without_target(mask.flatten(1).any(1), result="a recall of nan")
    return _compute(_update(attention, mask, _levels(thresholds).to(attention.device), normalise))


class AttentionPrecisionRecall(Metric):
    """:func:`attention_precision_recall` over a whole test set.

    Only the pixel counts are kept, as int64: memory does not grow with the samples, and no count is rounded.

    Args:
        thresholds: T, for T levels evenly spaced in [0, 1], or the levels themselves in increasing order, (T,).
        normalise: divide every map by its own maximum first.
        **kwargs: of :class:`torchmetrics.Metric`.

    Attributes:
        thresholds: the levels (T,), to plot against.

    >>> metric = AttentionPrecisionRecall(thresholds=3)
    >>> metric.update(torch.tensor([[[0.8, 0.4]]]), torch.tensor([[[True, False]]]))
    >>> metric.update(torch.tensor([[[0.1, 0.0]]]), torch.tensor([[[True, False]]]))
    >>> metric.compute()
    (tensor([0.5000, 0.6667, 1.0000]), tensor([1., 1., 1.]))
    """

    info: ClassVar[MetricInfo] = register_metric(
        MetricInfo(
            "attention_precision_recall",
            "Precision and recall of attention",
            better=None,
            about="Precision and recall are of the target's pixels, by attention above a threshold.",
        )
    )

    is_differentiable = False
    higher_is_better = None
    full_state_update = False

    thresholds: Tensor
    histogram: Tensor

    def __init__(
        self, thresholds: int | Tensor | Sequence[float] = 101, *, normalise: bool = True, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.normalise = normalise
        self.register_buffer("thresholds", _levels(thresholds), persistent=False)
        empty = torch.zeros(2, len(self.thresholds) + 1, dtype=torch.int64)
        self.add_state("histogram", empty, dist_reduce_fx="sum")

    def update(self, attention: Tensor, mask: Tensor) -> None:
        """Add samples: ``attention`` (N, H, W) and bool ``mask`` (N, H, W)."""
        check_maps(attention, mask)
        self.histogram = self.histogram + _update(attention, mask, self.thresholds, self.normalise)

    def compute(self) -> tuple[Tensor, Tensor]:
        """Precision (T,) and recall (T,) of all pixels so far."""
        return _compute(self.histogram)
