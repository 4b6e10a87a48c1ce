"""Center-mass: the share of pairwise attention that rests on labelled pairs.

Wang, Samari, Kim, Chaudhuri, Siddiqi: "FAN: Focused Attention Networks" (https://arxiv.org/abs/1905.11498).
:func:`foveal.supervise.center_mass_loss` raises it; on held-out data it tells whether attention has learned the pairs.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from torchmetrics import Metric

from foveal.errors import unknown
from foveal.measure._inputs import warn_without_target
from foveal.measure.info import MetricInfo, register_metric
from foveal.supervise.center_mass import Logits, Over, Related, graph_masses


def center_mass(
    logits: Logits,
    target: Tensor,
    mask: Tensor | None = None,
    over: Over = "matrix",
    *,
    related: Related | Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """Mean center-mass of the graphs that have a labelled pair.

    Args:
        logits: affinities before the softmax, (..., N, N), or a pair (q, k), or a record; as in
            :func:`foveal.supervise.center_mass`, like all others.
        target: bool (..., N, N), or labels (..., N) with ``related``.
        mask: bool (..., N), true for real entities.
        over: ``matrix`` or ``row``.
        related: which labels make a pair.
        scale: of q kᵀ.

    Returns:
        Scalar in [0, 1]; nan if no graph has a labelled pair.

    >>> target = torch.zeros(2, 2, 2, dtype=torch.bool)
    >>> target[0, 0, 1] = True  # the second graph has nothing to find
    >>> center_mass(torch.zeros(2, 2, 2), target)
    tensor(0.2500)
    """
    mass, has_pair = graph_masses(logits, target, mask, over, related=related, scale=scale)
    warn_without_target(has_pair.flatten(), "it has no labelled pair")
    return mass.sum() / has_pair.sum()


class CenterMass(Metric):
    """:func:`center_mass` over a whole test set.

    Args:
        over: ``matrix`` or ``row``.
        **kwargs: of :class:`torchmetrics.Metric`.

    Attributes:
        counted: after ``compute``, how many graphs had a labelled pair, and how many graphs there were.

    >>> metric = CenterMass()
    >>> metric.update(torch.zeros(3, 2, 2), torch.tensor([[False, True], [True, False]]))
    >>> metric.compute()
    tensor(0.5000)
    """

    info: ClassVar[MetricInfo] = register_metric(
        MetricInfo(
            "center_mass",
            "Center-mass",
            about="Center-mass is the share of the attention that rests on pairs that should matter.",
        )
    )

    is_differentiable = True
    higher_is_better = True
    full_state_update = False

    total: Tensor
    count: Tensor
    graphs: Tensor

    def __init__(self, over: Over = "matrix", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if over not in ("matrix", "row"):
            raise unknown("softmax over", str(over), ("matrix", "row"))
        self.over, self.counted = over, (0, 0)
        self.add_state("total", torch.tensor(0.0), dist_reduce_fx="sum")
        self.add_state("count", torch.tensor(0), dist_reduce_fx="sum")
        self.add_state("graphs", torch.tensor(0), dist_reduce_fx="sum")

    def update(
        self,
        logits: Logits,
        target: Tensor,
        mask: Tensor | None = None,
        *,
        related: Related | Tensor | None = None,
        scale: float | None = None,
    ) -> None:
        """Add graphs; arguments as in :func:`center_mass`."""
        mass, has_pair = graph_masses(logits, target, mask, self.over, related=related, scale=scale)
        self.total = self.total + mass.sum().to(self.total.dtype)
        self.count = self.count + has_pair.sum()
        self.graphs = self.graphs + has_pair.numel()

    def compute(self) -> Tensor:
        """Mean over all graphs so far that have a labelled pair, a scalar; nan if none has."""
        self.counted = (int(self.count), int(self.graphs))  # here they are those of all processes
        return self.total / self.count
