"""The convolution of two maps to one as an operator that the compiler sees.

As in :mod:`foveal.kernels.aw.compiled`, ``pair_conv2d`` is differentiable, and PyTorch sees through it to two operators
that are not.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.flop_counter import conv_flop_count, register_flop_formula

OPERATORS = {
    "pair_conv2d": "(Tensor pair, Tensor weight) -> Tensor",
    "pair_conv2d_forward": "(Tensor pair, Tensor weight) -> Tensor",
    "pair_conv2d_backward": "(Tensor g, Tensor pair, Tensor weight) -> (Tensor, Tensor)",
}
for name, schema in OPERATORS.items():
    torch.library.define(f"foveal::{name}", schema, tags=torch.Tag.pt2_compliant_tag)
DEVICES = ("cuda", "cpu")  # on a CPU only in Triton's interpreter


@torch.library.impl("foveal::pair_conv2d_forward", DEVICES)
def pair_conv2d_forward(pair: Tensor, weight: Tensor) -> Tensor:
    """Convolution of (N, 2, H, W) with (1, 2, K, K), padded by K // 2 zeros, K odd: float32 (N, 1, H, W)."""
    from foveal.kernels.gates import convolution

    return convolution.convolve(pair.contiguous(), weight.contiguous())


@torch.library.register_fake("foveal::pair_conv2d_forward")
def _(pair, weight):
    n, _, h, w = pair.shape
    return pair.new_empty((n, 1, h, w), dtype=torch.float32)


@torch.library.impl("foveal::pair_conv2d_backward", DEVICES)
def pair_conv2d_backward(g: Tensor, pair: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of both arguments of :func:`pair_conv2d_forward`."""
    from foveal.kernels.gates import convolution

    return convolution.convolve_backward(g.contiguous(), pair.contiguous(), weight.contiguous())


@torch.library.register_fake("foveal::pair_conv2d_backward")
def _(g, pair, weight):
    return pair.new_empty(pair.shape), weight.new_empty(weight.shape)


class _PairConv(torch.autograd.Function):
    """Both arguments to the convolution, by the operators above."""

    @staticmethod
    def forward(ctx: Any, pair: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(pair, weight)
        out: Tensor = torch.ops.foveal.pair_conv2d_forward.default(pair, weight)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        gradients: tuple[Tensor, Tensor] = torch.ops.foveal.pair_conv2d_backward.default(g, *ctx.saved_tensors)
        return gradients


torch.library.impl("foveal::pair_conv2d", "CompositeImplicitAutograd", _PairConv.apply)


def pair_conv2d(pair: Tensor, weight: Tensor) -> Tensor:
    """The convolution as an operator of a compiled graph; arguments as in :func:`pair_conv2d_forward`."""
    out: Tensor = torch.ops.foveal.pair_conv2d.default(pair, weight)
    return out


@register_flop_formula(torch.ops.foveal.pair_conv2d_forward)
def _flops(pair_shape, weight_shape, *args, out_shape, **kwargs) -> int:  # type: ignore[no-untyped-def]
    return conv_flop_count(pair_shape, weight_shape, out_shape)


@register_flop_formula(torch.ops.foveal.pair_conv2d_backward)
def _backward_flops(g_shape, pair_shape, weight_shape, *args, out_shape, **kwargs) -> int:  # type: ignore[no-untyped-def]
    return 2 * conv_flop_count(pair_shape, weight_shape, g_shape)
