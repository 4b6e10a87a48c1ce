"""Deformable convolution on NVIDIA GPUs in the precision of its map: a custom operator, and the same called directly.

torchvision's operator knows no bfloat16, so mixed precision computes it in float32, from copies of all maps in channels
first. Here samples are taken from the map as it lies, and one product in its precision does the rest.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import conv_flop_count, register_flop_formula

from foveal.kernels.deform.plain import Geometry
from foveal.kernels.support import fused_available, observed

LEAST = 16  # channels of a tile


def fusable(x: Tensor, dtype: torch.dtype, g: Geometry) -> bool:
    """Whether the fused kernels support a convolution of ``x`` in ``dtype``: no groups, and channels in whole tiles."""
    return (
        g.groups == 1
        and (x.shape[1] // g.deform_groups) % LEAST == 0
        and dtype in (torch.float32, torch.bfloat16, torch.float16)
        and 0 < x.numel() * g.kernel[0] * g.kernel[1] < 2**31
        and fused_available(x.device)
    )


@torch.library.custom_op("foveal::deform_conv2d", mutates_args=())
def deform_conv2d(
    x: Tensor, offset: Tensor, modulation: Tensor | None, weight: Tensor,
    stride: list[int], padding: list[int], dilation: list[int], deform_groups: int,
) -> Tensor:  # fmt: skip
    """Deformable convolution in Triton, all in one dtype; see :func:`foveal.kernels.deform.launch.forward`."""
    from foveal.kernels.deform import launch

    return launch.forward(x, offset, modulation, weight, _geometry(weight, stride, padding, dilation, deform_groups))


@deform_conv2d.register_fake
def _(x, offset, modulation, weight, stride, padding, dilation, deform_groups):
    n, _, h, w = offset.shape
    return x.new_empty(n, h, w, weight.shape[0]).permute(0, 3, 1, 2)


@torch.library.custom_op("foveal::deform_conv2d_backward", mutates_args=())
def deform_conv2d_backward(
    g: Tensor, x: Tensor, offset: Tensor, modulation: Tensor | None, weight: Tensor,
    stride: list[int], padding: list[int], dilation: list[int], deform_groups: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of the four tensors; that of a modulation which is None is empty."""
    from foveal.kernels.deform import launch

    geometry = _geometry(weight, stride, padding, dilation, deform_groups)
    dx, d_offset, d_modulation, dw = launch.backward(g, x, offset, modulation, weight, geometry)
    return dx, d_offset, g.new_empty(0) if d_modulation is None else d_modulation, dw


@deform_conv2d_backward.register_fake
def _(g, x, offset, modulation, weight, stride, padding, dilation, deform_groups):
    def like(t: Tensor | None) -> Tensor:
        if t is None:
            return g.new_empty(0)
        n, c, h, w = t.shape
        return t.new_empty(n, h, w, c).permute(0, 3, 1, 2)

    return like(x), like(offset), like(modulation), like(weight)


def _geometry(weight: Tensor, stride: Any, padding: Any, dilation: Any, deform_groups: int) -> Geometry:
    kernel = weight.shape[2], weight.shape[3]
    return Geometry(kernel, tuple(stride), tuple(padding), tuple(dilation), deform_groups)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor | None) -> None:
    ctx.save_for_backward(*inputs[:4])
    ctx.options = inputs[4:]


def _gradients(ctx: Any, g: Tensor) -> tuple[Any, ...]:
    modulated = ctx.saved_tensors[2] is not None
    dx, d_offset, d_modulation, dw = deform_conv2d_backward(g, *ctx.saved_tensors, *ctx.options)
    return dx, d_offset, d_modulation if modulated else None, dw, None, None, None, None


deform_conv2d.register_autograd(_gradients, setup_context=_save)


class _Direct(torch.autograd.Function):
    """The same without the dispatch of a custom operator in Python."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        from foveal.kernels.deform import launch

        _save(ctx, inputs, None)
        x, offset, modulation, weight, *options = inputs
        return launch.forward(x, offset, modulation, weight, _geometry(weight, *options))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        """Gradients of the four tensors."""
        from foveal.kernels.deform import launch

        if observed(g):
            return _gradients(ctx, g)
        x, offset, modulation, weight = ctx.saved_tensors
        geometry = _geometry(weight, *ctx.options)
        return *launch.backward(g, x, offset, modulation, weight, geometry), None, None, None, None


def fused_deform_conv(
    x: Tensor, offset: Tensor, modulation: Tensor | None, weight: Tensor, bias: Tensor | None, g: Geometry
) -> Tensor:
    """:func:`deform_conv2d`, called directly where nobody must see an operator; all in one dtype."""
    form = deform_conv2d if observed(x, offset, weight) else _Direct.apply
    out = form(x, offset, modulation, weight, g.stride, g.padding, g.dilation, g.deform_groups)
    return out if bias is None else out + bias[:, None, None]


@register_flop_formula(torch.ops.foveal.deform_conv2d)
def _flops(x_shape, *args, out_shape, **kwargs) -> int:  # type: ignore[no-untyped-def]
    return conv_flop_count(x_shape, args[2], out_shape)


@register_flop_formula(torch.ops.foveal.deform_conv2d_backward)
def _backward_flops(g_shape, x_shape, *args, **kwargs) -> int:  # type: ignore[no-untyped-def]
    return 2 * conv_flop_count(x_shape, args[2], g_shape)
