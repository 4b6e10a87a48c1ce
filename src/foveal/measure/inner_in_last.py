"""Share of an inner layer's attention that rests where the last layer attends.

Wang et al.: "Sharpen Focus: Learning with Attention Separability and Consistency" (https://arxiv.org/abs/1811.07484):
what their consistency loss subtracts from its target θ.
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from foveal.errors import UserError
from foveal.measure._inputs import check_values
from foveal.measure._split import Split, SplitMean, check_correct, split_means, split_sums
from foveal.measure.info import MetricInfo, register_metric
from foveal.supervise.separability import consistencies


def _check(inner_map: Tensor, last_map: Tensor, correct: Tensor | None) -> None:
    if inner_map.ndim != 3 or last_map.ndim != 3 or len(inner_map) != len(last_map):
        raise UserError(
            "the maps must be (N, h, w) and (N, H, W), one per sample, "
            f"got {tuple(inner_map.shape)} and {tuple(last_map.shape)}"
        )
    check_values(inner_map)
    check_values(last_map)
    check_correct(correct, len(inner_map))


def _shares(inner_map: Tensor, last_map: Tensor, sigma: float, omega: float) -> tuple[Tensor, Tensor]:
    """Share of each sample (N,), and which samples have both maps, bool (N,)."""
    missing, counted = consistencies(
        inner_map, last_map, 1.0, sigma=sigma, omega=omega, source="last", hinge=False, mask_gradient=False
    )
    return 1 - missing, counted


def inner_in_last(
    inner_map: Tensor,
    last_map: Tensor,
    correct: Tensor | None = None,
    *,
    sigma: float = 0.55,
    omega: float = 100.0,
) -> Split:
    """Inner attention inside the last layer's mask ÷ all inner attention.

    Samples with a map that is zero everywhere are left out.

    Args:
        inner_map: (N, h, w), finite and not negative, of a class at an inner layer.
        last_map: (N, H, W), of the same class at the last layer.
        correct: bool (N,), whether each prediction is right.
        sigma: threshold of the mask, as a fraction of the last map's maximum.
        omega: sharpness of the mask.

    Returns:
        Means in [0, 1].

    >>> import torch
    >>> inner, last = torch.tensor([[[3.0, 1.0]]]), torch.tensor([[[9.0, 0.0]]])
    >>> inner_in_last(inner, last).all
    tensor(0.7500)
    """
    _check(inner_map, last_map, correct)
    return split_means(*split_sums(*_shares(inner_map, last_map, sigma, omega), correct))


class InnerInLast(SplitMean):
    """:func:`inner_in_last` over a whole test set.

    Args:
        sigma: threshold of the mask, as a fraction of the last map's maximum.
        omega: sharpness of the mask.
        **kwargs: of :class:`torchmetrics.Metric`.

    >>> import torch
    >>> metric = InnerInLast()
    >>> metric.update(torch.tensor([[[3.0, 1.0]]]), torch.tensor([[[9.0, 0.0]]]), torch.tensor([True]))
    >>> metric.compute().right
    tensor(0.7500)
    """

    info: ClassVar[MetricInfo] = register_metric(
        MetricInfo(
            "inner_in_last",
            "Inner in last",
            about="Inner in last is the share of the inner layer's attention where the last layer attends.",
        )
    )

    def __init__(self, *, sigma: float = 0.55, omega: float = 100.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.sigma, self.omega = sigma, omega

    def update(self, inner_map: Tensor, last_map: Tensor, correct: Tensor | None = None) -> None:
        """Add samples: maps (N, h, w) and (N, H, W) and, if known, bool ``correct`` (N,)."""
        _check(inner_map, last_map, correct)
        self.add(*_shares(inner_map.detach(), last_map.detach(), self.sigma, self.omega), correct)
