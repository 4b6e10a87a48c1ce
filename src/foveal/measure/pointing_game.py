"""The pointing game: whether the highest point of a map lies on the object.

Zhang, Lin, Brandt, Shen, Sclaroff: "Top-down Neural Attention by Excitation Backprop"
(https://arxiv.org/abs/1608.00507), who allow 15 pixels of tolerance. Where several positions are highest, the share of
them on the object counts, so that a constant map scores the area fraction of the object.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from foveal.errors import UserError
from foveal.measure._inputs import at_least_float32, warn_without_target
from foveal.measure._split import Split, SplitMean, check_correct, split_means, split_sums
from foveal.measure.info import MetricInfo, register_metric
from foveal.measure.regions import region_mask


def _check_tolerance(tolerance: int) -> None:
    if tolerance < 0 or not isinstance(tolerance, int):
        raise UserError(f"tolerance is a whole number of pixels, got {tolerance}")


def _hits(attention: Tensor, mask: Tensor, tolerance: int) -> tuple[Tensor, Tensor]:
    """Hit of each sample (N,), and which samples have a region, bool (N,)."""
    attention = at_least_float32(attention)
    highest = attention == attention.amax((1, 2), keepdim=True)
    near = mask
    if tolerance:
        span = _disc(tolerance).to(attention)
        near = F.conv2d(mask[:, None].to(attention.dtype), span[None, None], padding=tolerance)[:, 0] > 0
    hit = (highest & near).sum((1, 2)) / highest.sum((1, 2))
    return hit, mask.flatten(1).any(1)


def _disc(radius: int) -> Tensor:
    """1 within ``radius`` of the middle, (2r + 1, 2r + 1)."""
    along = torch.arange(-radius, radius + 1)
    return (along[:, None] ** 2 + along[None] ** 2 <= radius**2).float()


def pointing_game(
    attention: Tensor, region: Tensor | Sequence[Tensor], correct: Tensor | None = None, *, tolerance: int = 0
) -> Split:
    """Share of samples whose attention is highest on the object.

    Args:
        attention: (N, H, W), finite and not negative, at the size of the regions; see
            :func:`foveal.measure.attention_map`.
        region: bool (N, H, W), or for each sample its boxes (M, 4) as x0, y0, x1, y1 in pixels of the map. Samples
            without any region are left out.
        correct: bool (N,), whether each prediction is right.
        tolerance: positions up to this many pixels away from the region count as on it.

    Returns:
        Means in [0, 1].

    >>> attention = torch.tensor([[[0.0, 3.0], [1.0, 2.0]]])
    >>> pointing_game(attention, [torch.tensor([[1.0, 0.0, 2.0, 1.0]])]).all
    tensor(1.)
    """
    _check_tolerance(tolerance)
    check_correct(correct, len(attention))
    values, counted = _hits(attention, region_mask(attention, region), tolerance)
    warn_without_target(counted)
    return split_means(*split_sums(values, counted, correct))


class PointingGame(SplitMean):
    """:func:`pointing_game` over a whole test set.

    Args:
        tolerance: positions up to this many pixels away from the region count as on it.
        **kwargs: of :class:`torchmetrics.Metric`.

    >>> metric = PointingGame()
    >>> attention = torch.tensor([[[0.0, 3.0]], [[3.0, 0.0]]])
    >>> metric.update(attention, torch.tensor([[[False, True]]] * 2), torch.tensor([True, False]))
    >>> metric.compute()
    Split(all=tensor(0.5000), right=tensor(1.), wrong=tensor(0.))
    """

    info: ClassVar[MetricInfo] = register_metric(
        MetricInfo(
            "pointing_game",
            "Pointing game",
            about="Pointing game is the share of images whose strongest position lies in the object.",
        )
    )

    def __init__(self, *, tolerance: int = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        _check_tolerance(tolerance)
        self.tolerance = tolerance

    def update(self, attention: Tensor, region: Tensor | Sequence[Tensor], correct: Tensor | None = None) -> None:
        """Add samples: ``attention`` (N, H, W), masks (N, H, W) or N sets of boxes, and bool ``correct`` (N,)."""
        check_correct(correct, len(attention))
        self.add(*_hits(attention, region_mask(attention, region), self.tolerance), correct)
