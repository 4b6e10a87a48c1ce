"""Convolution whose gradient can be differentiated again at the cost of another convolution.

PyTorch's own second derivative is right, and slow: for grouped convolutions it goes group by group, hundreds of them in
a depthwise convolution, and otherwise it convolves with kernels as large as the maps. But with O = conv(x, w), both
gradients are linear in g, the gradient of O, as O is in x and w::

    X(g, w) = ∂⟨O, g⟩/∂x        W(x, g) = ∂⟨O, g⟩/∂w

so that each of the three is differentiated by the other two, as often as one likes: if v is the gradient of X, that of
g is conv(v, w) and that of w is W(v, g); if u is the gradient of W, that of x is X(g, u) and that of g conv(x, u).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F


class How(NamedTuple):
    """Of a convolution."""

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
    x, kind = input, input.device.type
    if torch.is_autocast_enabled(kind) and x.dtype != torch.float64:
        half = torch.get_autocast_dtype(kind)
        x, weight, bias = x.to(half), weight.to(half), None if bias is None else bias.to(half)
    out: Tensor = _Convolution.apply(x, weight, bias, How(_pair(stride), _pair(padding), _pair(dilation), groups))
    return out


def _pair(value: Any) -> list[int]:
    return [value, value] if isinstance(value, int) else list(value)


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, how: How) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.how = how
        return F.conv2d(x, weight, bias, *how)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight), how = ctx.saved_tensors, ctx.how
        of_x, of_weight, of_bias = (_needed(ctx, i) for i in range(3))
        db = g.sum((0, 2, 3)) if of_bias else None
        if not torch.is_grad_enabled():
            return *_gradients(g, x, weight, how, of_x, of_weight), db, None
        dx = _OfInput.apply(g, weight, x, how) if of_x else None
        dw = _OfWeight.apply(x, g, weight, how) if of_weight else None
        return dx, dw, db, None


class _OfInput(torch.autograd.Function):
    """X(g, w); of x only the shape and the layout matter."""

    @staticmethod
    def forward(ctx: Any, g: Tensor, weight: Tensor, x: Tensor, how: How) -> Tensor:
        ctx.save_for_backward(g, weight)
        ctx.how = how
        dx, _ = _gradients(g, x, weight, how, True, False)
        assert dx is not None
        return dx

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor | None, ...]:
        (g, weight), how = ctx.saved_tensors, ctx.how
        of_g, of_weight = _needed(ctx, 0), _needed(ctx, 1)
        if not torch.is_grad_enabled():
            _, dw = _gradients(g, v, weight, how, False, True) if of_weight else (None, None)
            return F.conv2d(v, weight, None, *how) if of_g else None, dw, None, None
        dg = _Convolution.apply(v, weight, None, how) if of_g else None
        dw = _OfWeight.apply(v, g, weight, how) if of_weight else None
        return dg, dw, None, None


class _OfWeight(torch.autograd.Function):
    """W(x, g); of w only the shape and the layout matter."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, g: Tensor, weight: Tensor, how: How) -> Tensor:
        ctx.save_for_backward(x, g)
        ctx.how = how
        _, dw = _gradients(g, x, weight, how, False, True)
        assert dw is not None
        return dw

    @staticmethod
    def backward(ctx: Any, u: Tensor) -> tuple[Tensor | None, ...]:
        x, g = ctx.saved_tensors
        dx = _OfInput.apply(g, u, x, ctx.how) if _needed(ctx, 0) else None
        dg = _Convolution.apply(x, u, None, ctx.how) if _needed(ctx, 1) else None
        return dx, dg, None, None


def _needed(ctx: Any, i: int) -> bool:
    """Whether this backward pass has use for the gradient of input ``i``.

    The maps of a class need gradients of features and none of kernels, which ``ctx.needs_input_grad`` does not know.
    """
    if not ctx.needs_input_grad[i]:
        return False
    try:
        return torch._C._will_engine_execute_node(ctx.next_functions[i][0])
    except RuntimeError:  # a leaf that the gradient was asked of, or no engine runs that could be asked
        return True


def _gradients(
    g: Tensor, x: Tensor, weight: Tensor, how: How, of_x: bool, of_weight: bool
) -> tuple[Tensor | None, Tensor | None]:
    dx, dw, _ = torch.ops.aten.convolution_backward(
        g, x, weight, None, *how[:3], False, [0, 0], how.groups, [of_x, of_weight, False]
    )
    return dx, dw
