"""AW-convolution with one kernel a sample, built one after the other: the definition, and the form for CPUs."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from foveal.kernels.aw.plain import conv_gradients, first_order_suffices, match_layout


def conv_one_by_one(x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None, **options: Any) -> Tensor:
    """Convolve every sample with its own kernel, one sample after the other; the gradient keeps no kernels.

    Args:
        x: (N, C1, H, W), at least one sample.
        weight: the common kernel (C2, C1/groups, h, w).
        scale: (N, C2, C1/groups, h, w), or with 1 instead of C1/groups.
        bias: (C2,) or None.
        **options: stride, padding, dilation and groups; padding as two numbers.

    Returns:
        (N, C2, H', W').
    """
    gradient = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad or scale.requires_grad)
    if gradient and first_order_suffices() and not torch.compiler.is_compiling():
        out = _OneByOne.apply(x, weight, scale, options)
    else:
        out = _one_by_one(x, weight, scale, **options)
    return out if bias is None else out + bias[:, None, None]


def _one_by_one(x: Tensor, weight: Tensor, scale: Tensor, **options: Any) -> Tensor:
    return torch.cat([F.conv2d(x[i : i + 1], weight * scale[i], **options) for i in range(len(x))])


class _OneByOne(torch.autograd.Function):
    """Input, kernel and multiplier to the convolution; the backward pass builds a sample's kernel again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, scale: Tensor, options: dict[str, Any]) -> Tensor:
        """The convolution (N, C2, H', W')."""
        ctx.options = options
        ctx.save_for_backward(x, weight, scale)
        return _one_by_one(x, weight, scale, **options)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of input, kernel and multiplier; nothing is in place, so they have gradients themselves."""
        x, weight, scale = ctx.saved_tensors
        of_x, of_weight, of_scale, _ = ctx.needs_input_grad
        need = of_x, of_weight or of_scale
        dw, to_x, to_scale = torch.zeros_like(weight), [], []
        for i, multiplier in enumerate(scale):
            sample, kernel = x[i : i + 1], weight * multiplier
            dx, dk = conv_gradients(g[i : i + 1], sample, kernel, **ctx.options, need=need)
            if of_x:
                to_x.append(dx)
            if of_weight:
                dw = torch.addcmul(dw, dk, multiplier)
            if of_scale:
                to_scale.append((dk * weight).sum_to_size(multiplier.shape))
        return (
            match_layout(torch.cat(to_x), x) if of_x else None,
            dw if of_weight else None,
            torch.stack(to_scale) if of_scale else None,
            None,
        )
