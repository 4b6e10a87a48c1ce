"""Overlap of the attention of two classes: visual confusion as a number.

Wang et al.: "Sharpen Focus: Learning with Attention Separability and Consistency" (https://arxiv.org/abs/1811.07484).
This is their separation loss without its mask.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from foveal.errors import UserError
from foveal.measure._inputs import at_least_float32, check_values
from foveal.measure._split import Split, SplitMean, check_correct, split_means, split_sums
from foveal.measure.info import MetricInfo, register_metric


def _check(target_map: Tensor, confuser_map: Tensor, correct: Tensor | None) -> None:
    if target_map.ndim != 3 or target_map.shape != confuser_map.shape:
        raise UserError(
            "the maps must both be (N, H, W), one per sample, "
            f"got {tuple(target_map.shape)} and {tuple(confuser_map.shape)}"
        )
    check_values(target_map)
    check_values(confuser_map)
    check_correct(correct, len(target_map))


def _overlaps(target_map: Tensor, confuser_map: Tensor) -> tuple[Tensor, Tensor]:
    """Overlap of each sample (N,), and which samples have a map, bool (N,)."""
    target, confuser = at_least_float32(target_map), at_least_float32(confuser_map)
    peak = torch.maximum(target, confuser).amax((1, 2), keepdim=True)
    target, confuser = (t / peak.masked_fill(peak == 0, 1) for t in (target, confuser))
    total = (target + confuser).sum((1, 2))
    shared = 2 * torch.minimum(target, confuser).sum((1, 2))
    counted = target.sum((1, 2)) > 0
    return shared / total.masked_fill(~counted, 1), counted


def attention_overlap(target_map: Tensor, confuser_map: Tensor, correct: Tensor | None = None) -> Split:
    """How much the maps of two classes overlap: 2 Σ min(A, B) / Σ (A + B).

    Samples whose target map is zero everywhere are left out.

    Args:
        target_map: (N, H, W), finite and not negative, of the true class.
        confuser_map: (N, H, W), of the class most easily confused with it.
        correct: bool (N,), whether each prediction is right.

    Returns:
        Means in [0, 1]: 0 for disjoint maps, 1 for equal ones.

    >>> left, right = torch.tensor([[[1.0, 0.0]]]), torch.tensor([[[1.0, 2.0]]])
    >>> attention_overlap(left, right, torch.tensor([False]))
    Split(all=tensor(0.5000), right=tensor(nan), wrong=tensor(0.5000))
    """
    _check(target_map, confuser_map, correct)
    return split_means(*split_sums(*_overlaps(target_map, confuser_map), correct))


OVERLAP_LAST = register_metric(
    MetricInfo(
        "overlap_last",
        "Overlap last",
        better="lower",
        about="Overlap last is how much the maps of the true class and of the best-scoring other one share in the last "
        "layer: 0 if they lie apart, 100 if they are equal.",
    )
)
OVERLAP_INNER = register_metric(
    MetricInfo(
        "overlap_inner", "Overlap inner", better="lower", about="Overlap inner is overlap last in an inner layer."
    )
)


class AttentionOverlap(SplitMean):
    """:func:`attention_overlap` over a whole test set.

    Args:
        **kwargs: of :class:`torchmetrics.Metric`.

    >>> metric = AttentionOverlap()
    >>> metric.update(torch.ones(2, 3, 3), torch.ones(2, 3, 3), torch.tensor([True, False]))
    >>> metric.update(torch.ones(1, 3, 3), torch.zeros(1, 3, 3), torch.tensor([True]))
    >>> metric.compute()
    Split(all=tensor(0.6667), right=tensor(0.5000), wrong=tensor(1.))
    """

    info: ClassVar[MetricInfo] = register_metric(
        MetricInfo(
            "attention_overlap",
            "Overlap of attention",
            better="lower",
            about="How much the maps of two classes share: 0 if they lie apart, 100 if they are equal.",
        )
    )

    higher_is_better = False

    def update(self, target_map: Tensor, confuser_map: Tensor, correct: Tensor | None = None) -> None:
        """Add samples: two maps (N, H, W) and, if known, bool ``correct`` (N,)."""
        _check(target_map, confuser_map, correct)
        self.add(*_overlaps(target_map, confuser_map), correct)
