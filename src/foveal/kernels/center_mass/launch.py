"""Launch the Triton kernels of the center-mass, with the tiles that suit a shape."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from foveal.kernels.center_mass import loss_kernels
from foveal.kernels.center_mass import triton_kernels as kernels
from foveal.kernels.prepared import launch
from foveal.kernels.support import on_its_device
from foveal.kernels.tune import Key, run

LOG2E = 1.4426950408889634
WIDEST = 256  # columns of q and k; a tile holds all of them
BLOCK = 1024  # entities, rows or graphs of a program of the small kernels
TILES = ((128, 64, 4, 3), (64, 128, 4, 2), (64, 64, 4, 3), (128, 128, 8, 2), (64, 32, 4, 3), (32, 64, 4, 2),
         (32, 32, 4, 1))  # fmt: skip
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
    """Candidate tiles for q: those before others that have enough registers, and that seem fast.

    A pair costs some ten instructions, fewer in a large tile, and its share of what a program reads. Where two programs
    of four warps share a multiprocessor, one computes exponentials while the other has its products.
    """
    deep, limit = q.shape[-1], 144 if q.dtype == torch.bfloat16 else 80
    processors = torch.cuda.get_device_properties(q.device).multi_processor_count if q.is_cuda else 1

    def rank(tile: tuple[int, ...]) -> tuple[bool, float]:
        rows, columns, warps, _ = tile
        registers = rows * (columns + deep) // (32 * warps)
        share = triton.cdiv(len(q) * triton.cdiv(q.shape[1], rows), processors)
        alone = 1.25 if share == 1 or warps == 8 else 1.0
        small = 1.5 if rows < 64 else 1.0  # Hopper's products have 64 rows
        compute = (1 + 16 / rows + 16 / columns) * alone * small
        return registers > limit, share * rows * max(compute, deep / rows)

    return sorted(TILES, key=rank)


def _run(kernel, tensors, prepared: Prepared, rule: str, scale: float, *more: bool | int, sides: int = 1) -> None:
    """Launch ``kernel`` over B graphs of N entities; ``more`` are its own constants, the last one EXACT.

    It runs with the tile chosen for its shape, or with the smallest one where it only covers graphs in doubt.
    """
    q, k, labels, target, table, owner = prepared
    graphs, count, width = q.shape
    deep = max(16, triton.next_power_of_2(width))
    exact = q.dtype == torch.float32 and not torch.backends.cuda.matmul.allow_tf32
    pointers = q, k, labels, target, target if table is None else table, owner, *tensors
    known = 0 if table is None else table.shape[-1]

    def with_tile(tile: tuple[int, ...]) -> None:
        rows, columns, warps, stages = tile
        even = count % max(rows, columns) == 0
        own = (more[0] or not even, *more[1:]) if kernel is kernels.forward_rows else more  # outside is like invalid
        rest = count, known, scale * LOG2E, width, *own, rule, even, "ieee" if exact else "tf32", rows, columns, deep
        grid = graphs * triton.cdiv(count, rows), sides
        launch(kernel, grid, pointers, rest, num_warps=warps, num_stages=stages)

    if more[-1] and not _always_exact(kernel, rule):
        return with_tile(TILES[-1])
    shape = f"{q.dtype} {exact} {rule} {more} {count}x{deep}"
    run(Key(f"center-mass {kernel.__name__}", shape, graphs, q.device), lambda: tiles(q), with_tile)


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


@on_its_device
def prepare(
    q: Tensor, k: Tensor, valid: Tensor | None, target: Tensor, owner: Tensor, table: Tensor | None, rule: str
) -> Prepared:
    """The inputs of all kernels; ``valid`` None: all entities are.

    Padding may hold anything and is set to zero here: a mask loaded in the kernel would delay the loads of q and k.
    """
    if valid is not None:
        q, k = (side.masked_fill(~valid[:, :, None], 0) for side in (q, k))
        valid = valid.contiguous()
    q, k, target, owner = (x.contiguous() for x in (q, k, target, owner))
    graphs, count, _ = q.shape
    labels = torch.empty((graphs, count), dtype=torch.int32, device=q.device)
    grid = (graphs * triton.cdiv(count, BLOCK),)
    launch(kernels.encode, grid, (target, owner, valid, labels), (count, rule, BLOCK))
    return Prepared(q, k, labels, target, None if table is None else table.contiguous(), owner)


@on_its_device
def row_sums(q: Tensor, prepared: Prepared, masked: bool, rule: str, scale: float) -> tuple[Tensor, Tensor]:
    """Log-sums of every row, (B, N) each; ``q`` is the prepared one, ``masked``: some entities may be invalid."""
    labelled = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
    everything = torch.empty_like(labelled)
    always = _always_exact(kernels.forward_rows, rule)
    doubt = torch.full((len(q),), int(always), dtype=torch.int32, device=q.device)
    for exact in (True,) if always else (False, True):
        tensors = doubt, labelled, everything
        _run(kernels.forward_rows, tensors, prepared, rule, scale, masked or scale <= 0, exact)
    return labelled, everything


@on_its_device
def graph_sums(q: Tensor, prepared: Prepared, masked: bool, rule: str, scale: float) -> tuple[Tensor, Tensor]:
    """Log-sums of every graph, (B,) each; arguments as in :func:`row_sums`."""
    rows = row_sums(q, prepared, masked, rule, scale)
    labelled, everything = (torch.empty(len(q), dtype=torch.float32, device=q.device) for _ in range(2))
    launch(loss_kernels.sum_rows, (len(q),), (*rows, labelled, everything), (q.shape[1], BLOCK))
    return labelled, everything


@on_its_device
def mean_loss(labelled: Tensor, everything: Tensor, shape: str, r: float) -> tuple[Tensor, Tensor]:
    """The loss of :func:`foveal.supervise.center_mass_loss` from log-sums of graphs, and its derivatives (2, B)."""
    graphs = len(labelled)
    loss = torch.empty((), dtype=torch.float32, device=labelled.device)
    step = triton.cdiv(graphs, 4) * 4  # both rows begin at multiples of 16 bytes, as prepared launches need it
    rates = torch.empty(2, step, dtype=torch.float32, device=labelled.device)
    tensors = labelled, everything, loss, rates
    launch(loss_kernels.mean_loss, (1,), tensors, (graphs, step, float(r), shape, BLOCK))
    return loss, rates[:, :graphs]


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
    upstream: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Gradients of q and k from those of both log-sums, of rows (B, N) or of graphs (B,).

    ``q`` is the prepared one; ``upstream`` is a factor of the gradients of the log-sums, float32 ().
    """
    sums, whole = [x.contiguous() for x in (labelled, everything, grad_labelled, grad_all)], labelled.ndim == 1
    # For whole graphs the kernels decide themselves, from the two sums of the graph.
    doubt = prepared.owner if whole else _far(labelled, everything).any(1).int()
    grad_q, grad_k = torch.empty_like(q), torch.empty_like(prepared.k)
    tensors = doubt, *sums, upstream, grad_q, grad_k
    for exact in (False, True):
        if whole:  # both sides in one launch
            _run(kernels.gradients, tensors, prepared, rule, scale, whole, 0, exact, sides=2)
        else:
            for side in (0, 1):
                _run(kernels.gradients, tensors, prepared, rule, scale, whole, side, exact)
    return grad_q, grad_k


def forward(
    q: Tensor, k: Tensor, valid: Tensor, target: Tensor, owner: Tensor, table: Tensor | None, rule: str, scale: float
) -> tuple[Tensor, Tensor]:
    """Log-sums of every row, as :func:`foveal.kernels.center_mass.log_sums.row_log_sums`."""
    prepared = prepare(q, k, valid, target, owner, table, rule)
    return row_sums(prepared.q, prepared, True, rule, scale)


def forward_whole(q: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    """Log-sums of every graph (B,); arguments as in :func:`forward`."""
    *inputs, scale = rest
    prepared = prepare(q, *inputs)
    return graph_sums(prepared.q, prepared, True, inputs[-1], scale)


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
