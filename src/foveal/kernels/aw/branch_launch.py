"""Launch the Triton kernels of the attention branch."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from foveal.kernels.aw import branch_kernels
from foveal.kernels.aw.branch import Branch, Parameters
from foveal.kernels.aw.launch import channels_last
from foveal.kernels.aw.tiles import ceil_div
from foveal.kernels.support import on_its_device

POSITIONS = 64  # of a map that a program of the pooling reads at a time
ROWS = 128  # that a program of the norms reads at a time


class Tiles(NamedTuple):
    """Sides of tiles: cells, hidden channels, rows, output columns, and input channels of the pooling."""

    cells: int
    hidden: int
    rows: int
    columns: int
    channels: int


@functools.cache
def tiles(n: int, c1: int, hidden: int, cells: int) -> Tiles:
    """Tiles for a shape; a product needs sides of at least 16, and the pooling enough programs to fill a GPU."""
    wide = max(16, triton.next_power_of_2(hidden))
    channels = min(64, max(16, triton.next_power_of_2(c1)))
    while channels > 32 and n * ceil_div(c1, channels) < 264:
        channels //= 2
    return Tiles(max(16, triton.next_power_of_2(cells)), wide, ROWS if wide <= 32 else ROWS // 4, 16, channels)


@on_its_device
def forward(x: Tensor, parameters: Parameters, branch: Branch) -> tuple[Tensor, list[Tensor]]:
    """The multiplier (N, C2, h, w), channels last, and what :func:`backward` needs."""
    (n, c1, height, width), (h, w) = x.shape, branch.size
    w1, gamma1, beta1, w2, gamma2, beta2, amount = parameters
    hidden, c2, m = len(w1), len(w2), n * h * w
    tile = tiles(n, c1, hidden, h * w)
    rows = torch.empty(m, c1, dtype=torch.float32, device=x.device)
    precision = "tf32x3" if x.dtype == torch.float32 else "tf32"  # of half precision, every product is exact
    branch_kernels.pool[n, ceil_div(c1, tile.channels)](
        channels_last(x), rows, height, width, c1, h, w, precision, tile.cells, POSITIONS, tile.channels, num_warps=4
    )
    z1 = torch.empty(m, hidden, dtype=torch.float32, device=x.device)
    torch.mm(rows, w1.view(hidden, c1).t(), out=z1)  # with ``out``, autocast leaves it in float32
    multiplier = torch.empty(n, h, w, c2, dtype=branch.dtype, device=x.device)
    stats1, stats2 = (torch.empty(2, width, dtype=torch.float32, device=x.device) for width in (hidden, c2))
    one, two = branch.norm1, branch.norm2
    branch_kernels.attend[ceil_div(c2, tile.columns),](
        z1, gamma1, beta1, one.mean, one.var, one.tracked, w2, gamma2, beta2, two.mean, two.var, two.tracked, amount,
        multiplier, stats1, stats2, m, hidden, c2, one.eps, one.momentum, two.eps, two.momentum,
        one.batch, two.batch, branch.residual, tile.rows, tile.hidden, tile.columns, num_warps=4, num_stages=2,
    )  # fmt: skip
    return multiplier.permute(0, 3, 1, 2), [rows, z1, stats1, stats2]


@on_its_device
def backward(
    g: Tensor, dx: Tensor | None, add: bool, parameters: Parameters, kept: Sequence[Tensor], branch: Branch
) -> list[Tensor | None]:
    """Gradients of the parameters from that of the multiplier (N, C2, h, w); that of the input goes to ``dx``.

    Args:
        g: (N, C2, h, w).
        dx: (N, C1, H, W), channels last, or None if nobody needs it.
        add: whether to add to ``dx`` or to overwrite it.
        parameters: of the branch.
        kept: what :func:`forward` returned.
        branch: see :class:`~foveal.kernels.aw.branch.Branch`.
    """
    w1, gamma1, beta1, w2, gamma2, beta2, amount = parameters
    rows, z1, stats1, stats2 = kept
    (h, w), (m, c1), hidden, c2 = branch.size, rows.shape, len(w1), len(w2)
    tile, programs = tiles(m // (h * w), c1, hidden, h * w), ceil_div(c2, 16)
    dz2, dw2 = torch.empty(m, c2, dtype=torch.float32, device=g.device), torch.empty_like(w2)
    dgamma1, dbeta1, dgamma2, dbeta2 = map(torch.empty_like, (gamma1, beta1, gamma2, beta2))
    parts = damount = None
    if amount is not None:
        parts, damount = torch.empty(programs, dtype=torch.float32, device=g.device), torch.empty_like(amount)
    branch_kernels.attend_grad[programs,](
        channels_last(g), z1, gamma1, beta1, w2, gamma2, beta2, amount, stats1, stats2,
        dz2, dw2, dgamma2, dbeta2, parts, m, hidden, c2,
        branch.norm2.batch, branch.residual, tile.rows, tile.hidden, tile.columns, num_warps=4, num_stages=2,
    )  # fmt: skip
    da1, dz1, dw1 = torch.empty_like(z1), torch.empty_like(z1), torch.empty_like(w1)
    torch.mm(dz2, w2.view(c2, hidden), out=da1)
    branch_kernels.squeeze_grad[ceil_div(hidden, 16),](
        da1, z1, gamma1, beta1, stats1, dz1, dgamma1, dbeta1, parts, damount, m, hidden, programs,
        branch.norm1.batch, ROWS, 16, triton.next_power_of_2(programs), num_warps=4, num_stages=2,
    )  # fmt: skip
    torch.mm(dz1.t(), rows, out=dw1.view(hidden, c1))
    if dx is not None:
        n, _, height, width = dx.shape
        branch_kernels.pool_grad[n, ceil_div(height * width, POSITIONS), ceil_div(c1, tile.channels)](
            dz1, w1, dx, height, width, c1, hidden, add, h, w,
            tile.cells, POSITIONS, tile.channels, tile.hidden, num_warps=4,
        )  # fmt: skip
    return [dw1, dgamma1, dbeta1, dw2, dgamma2, dbeta2, damount]
