"""Launch the Triton kernels of the attention branch."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from foveal.kernels.aw import branch_kernels, eval_kernels
from foveal.kernels.aw.branch import Branch, Parameters, gradient_sizes, kept_sizes
from foveal.kernels.aw.geometry import ceil_div, channels_last, empty_last
from foveal.kernels.parts import parts
from foveal.kernels.prepared import launch
from foveal.kernels.support import on_its_device

POSITIONS = 64  # of a map that a program of the pooling reads at a time; of a large one, twice as many
ROWS = 128  # that a program of the norms reads at a time
EVAL_COLUMNS = 64  # output channels that a program does at a time in eval mode


class Tiles(NamedTuple):
    """Sides of tiles: cells, hidden channels, rows, output columns, input channels of the pooling, parts of a sum."""

    cells: int
    hidden: int
    rows: int
    columns: int
    channels: int
    parts: int


@functools.cache
def tiles(c1: int, hidden: int, c2: int, cells: int) -> Tiles:
    """Tiles for a shape; a product needs sides of at least 16."""
    wide, columns = max(16, triton.next_power_of_2(hidden)), 16
    channels = min(64, max(16, triton.next_power_of_2(c1)))
    parts = triton.next_power_of_2(ceil_div(c2, columns))
    rows = ROWS if wide <= 32 else ROWS // 4
    return Tiles(max(16, triton.next_power_of_2(cells)), wide, rows, columns, channels, parts)


@on_its_device
def forward(x: Tensor, parameters: Parameters, branch: Branch) -> tuple[Tensor, Tensor]:
    """The multiplier (N, C2, h, w), channels last, and what :func:`backward` needs."""
    (n, c1, height, width), (h, w) = x.shape, branch.size
    w1, gamma1, beta1, w2, gamma2, beta2, amount = parameters
    hidden, c2, m = w1.shape[0], w2.shape[0], n * h * w
    tile = tiles(c1, hidden, c2, h * w)
    kept, (rows, z1, stats1, stats2) = parts(kept_sizes(m, c1, hidden, c2), x.device)
    precision = "tf32x3" if x.dtype == torch.float32 else "tf32"  # of half precision, every product is exact
    at_once = POSITIONS if height * width < 1024 else 2 * POSITIONS
    side = tile.cells, at_once, tile.channels, tile.hidden
    multiplier = empty_last((n, c2, h, w), x, branch.dtype)
    one, two = branch.norm1, branch.norm2
    if not (one.batch or two.batch):
        launch(
            eval_kernels.squeeze_and_attend,
            (n,),
            (channels_last(x), w1, rows, z1, gamma1, beta1, one.mean, one.var, w2, gamma2, beta2, two.mean, two.var,
             amount, multiplier, stats1, stats2),
            (height, width, c1, hidden, c2, one.eps, two.eps, h, w, precision, branch.residual, *side, EVAL_COLUMNS),
            num_warps=4,
        )  # fmt: skip
        return multiplier, kept
    sizes = height, width, c1, hidden, h, w, precision, *side
    launch(branch_kernels.squeeze, (n,), (channels_last(x), w1, rows, z1), sizes, num_warps=4)
    launch(
        branch_kernels.attend,
        (ceil_div(c2, tile.columns),),
        (z1, gamma1, beta1, one.mean, one.var, one.tracked, w2, gamma2, beta2, two.mean, two.var, two.tracked, amount,
         multiplier, stats1, stats2),
        (m, hidden, c2, one.eps, one.momentum, two.eps, two.momentum, one.batch, two.batch, branch.residual,
         tile.rows, tile.hidden, tile.columns),
        num_warps=4, num_stages=2,
    )  # fmt: skip
    return multiplier, kept


@on_its_device
def backward(g: Tensor, dx: Tensor | None, add: bool, parameters: Parameters, kept: Tensor, branch: Branch) -> Tensor:
    """Gradients of the parameters in one buffer, from that of the multiplier; that of the input goes to ``dx``.

    Args:
        g: (N, C2, h, w), or parts of a sum, contiguous (parts, N, h, w, C2).
        dx: (N, C1, H, W), channels last, or None if nobody needs it.
        add: whether to add to ``dx`` or to overwrite it.
        parameters: of the branch.
        kept: what :func:`forward` returned.
        branch: see :class:`~foveal.kernels.aw.branch.Branch`.
    """
    w1, gamma1, beta1, w2, gamma2, beta2, amount = parameters
    (hidden, c1, _, _), c2, (h, w) = w1.shape, w2.shape[0], branch.size
    whole, n = g.ndim == 4, g.shape[-4]
    m, many = n * h * w, 1 if whole else g.shape[0]
    tile = tiles(c1, hidden, c2, h * w)
    programs = ceil_div(c2, tile.columns)
    _, (rows, z1, stats1, stats2) = parts(kept_sizes(m, c1, hidden, c2), kept)
    _, (dz2, dz1, sums) = parts((m * c2, m * hidden, programs), g.device)
    gradients, (dw1, dgamma1, dbeta1, dw2, dgamma2, dbeta2, damount) = parts(gradient_sizes(c1, hidden, c2), g.device)
    with_amount = (None, None) if amount is None else (sums, damount)
    launch(
        branch_kernels.attend_grad,
        (programs,),
        (channels_last(g) if whole else g, z1, gamma1, beta1, w2, gamma2, beta2, amount, stats1, stats2, dz2, dw2,
         dgamma2, dbeta2, with_amount[0]),
        (m, hidden, c2, many, branch.norm2.batch, branch.residual, tile.rows, tile.hidden, tile.columns),
        num_warps=4, num_stages=2,
    )  # fmt: skip
    sizes: tuple[int, ...] = m, hidden, c2, c2, 1, 64, tile.hidden, 64
    launch(branch_kernels.product, (ceil_div(m, 64), 1), (dz2, w2, dz1), sizes, num_warps=4)  # ∂A1
    launch(
        branch_kernels.squeeze_grad,
        (ceil_div(hidden, 16),),
        (dz1, z1, gamma1, beta1, stats1, dgamma1, dbeta1, *with_amount),
        (m, hidden, programs, branch.norm1.batch, ROWS, 16, tile.parts),
        num_warps=4, num_stages=2,
    )  # fmt: skip
    sizes = hidden, c1, m, 1, hidden, tile.hidden, 32, 64
    launch(branch_kernels.product, (1, ceil_div(c1, 32)), (dz1, rows, dw1), sizes, num_warps=4)  # ∂W1
    if dx is not None:
        height, width = dx.shape[2:]
        launch(
            branch_kernels.pool_grad,
            (n, ceil_div(height * width, POSITIONS), ceil_div(c1, tile.channels)),
            (dz1, w1, dx),
            (height, width, c1, hidden, add, h, w, tile.cells, POSITIONS, tile.channels, tile.hidden),
            num_warps=4,
        )
    return gradients
