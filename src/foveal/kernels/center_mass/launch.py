"""Launch the Triton kernels of the center-mass, with the tiles that are fastest for a shape."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from foveal.kernels.center_mass import triton_kernels as kernels
from foveal.kernels.support import on_its_device
from foveal.kernels.tune import fastest

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
    """Candidate tiles for q: only small ones where its vectors need much memory."""
    large = q.dtype != torch.bfloat16 or q.shape[-1] > 128
    return [tile for tile in TILES if tile[0] <= 64 or not large]


def _run(kernel, inputs, outputs, rule: str, scale: float, *more: bool) -> None:
    """Launch ``kernel`` over B graphs of N entities; ``more`` are its own constants, the last one EXACT.

    It runs with its fastest tile, or with the smallest one where it only covers graphs in doubt.
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
    key = (kernel.__name__, q.dtype, exact, q.device, rule, more, graphs, count, deep)
    launch(fastest(key, lambda: tiles(q), launch, q.device))


def _always_exact(kernel: Any, rule: str) -> bool:
    """Whether the first launch already uses exact sums: rules by which rows often have no labelled pair."""
    return kernel is kernels.forward_rows and rule != "different"


def _kernel_inputs(
    q: Tensor, k: Tensor, valid: Tensor, target: Tensor, table: Tensor | None, owner: Tensor, rule: str
) -> list[Tensor | None]:
    """The arguments of all kernels; validity and labels are one number an entity (``_labels`` of the kernels reads it).

    Padding may hold anything and is set to zero here: a mask loaded in the kernel would delay the loads of q and k.
    """
    q, k = (side.masked_fill(~valid[:, :, None], 0) for side in (q, k))
    labels = -1 if rule == "pairs" else target[owner].clamp_min(-1)
    labels = torch.where(valid, labels, -2).int()
    return [x if x is None else x.contiguous() for x in (q, k, labels, target, table, owner)]


@on_its_device
def forward(
    q: Tensor, k: Tensor, valid: Tensor, target: Tensor, owner: Tensor, table: Tensor | None, rule: str, scale: float
) -> tuple[Tensor, Tensor]:
    """Log-sums of every row, as :func:`foveal.kernels.center_mass.log_sums.row_log_sums`."""
    labelled = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
    everything = torch.empty_like(labelled)
    always = _always_exact(kernels.forward_rows, rule)
    doubt = torch.full((len(q),), int(always), dtype=torch.int32, device=q.device)
    inputs = [*_kernel_inputs(q, k, valid, target, table, owner, rule), doubt]
    for exact in (True,) if always else (False, True):
        _run(kernels.forward_rows, inputs, (labelled, everything), rule, scale, exact)
    return labelled, everything


@on_its_device
def forward_whole(q: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    """Log-sums of every graph (B,); arguments as in :func:`forward`."""
    rows = forward(q, *rest)
    labelled, everything = (torch.empty(len(q), dtype=torch.float32, device=q.device) for _ in range(2))
    kernels.sum_rows[(len(q),)](*rows, labelled, everything, q.shape[1], 1024)
    return labelled, everything


@on_its_device
def backward(
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
    """Gradients of q and k from those of both log-sums, of rows (B, N) or of graphs (B,)."""
    sums, whole = [x.contiguous() for x in (labelled, everything, grad_labelled, grad_all)], labelled.ndim == 1
    # For whole graphs the kernels decide themselves, from the two sums of the graph.
    doubt = owner if whole else _far(labelled, everything).any(1).int()
    inputs = [*_kernel_inputs(q, k, valid, target, table, owner, rule), doubt, *sums]
    grad_q, grad_k = torch.empty_like(inputs[0]), torch.empty_like(inputs[1])  # type: ignore[arg-type]
    for exact in (False, True):
        _run(kernels.grad_q, inputs, (grad_q,), rule, scale, whole, exact)
        _run(kernels.grad_k, inputs, (grad_k,), rule, scale, whole, exact)
    return grad_q, grad_k


def _far(labelled: Tensor, everything: Tensor) -> Tensor:
    """Where labelled pairs are too weak compared with all pairs, or all pairs compared with padding."""
    far = (everything - labelled > kernels.FAR.value) & (labelled > -torch.inf)
    return far | ((everything < kernels.LOW.value) & (everything > -torch.inf))
