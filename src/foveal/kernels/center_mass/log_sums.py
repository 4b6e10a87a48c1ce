"""Log-sums over the rows of an attention matrix that is never stored: the center-mass loss of large graphs needs them.

For ω = scale · q kᵀ, a mask of valid entities and labelled pairs T, each row m has two numbers::

    all_m = log Σ_n valid exp ω_mn        labelled_m = log Σ_n valid T_mn exp ω_mn

:func:`reference` takes them from the whole matrix. :func:`row_log_sums` computes the matrix block by block, and again
in the backward pass, so that its memory grows with N and not with N². It is a custom operator with a fake and a
backward implementation, so that compiled code can call it. On NVIDIA GPUs it runs the kernels of
:mod:`foveal.kernels.center_mass.launch`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from foveal.kernels.center_mass.pairs import LabelledPairs
from foveal.kernels.support import fused_available

ELEMENTS = 1 << 20  # of the matrix that are in memory at a time


def _blocks(graphs: int, count: int) -> Iterator[tuple[slice, slice]]:
    """Slices of graphs and rows that are computed together."""
    rows = max(1, min(count, ELEMENTS // max(1, count)))
    graphs_at_once = max(1, ELEMENTS // max(1, rows * count))
    for b in range(0, graphs, graphs_at_once):
        for m in range(0, count, rows):
            yield slice(b, min(b + graphs_at_once, graphs)), slice(m, min(m + rows, count))


def _affinity(q: Tensor, k: Tensor, valid: Tensor, scale: float) -> Tensor:
    """ω of some rows, (b, m, N); minus infinity in invalid columns."""
    return (q @ k.mT).mul_(scale).masked_fill_(~valid[:, None, :], -torch.inf)


def _sum_dtype(q: Tensor) -> torch.dtype:
    return torch.promote_types(q.dtype, torch.float32)


def reference(q: Tensor, k: Tensor, valid: Tensor, pairs: LabelledPairs, scale: float) -> tuple[Tensor, Tensor]:
    """Both log-sums from the whole matrix; arguments as in :func:`row_log_sums`."""
    with torch.autocast(q.device.type, enabled=False):
        affinity = _affinity(q.to(_sum_dtype(q)), k.to(_sum_dtype(q)), valid, scale)
        affinity = affinity.masked_fill(~valid[:, :, None], -torch.inf)
        labelled = affinity.masked_fill(~pairs.block(slice(None), slice(None)), -torch.inf)
        return labelled.logsumexp(2), affinity.logsumexp(2)


def row_log_sums(q: Tensor, k: Tensor, valid: Tensor, pairs: LabelledPairs, scale: float) -> tuple[Tensor, Tensor]:
    """Log-sums of the labelled and of all valid pairs of every row.

    Args:
        q: (B, N, d), the rows of the matrix.
        k: (B, N, d), its columns.
        valid: bool (B, N).
        pairs: the labelled pairs.
        scale: of the affinity.

    Returns:
        labelled (B, N) and all (B, N), at least float32; minus infinity where there is nothing to sum. Differentiable
        once in ``q`` and ``k``.
    """
    return torch.ops.foveal.row_log_sums(q, k, valid, pairs.target, pairs.owner, pairs.table, pairs.rule, scale)


def _forward(
    q: Tensor, k: Tensor, valid: Tensor, target: Tensor, owner: Tensor, table: Tensor | None, rule: str, scale: float
) -> tuple[Tensor, Tensor]:
    pairs = LabelledPairs(rule, target, owner, table)
    labelled = q.new_full(q.shape[:2], -torch.inf, dtype=_sum_dtype(q))
    everything = labelled.clone()
    with torch.autocast(q.device.type, enabled=False):
        for b, m in _blocks(*q.shape[:2]):
            affinity = _affinity(q[b, m].to(_sum_dtype(q)), k[b].to(_sum_dtype(q)), valid[b], scale)
            everything[b, m] = affinity.logsumexp(2)
            labelled[b, m] = affinity.masked_fill_(~pairs.block(b, m), -torch.inf).logsumexp(2)
    return labelled.masked_fill_(~valid, -torch.inf), everything.masked_fill_(~valid, -torch.inf)


def _backward(
    grad_labelled: Tensor,
    grad_all: Tensor,
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
    pairs = LabelledPairs(rule, target, owner, table)
    grad_q, grad_k = q.new_zeros(q.shape, dtype=_sum_dtype(q)), k.new_zeros(k.shape, dtype=_sum_dtype(q))
    q, k = (side.masked_fill(~valid[:, :, None], 0) for side in (q, k))  # padding may hold anything
    # A row without pairs has no gradient: relative to infinity its exponentials are zero.
    empty, none = labelled.isneginf(), everything.isneginf()
    grad_labelled, grad_all = grad_labelled.masked_fill(empty, 0) * scale, grad_all.masked_fill(none, 0) * scale
    labelled, everything = labelled.masked_fill(empty, torch.inf), everything.masked_fill(none, torch.inf)
    with torch.autocast(q.device.type, enabled=False):
        for b, m in _blocks(*q.shape[:2]):
            rows_q, columns_k = q[b, m].to(_sum_dtype(q)), k[b].to(_sum_dtype(q))
            affinity = _affinity(rows_q, columns_k, valid[b], scale)
            grad = (affinity - everything[b, m, None]).exp_().mul_(grad_all[b, m, None])
            affinity.masked_fill_(~pairs.block(b, m), -torch.inf)
            grad += affinity.sub_(labelled[b, m, None]).exp_().mul_(grad_labelled[b, m, None])
            grad_q[b, m] = grad @ columns_k
            grad_k[b] += grad.mT @ rows_q
    return grad_q.to(q.dtype), grad_k.to(k.dtype)


_row_sums = torch.library.custom_op("foveal::row_log_sums", _forward, mutates_args=())
_row_sums_backward = torch.library.custom_op("foveal::row_log_sums_backward", _backward, mutates_args=())


def fused(q: Tensor, k: Tensor) -> bool:
    """Whether the Triton kernels support q and k; :func:`graph_log_sums` needs them."""
    if not fused_available(q.device):
        return False
    from foveal.kernels.center_mass import launch

    return launch.supports(q, k)


def graph_log_sums(q: Tensor, k: Tensor, valid: Tensor, pairs: LabelledPairs, scale: float) -> tuple[Tensor, Tensor]:
    """Log-sums of the labelled and of all valid pairs of every graph, (B,) each; only where :func:`fused` is true.

    Arguments as in :func:`row_log_sums`.
    """
    return torch.ops.foveal.graph_log_sums(q, k, valid, pairs.target, pairs.owner, pairs.table, pairs.rule, scale)


@_row_sums.register_kernel("cuda")
def _(q: Tensor, k: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    if not fused(q, k):
        return _forward(q, k, *rest)
    from foveal.kernels.center_mass import launch

    return launch.forward(q, k, *rest)


@_row_sums_backward.register_kernel("cuda")
def _(
    grad_labelled: Tensor, grad_all: Tensor, labelled: Tensor, everything: Tensor, q: Tensor, k: Tensor, *rest: Any
) -> Any:
    sums = (grad_labelled, grad_all, labelled, everything)
    if not fused(q, k):
        return _backward(*sums, q, k, *rest)
    from foveal.kernels.center_mass import launch

    return launch.backward(*sums, q, k, *rest)


@torch.library.custom_op("foveal::graph_log_sums", mutates_args=())
def _graph_sums(
    q: Tensor, k: Tensor, valid: Tensor, target: Tensor, owner: Tensor, table: Tensor | None, rule: str, scale: float
) -> tuple[Tensor, Tensor]:
    from foveal.kernels.center_mass import launch

    return launch.forward_whole(q, k, valid, target, owner, table, rule, scale)


@_row_sums.register_fake
def _(q: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    return q.new_empty(q.shape[:2], dtype=_sum_dtype(q)), q.new_empty(q.shape[:2], dtype=_sum_dtype(q))


@_graph_sums.register_fake
def _(q: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    return q.new_empty(len(q), dtype=_sum_dtype(q)), q.new_empty(len(q), dtype=_sum_dtype(q))


@_row_sums_backward.register_fake
def _(
    grad_labelled: Tensor, grad_all: Tensor, labelled: Tensor, everything: Tensor, q: Tensor, k: Tensor, *_: object
) -> tuple[Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, valid, target, owner, table, ctx.rule, ctx.scale = inputs
    ctx.save_for_backward(q, k, valid, target, owner, table, *output)


def _differentiate(ctx: Any, grad_labelled: Tensor, grad_all: Tensor) -> tuple[Tensor | None, ...]:
    *inputs, labelled, everything = ctx.saved_tensors
    grad_q, grad_k = torch.ops.foveal.row_log_sums_backward(
        grad_labelled, grad_all, labelled, everything, *inputs, ctx.rule, ctx.scale
    )
    return grad_q, grad_k, None, None, None, None, None, None


_row_sums.register_autograd(_differentiate, setup_context=_save)
_graph_sums.register_autograd(_differentiate, setup_context=_save)
