"""True-positive strength: the share of attention that rests on the target.

Seo, Lin, Cohen, Shen, Han: "Hierarchical Attention Networks" (https://arxiv.org/abs/1606.02393). The paper prints
percent; this is the fraction.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from torchmetrics import Metric

from foveal.measure._inputs import at_least_float32, check_maps, warn_without_target
from foveal.measure.info import MetricInfo, register_metric


def _update(attention: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Strength of each sample (N,), 0 without a target, and which samples have one, bool (N,)."""
    attention = at_least_float32(attention)
    inside = attention.masked_fill(~mask, 0).sum((1, 2))
    everywhere = attention.sum((1, 2))
    # Without any attention the numerator is zero too, so dividing by one gives the documented strength of 0.
    return inside / everywhere.masked_fill(everywhere == 0, 1), mask.flatten(1).any(1)


def _compute(total: Tensor, count: Tensor) -> Tensor:
    return total / count


def true_positive_strength(attention: Tensor, mask: Tensor) -> Tensor:
    """Attention inside the mask ÷ attention everywhere, averaged over samples.

    With α the attention and m the mask of sample n::

        strength = 1/N Σ_n ( Σ_ij m_ij α_ij / Σ_ij α_ij )

    A map scaled by any positive factor has the same strength, and a uniform map has the area fraction of its mask. A
    sample whose attention is zero everywhere counts as 0; one whose mask is empty has no target and is left out.
    Differentiable in ``attention``.

    Args:
        attention: (N, H, W), finite and not negative; see :func:`foveal.measure.attention_map`.
        mask: bool (N, H, W), true on the target.

    Returns:
        Scalar in [0, 1]; nan, with a warning, if no sample has a target.

    >>> attention = torch.tensor([[[3.0, 1.0], [0.0, 0.0]]])
    >>> mask = torch.tensor([[[True, False], [True, False]]])
    >>> true_positive_strength(attention, mask)
    tensor(0.7500)
    >>> true_positive_strength(torch.ones(1, 2, 2), mask)
    tensor(0.5000)
    """
    check_maps(attention, mask)
    strengths, counted = _update(attention, mask)
    warn_without_target(counted)
    return _compute(strengths.sum(), counted.sum())


LAST = register_metric(MetricInfo("true_positive_strength_last", "True-positive strength, last gate"))
STRETCHED = register_metric(MetricInfo("true_positive_strength_resized", "True-positive strength, maps stretched"))
TARGET_AREA = register_metric(
    MetricInfo("target_area", "Area of the target", better=None, about="What attention spread evenly would reach.")
)


class TruePositiveStrength(Metric):
    """:func:`true_positive_strength` over a whole test set.

    Args:
        **kwargs: of :class:`torchmetrics.Metric`.

    >>> metric = TruePositiveStrength()
    >>> metric.update(torch.tensor([[[3.0, 1.0]]]), torch.tensor([[[True, False]]]))
    >>> metric.update(torch.tensor([[[1.0, 3.0]]]), torch.tensor([[[True, False]]]))
    >>> metric.compute()
    tensor(0.5000)
    """

    info: ClassVar[MetricInfo] = register_metric(
        MetricInfo(
            "true_positive_strength",
            "True-positive strength",
            about="True-positive strength is the share of all attention that falls on the target.",
        )
    )

    is_differentiable = True
    higher_is_better = True
    full_state_update = False

    total: Tensor
    count: Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("total", torch.tensor(0.0), dist_reduce_fx="sum")
        self.add_state("count", torch.tensor(0), dist_reduce_fx="sum")

    def update(self, attention: Tensor, mask: Tensor) -> None:
        """Add samples: ``attention`` (N, H, W) and bool ``mask`` (N, H, W)."""
        check_maps(attention, mask)
        strengths, counted = _update(attention, mask)
        self.total = self.total + strengths.sum().to(self.total.dtype)
        self.count = self.count + counted.sum()

    def compute(self) -> Tensor:
        """Mean strength of all samples so far, a scalar."""
        return _compute(self.total, self.count)
