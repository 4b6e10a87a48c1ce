"""Log-sums over the rows of an attention matrix that is never stored: the core of the center-mass loss of large graphs.

For ω = scale · q kᵀ, a mask of valid entities and labelled pairs T, each row m has two numbers::

    all_m = log Σ_n valid exp ω_mn        labelled_m = log Σ_n valid T_mn exp ω_mn

:func:`reference` takes them from the whole matrix. :func:`pair_mass` goes through the matrix in pieces, and does so
again in the backward pass, so that its memory grows with N and not with N². It is a custom operator with a fake and a
backward implementation, so compiled code calls it as it is. On NVIDIA GPUs :mod:`foveal.kernels.center_mass.triton` does it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from foveal.kernels.support import fused_available

ELEMENTS = 1 << 20  # of the matrix held at a time
RULES = ("pairs", "different", "same", "table")


@dataclass(frozen=True)
class Pairs:
    """Labelled pairs of B graphs of N entities; those of an entity with itself never count.

    Attributes:
        rule: what ``target`` holds. ``pairs``: the pairs themselves, bool (G, N, N). Otherwise a label for each entity,
            int (G, N), negative for none; pairs of ``different`` or of the ``same`` labels are meant, or those
            that ``table`` has.
        target: as the rule says.
        owner: int (B,), which of the G targets belongs to each graph; heads share one.
        table: bool (G, C, C), true where a label (first) goes with another (second); only for the rule ``table``.
    """

    rule: str
    target: Tensor
    owner: Tensor
    table: Tensor | None = None

    def piece(self, graphs: slice, rows: slice) -> Tensor:
        """Pairs between the entities ``rows`` and all entities, bool (b, m, N)."""
        owner = self.owner[graphs]
        if self.rule == "pairs":
            found = self.target[owner, rows]
        else:
            label = self.target[owner].long()
            here = label[:, rows]
            if self.rule == "table":
                assert self.table is not None
                last = self.table.shape[-1] - 1
                label = label.masked_fill(label > last, -1)  # the table has no such label
                here, graph = label[:, rows], owner[:, None, None]
                found = self.table[graph, here.clamp_min(0)[:, :, None], label.clamp_min(0)[:, None, :]]
            else:
                same = here[:, :, None] == label[:, None, :]
                found = same if self.rule == "same" else ~same
            found = found & (here >= 0)[:, :, None] & (label >= 0)[:, None, :]
        count = found.shape[-1]
        place = torch.arange(count, device=found.device)
        return found & (place[rows, None] != place)


def _pieces(graphs: int, count: int) -> Iterator[tuple[slice, slice]]:
    """Graphs and rows that are held together."""
    rows = max(1, min(count, ELEMENTS // max(1, count)))
    together = max(1, ELEMENTS // max(1, rows * count))
    for b in range(0, graphs, together):
        for m in range(0, count, rows):
            yield slice(b, min(b + together, graphs)), slice(m, min(m + rows, count))


def _affinity(q: Tensor, k: Tensor, valid: Tensor, scale: float) -> Tensor:
    """ω of some rows, (b, m, N), minus infinity in invalid columns."""
    return (q @ k.mT).mul_(scale).masked_fill_(~valid[:, None, :], -torch.inf)


def _wide(q: Tensor) -> torch.dtype:
    return torch.promote_types(q.dtype, torch.float32)


def reference(q: Tensor, k: Tensor, valid: Tensor, pairs: Pairs, scale: float) -> tuple[Tensor, Tensor]:
    """Both log-sums from the whole matrix; arguments as in :func:`pair_mass`."""
    with torch.autocast(q.device.type, enabled=False):
        affinity = _affinity(q.to(_wide(q)), k.to(_wide(q)), valid, scale)
        affinity = affinity.masked_fill(~valid[:, :, None], -torch.inf)
        labelled = affinity.masked_fill(~pairs.piece(slice(None), slice(None)), -torch.inf)
        return labelled.logsumexp(2), affinity.logsumexp(2)


def pair_mass(q: Tensor, k: Tensor, valid: Tensor, pairs: Pairs, scale: float) -> tuple[Tensor, Tensor]:
    """Log-sums of the labelled and of all valid pairs of every row.

    Args:
        q: (B, N, d), the row's side of the affinity.
        k: (B, N, d), the column's.
        valid: bool (B, N).
        pairs: the labelled pairs.
        scale: of the affinity.

    Returns:
        labelled (B, N) and all (B, N), at least float32; minus infinity where there is nothing to sum. Differentiable
        once in ``q`` and ``k``.
    """
    return torch.ops.foveal.pair_mass(q, k, valid, pairs.target, pairs.owner, pairs.table, pairs.rule, scale)


def _forward(
    q: Tensor, k: Tensor, valid: Tensor, target: Tensor, owner: Tensor, table: Tensor | None, rule: str, scale: float
) -> tuple[Tensor, Tensor]:
    pairs = Pairs(rule, target, owner, table)
    labelled = q.new_full(q.shape[:2], -torch.inf, dtype=_wide(q))
    everything = labelled.clone()
    with torch.autocast(q.device.type, enabled=False):
        for b, m in _pieces(*q.shape[:2]):
            affinity = _affinity(q[b, m].to(_wide(q)), k[b].to(_wide(q)), valid[b], scale)
            everything[b, m] = affinity.logsumexp(2)
            labelled[b, m] = affinity.masked_fill_(~pairs.piece(b, m), -torch.inf).logsumexp(2)
    return labelled.masked_fill_(~valid, -torch.inf), everything.masked_fill_(~valid, -torch.inf)


def _backward(
    into_labelled: Tensor,
    into_all: Tensor,
    labelled: Tensor,
    everything: Tensor,
    q: Tensor,
    k: Tensor,
    valid: Tensor,
    target: Tensor,
    owner: Tensor,
    table: Tensor | None,
    rule: str,
    scale: float,
) -> tuple[Tensor, Tensor]:
    pairs = Pairs(rule, target, owner, table)
    into_q, into_k = q.new_zeros(q.shape, dtype=_wide(q)), k.new_zeros(k.shape, dtype=_wide(q))
    q, k = (side.masked_fill(~valid[:, :, None], 0) for side in (q, k))  # padding may hold anything
    # A row without pairs has no gradient: relative to infinity its exponentials are zero.
    empty, none = labelled.isneginf(), everything.isneginf()
    into_labelled, into_all = into_labelled.masked_fill(empty, 0) * scale, into_all.masked_fill(none, 0) * scale
    labelled, everything = labelled.masked_fill(empty, torch.inf), everything.masked_fill(none, torch.inf)
    with torch.autocast(q.device.type, enabled=False):
        for b, m in _pieces(*q.shape[:2]):
            wide_q, wide_k = q[b, m].to(_wide(q)), k[b].to(_wide(q))
            affinity = _affinity(wide_q, wide_k, valid[b], scale)
            into = (affinity - everything[b, m, None]).exp_().mul_(into_all[b, m, None])
            affinity.masked_fill_(~pairs.piece(b, m), -torch.inf)
            into += affinity.sub_(labelled[b, m, None]).exp_().mul_(into_labelled[b, m, None])
            into_q[b, m] = into @ wide_k
            into_k[b] += into.mT @ wide_q
    return into_q.to(q.dtype), into_k.to(k.dtype)


_OPERATOR = torch.library.custom_op("foveal::pair_mass", _forward, mutates_args=())
_GRADIENT = torch.library.custom_op("foveal::pair_mass_backward", _backward, mutates_args=())


def fused(q: Tensor, k: Tensor) -> bool:
    """Whether :func:`graph_mass` serves q and k like these."""
    if not fused_available(q.device):
        return False
    from foveal.kernels.center_mass import triton as pair_triton

    return pair_triton.serves(q, k)


def graph_mass(q: Tensor, k: Tensor, valid: Tensor, pairs: Pairs, scale: float) -> tuple[Tensor, Tensor]:
    """Log-sums of the labelled and of all valid pairs of every graph, (B,) each, where :func:`fused` says so.

    Arguments as in :func:`pair_mass`, whose results it adds up.
    """
    return torch.ops.foveal.graph_mass(q, k, valid, pairs.target, pairs.owner, pairs.table, pairs.rule, scale)


@_OPERATOR.register_kernel("cuda")
def _(q: Tensor, k: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    if not fused(q, k):
        return _forward(q, k, *rest)
    from foveal.kernels.center_mass import triton as pair_triton

    return pair_triton.forward(q, k, *rest)


@_GRADIENT.register_kernel("cuda")
def _(
    into_labelled: Tensor, into_all: Tensor, labelled: Tensor, everything: Tensor, q: Tensor, k: Tensor, *rest: Any
) -> Any:
    sums = (into_labelled, into_all, labelled, everything)
    if not fused(q, k):
        return _backward(*sums, q, k, *rest)
    from foveal.kernels.center_mass import triton as pair_triton

    return pair_triton.backward(*sums, q, k, *rest)


@torch.library.custom_op("foveal::graph_mass", mutates_args=())
def _whole(
    q: Tensor, k: Tensor, valid: Tensor, target: Tensor, owner: Tensor, table: Tensor | None, rule: str, scale: float
) -> tuple[Tensor, Tensor]:
    from foveal.kernels.center_mass import triton as pair_triton

    return pair_triton.forward_whole(q, k, valid, target, owner, table, rule, scale)


@_OPERATOR.register_fake
def _(q: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    return q.new_empty(q.shape[:2], dtype=_wide(q)), q.new_empty(q.shape[:2], dtype=_wide(q))


@_whole.register_fake
def _(q: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    return q.new_empty(len(q), dtype=_wide(q)), q.new_empty(len(q), dtype=_wide(q))


@_GRADIENT.register_fake
def _(
    into_labelled: Tensor, into_all: Tensor, labelled: Tensor, everything: Tensor, q: Tensor, k: Tensor, *_: object
) -> tuple[Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, valid, target, owner, table, ctx.rule, ctx.scale = inputs
    ctx.save_for_backward(q, k, valid, target, owner, table, *output)


def _differentiate(ctx: Any, into_labelled: Tensor, into_all: Tensor) -> tuple[Tensor | None, ...]:
    *given, labelled, everything = ctx.saved_tensors
    into_q, into_k = torch.ops.foveal.pair_mass_backward(
        into_labelled, into_all, labelled, everything, *given, ctx.rule, ctx.scale
    )
    return into_q, into_k, None, None, None, None, None, None


_OPERATOR.register_autograd(_differentiate, setup_context=_keep)
_whole.register_autograd(_differentiate, setup_context=_keep)
