"""Relationship proposals: the pairs of regions that pairwise attention ranks highest.

Wang, Samari, Kim, Chaudhuri, Siddiqi: "FAN: Focused Attention Networks" (https://arxiv.org/abs/1905.11498).

A pair is ordered: the region that attends, and the region it attends to. The pair of a region with itself is no
relationship. Equal affinities are ranked by their place in the matrix, row by row, so that a ranking repeats exactly;
in half precision many are equal.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from foveal.errors import UserError


class Relationships(NamedTuple):
    """The K most probable relationships of one image, most probable first.

    Attributes:
        pairs: int64 (K, 2), rows of the proposals: subject and object.
        subjects, objects: their boxes, (K, 4) each, as x1, y1, x2, y2.
        weights: (K,), each pair's share W̃ of the softmax over all pairs.
    """

    pairs: Tensor
    subjects: Tensor
    objects: Tensor
    weights: Tensor


def relationship_proposals(logits: Tensor, proposals: Tensor, k: int = 100) -> Relationships:
    """Ranked relationship proposals of one image.

    Args:
        logits: affinities ω before any softmax, (N, N), row m attending to column n; minus infinity for a pair that
            is not valid.
        proposals: boxes (N, 4) as x1, y1, x2, y2, in the order of the rows.
        k: how many; there may be fewer pairs.

    Returns:
        At most ``k`` pairs. Their weights sum to at most 1: the rest is on the other pairs and on the diagonal.

    >>> logits = torch.tensor([[9.0, 1.0, 0.0], [2.0, 9.0, 0.0], [0.0, 0.0, 9.0]])
    >>> boxes = torch.tensor([[0.0, 0, 4, 4], [4, 0, 8, 4], [0, 4, 4, 8]])
    >>> ranked = relationship_proposals(logits, boxes, k=2)
    >>> ranked.pairs.tolist(), ranked.subjects[0].tolist()
    ([[1, 0], [0, 1]], [4.0, 0.0, 8.0, 4.0])
    """
    if proposals.shape != (logits.shape[-1], 4):
        raise UserError(f"proposals must be ({logits.shape[-1]}, 4), a box for each row, got {tuple(proposals.shape)}")
    index = top_pairs(logits, k)
    pairs = torch.stack((index // max(1, len(logits)), index % max(1, len(logits))), 1)
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32)).flatten()
    weights = (wide[index] - wide.logsumexp(0)).exp() if len(index) else wide[:0]
    return Relationships(pairs, proposals[pairs[:, 0]], proposals[pairs[:, 1]], weights)


def top_pairs(scores: Tensor, k: int) -> Tensor:
    """Places of the highest off-diagonal scores.

    Args:
        scores: (N, N), one for each ordered pair; minus infinity for a pair that is not valid.
        k: how many.

    Returns:
        int64 (K,), places in ``scores.flatten()``, highest first, equal ones in order; K is at most ``k`` and at most
        the number of valid pairs.

    >>> top_pairs(torch.tensor([[5.0, 1.0], [2.0, 5.0]]), 9)
    tensor([2, 1])
    """
    if scores.ndim != 2 or scores.shape[0] != scores.shape[1]:
        raise UserError(f"scores of pairs must be (N, N), one row and column per proposal, got {tuple(scores.shape)}")
    if k < 1:
        raise UserError(f"k={k}: expected at least 1")
    if not scores.is_floating_point():
        raise UserError(f"scores of pairs must be floating point, got {scores.dtype}")
    count = len(scores)
    flat = scores.detach().flatten()
    # The diagonal is every (N + 1)-th place.
    flat = flat.index_fill(0, torch.arange(0, count * count, count + 1, device=flat.device), -torch.inf)
    # Selecting is cheaper than sorting. Those equal to the last one stay, so that their order decides between them.
    chosen = flat.topk(min(k, len(flat)), sorted=False).values
    if len(chosen) and bool(chosen.amax().isnan()):  # NaN is selected before any number
        raise UserError("scores of pairs hold NaN, which has no rank; look for it in the features or the loss")
    last = chosen.amin() if len(chosen) else -torch.inf
    places = ((flat >= last) & (flat > -torch.inf)).nonzero()[:, 0]
    return places[flat[places].sort(descending=True, stable=True).indices[:k]]
