"""Center-mass: how much of an attention matrix rests on the pairs that matter, and the loss that raises it.

Wang, Samari, Kim, Chaudhuri, Siddiqi: "FAN: Focused Attention Networks" (https://arxiv.org/abs/1905.11498).

With ω the affinities before any softmax and T the labelled pairs of a graph of N entities::

    M = Σ_mn T_mn exp ω_mn / Σ_mn exp ω_mn          over="matrix": one softmax over all pairs
    M_m = Σ_n T_mn exp ω_mn / Σ_n exp ω_mn          over="row": one softmax for each row
    L = −(1 − M)^r log M                            shape="focal"

log M is a difference of two log-sums, so that no softmax is stored and no logarithm sees a zero. Entities compare with
themselves in the denominator but never count as labelled.

Where the paper is silent: M and L are taken per graph and averaged over the graphs that have a labelled pair; a row's
loss is averaged over the rows that have one, then over graphs.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from foveal.errors import UserError, unknown
from foveal.kernels.center_mass.operator import Pairs, fused, graph_mass, pair_mass

Over = Literal["matrix", "row"]
Shape = Literal["focal", "l2", "smooth_l1"]
Related = Literal["different", "same"]
Logits = Tensor | tuple[Tensor, Tensor]
"""Affinities (..., N, N), or the pair (q, k), each (..., N, d), whose products they are."""


def center_mass(
    logits: Logits,
    target: Tensor,
    mask: Tensor | None = None,
    over: Over = "matrix",
    *,
    related: Related | Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """Share M of the attention that rests on labelled pairs, in [0, 1].

    Args:
        logits: affinities before the softmax, (..., N, N), row m attending to column n. Or a pair ``(q, k)`` of
            (..., N, d) each: then ω = scale · q kᵀ, and no matrix is ever stored, neither here nor in the backward
            pass. A logit of minus infinity is a pair that is not valid.
        target: bool (..., N, N), true for the pairs that attention should rest on; its diagonal is ignored. With
            ``related``: a label for each entity, int (..., N), negative for an entity that is in no labelled pair and
            below 2³¹.
        mask: bool (..., N), true for real entities and false for padding; all are real if left out.
        over: ``matrix``, one softmax over all pairs, or ``row``, one softmax a row.
        related: which labels make a labelled pair: ``different`` or ``same`` ones, or those that a table has, bool
            (C, C) or (..., C, C) over the labels 0 … C − 1 of row and column.
        scale: of q kᵀ; 1/√d if left out.

    Returns:
        M (...), at least float32. For ``row`` the mean over the rows that have a labelled pair. 0 for a graph without
        one. Batch dimensions of target and mask may broadcast to those of the logits.

    >>> target = torch.tensor([[False, True], [True, False]])
    >>> center_mass(torch.zeros(2, 2), target)
    tensor(0.5000)
    >>> center_mass(torch.zeros(2, 2), torch.tensor([0, 1]), related="different")
    tensor(0.5000)
    """
    return graph_masses(logits, target, mask, over, related=related, scale=scale)[0]


def graph_masses(
    logits: Logits,
    target: Tensor,
    mask: Tensor | None = None,
    over: Over = "matrix",
    *,
    related: Related | Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """:func:`center_mass` of every graph (...), and which of them have a labelled pair, bool (...)."""
    log_mass, has = _log_mass(logits, target, mask, over, related, scale)
    mass = log_mass.exp() * has
    if over == "matrix":
        return mass, has
    return mass.sum(-1) / has.sum(-1).clamp_min(1), has.any(-1)


def center_mass_loss(
    logits: Logits,
    target: Tensor,
    mask: Tensor | None = None,
    over: Over = "matrix",
    shape: Shape = "focal",
    r: float = 2.0,
    *,
    related: Related | Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """Loss that draws the attention of every graph onto its labelled pairs.

    With x = 1 − M::

        focal      −x^r log M
        l2         x²
        smooth_l1  x² if x < 0.5 else x − 0.25

    Args:
        logits: as in :func:`center_mass`, like the next three and the last two.
        target: the same.
        mask: the same.
        over: the same.
        shape: of the loss.
        r: exponent of the focal loss, 0 for −log M.
        related: the same.
        scale: the same.

    Returns:
        Scalar, the mean over graphs that have a labelled pair; 0, with a gradient of zero, if none has. Computed in at
        least float32, also under autocast.

    >>> logits = torch.zeros(8, 5, 5, requires_grad=True)  # any batch shape
    >>> target = torch.zeros(5, 5, dtype=torch.bool)
    >>> target[0, 1] = True
    >>> loss = center_mass_loss(logits, target, r=0)  # M = 1/25
    >>> round(loss.item(), 3)
    3.219
    >>> loss.backward()
    """
    if shape not in ("focal", "l2", "smooth_l1"):
        raise unknown("shape of the center-mass loss", str(shape), ("focal", "l2", "smooth_l1"))
    if not r >= 0:
        raise UserError(f"r={r}: the focal exponent must be at least 0")
    log_mass, has = _log_mass(logits, target, mask, over, related, scale)
    loss = _shaped(log_mass, shape, r) * has
    if over == "row":
        loss, has = loss.sum(-1) / has.sum(-1).clamp_min(1), has.any(-1)
    return loss.sum() / has.sum().clamp_min(1)


def _shaped(log_mass: Tensor, shape: Shape, r: float) -> Tensor:
    rest = -torch.expm1(log_mass)  # 1 − M
    if shape == "focal":
        # The derivative of x^r is infinite at 0 for r < 1, though that of the product is 0.
        return -rest.clamp_min(torch.finfo(rest.dtype).tiny).pow(r) * log_mass
    if shape == "l2":
        return rest.square()
    return torch.where(rest < 0.5, rest.square(), rest - 0.25)


def _log_mass(
    logits: Logits,
    target: Tensor,
    mask: Tensor | None,
    over: Over,
    related: Related | Tensor | None,
    scale: float | None,
) -> tuple[Tensor, Tensor]:
    """Log M of graphs (...) or rows (..., N), and which of them have a labelled pair; 0 for those that have none."""
    if over not in ("matrix", "row"):
        raise unknown("softmax over", str(over), ("matrix", "row"))
    batch, count, device = _sizes(logits, scale)
    pairs = _pairs(target, related, batch, count, device)
    valid = _valid(mask, batch, count, device)
    if isinstance(logits, Tensor):
        sums = torch.stack(_masses(logits, valid, pairs)).view(2, *batch, count)
    else:
        sums = torch.stack(_pair_masses(logits, valid, pairs, scale, over))
        sums = sums.view(2, *batch, *sums.shape[2:])
    if over == "matrix" and sums.ndim == 2 + len(batch):
        sums = _log_sum(sums)
    has = sums[0] != -torch.inf
    # Where nothing is labelled, 0 and not minus infinity: what is multiplied by zero afterwards must be finite.
    labelled, everything = sums.where(has, 0)
    return (labelled - everything).clamp_max(0), has  # rounding may leave a little more than 0


def _log_sum(values: Tensor) -> Tensor:
    """Log-sum-exp over the last dimension, whose gradient is zero, not NaN, where all values are minus infinity."""
    nothing = values.isneginf().all(-1)
    return values.masked_fill(nothing[..., None], 0).logsumexp(-1).masked_fill(nothing, -torch.inf)


def _masses(logits: Tensor, valid: Tensor, pairs: Pairs) -> tuple[Tensor, Tensor]:
    """Log-sums of labelled and of all valid pairs of every row, (B, N) each, from a matrix that is there anyway."""
    wide = logits.reshape(-1, *logits.shape[-2:]).to(torch.promote_types(logits.dtype, torch.float32))
    wide = wide.masked_fill(~(valid[:, :, None] & valid[:, None, :]), -torch.inf)
    labelled = wide.masked_fill(~pairs.piece(slice(None), slice(None)), -torch.inf)
    return _log_sum(labelled), _log_sum(wide)


def _pair_masses(
    logits: tuple[Tensor, Tensor], valid: Tensor, pairs: Pairs, scale: float | None, over: Over
) -> tuple[Tensor, Tensor]:
    """The same from q and k, without a matrix; (B,) where a kernel adds up the rows of a graph as well."""
    q, k = (side.reshape(-1, *side.shape[-2:]) for side in logits)
    sums = graph_mass if over == "matrix" and fused(q, k) else pair_mass
    return sums(q, k, valid, pairs, q.shape[-1] ** -0.5 if scale is None else scale)


# What may be given ----------------------------------------------------------


def _sizes(logits: Logits, scale: float | None) -> tuple[torch.Size, int, torch.device]:
    """Batch shape, number of entities and device."""
    if isinstance(logits, Tensor):
        if scale is not None:
            raise UserError("scale belongs to a pair (q, k); logits are scaled already, leave it out")
        if logits.ndim < 2 or logits.shape[-1] != logits.shape[-2] or not logits.shape[-1]:
            raise UserError(f"logits must be (..., N, N), one row and column an entity, got {_said(logits)}")
        if not logits.is_floating_point():
            raise UserError(f"logits must be floating point, got {logits.dtype}")
        return logits.shape[:-2], logits.shape[-1], logits.device
    if not (isinstance(logits, tuple | list) and len(logits) == 2 and all(isinstance(x, Tensor) for x in logits)):
        raise UserError("logits must be a tensor (..., N, N) or a pair (q, k) of tensors (..., N, d)")
    q, k = logits
    if q.ndim < 2 or q.shape != k.shape or 0 in q.shape[-2:] or not q.is_floating_point():
        raise UserError(f"q and k must be floating point (..., N, d) of one shape, got {_said(q)} and {_said(k)}")
    return q.shape[:-2], q.shape[-2], q.device


def _pairs(
    target: Tensor, related: Related | Tensor | None, batch: torch.Size, count: int, device: torch.device
) -> Pairs:
    for name, given in (("target", target), ("related", related)):
        if not isinstance(given, Tensor) and (name == "target" or not isinstance(given, str | None)):
            raise UserError(f"{name} must be a tensor, got {type(given).__name__}")
    if related is None:
        if target.dtype != torch.bool:
            raise UserError(
                f"target must be bool (..., N, N), got {target.dtype} {_said(target)}; compare it first, for example "
                "target > 0. For one label an entity also say which labels are related, for example related='different'"
            )
        outer = _outer(target, "target", (count, count), batch)
        owner = torch.arange(math.prod(outer), device=device).view(outer).expand(batch).reshape(-1)
        return Pairs("pairs", target.reshape(-1, count, count), owner)
    if target.dtype.is_floating_point or target.dtype == torch.bool:
        raise UserError(f"with related, target must hold an integer label for each entity, got {target.dtype}")
    _outer(target, "target", (count,), batch)
    labels = target.expand(*batch, count).reshape(-1, count)
    owner = torch.arange(len(labels), device=device)
    if isinstance(related, str):
        if related not in ("different", "same"):
            raise unknown("relation", related, ("different", "same"))
        return Pairs(related, labels, owner)
    if related.dtype != torch.bool or related.ndim < 2 or related.shape[-1] != related.shape[-2]:
        raise UserError(f"related must be 'different', 'same' or a bool table (..., C, C), got {_said(related)}")
    _outer(related, "related", tuple(related.shape[-2:]), batch)
    table = related.expand(*batch, *related.shape[-2:]).reshape(-1, *related.shape[-2:])
    return Pairs("table", labels, owner, table)


def _outer(given: Tensor, name: str, inner: tuple[int, ...], batch: torch.Size) -> torch.Size:
    """Batch shape of ``given``, which must broadcast to that of the logits."""
    outer = given.shape[: max(0, given.ndim - len(inner))]
    fits = len(outer) <= len(batch) and all(a in (1, b) for a, b in zip(reversed(outer), reversed(batch), strict=False))
    if given.shape[len(outer) :] != inner or not fits:
        expected = (*batch, *inner)
        raise UserError(f"{name} {_said(given)} does not fit the logits; expected {expected} or what broadcasts to it")
    return outer


def _valid(mask: Tensor | None, batch: torch.Size, count: int, device: torch.device) -> Tensor:
    """Real entities, bool (B, N)."""
    if mask is None:
        return torch.ones(math.prod(batch), count, dtype=torch.bool, device=device)
    if mask.dtype != torch.bool:
        raise UserError(f"mask must be bool, true for real entities, got {mask.dtype}; compare it first")
    _outer(mask, "mask", (count,), batch)
    return mask.expand(*batch, count).reshape(-1, count)


def _said(tensor: Tensor) -> str:
    return str(tuple(tensor.shape))
