"""Recall of relationships: how many annotated pairs of objects are among the pairs that attention ranks highest.

Wang, Samari, Kim, Chaudhuri, Siddiqi: "FAN: Focused Attention Networks" (https://arxiv.org/abs/1905.11498).

With the pairs of an image ranked by their scores::

    R@K = relations matched by one of the first K pairs / relations

A pair (m, n) matches a relation (s, o) if the IoU of proposal m and box s and that of proposal n and box o are above
0.5. Both orders of two proposals are pairs and have a rank each; a proposal with itself is no pair.

Not in the paper: R@K is averaged over images that have a relation; pairs of equal score are ranked row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torchmetrics import Metric

from foveal.attention.relationships import top_pairs
from foveal.errors import UserError
from foveal.measure._inputs import warn_without_target
from foveal.measure.info import MetricInfo, metric_info, register_metric
from foveal.supervise._inputs import check_boxes, check_tensors
from foveal.supervise.targets import box_iou

K = (1000, 2000, 5000, 8000, 10000)


def _check_k(k: Sequence[int]) -> tuple[int, ...]:
    numbers = (k,) if isinstance(k, int) else tuple(k)
    if not numbers or not all(isinstance(n, int) and n >= 1 for n in numbers):
        raise UserError(f"k must be one or more whole numbers of at least 1, got {numbers}")
    return numbers


def _check(pair_scores: Tensor, proposals: Tensor, boxes: Tensor, relations: Tensor) -> None:
    check_tensors(pair_scores=pair_scores, proposals=proposals, boxes=boxes, relations=relations)
    for name, tensor in (("proposals", proposals), ("boxes", boxes)):
        if tensor.ndim != 2 or tensor.shape[1] != 4:
            raise UserError(f"{name} must be (N, 4) as x1, y1, x2, y2, got {tuple(tensor.shape)}")
    check_boxes(proposals, boxes)
    if pair_scores.shape != (len(proposals), len(proposals)):
        raise UserError(
            f"pair_scores must be ({len(proposals)}, {len(proposals)}), a row and a column for each proposal, got "
            f"{tuple(pair_scores.shape)}"
        )
    whole = not (relations.is_floating_point() or relations.dtype == torch.bool)
    if relations.ndim != 2 or relations.shape[1] != 2 or not whole:
        raise UserError(
            f"relations must be integers (R, 2), subject and object as rows of boxes, got {relations.dtype} "
            f"{tuple(relations.shape)}"
        )
    if relations.numel() and int(relations.max()) >= len(boxes):
        raise UserError(f"relations name box {int(relations.max())}, but there are {len(boxes)} boxes, counted from 0")


def _distinct(relations: Tensor, ordered: bool) -> Tensor:
    """Every relation once, without the rows that only pad."""
    relations = relations[(relations >= 0).all(1)]
    return torch.unique(relations if ordered else relations.sort(1).values, dim=0)


def _first_ranks(ranked: Tensor, shows: Tensor, relations: Tensor) -> Tensor:
    """Rank of the first pair that matches each relation.

    Args:
        ranked: int64 (K,), places of the ranked pairs in the flattened matrix of scores.
        shows: bool (M, N), whether proposal n shows the object of box m.
        relations: int64 (R, 2).

    Returns:
        int64 (R,), counted from 0; K for a relation that no pair matches.
    """
    # Most proposals show no object: only pairs that could match are compared with each relation.
    of_objects = shows.any(0)
    rank = (of_objects[:, None] & of_objects).flatten()[ranked].nonzero()[:, 0]
    if not len(rank):
        return relations.new_full((len(relations),), len(ranked))
    places = ranked[rank]
    subject, object_ = places // shows.shape[1], places % shows.shape[1]
    matched = shows[relations[:, :1], subject] & shows[relations[:, 1:], object_]  # (R, pairs)
    first = rank[matched.to(torch.uint8).argmax(1)]
    return first.where(matched.any(1), len(ranked))


def _update(
    pair_scores: Tensor,
    proposals: Tensor,
    boxes: Tensor,
    relations: Tensor,
    k: tuple[int, ...],
    iou: float,
    ordered: bool,
) -> Tensor:
    """R@K of one image, (len(k),); nan without a relation."""
    relations = _distinct(relations.long(), ordered)
    ranked = top_pairs(pair_scores, max(k))
    shows = box_iou(boxes, proposals) > iou
    first = _first_ranks(ranked, shows, relations)
    if not ordered:
        first = torch.minimum(first, _first_ranks(ranked, shows, relations.flip(1)))
    levels = torch.tensor(k, device=first.device).clamp_max(len(ranked))
    return (first < levels[:, None]).float().mean(1)


def relation_recall(
    pair_scores: Tensor,
    proposals: Tensor,
    boxes: Tensor,
    relations: Tensor,
    k: Sequence[int] = K,
    iou: float = 0.5,
    *,
    ordered: bool = True,
) -> Tensor:
    """Recall of the relations of one image among its highest-ranked pairs of proposals.

    Args:
        pair_scores: (N, N), floating point, row m the subject and column n the object: affinities or any weights that
            rise with them. Minus infinity for a pair that is not valid; the diagonal is ignored.
        proposals: (N, 4) as x1, y1, x2, y2.
        boxes: (M, 4), the annotated objects.
        relations: int (R, 2), subject and object as rows of ``boxes``. One that is repeated counts once; a negative
            number pads. :func:`foveal.supervise.object_relations` has those of weak labels.
        k: numbers of pairs that are looked at.
        iou: an overlap must be above it.
        ordered: whether a pair must have subject and object in this order. Relations of weak labels have no order:
            then either order of a pair matches, and a relation and its mirror count once.

    Returns:
        (len(k),), in [0, 1]; nan for an image without a relation.

    >>> boxes = torch.tensor([[0.0, 0, 10, 10], [20, 20, 30, 30]])
    >>> scores = torch.tensor([[9.0, 1.0], [2.0, 9.0]])
    >>> relation_recall(scores, boxes, boxes, torch.tensor([[0, 1]]), k=(1, 2))
    tensor([0., 1.])
    >>> relation_recall(scores, boxes, boxes, torch.tensor([[0, 1]]), k=(1, 2), ordered=False)
    tensor([1., 1.])
    """
    _check(pair_scores, proposals, boxes, relations)
    warn_without_target((relations >= 0).all(1).any()[None], "the image has no relation")
    return _update(pair_scores, proposals, boxes, relations, _check_k(k), iou, ordered)


class RelationRecall(Metric):
    """:func:`relation_recall`, averaged over the images of a test set that have a relation.

    Args:
        k: numbers of pairs that are looked at.
        iou: an overlap must be above it.
        ordered: whether a pair must have subject and object in this order.
        **kwargs: of :class:`torchmetrics.Metric`.

    >>> boxes = torch.tensor([[0.0, 0, 10, 10], [20, 20, 30, 30]])
    >>> metric = RelationRecall(k=(1, 2))
    >>> metric.update([torch.eye(2)], [boxes], [boxes], [torch.tensor([[1, 0]])])
    >>> metric.compute()
    tensor([0., 1.])
    """

    info: ClassVar[MetricInfo] = register_metric(
        MetricInfo(
            "relation_recall",
            "Relation recall",
            about="Relation recall is the share of related objects found among the pairs that attention ranks highest.",
        )
    )

    is_differentiable = False
    higher_is_better = True
    full_state_update = False

    total: Tensor
    count: Tensor

    def __init__(self, k: Sequence[int] = K, iou: float = 0.5, *, ordered: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.k, self.iou, self.ordered = _check_k(k), iou, ordered
        self.add_state("total", torch.zeros(len(self.k), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", torch.tensor(0), dist_reduce_fx="sum")

    @property
    def infos(self) -> tuple[MetricInfo, ...]:
        """One for each number of pairs, for a table: ``relation_recall@1000`` and so on."""
        return tuple(metric_info(f"{self.info.key}@{k}") for k in self.k)

    def update(
        self,
        pair_scores: Sequence[Tensor] | Tensor,
        proposals: Sequence[Tensor] | Tensor,
        boxes: Sequence[Tensor] | Tensor,
        relations: Sequence[Tensor] | Tensor,
    ) -> None:
        """Add images: one tensor each of what :func:`relation_recall` takes, as lists or batched."""
        images = (pair_scores, proposals, boxes, relations)
        if len({len(values) for values in images}) > 1:
            lengths = ", ".join(str(len(values)) for values in images)
            raise UserError(f"scores, proposals, boxes and relations must be of the same images, got {lengths} of each")
        for image in zip(*images, strict=True):
            _check(*image)
            recall = _update(*image, self.k, self.iou, self.ordered)
            counts = ~recall.isnan()
            self.total = self.total + recall.where(counts, 0).to(self.total)
            self.count = self.count + counts[0].to(self.count)

    def compute(self) -> Tensor:
        """(len(k),), the mean over the images so far that have a relation; nan if none has."""
        return (self.total / self.count).float()
