"""Launch the Triton kernels of the center-mass, with the tiles that suit a shape."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from foveal.kernels.center_mass import triton_kernels as kernels
from foveal.kernels.support import on_its_device
from foveal.kernels.tune import Key, run

LOG2E = 1.4426950408889634
WIDEST = 256  # columns of q and k; a tile holds all of them
TILES = ((128, 128, 8, 3), (128, 64, 4, 3), (128, 64, 8, 3), (64, 64, 4, 3), (64, 128, 4, 3), (128, 128, 4, 2),
         (128, 32, 4, 4), (64, 32, 4, 2), (32, 32, 4, 1))  # fmt: skip
"""Rows and columns of a tile, warps, stages; those that do not fit a device are skipped."""


def supports(q: Tensor, k: Tensor) -> bool:
    """Whether the kernels support q and k of this shape and dtype."""
    return (
        q.dtype == k.dtype
        and q.dtype in (torch.float32, torch.bfloat16, torch.float16)
        and q.shape[-1] <= WIDEST
        and q.numel() > 0
    )


def tiles(q: Tensor) -> list[tuple[int, ...]]:
    """Candidate tiles for q: only small ones where its vectors need much memory; those first that seem fastest."""
    large = q.dtype != torch.bfloat16 or q.shape[-1] > 128
    processors = torch.cuda.get_device_properties(q.device).multi_processor_count if q.is_cuda else 1

    def cost(tile: tuple[int, ...]) -> float:
        """Number of waves times a program's work; a tile is the faster, the more often it uses what it reads."""
        rows, columns, *_ = tile
        return triton.cdiv(len(q) * triton.cdiv(q.shape[1], rows), processors) * (rows + columns) / columns

    return sorted((tile for tile in TILES if tile[0] <= 64 or not large), key=cost)


def _run(kernel, inputs, outputs, rule: str, scale: float, *more: bool) -> None:
    """Launch ``kernel`` over B graphs of N entities; ``more`` are its own constants, the last one EXACT.

    It runs with the tile chosen for its shape, or with the smallest one where it only covers graphs in doubt.
    """
    q, k, labels, target, table, owner, doubt, *rest = inputs
    graphs, count, width = q.shape
    deep = max(16, triton.next_power_of_2(width))
    exact = q.dtype == torch.float32 and not torch.backends.cuda.matmul.allow_tf32

    def launch(tile: tuple[int, ...]) -> None:
        rows, columns, warps, stages = tile
        kernel[graphs, triton.cdiv(count, rows)](
            q, k, labels, target, target if table is None else table, owner, doubt, *rest, *outputs, count,
            0 if table is None else table.shape[-1], scale * LOG2E, width, *more, rule,
            count % max(rows, columns) == 0, "ieee" if exact else "tf32",
            rows, columns, deep, num_warps=warps, num_stages=stages,
        )  # fmt: skip

    if more[-1] and not _always_exact(kernel, rule):
        return launch(TILES[-1])
    shape = f"{q.dtype} {exact} {rule} {more} {count}x{deep}"
    run(Key(f"center-mass {kernel.__name__}", shape, graphs, q.device), lambda: tiles(q), launch)


def _always_exact(kernel: Any, rule: str) -> bool:
    """Whether the first launch already uses exact sums: rules by which rows often have no labelled pair."""
    return kernel is kernels.forward_rows and rule != "different"


class Prepared(NamedTuple):
    """The inputs of all kernels, contiguous."""

    q: Tensor
    k: Tensor
    labels: Tensor
    target: Tensor
    table: Tensor | None
    owner: Tensor


def prepare(
    q: Tensor, k: Tensor, valid: Tensor | None, target: Tensor, owner: Tensor, table: Tensor | None, rule: str
) -> Prepared:
    """Validity and labels as one number an entity (``_labels`` of the kernels reads it); ``valid`` None: all are.

    Padding may hold anything and is set to zero here: a mask loaded in the kernel would delay the loads of q and k.
    """
    if rule == "pairs":
        labels = torch.full(q.shape[:2], -1, dtype=torch.int32, device=q.device)
    else:
        labels = target[owner].clamp_min(-1).int()
    if valid is not None:
        q, k = (side.masked_fill(~valid[:, :, None], 0) for side in (q, k))
        labels = labels.masked_fill_(~valid, -2)
    q, k, labels, target, owner = (x.contiguous() for x in (q, k, labels, target, owner))
    return Prepared(q, k, labels, target, None if table is None else table.contiguous(), owner)


@on_its_device
def row_sums(q: Tensor, prepared: Prepared, rule: str, scale: float) -> tuple[Tensor, Tensor]:
    """Log-sums of every row, (B, N) each; ``q`` is the prepared one."""
    labelled = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
    everything = torch.empty_like(labelled)
    always = _always_exact(kernels.forward_rows, rule)
    doubt = torch.full((len(q),), int(always), dtype=torch.int32, device=q.device)
    for exact in (True,) if always else (False, True):
        _run(kernels.forward_rows, (*prepared, doubt), (labelled, everything), rule, scale, exact)
    return labelled, everything


@on_its_device
def graph_sums(q: Tensor, prepared: Prepared, rule: str, scale: float) -> tuple[Tensor, Tensor]:
    """Log-sums of every graph, (B,) each; ``q`` is the prepared one."""
    rows = row_sums(q, prepared, rule, scale)
    labelled, everything = (torch.empty(len(q), dtype=torch.float32, device=q.device) for _ in range(2))
    kernels.sum_rows[(len(q),)](*rows, labelled, everything, q.shape[1], 1024)
    return labelled, everything


@on_its_device
def mean_loss(labelled: Tensor, everything: Tensor, shape: str, r: float) -> tuple[Tensor, Tensor]:
    """The loss of :func:`foveal.supervise.center_mass_loss` from log-sums of graphs, and its derivatives (2, B)."""
    loss = torch.empty((), dtype=torch.float32, device=labelled.device)
    rates = torch.empty(2, len(labelled), dtype=torch.float32, device=labelled.device)
    kernels.mean_loss[(1,)](labelled, everything, loss, rates, len(labelled), float(r), shape, 1024)
    return loss, rates


@on_its_device
def gradients(
    q: Tensor,
    prepared: Prepared,
    grad_labelled: Tensor,
    grad_all: Tensor,
    labelled: Tensor,
    everything: Tensor,
    rule: str,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Gradients of q and k from those of both log-sums, of rows (B, N) or of graphs (B,); ``q`` is the prepared one."""
    sums, whole = [x.contiguous() for x in (labelled, everything, grad_labelled, grad_all)], labelled.ndim == 1
    # For whole graphs the kernels decide themselves, from the two sums of the graph.
    doubt = prepared.owner if whole else _far(labelled, everything).any(1).int()
    grad_q, grad_k = torch.empty_like(q), torch.empty_like(prepared.k)
    for exact in (False, True):
        _run(kernels.grad_q, (*prepared, doubt, *sums), (grad_q,), rule, scale, whole, exact)
        _run(kernels.grad_k, (*prepared, doubt, *sums), (grad_k,), rule, scale, whole, exact)
    return grad_q, grad_k


def forward(
    q: Tensor, k: Tensor, valid: Tensor, target: Tensor, owner: Tensor, table: Tensor | None, rule: str, scale: float
) -> tuple[Tensor, Tensor]:
    """Log-sums of every row, as :func:`foveal.kernels.center_mass.log_sums.row_log_sums`."""
    prepared = prepare(q, k, valid, target, owner, table, rule)
    return row_sums(prepared.q, prepared, rule, scale)


def forward_whole(q: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    """Log-sums of every graph (B,); arguments as in :func:`forward`."""
    *inputs, scale = rest
    prepared = prepare(q, *inputs)
    return graph_sums(prepared.q, prepared, inputs[-1], scale)


def backward(
    grad_labelled: Tensor, grad_all: Tensor, labelled: Tensor, everything: Tensor, q: Tensor, *rest: Any
) -> tuple[Tensor, Tensor]:
    """:func:`gradients` from the arguments of :func:`forward`."""
    *inputs, scale = rest
    prepared = prepare(q, *inputs)
    return gradients(prepared.q, prepared, grad_labelled, grad_all, labelled, everything, inputs[-1], scale)


def _far(labelled: Tensor, everything: Tensor) -> Tensor:
    """Where labelled pairs are too weak compared with all pairs, or all pairs compared with padding."""
    far = (everything - labelled > kernels.FAR.value) & (labelled > -torch.inf)
    return far | ((everything < kernels.LOW.value) & (everything > -torch.inf))
