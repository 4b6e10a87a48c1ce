"""Launch the Triton kernels of the attention branch."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from foveal.kernels.aw import branch_gradient_kernels, branch_kernels, eval_kernels
from foveal.kernels.aw.branch import Branch, Parameters, gradient_sizes, hidden_side, kept_sizes
from foveal.kernels.aw.geometry import ceil_div, channels_last, empty_last
from foveal.kernels.parts import parts
from foveal.kernels.prepared import launch
from foveal.kernels.support import capability, on_its_device
from foveal.kernels.tape import empty

POSITIONS = 64  # of a map that a program of the pooling writes, and half of those that it reads at a time
LARGE = 512  # positions of a map; of larger ones, each row of cells has a program of its own
ROWS = 256  # that a program of the norms reads at a time
FEW_ROWS = 64  # that a program of the gradient does, where nothing is summed over all rows
SUM_ROWS, SUMMED = 8, 1024  # parts that a program adds up at a time, and numbers of each
EVAL_COLUMNS = 128  # output channels that a program does at a time in eval mode


class Tiles(NamedTuple):
    """Sides of tiles: hidden channels, rows, fewer rows, output columns."""

    hidden: int
    rows: int
    few: int
    columns: int


@functools.cache
def tiles(hidden: int) -> Tiles:
    """Tiles for a number of hidden channels; a product needs sides of at least 16."""
    side = hidden_side(hidden)
    shrink = max(1, side // 32)  # so that a tile stays in registers
    return Tiles(side, max(16, ROWS // shrink), max(16, FEW_ROWS // shrink), 16)


@functools.cache
def pooling(c1: int, h: int, w: int, size: tuple[int, int], hidden: int) -> tuple[bool, tuple[int, int, int, int]]:
    """Whether each row of cells of an h×w map has a program of its own; and a program's tile.

    That is cells, positions and channels that are read at a time, and hidden channels: of small maps many channels.
    """
    band = h * w > LARGE and size[0] > 1
    cells = max(16, triton.next_power_of_2(size[1] if band else size[0] * size[1]))
    positions = min(2 * POSITIONS, max(16, triton.next_power_of_2(h * w)))
    channels = min(8192 // positions, 8192 // hidden_side(hidden), 4096 // cells)
    return band, (cells, positions, min(channels, max(16, triton.next_power_of_2(c1))), hidden_side(hidden))


@on_its_device
def forward(x: Tensor, parameters: Parameters, branch: Branch) -> tuple[Tensor, Tensor]:
    """The multiplier (N, C2, h, w), channels last, and what :func:`backward` needs."""
    (n, c1, height, width), (h, w) = x.shape, branch.size
    w1, gamma1, beta1, w2, gamma2, beta2, amount = parameters
    hidden, c2, m = w1.shape[0], w2.shape[0], n * h * w
    tile, (band, side) = tiles(hidden), pooling(c1, height, width, branch.size, hidden)
    kept, (rows, z1, stats1, stats2) = parts(kept_sizes(m, c1, hidden, c2), x.device)
    precision = "tf32x3" if x.dtype == torch.float32 else "tf32"  # of half precision, every product is exact
    programs = n * h if band else n
    multiplier = empty_last((n, c2, h, w), x, branch.dtype)
    one, two = branch.norm1, branch.norm2
    if not (one.batch or two.batch):
        launch(
            eval_kernels.squeeze_and_attend,
            (programs,),
            (channels_last(x), w1, rows, z1, gamma1, beta1, one.mean, one.var, w2, gamma2, beta2, two.mean, two.var,
             amount, multiplier, stats1, stats2),
            (height, width, c1, hidden, c2, one.eps, two.eps, h, w, band, precision, branch.residual, *side,
             EVAL_COLUMNS),
            num_warps=4,
        )  # fmt: skip
        return multiplier, kept
    _, (moments,) = parts((programs * 2 * tile.hidden,), x.device)
    launch(
        branch_kernels.squeeze,
        (programs,),
        (channels_last(x), w1, rows, z1, moments),
        (height, width, c1, hidden, h, w, band, precision, *side),
        num_warps=4,
    )
    launch(
        branch_kernels.attend,
        (ceil_div(c2, tile.columns), ceil_div(m, tile.rows)),
        (z1, moments, gamma1, beta1, one.mean, one.var, one.tracked, w2, gamma2, beta2, two.mean, two.var, two.tracked,
         amount, multiplier, stats1, stats2),
        (m, hidden, c2, programs, one.eps, one.momentum, two.eps, two.momentum, one.batch, two.batch,
         branch.residual, tile.rows, tile.hidden, tile.columns),
        num_warps=8, num_stages=2,
    )  # fmt: skip
    return multiplier, kept


@on_its_device
def backward(
    g: Tensor, parameters: Parameters, kept: Tensor, branch: Branch, shape: Sequence[int] | None,
    kernel: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Gradients of the parameters in one buffer, and what the positions of each cell get, from ∂multiplier.

    Args:
        g: (N, C2, h, w), or parts of a sum, contiguous (parts, N, h, w, C2).
        parameters: of the branch.
        kept: what :func:`forward` returned.
        branch: see :class:`~foveal.kernels.aw.branch.Branch`.
        shape: of the input (N, C1, H, W), or None if nobody needs its gradient: then there are no cells.
        kernel: parts of the gradient of the convolution's kernel, which are added up on the way, and where to.

    Returns:
        The buffer, and (N·h·w, C1) float32.
    """
    w1, gamma1, beta1, w2, gamma2, beta2, amount = parameters
    (hidden, c1, _, _), c2, (h, w) = w1.shape, w2.shape[0], branch.size
    whole, n = g.ndim == 4, g.shape[-4]
    m, many, tile = n * h * w, 1 if whole else g.shape[0], tiles(hidden)
    hopper = g.is_cuda and capability(g.device)[0] == 9
    wide, few, half = 2 * tile.columns, tile.few, max(16, tile.few // 2)
    deep = 2 * few if tile.hidden == 16 else few
    grid = ceil_div(c2, wide), ceil_div(m, few)
    row_tiles, dw2_parts, blend = ceil_div(m, half), ceil_div(m, deep), grid[0] * grid[1]
    _, (rows, z1, stats1, stats2) = parts(kept_sizes(m, c1, hidden, c2), kept)
    sizes = (
        m * c2, m * c2, grid[1] * 2 * c2, m * tile.hidden, row_tiles * 2 * tile.hidden, dw2_parts * c2 * hidden, blend,
    )  # fmt: skip
    _, (dy2, unit2, sums2, dy1, sums1, of_w2, blends) = parts(sizes, g.device)
    gradients, (dw1, dgamma1, dbeta1, dw2, dgamma2, dbeta2, damount) = parts(gradient_sizes(c1, hidden, c2), g.device)
    cells = None if shape is None else empty((m, c1), torch.float32, g.device)
    with_amount = (None, None) if amount is None else (blends, damount)
    launch(
        branch_gradient_kernels.attend_grad,
        grid,
        (channels_last(g) if whole else g, z1, gamma1, beta1, w2, gamma2, beta2, amount, stats1, stats2, dy2, unit2,
         sums2, with_amount[0]),
        (m, hidden, c2, many, branch.residual, few, tile.hidden, wide),
        num_warps=4,
    )  # fmt: skip
    launch(
        branch_gradient_kernels.excite_grad,
        (row_tiles + grid[0] * dw2_parts,),
        (dy2, unit2, sums2, z1, gamma1, beta1, stats1, w2, gamma2, stats2, dy1, sums1, of_w2, dgamma2, dbeta2),
        (m, hidden, c2, grid[1], row_tiles, grid[0], branch.norm2.batch, hopper, half, deep, tile.hidden, wide, 64,
         32),
        num_warps=4, num_stages=2,
    )  # fmt: skip
    height, width = (1, 1) if shape is None else shape[2:]
    across, down = ceil_div(c1, 32), 0 if shape is None else ceil_div(m, few)
    of_kernel, count, size = ((None, None), 0, 0) if kernel is None else (kernel, len(kernel[0]), kernel[1].numel())
    launch(
        branch_gradient_kernels.squeeze_grad,
        (across * (1 + down) + ceil_div(c2 * hidden, SUMMED) + ceil_div(size, SUMMED),),
        (dy1, sums1, z1, rows, gamma1, stats1, w1, dw1, dgamma1, dbeta1, cells, of_w2, dw2, *with_amount, *of_kernel),
        (m, hidden, c1, c2, row_tiles, dw2_parts, blend, height, width, across, down, count, size, branch.norm1.batch,
         hopper, h, w, few, deep, tile.hidden, 32, 32, SUM_ROWS, SUMMED),
        num_warps=4, num_stages=2,
    )  # fmt: skip
    return gradients, cells


@on_its_device
def pool_grad(cells: Tensor, dx: Tensor, size: tuple[int, int]) -> None:
    """Gradient of the input through the pooled cells alone, to ``dx`` (N, C1, H, W), channels last."""
    n, c1, height, width = dx.shape
    channels = min(64, max(16, triton.next_power_of_2(c1)))
    grid = n, ceil_div(height * width, POSITIONS), ceil_div(c1, channels)
    sizes = height, width, c1, *size, POSITIONS, channels
    launch(branch_gradient_kernels.pool_grad, grid, (cells, dx), sizes, num_warps=4)
