"""AW-convolution as one operator that is fused on NVIDIA GPUs: a custom operator, and the same called directly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import conv_flop_count, register_flop_formula

from foveal.kernels.aw.plain import differentiable_gradients, match_layout
from foveal.kernels.support import fused_available, observed


def fusable(x: Tensor, weight: Tensor, stride: tuple[int, ...], dilation: tuple[int, ...], groups: int) -> bool:
    """Whether the fused kernels support this convolution.

    Kernels larger than 1×1; any number of groups; channels in whole 16-byte units, but for depthwise convolutions.
    """
    (c1, (c2, _, h, w)), unit = (x.shape[1], weight.shape), 16 // x.element_size()
    return (
        h * w > 1
        and stride[0] == stride[1]
        and (stride[0] == 1 or tuple(dilation) == (1, 1))
        and (c1 % unit == c2 % unit == 0 or groups == c1 == c2)
        and x.dtype in (torch.float32, torch.bfloat16, torch.float16)
        and max(x.numel(), x.numel() // c1 * c2) < 2**31
        and fused_available(x.device)
    )


@torch.library.custom_op("foveal::aw_conv2d", mutates_args=())
def aw_conv2d(
    x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None,
    stride: list[int], padding: list[int], dilation: list[int], groups: int = 1,
) -> Tensor:  # fmt: skip
    """Convolution with weight (C2, C1/groups, h, w) times scale (N, C2, h, w), in Triton; see :func:`fusable`."""
    from foveal.kernels.aw import launch

    return launch.forward(x, weight, scale, bias, stride[0], padding, dilation, groups)


@aw_conv2d.register_fake
def _(x, weight, scale, bias, stride, padding, dilation, groups=1):
    sizes = [
        (x.shape[2 + i] + 2 * padding[i] - dilation[i] * (weight.shape[2 + i] - 1) - 1) // stride[i] + 1 for i in (0, 1)
    ]
    return x.new_empty(x.shape[0], *sizes, weight.shape[0]).permute(0, 3, 1, 2)


@torch.library.custom_op("foveal::aw_conv2d_backward", mutates_args=())
def aw_conv2d_backward(
    g: Tensor, x: Tensor, weight: Tensor, scale: Tensor,
    stride: list[int], padding: list[int], dilation: list[int], groups: int, needed: list[bool],
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of input, kernel and multiplier; ``needed``: whether of the input, whether of the other two."""
    from foveal.kernels.aw import launch

    gradients = launch.backward(
        g, x, weight, scale, stride[0], padding, dilation, groups, needed, (weight.dtype, scale.dtype)
    )
    dx, dw, ds = (g.new_empty(0) if gradient is None else gradient for gradient in gradients)
    return dx, dw, ds


@aw_conv2d_backward.register_fake
def _(g, x, weight, scale, stride, padding, dilation, groups, needed):
    def like(t: Tensor, wanted: bool) -> Tensor:
        n, c, h, w = t.shape
        return t.new_empty(n, h, w, c).permute(0, 3, 1, 2) if wanted else t.new_empty(0)

    return like(x, needed[0]), like(weight, needed[1]), like(scale, needed[1])


def _save(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    x, weight, scale, _, ctx.stride, ctx.padding, ctx.dilation, ctx.groups = inputs
    ctx.save_for_backward(x, weight, scale)


def _gradients(ctx, g: Tensor):  # type: ignore[no-untyped-def]
    x, weight, scale = ctx.saved_tensors
    need = ctx.needs_input_grad
    dx, dw, ds = aw_conv2d_backward(
        g, x, weight, scale, ctx.stride, ctx.padding, ctx.dilation, ctx.groups, [need[0], need[1] or need[2]]
    )
    db = g.sum((0, 2, 3)) if need[3] else None
    return dx if need[0] else None, dw if need[1] else None, ds if need[2] else None, db, None, None, None, None


aw_conv2d.register_autograd(_gradients, setup_context=_save)


class _Direct(torch.autograd.Function):
    """The same without the custom operator, and differentiable any number of times."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        from foveal.kernels.aw import launch

        _save(ctx, inputs, None)
        x, weight, scale, bias, stride, padding, dilation, groups = inputs
        return launch.forward(x, weight, scale, bias, stride[0], padding, dilation, groups)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        from foveal.kernels.aw import launch

        (x, weight, scale), need = ctx.saved_tensors, ctx.needs_input_grad
        db = g.sum((0, 2, 3)) if need[3] else None
        if torch.is_grad_enabled():
            return *differentiable_gradients(ctx, g, x, weight, scale), db, None, None, None, None
        if observed(g):
            return _gradients(ctx, g)
        wanted = [need[0], need[1] or need[2]]
        options = ctx.stride[0], ctx.padding, ctx.dilation, ctx.groups
        dx, dw, ds = launch.backward(g, x, weight, scale, *options, wanted, (weight.dtype, scale.dtype))
        if len(x) == 1:
            dx, ds = (None if part is None else match_layout(part, like) for part, like in ((dx, x), (ds, scale)))
        return dx, dw if need[1] else None, ds if need[2] else None, db, None, None, None, None


def fused_conv(
    x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None,
    stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int = 1,
) -> Tensor:  # fmt: skip
    """:func:`aw_conv2d` without the dispatch of a custom operator in Python, which takes longer than the launches.

    A compiler, tracer, transform or mode still sees the operator (see :func:`foveal.kernels.support.observed`).
    """
    if observed(x, weight, scale):
        return aw_conv2d(x, weight, scale, bias, stride, padding, dilation, groups)
    return _Direct.apply(x, weight, scale, bias, stride, padding, dilation, groups)


@register_flop_formula(torch.ops.foveal.aw_conv2d)
def _flops(x_shape, weight_shape, *args, out_shape, **kwargs) -> int:  # type: ignore[no-untyped-def]
    return conv_flop_count(x_shape, weight_shape, out_shape)


@register_flop_formula(torch.ops.foveal.aw_conv2d_backward)
def _backward_flops(g_shape, x_shape, weight_shape, *args, out_shape, **kwargs) -> int:  # type: ignore[no-untyped-def]
    wanted = args[-1] if args else kwargs["needed"]
    return conv_flop_count(x_shape, weight_shape, g_shape) * sum(wanted)
