"""Energy-based pointing game: the share of a map that lies on the object.

Wang et al.: "Score-CAM: Score-Weighted Visual Explanations for Convolutional Neural Networks"
(https://arxiv.org/abs/1910.01279). For masks it is the true-positive strength of
:mod:`foveal.measure.true_positive_strength`, split by right and wrong predictions and without the empty regions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from foveal.measure._inputs import at_least_float32, warn_without_target
from foveal.measure._split import Split, SplitMean, check_correct, split_means, split_sums
from foveal.measure.info import MetricInfo, register_metric
from foveal.measure.regions import region_mask


def _shares(attention: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Share of each sample (N,), and which samples have a region, bool (N,)."""
    attention = at_least_float32(attention)
    everywhere = attention.sum((1, 2))
    inside = attention.masked_fill(~mask, 0).sum((1, 2))
    return inside / everywhere.masked_fill(everywhere == 0, 1), mask.flatten(1).any(1)


def energy_in_box(attention: Tensor, region: Tensor | Sequence[Tensor], correct: Tensor | None = None) -> Split:
    """Attention on the object ÷ attention everywhere.

    A map that is zero everywhere attends to nothing and counts as 0.

    Args:
        attention: (N, H, W), finite and not negative, at the size of the regions; see
            :func:`foveal.measure.attention_map`.
        region: bool (N, H, W), or for each sample its boxes (M, 4) as x0, y0, x1, y1 in pixels of the map. Samples
            without any region are left out.
        correct: bool (N,), whether each prediction is right.

    Returns:
        Means in [0, 1].

    >>> import torch
    >>> attention = torch.tensor([[[0.0, 3.0], [1.0, 2.0]]])
    >>> energy_in_box(attention, [torch.tensor([[1.0, 0.0, 2.0, 1.0]])]).all
    tensor(0.5000)
    """
    check_correct(correct, len(attention))
    values, counted = _shares(attention, region_mask(attention, region))
    warn_without_target(counted)
    return split_means(*split_sums(values, counted, correct))


class EnergyInBox(SplitMean):
    """:func:`energy_in_box` over a whole test set.

    Args:
        **kwargs: of :class:`torchmetrics.Metric`.

    >>> import torch
    >>> metric = EnergyInBox()
    >>> attention = torch.tensor([[[0.0, 3.0]], [[3.0, 1.0]]])
    >>> metric.update(attention, torch.tensor([[[False, True]]] * 2), torch.tensor([True, False]))
    >>> metric.compute()
    Split(all=tensor(0.6250), right=tensor(1.), wrong=tensor(0.2500))
    """

    info: ClassVar[MetricInfo] = register_metric(
        MetricInfo(
            "energy_in_box",
            "Energy in box",
            about="Energy in box is the share of attention inside the object.",
        )
    )

    def update(self, attention: Tensor, region: Tensor | Sequence[Tensor], correct: Tensor | None = None) -> None:
        """Add samples: ``attention`` (N, H, W), masks (N, H, W) or N sets of boxes, and bool ``correct`` (N,)."""
        check_correct(correct, len(attention))
        self.add(*_shares(attention, region_mask(attention, region)), correct)
