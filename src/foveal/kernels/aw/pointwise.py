"""AW-convolution with a 1×1 kernel on NVIDIA GPUs: cuDNN's convolution, whose output is scaled.

With one kernel position, K ⊙ s is a factor of the output. So the plain convolution runs, and the branch around it is
the one of :mod:`.branch`; of the gradient, the two passes over the scaled map are one, and what goes through the pooled
cell is added where the convolution's gradient is. The plain form is :func:`~.plain.conv_by_taps`.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from foveal.compat import apply_directly, has_storage
from foveal.kernels.aw.branch import Branch, Parameters, branch_key, differentiate, parameter_gradients
from foveal.kernels.aw.branch import forward as attend
from foveal.kernels.aw.geometry import ceil_div, channels_last, empty_last
from foveal.kernels.aw.site import Convolution, plain_site
from foveal.kernels.support import observed
from foveal.kernels.tape import empty, taped

ELEMENTS = 4096  # of a tile
PROGRAMS = 4 * 132  # that fill a large GPU


def pointwise_conv(
    x: Tensor, weight: Tensor, bias: Tensor | None, parameters: Parameters, branch: Branch, conv: Convolution
) -> Tensor | None:
    """Branch and convolution: (N, C1, H, W) to (N, C2, H', W'), channels last; None where plain operators must run.

    Args:
        x: input, in ``branch.dtype`` and channels last.
        weight: (C2, C1/groups, 1, 1), of any dtype.
        bias: (C2,) or None.
        parameters: of the branch.
        branch: see :class:`~foveal.kernels.aw.branch.Branch`; its pooled map is 1×1.
        conv: options of the convolution.
    """
    if not has_storage(weight) or (bias is not None and not has_storage(bias)):
        return None
    out: Tensor = apply_directly(_Pointwise, x, weight, bias, *parameters, branch, conv)
    return out


class _Pointwise(torch.autograd.Function):
    """x, kernel, bias and the branch's parameters to the convolution."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, *inputs: Any) -> Tensor:
        parameters, branch, conv = Parameters(*inputs[:7]), inputs[7], inputs[8]
        multiplier, kept = attend(x, parameters, branch)
        with torch.autocast(x.device.type, enabled=False):
            kernel = weight.to(x.dtype)
            y = F.conv2d(x, kernel, None, *conv)
            out = y * multiplier if bias is None else torch.addcmul(bias.to(x.dtype).view(1, -1, 1, 1), y, multiplier)
        ctx.branch, ctx.conv = branch, conv
        ctx.save_for_backward(x, weight, kernel, y, multiplier, kept, *parameters)
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, kernel, y, multiplier, kept, *rest = ctx.saved_tensors
        parameters, need, conv = Parameters(*rest), ctx.needs_input_grad, ctx.conv
        db = g.sum((0, 2, 3), dtype=weight.dtype) if need[2] else None
        if torch.is_grad_enabled() or observed(g):
            inputs, of_inputs = [x, weight, *parameters], [*need[:2], *need[3:10]]
            dx, dw, *of_branch = differentiate(plain_site, inputs, of_inputs, g, ctx.branch, conv)
            return dx, dw, db, *of_branch, None, None
        if not (any(need[:2]) or any(need[3:10])):
            return None, None, db, *[None] * 9
        key = *branch_key("aw pointwise backward", x, parameters, ctx.branch), g.dtype, y.shape, need[0]
        tensors = (channels_last(g), channels_last(y), multiplier, kept, *parameters)
        dy, gradients, cells = taped(key, _backward, tensors, ctx.branch, x.shape if need[0] else None)
        options = None, conv.stride, conv.padding, conv.dilation, False, [0, 0], conv.groups, [*need[:2], False]
        dx, dw, _ = torch.ops.aten.convolution_backward(dy, x, kernel, *options)
        if dx is not None:
            dx.add_(cells.view(len(x), -1, 1, 1))  # type: ignore[union-attr]
        of_parameters = parameter_gradients(gradients, parameters)  # type: ignore[arg-type]
        wanted = [part if needed else None for part, needed in zip(of_parameters, need[3:10], strict=True)]
        return dx, None if dw is None else dw.to(weight.dtype), db, *wanted, None, None


@lru_cache(maxsize=1024)
def _tile(n: int, size: int, c: int) -> tuple[tuple[int, int, int], int, int, int]:
    """Grid, turns of a program, and its tile: positions and channels."""
    channels = min(128, max(16, 1 << (c - 1).bit_length()))
    positions = min(ELEMENTS // channels, max(16, 1 << (size - 1).bit_length()))
    blocks, tiles = ceil_div(c, channels), ceil_div(size, positions)
    turns = ceil_div(tiles, max(1, min(tiles, PROGRAMS // (n * blocks))))
    return (n, blocks, ceil_div(tiles, turns)), turns, positions, channels


def _backward(
    g: Tensor, y: Tensor, multiplier: Tensor, kept: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradient of the convolution's output, those of the branch's parameters, and that of the pooled input."""
    from foveal.kernels.aw import branch_launch, pointwise_kernels
    from foveal.kernels.prepared import launch

    parameters, (branch, shape) = Parameters(*rest[:7]), rest[7:]
    n, c, h, w = y.shape
    grid, turns, positions, channels = _tile(n, h * w, c)
    dy, ds = empty_last((n, c, h, w), y), empty((grid[2], n, 1, 1, c), torch.float32, y.device)
    unit = math.gcd(c, 16 // y.element_size())
    sizes = h * w, c // unit, turns, unit, positions, channels
    launch(pointwise_kernels.scale_grad, grid, (g, y, multiplier, dy, ds), sizes, num_warps=8)
    gradients, cells = branch_launch.backward(ds, parameters, kept, branch, shape)
    return dy, gradients, cells
