"""Convolution whose second derivative consists of convolutions.

PyTorch's own second derivative is correct, but grouped convolutions are computed group by group, hundreds of them
in a depthwise convolution, and others convolve with kernels as large as the maps. But with O = conv(x, w), both
gradients are linear in g, the gradient of O, as O is in x and w::

    X(g, w) = ∂⟨O, g⟩/∂x        W(x, g) = ∂⟨O, g⟩/∂w

so the derivative of each of the three consists of the other two: if v is the gradient of X, that of g is conv(v, w)
and that of w is W(v, g); if u is the gradient of W, that of x is X(g, u) and that of g is conv(x, u). X is the
transposed convolution, whose gradient PyTorch already computes like this.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from foveal.kernels.support import needed


class ConvOptions(NamedTuple):
    """Stride, padding, dilation and groups of a convolution."""

    stride: list[int]
    padding: list[int]
    dilation: list[int]
    groups: int


def second_order_conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """As :func:`torch.nn.functional.conv2d`."""
    if isinstance(padding, str) or input.ndim != 4 or not torch.is_grad_enabled():
        return F.conv2d(input, weight, bias, stride, padding, dilation, groups)
    x, device = input, input.device.type
    if torch.is_autocast_enabled(device) and x.dtype != torch.float64:
        half = torch.get_autocast_dtype(device)
        x, weight, bias = x.to(half), weight.to(half), None if bias is None else bias.to(half)
    out: Tensor = _Convolution.apply(
        x, weight, bias, ConvOptions(_pair(stride), _pair(padding), _pair(dilation), groups)
    )
    return out


def _pair(value: Any) -> list[int]:
    return [value, value] if isinstance(value, int) else list(value)


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, options: ConvOptions) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.options = options
        return F.conv2d(x, weight, bias, *options)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight), options = ctx.saved_tensors, ctx.options
        of_x, of_weight, of_bias = (needed(ctx, i) for i in range(3))
        db = g.sum((0, 2, 3)) if of_bias else None
        if not torch.is_grad_enabled():
            return *_gradients(g, x, weight, options, of_x, of_weight), db, None
        dx = _of_input(g, weight, x, options) if of_x else None
        dw = _OfWeight.apply(x, g, weight, options) if of_weight else None
        return dx, dw, db, None


def _of_input(g: Tensor, weight: Tensor, x: Tensor, options: ConvOptions) -> Tensor:
    """X(g, w); only the shape of x is used."""
    sizes = zip(x.shape[2:], weight.shape[2:], *options[:3], strict=True)
    left = [(size + 2 * padding - dilation * (k - 1) - 1) % stride for size, k, stride, padding, dilation in sizes]
    return F.conv_transpose2d(g, weight, None, options.stride, options.padding, left, options.groups, options.dilation)


class _OfWeight(torch.autograd.Function):
    """W(x, g); only the shape and the memory format of w are used."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, g: Tensor, weight: Tensor, options: ConvOptions) -> Tensor:
        ctx.save_for_backward(x, g)
        ctx.options = options
        _, dw = _gradients(g, x, weight, options, False, True)
        assert dw is not None
        return dw

    @staticmethod
    def backward(ctx: Any, u: Tensor) -> tuple[Tensor | None, ...]:
        x, g = ctx.saved_tensors
        dx = _of_input(g, u, x, ctx.options) if needed(ctx, 0) else None
        dg = _Convolution.apply(x, u, None, ctx.options) if needed(ctx, 1) else None
        return dx, dg, None, None


def _gradients(
    g: Tensor, x: Tensor, weight: Tensor, options: ConvOptions, of_x: bool, of_weight: bool
) -> tuple[Tensor | None, Tensor | None]:
    dx, dw, _ = torch.ops.aten.convolution_backward(
        g, x, weight, None, *options[:3], False, [0, 0], options.groups, [of_x, of_weight, False]
    )
    return dx, dw
