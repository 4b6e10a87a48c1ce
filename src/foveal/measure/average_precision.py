"""Average precision per attribute, its mean, and its mean weighted by how often each attribute occurs.

Everingham et al.: "The PASCAL Visual Object Classes Challenge" (http://host.robots.ox.ac.uk/pascal/VOC). Samples with
equal scores cannot be ordered, so they enter the ranking together, as in scikit-learn; the VOC development kit orders
them arbitrarily. Recall levels of the 11-point form are compared exactly, in integers.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from foveal.errors import UserError, unknown
from foveal.measure._inputs import at_least_float32, warn_without_target
from foveal.measure.info import MetricInfo, register_metric
from foveal.supervise._inputs import check_tensors

Interpolation = Literal["area", "11point", "step"]
INTERPOLATIONS = ("area", "11point", "step")


def _check_interpolation(interpolation: str) -> None:
    if interpolation not in INTERPOLATIONS:
        raise unknown("interpolation", interpolation, INTERPOLATIONS)


def _check(scores: Tensor, labels: Tensor) -> None:
    check_tensors(scores=scores, labels=labels)
    if scores.ndim != 2 or scores.shape != labels.shape:
        raise UserError(
            "scores and labels must both be (N, K), samples by attributes, "
            f"got {tuple(scores.shape)} and {tuple(labels.shape)}"
        )
    if bool(scores.isnan().any()):
        raise UserError("scores hold nan, which cannot be ranked; find the overflow that causes them")
    if labels.dtype != torch.bool and not bool(((labels == 0) | (labels == 1)).all()):
        raise UserError(f"labels must be bool or 0 and 1, got {labels.dtype} with other values; threshold them first")


def _update(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The state of a batch: scores in float32 or wider, labels as bool."""
    return at_least_float32(scores.detach()), labels.bool()


def _ranking(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Walk down the ranking of each attribute, equal scores in one step.

    Args:
        scores: (K, N).
        labels: bool (K, N).

    Returns:
        Whether each rank holds a positive, bool (K, N), then the number of positives (K, N) and the precision (K, N)
        down to the last sample with the score of that rank.
    """
    samples = scores.shape[1]
    scores, order = scores.sort(dim=1, descending=True)
    positive = labels.gather(1, order)
    last = torch.full_like(order, samples - 1)  # the last rank with the same score
    ranks = torch.arange(samples - 1, device=scores.device).expand(len(scores), -1)
    last[:, :-1] = torch.where(scores[:, :-1] != scores[:, 1:], ranks, samples - 1)
    last = last.flip(1).cummin(1).values.flip(1)
    hits = positive.cumsum(1).gather(1, last)
    return positive, hits, hits / (last + 1)


def _compute(scores: Tensor, labels: Tensor, interpolation: Interpolation) -> tuple[Tensor, Tensor]:
    """Average precision (K,) and positives (K,) of each attribute."""
    positives = labels.sum(0)
    if not scores.numel():
        return torch.full_like(positives, torch.nan, dtype=torch.float32), positives
    positive, hits, precision = _ranking(scores.T.contiguous(), labels.T.contiguous())
    if interpolation != "step":
        # The envelope: the highest precision at this recall or a higher one.
        precision = precision.flip(1).cummax(1).values.flip(1)
    if interpolation == "11point":
        tenths = torch.arange(11, device=scores.device)
        need = (positives[:, None] * tenths + 9) // 10  # recall ≥ t/10 needs ⌈t · positives / 10⌉ of them
        average = precision.gather(1, torch.searchsorted(hits, need)).mean(1)
    else:
        # Every positive raises the recall by 1 / positives.
        average = (precision * positive).sum(1) / positives
    return average.masked_fill(positives == 0, torch.nan), positives


def _weighted(average: Tensor, positives: Tensor) -> Tensor:
    return (average.masked_fill(positives == 0, 0) * positives).sum() / positives.sum()


def _mean(average: Tensor, positives: Tensor) -> Tensor:
    return average[positives > 0].mean()


def _without(scores: Tensor, labels: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
    """Rank samples that do not count below all others, where they change no precision at a positive."""
    if valid is None:
        return scores, labels
    if valid.shape != labels.shape or valid.dtype != torch.bool:
        raise UserError(f"valid must be bool of shape {tuple(labels.shape)}, got {valid.dtype} {tuple(valid.shape)}")
    return scores.masked_fill(~valid, -torch.inf), labels & valid


def average_precision(
    scores: Tensor, labels: Tensor, interpolation: Interpolation = "area", valid: Tensor | None = None
) -> Tensor:
    """Average precision of each attribute.

    With P and R precision and recall along the ranking, and P̂(r) the highest precision at any recall ≥ r:

    - ``area``: Σ ΔR · P̂(R), the area under the monotone envelope, as in VOC 2010 and later;
    - ``11point``: the mean of P̂(0), P̂(0.1), … P̂(1), as in VOC 2007;
    - ``step``: Σ ΔR · P, without an envelope, as scikit-learn's ``average_precision_score``.

    Args:
        scores: (N, K), higher for more likely; logits and probabilities rank alike.
        labels: bool or 0 and 1, (N, K).
        interpolation: ``area``, ``11point`` or ``step``.
        valid: bool (N, K), false where a sample counts neither for nor against an attribute (VOC's difficult objects);
            None if all count.

    Returns:
        (K,) in [0, 1]; nan for an attribute without a positive.

    >>> scores = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3]])
    >>> labels = torch.tensor([[1, 0], [0, 0], [1, 0]])
    >>> average_precision(scores, labels)
    tensor([0.8333, nan])
    """
    _check_interpolation(interpolation)
    _check(scores, labels)
    return _compute(*_without(*_update(scores, labels), valid), interpolation)[0]


def weighted_average_precision(
    scores: Tensor, labels: Tensor, interpolation: Interpolation = "area", valid: Tensor | None = None
) -> Tensor:
    """Mean of :func:`average_precision` over attributes, weighted by their positives.

    Attributes without a positive have weight zero.

    Args:
        scores: (N, K), higher for more likely; logits and probabilities rank alike.
        labels: bool or 0 and 1, (N, K).
        interpolation: ``area`` (VOC 2010), ``11point`` (VOC 2007) or ``step`` (scikit-learn).
        valid: bool (N, K), false where a sample counts neither for nor against an attribute (VOC's difficult objects);
            None if all count.

    Returns:
        Scalar in [0, 1]; nan if nothing is positive.

    >>> scores = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3]])
    >>> labels = torch.tensor([[1, 1], [1, 0], [0, 0]])
    >>> average_precision(scores, labels)
    tensor([1.0000, 0.3333])
    >>> weighted_average_precision(scores, labels)
    tensor(0.7778)
    """
    _check_interpolation(interpolation)
    _check(scores, labels)
    average, positives = _compute(*_without(*_update(scores, labels), valid), interpolation)
    warn_without_target(positives > 0, "no label is positive")
    return _weighted(average, positives)


def label_map(
    scores: Tensor, labels: Tensor, valid: Tensor | None = None, interpolation: Interpolation = "area"
) -> Tensor:
    """Plain mean of :func:`average_precision` over the attributes that have a positive.

    Args:
        scores: (N, K), higher for more likely; logits and probabilities rank alike.
        labels: bool or 0 and 1, (N, K).
        valid: bool (N, K), false where a sample counts neither for nor against an attribute (VOC's difficult objects);
            None if all count.
        interpolation: ``area`` (VOC 2010), ``11point`` (VOC 2007) or ``step`` (scikit-learn).

    Returns:
        Scalar in [0, 1]; nan if nothing is positive.

    >>> scores = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3]])
    >>> labels = torch.tensor([[1, 1], [1, 0], [0, 0]])
    >>> label_map(scores, labels)
    tensor(0.6667)
    """
    _check_interpolation(interpolation)
    _check(scores, labels)
    average, positives = _compute(*_without(*_update(scores, labels), valid), interpolation)
    warn_without_target(positives > 0, "no label is positive")
    return _mean(average, positives)


class _Ranked(Metric):
    """Keeps all scores and labels: a ranking needs all of them."""

    is_differentiable = False
    higher_is_better = True
    full_state_update = False

    scores: list[Tensor]
    labels: list[Tensor]

    def __init__(self, interpolation: Interpolation = "area", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        _check_interpolation(interpolation)
        self.interpolation: Interpolation = interpolation
        self.add_state("scores", [], dist_reduce_fx="cat")
        self.add_state("labels", [], dist_reduce_fx="cat")

    def update(self, scores: Tensor, labels: Tensor, valid: Tensor | None = None) -> None:
        """Add samples: ``scores``, ``labels`` and, if some do not count, ``valid``, all (N, K)."""
        _check(scores, labels)
        kept_scores, kept_labels = _without(*_update(scores, labels), valid)
        self.scores.append(kept_scores)
        self.labels.append(kept_labels)

    def _per_attribute(self) -> tuple[Tensor, Tensor]:
        return _compute(dim_zero_cat(self.scores), dim_zero_cat(self.labels), self.interpolation)


class WeightedAveragePrecision(_Ranked):
    """:func:`weighted_average_precision` over a whole test set.

    A ranking needs every score, so all scores and labels are kept until :meth:`reset`; ``compute_on_cpu=True`` keeps
    them off the accelerator.

    Args:
        interpolation: ``area`` (VOC 2010), ``11point`` (VOC 2007) or ``step`` (scikit-learn).
        **kwargs: of :class:`torchmetrics.Metric`.

    >>> metric = WeightedAveragePrecision()
    >>> metric.update(torch.tensor([[0.9, 0.1], [0.8, 0.2]]), torch.tensor([[1, 1], [1, 0]]))
    >>> metric.update(torch.tensor([[0.7, 0.3]]), torch.tensor([[0, 0]]))
    >>> metric.compute()
    tensor(0.7778)
    """

    info: ClassVar[MetricInfo] = register_metric(
        MetricInfo(
            "weighted_average_precision",
            "Weighted average precision",
            about="Weighted average precision is the mean over labels, weighted by how often each occurs.",
        )
    )

    def compute(self) -> Tensor:
        """Weighted mean average precision of all samples so far, a scalar."""
        return _weighted(*self._per_attribute())


class LabelMAP(_Ranked):
    """:func:`label_map` over a whole test set; keeps all scores, as :class:`WeightedAveragePrecision`.

    Args:
        interpolation: ``area`` (VOC 2010), ``11point`` (VOC 2007) or ``step`` (scikit-learn).
        **kwargs: of :class:`torchmetrics.Metric`.

    >>> metric = LabelMAP()
    >>> metric.update(torch.tensor([[0.9, 0.1], [0.8, 0.2]]), torch.tensor([[1, 1], [1, 0]]))
    >>> metric.update(torch.tensor([[0.7, 0.3]]), torch.tensor([[0, 0]]), valid=torch.tensor([[True, False]]))
    >>> metric.compute()
    tensor(0.7500)
    """

    info: ClassVar[MetricInfo] = register_metric(
        MetricInfo(
            "label_map",
            "Label mAP",
            about="Label mAP is the mean over labels of their average precision, for whole images, not for boxes.",
        )
    )

    def compute(self) -> Tensor:
        """Mean average precision of all samples so far, a scalar."""
        return _mean(*self._per_attribute())


class AveragePrecision(_Ranked):
    """:func:`average_precision` of each attribute over a whole test set; keeps all scores.

    Args:
        interpolation: ``area`` (VOC 2010), ``11point`` (VOC 2007) or ``step`` (scikit-learn).
        **kwargs: of :class:`torchmetrics.Metric`.

    >>> metric = AveragePrecision()
    >>> metric.update(torch.tensor([[0.9, 0.1], [0.8, 0.2]]), torch.tensor([[1, 1], [1, 0]]))
    >>> metric.update(torch.tensor([[0.7, 0.3]]), torch.tensor([[0, 0]]), valid=torch.tensor([[True, False]]))
    >>> metric.compute()
    tensor([1.0000, 0.5000])
    """

    info: ClassVar[MetricInfo] = register_metric(
        MetricInfo(
            "average_precision",
            "Average precision",
            about="Average precision of a label is the area under its curve of precision over recall.",
        )
    )

    def compute(self) -> Tensor:
        """Average precision of each attribute (K,), nan for one without a positive."""
        return self._per_attribute()[0]
