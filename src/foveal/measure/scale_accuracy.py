"""Accuracy by the scale of the target: whether a network is as good on small targets as on large ones.

Seo, Lin, Cohen, Shen, Han: "Hierarchical Attention Networks" (https://arxiv.org/abs/1606.02393), whose five bins are
the default.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor
from torchmetrics import Metric

from foveal.errors import UserError
from foveal.measure._inputs import at_least_float32
from foveal.measure.info import MetricInfo, register_metric

EDGES = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0)


def _check_edges(edges: Sequence[float]) -> tuple[float, ...]:
    numbers = tuple(float(edge) for edge in edges)
    if len(numbers) < 2 or not all(lo < hi for lo, hi in pairwise(numbers)):
        raise UserError(f"edges must be two or more increasing numbers, got {numbers}")
    return numbers


def _check(correct: Tensor, scale: Tensor) -> None:
    if correct.ndim != 1 or correct.shape != scale.shape:
        raise UserError(
            f"correct and scale must both be (N,), one per sample, got {tuple(correct.shape)} and {tuple(scale.shape)}"
        )
    if correct.dtype != torch.bool:
        raise UserError(f"correct must be bool, got {correct.dtype}; for example predicted == target")
    if bool(scale.isnan().any()):
        raise UserError("scale holds nan; give every target's scale or leave the sample out")


def _update(correct: Tensor, scale: Tensor, edges: tuple[float, ...]) -> tuple[Tensor, Tensor]:
    """Correct samples and all samples of each bin, both (B,)."""
    scale = at_least_float32(scale).contiguous()
    levels = torch.tensor(edges, dtype=scale.dtype, device=scale.device)
    # Bucket 0 lies below the edges and the last one above them; the lowest edge itself belongs to the first bin.
    bucket = torch.bucketize(scale, levels).masked_fill(scale == levels[0], 1)
    counts = torch.bincount(bucket * 2 + correct, minlength=2 * len(edges) + 2).view(-1, 2)[1:-1]
    return counts[:, 1], counts.sum(1)


def _compute(hits: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    return hits / counts, counts


def scale_accuracy(correct: Tensor, scale: Tensor, edges: Sequence[float] = EDGES) -> tuple[Tensor, Tensor]:
    """Accuracy in each bin of the target's scale.

    Bins are (lo, hi], except that the lowest edge belongs to the first bin: [0.5, 1], (1, 1.5], … (2.5, 3]. Samples
    outside the edges are in no bin.

    Args:
        correct: bool (N,), whether each prediction is right.
        scale: (N,), the scale of each target.
        edges: B + 1 increasing numbers.

    Returns:
        Accuracy (B,), nan for an empty bin, and the number of samples (B,), int64.

    >>> correct = torch.tensor([True, False, True, True])
    >>> scale_accuracy(correct, torch.tensor([0.5, 1.0, 1.2, 9.0]), edges=(0.5, 1, 1.5, 2))
    (tensor([0.5000, 1.0000, nan]), tensor([2, 1, 0]))
    """
    _check(correct, scale)
    return _compute(*_update(correct, scale, _check_edges(edges)))


class ScaleAccuracy(Metric):
    """:func:`scale_accuracy` over a whole test set.

    Args:
        edges: B + 1 increasing numbers.
        **kwargs: of :class:`torchmetrics.Metric`.

    >>> metric = ScaleAccuracy(edges=(0, 1, 2))
    >>> metric.update(torch.tensor([True, True]), torch.tensor([0.5, 1.5]))
    >>> metric.update(torch.tensor([False]), torch.tensor([2.0]))
    >>> metric.compute()
    (tensor([1.0000, 0.5000]), tensor([1, 2]))
    """

    info: ClassVar[MetricInfo] = register_metric(
        MetricInfo(
            "scale_accuracy",
            "Accuracy by scale",
            about="Accuracy by scale is the accuracy on targets of similar size.",
        )
    )

    is_differentiable = False
    higher_is_better = True
    full_state_update = False

    hits: Tensor
    counts: Tensor

    def __init__(self, edges: Sequence[float] = EDGES, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.edges = _check_edges(edges)
        empty = torch.zeros(len(self.edges) - 1, dtype=torch.int64)
        self.add_state("hits", empty, dist_reduce_fx="sum")
        self.add_state("counts", empty.clone(), dist_reduce_fx="sum")

    def update(self, correct: Tensor, scale: Tensor) -> None:
        """Add samples: bool ``correct`` (N,) and ``scale`` (N,)."""
        _check(correct, scale)
        hits, counts = _update(correct, scale, self.edges)
        self.hits = self.hits + hits
        self.counts = self.counts + counts

    def compute(self) -> tuple[Tensor, Tensor]:
        """Accuracy (B,) and number of samples (B,) so far."""
        return _compute(self.hits, self.counts)
