"""Means over samples, split by whether the model was right."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torchmetrics import Metric

from foveal.errors import UserError


class Split(NamedTuple):
    """A mean over all samples, over those predicted right, and over those predicted wrong.

    Scalars; nan where there are no samples. If it is not known what was predicted right, only ``all`` is a number.
    """

    all: Tensor
    right: Tensor
    wrong: Tensor


def check_correct(correct: Tensor | None, samples: int) -> None:
    """Raise unless ``correct`` is bool (N,) or None."""
    if correct is not None and (correct.dtype != torch.bool or tuple(correct.shape) != (samples,)):
        raise UserError(
            f"correct must be bool ({samples},), one per sample, got {correct.dtype} {tuple(correct.shape)}; "
            "for example predicted == target"
        )


def split_sums(values: Tensor, counted: Tensor, correct: Tensor | None) -> tuple[Tensor, Tensor]:
    """Sums and numbers of samples, (3,) each: of unknown, right and wrong prediction.

    Args:
        values: (N,).
        counted: bool (N,), which of them count.
        correct: bool (N,), or None if unknown.
    """
    group = torch.zeros(len(values), dtype=torch.long, device=values.device) if correct is None else 2 - correct.long()
    empty = values.new_zeros(3)
    sums = empty.index_add(0, group, values.masked_fill(~counted, 0))
    return sums, empty.index_add(0, group, counted.to(values.dtype))


def split_means(sums: Tensor, counts: Tensor) -> Split:
    """Means from the results of :func:`split_sums`."""
    return Split(sums.sum() / counts.sum(), sums[1] / counts[1], sums[2] / counts[2])


class SplitMean(Metric):
    """Base of metrics that are a mean over samples, split by right and wrong predictions."""

    is_differentiable = False
    higher_is_better = True
    full_state_update = False

    sums: Tensor
    counts: Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("sums", torch.zeros(3), dist_reduce_fx="sum")
        self.add_state("counts", torch.zeros(3), dist_reduce_fx="sum")

    def add(self, values: Tensor, counted: Tensor, correct: Tensor | None) -> None:
        """Add samples, as in :func:`split_sums`."""
        sums, counts = split_sums(values.detach(), counted, correct)
        self.sums = self.sums + sums.to(self.sums.dtype)
        self.counts = self.counts + counts.to(self.counts.dtype)

    def compute(self) -> Split:
        """Means over all samples so far, over those predicted right and over those predicted wrong."""
        return split_means(self.sums, self.counts)
