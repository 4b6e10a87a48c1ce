"""The convolution of two maps to one as an operator that the compiler sees."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import conv_flop_count, register_flop_formula


@torch.library.custom_op("foveal::pair_conv2d", mutates_args=())
def pair_conv2d(pair: Tensor, weight: Tensor) -> Tensor:
    """Convolution of (N, 2, H, W) with (1, 2, K, K), padded by K // 2 zeros, K odd: float32 (N, 1, H, W)."""
    from foveal.kernels.gates import convolution

    return convolution.convolve(pair.contiguous(), weight.contiguous())


@pair_conv2d.register_fake
def _(pair, weight):
    n, _, h, w = pair.shape
    return pair.new_empty((n, 1, h, w), dtype=torch.float32)


@torch.library.custom_op("foveal::pair_conv2d_backward", mutates_args=())
def pair_conv2d_backward(g: Tensor, pair: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of both arguments of :func:`pair_conv2d`."""
    from foveal.kernels.gates import convolution

    return convolution.convolve_backward(g.contiguous(), pair.contiguous(), weight.contiguous())


@pair_conv2d_backward.register_fake
def _(g, pair, weight):
    return pair.new_empty(pair.shape), weight.new_empty(weight.shape)


def _save(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _gradients(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
    return pair_conv2d_backward(g, *ctx.saved_tensors)


pair_conv2d.register_autograd(_gradients, setup_context=_save)


@register_flop_formula(torch.ops.foveal.pair_conv2d)
def _flops(pair_shape, weight_shape, *args, out_shape, **kwargs) -> int:  # type: ignore[no-untyped-def]
    return conv_flop_count(pair_shape, weight_shape, out_shape)


@register_flop_formula(torch.ops.foveal.pair_conv2d_backward)
def _backward_flops(g_shape, pair_shape, weight_shape, *args, out_shape, **kwargs) -> int:  # type: ignore[no-untyped-def]
    return 2 * conv_flop_count(pair_shape, weight_shape, g_shape)
