"""Center-mass: how much of an attention matrix rests on the pairs that matter, and the loss that raises it.

Wang, Samari, Kim, Chaudhuri, Siddiqi: "FAN: Focused Attention Networks" (https://arxiv.org/abs/1905.11498).

With ω the affinities before any softmax and T the labelled pairs of a graph of N entities::

    M = Σ_mn T_mn exp ω_mn / Σ_mn exp ω_mn          over="matrix": one softmax over all pairs
    M_m = Σ_n T_mn exp ω_mn / Σ_n exp ω_mn          over="row": one softmax for each row
    L = −(1 − M)^r log M                            shape="focal"

log M is a difference of two log-sums, so that no softmax is stored and there is no logarithm of zero. The pair of an
entity with itself counts in the denominator, but never as labelled.

Not in the paper: M and L are taken per graph and averaged over the graphs that have a labelled pair; a row's
loss is averaged over the rows that have one, then over graphs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from foveal.attention.records.dot_product import DotProduct, LogitMatrix
from foveal.attention.records.record import AttentionRecord
from foveal.errors import UserError, unknown
from foveal.kernels.center_mass.log_sums import fused, graph_log_sums, row_log_sums
from foveal.kernels.center_mass.loss import fused_loss_available, graph_loss
from foveal.kernels.center_mass.pairs import LabelledPairs
from foveal.supervise._inputs import check_tensors

Over = Literal["matrix", "row"]
LossShape = Literal["focal", "l2", "smooth_l1"]
Related = Literal["different", "same"]
Logits = Tensor | tuple[Tensor, Tensor] | AttentionRecord
"""Affinities (..., N, N), or the pair (q, k), each (..., N, d), whose products they are, or a pairwise record."""


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
            pass. Or what :func:`foveal.watch` recorded of pairwise attention: heads are then graphs of their own, over
            which target and mask broadcast. A logit of minus infinity is a pair that is not valid.
        target: bool (..., N, N), true for the pairs that attention should rest on; its diagonal is ignored. With
            ``related``: a label for each entity, int (..., N), negative for an entity that is in no labelled pair and
            below 2³¹.
        mask: bool (..., N), true for real entities and false for padding; all are real if left out.
        over: ``matrix``, one softmax over all pairs, or ``row``, one softmax for each row.
        related: which labels make a labelled pair: ``different`` or ``same`` ones, or those that are true in a table,
            bool (C, C) or (..., C, C) over the labels 0 … C − 1 of row and column.
        scale: of q kᵀ, only for a pair (q, k); 1/√d if left out.

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
    log_mass, has_pair = _log_mass(_graphs(logits, target, mask, over, related, scale), over)
    mass = log_mass.exp() * has_pair
    if over == "matrix":
        return mass, has_pair
    return mass.sum(-1) / has_pair.sum(-1).clamp_min(1), has_pair.any(-1)


def center_mass_loss(
    logits: Logits,
    target: Tensor,
    mask: Tensor | None = None,
    over: Over = "matrix",
    shape: LossShape = "focal",
    r: float = 2.0,
    *,
    related: Related | Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """Loss that raises the share of attention on the labelled pairs of every graph.

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
    graphs = _graphs(logits, target, mask, over, related, scale)
    if over == "matrix" and graphs.sides is not None and fused_loss_available(*graphs.sides):
        return graph_loss(*graphs.sides, graphs.valid, graphs.pairs, graphs.scale, shape, r)
    log_mass, has_pair = _log_mass(graphs, over)
    loss = _shaped(log_mass, shape, r) * has_pair
    if over == "row":
        loss, has_pair = loss.sum(-1) / has_pair.sum(-1).clamp_min(1), has_pair.any(-1)
    return loss.sum() / has_pair.sum().clamp_min(1)


def _shaped(log_mass: Tensor, shape: LossShape, r: float) -> Tensor:
    rest = -torch.expm1(log_mass)  # 1 − M
    if shape == "focal":
        # The derivative of x^r is infinite at 0 for r < 1, though that of the product is 0.
        return -rest.clamp_min(torch.finfo(rest.dtype).tiny).pow(r) * log_mass
    if shape == "l2":
        return rest.square()
    return torch.where(rest < 0.5, rest.square(), rest - 0.25)


@dataclass(frozen=True)
class _Graphs:
    """Affinities and labelled pairs of B graphs of N entities.

    Attributes:
        batch: the shape that B is the product of.
        matrix: affinities (B, N, N), or None.
        sides: q and k (B, N, d), where there is no matrix.
        scale: of q kᵀ.
        pairs: the labelled pairs.
        valid: real entities, bool (B, N), or None for all.
    """

    batch: torch.Size
    matrix: Tensor | None
    sides: tuple[Tensor, Tensor] | None
    scale: float
    pairs: LabelledPairs
    valid: Tensor | None


def _graphs(
    logits: Logits,
    target: Tensor,
    mask: Tensor | None,
    over: Over,
    related: Related | Tensor | None,
    scale: float | None,
) -> _Graphs:
    """The checked arguments of :func:`center_mass`."""
    if over not in ("matrix", "row"):
        raise unknown("softmax over", str(over), ("matrix", "row"))
    if isinstance(logits, AttentionRecord):
        logits, target, mask, related, scale = _from_record(logits, target, mask, over, related, scale)
    batch, count, device = _sizes(logits, scale)
    pairs = _pairs(target, related, batch, count, device)
    valid = _valid(mask, batch, count)
    if isinstance(logits, Tensor):
        return _Graphs(batch, logits.reshape(-1, count, count), None, 1.0, pairs, valid)
    q, k = (side.reshape(-1, *side.shape[-2:]) for side in logits)
    return _Graphs(batch, None, (q, k), q.shape[-1] ** -0.5 if scale is None else scale, pairs, valid)


def _log_mass(graphs: _Graphs, over: Over) -> tuple[Tensor, Tensor]:
    """Log M of graphs (...) or rows (..., N), and which of them have a labelled pair; 0 for those that have none."""
    valid = graphs.valid
    if valid is None:
        values = graphs.matrix if graphs.sides is None else graphs.sides[0]
        assert values is not None
        valid = torch.ones(values.shape[:2], dtype=torch.bool, device=values.device)
    if graphs.sides is None:
        assert graphs.matrix is not None
        sums = torch.stack(_sums_of_matrix(graphs.matrix, valid, graphs.pairs))
    else:
        log_sums = graph_log_sums if over == "matrix" and fused(*graphs.sides) else row_log_sums
        sums = torch.stack(log_sums(*graphs.sides, valid, graphs.pairs, graphs.scale))
    sums = sums.view(2, *graphs.batch, *sums.shape[2:])
    if over == "matrix" and sums.ndim == 2 + len(graphs.batch):
        sums = _log_sum(sums)
    has_pair = sums[0] != -torch.inf
    # Without a labelled pair 0, not minus infinity: it is multiplied by zero afterwards, so it must be finite.
    labelled, everything = sums.where(has_pair, 0)
    return (labelled - everything).clamp_max(0), has_pair  # rounding may leave a little more than 0


def _log_sum(values: Tensor) -> Tensor:
    """Log-sum-exp over the last dimension, whose gradient is zero, not NaN, where all values are minus infinity."""
    empty = values.isneginf().all(-1)
    return values.masked_fill(empty[..., None], 0).logsumexp(-1).masked_fill(empty, -torch.inf)


def _sums_of_matrix(logits: Tensor, valid: Tensor, pairs: LabelledPairs) -> tuple[Tensor, Tensor]:
    """Log-sums of labelled and of all valid pairs of every row, (B, N) each, from the whole matrix (B, N, N)."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    wide = wide.masked_fill(~(valid[:, :, None] & valid[:, None, :]), -torch.inf)
    labelled = wide.masked_fill(~pairs.block(slice(None), slice(None)), -torch.inf)
    return _log_sum(labelled), _log_sum(wide)


# Checks of the arguments ------------------------------------------------------------------------------------------


def _from_record(
    record: AttentionRecord,
    target: Tensor,
    mask: Tensor | None,
    over: Over,
    related: Related | Tensor | None,
    scale: float | None,
) -> tuple[Tensor | tuple[Tensor, Tensor], Tensor, Tensor | None, Related | Tensor | None, float | None]:
    """Logits, target, mask, related and scale for what a record holds; heads become one more batch dimension."""
    if record.kind != "pairwise":
        raise UserError(f"{record.site} is {record.kind} attention; the center-mass is of pairwise attention")
    if scale is not None:
        raise UserError("scale belongs to a pair (q, k); a record knows its own, leave it out")
    if record.shape[-1] != record.shape[-2]:
        raise UserError(
            f"{record.site} attends from {record.shape[-2]} entities to {record.shape[-1]} others; the center-mass "
            "needs attention between the same entities"
        )
    attention = record.noted
    if isinstance(attention, LogitMatrix):
        return attention.logits(), *_add_heads(target, mask, related, len(record.shape) - 3), None
    if not isinstance(attention, DotProduct):
        if over == "matrix":
            raise UserError(
                f"{record.site} recorded weights after a softmax of each row, so a softmax over the whole matrix "
                "cannot be computed; use over='row', or note a foveal.attention.DotProduct of q and k in its forward"
            )
        weights = record.values  # their logarithm is the logits up to a constant in each row
        if not record.normalised and bool((weights < 0).any()):
            raise UserError(
                f"{record.site} has negative weights, as of heads that are mixed after the softmax; they are no shares"
            )
        positive = weights > 0
        logits = weights.masked_fill(~positive, 1).log().masked_fill(~positive, -torch.inf)
        return logits, *_add_heads(target, mask, related, weights.ndim - 3), None
    if attention.valid is not None:
        mask = attention.valid if mask is None else attention.valid & mask
    heads = len(record.shape) - 3 if attention.heads and not attention.mean_heads else 0
    if attention.has_bias:
        return attention.logits(), *_add_heads(target, mask, related, heads), None
    q, k, scale = attention.affinities()
    return (q, k), *_add_heads(target, mask, related, heads), scale


def _add_heads(
    target: Tensor, mask: Tensor | None, related: Related | Tensor | None, batch_dims: int
) -> tuple[Tensor, Tensor | None, Related | Tensor | None]:
    """Insert a dimension of heads after the ``batch_dims`` first ones, where it is missing."""

    def add(tensor: Tensor, inner: int) -> Tensor:
        return tensor.unsqueeze(-inner - 1) if inner < tensor.ndim <= batch_dims + inner else tensor

    target = add(target, 2 if related is None else 1)
    return target, None if mask is None else add(mask, 1), add(related, 2) if isinstance(related, Tensor) else related


def _sizes(logits: Tensor | tuple[Tensor, Tensor], scale: float | None) -> tuple[torch.Size, int, torch.device]:
    """Batch shape, number of entities and device."""
    if isinstance(logits, Tensor):
        if scale is not None:
            raise UserError("scale belongs to a pair (q, k); logits are scaled already, leave it out")
        if logits.ndim < 2 or logits.shape[-1] != logits.shape[-2] or not logits.shape[-1]:
            raise UserError(f"logits must be (..., N, N), one row and column per entity, got {_shape(logits)}")
        if not logits.is_floating_point():
            raise UserError(f"logits must be floating point, got {logits.dtype}")
        return logits.shape[:-2], logits.shape[-1], logits.device
    if not (isinstance(logits, (tuple, list)) and len(logits) == 2 and all(isinstance(x, Tensor) for x in logits)):
        raise UserError("logits must be a tensor (..., N, N), a pair (q, k) of tensors (..., N, d) or a record")
    q, k = logits
    if q.ndim < 2 or q.shape != k.shape or 0 in q.shape[-2:] or not q.is_floating_point():
        raise UserError(f"q and k must be floating point (..., N, d) of one shape, got {_shape(q)} and {_shape(k)}")
    return q.shape[:-2], q.shape[-2], q.device


def _pairs(
    target: Tensor, related: Related | Tensor | None, batch: torch.Size, count: int, device: torch.device
) -> LabelledPairs:
    for name, value in (("target", target), ("related", related)):
        if not isinstance(value, Tensor) and (name == "target" or not (value is None or isinstance(value, str))):
            check_tensors(**{name: value})
    if related is None:
        if target.dtype != torch.bool:
            raise UserError(
                f"target must be bool (..., N, N), got {target.dtype} {_shape(target)}; compare it first, for example "
                "target > 0. For one label per entity, also give related, for example related='different'"
            )
        outer = _outer(target, "target", (count, count), batch)
        owner = torch.arange(math.prod(outer), device=device).view(outer).expand(batch).reshape(-1)
        return LabelledPairs("pairs", target.reshape(-1, count, count), owner)
    if target.dtype.is_floating_point or target.dtype == torch.bool:
        raise UserError(f"with related, target must hold an integer label for each entity, got {target.dtype}")
    _outer(target, "target", (count,), batch)
    labels = target.expand(*batch, count).reshape(-1, count)
    owner = torch.arange(len(labels), device=device)
    if isinstance(related, str):
        if related not in ("different", "same"):
            raise unknown("relation", related, ("different", "same"))
        return LabelledPairs(related, labels, owner)
    if related.dtype != torch.bool or related.ndim < 2 or related.shape[-1] != related.shape[-2]:
        raise UserError(f"related must be 'different', 'same' or a bool table (..., C, C), got {_shape(related)}")
    _outer(related, "related", tuple(related.shape[-2:]), batch)
    table = related.expand(*batch, *related.shape[-2:]).reshape(-1, *related.shape[-2:])
    return LabelledPairs("table", labels, owner, table)


def _outer(tensor: Tensor, name: str, inner: tuple[int, ...], batch: torch.Size) -> torch.Size:
    """Batch shape of ``tensor``, which must broadcast to that of the logits."""
    outer = tensor.shape[: max(0, tensor.ndim - len(inner))]
    fits = len(outer) <= len(batch) and all(a in (1, b) for a, b in zip(reversed(outer), reversed(batch), strict=False))
    if tensor.shape[len(outer) :] != inner or not fits:
        expected = (*batch, *inner)
        raise UserError(f"{name} {_shape(tensor)} does not fit the logits; expected {expected} or broadcastable to it")
    return outer


def _valid(mask: Tensor | None, batch: torch.Size, count: int) -> Tensor | None:
    """Real entities, bool (B, N); None for all."""
    if mask is None:
        return None
    if mask.dtype != torch.bool:
        raise UserError(f"mask must be bool, true for real entities, got {mask.dtype}; compare it first")
    _outer(mask, "mask", (count,), batch)
    return mask.expand(*batch, count).reshape(-1, count)


def _shape(tensor: Tensor) -> str:
    return str(tuple(tensor.shape))
