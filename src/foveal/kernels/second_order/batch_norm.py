"""Batch norm in training mode with a second derivative of few operations.

PyTorch's own second derivative is correct, but consists of some sixty small operations. With x̂ = (x − μ) r, γ the
weight, g the gradient of the output and means over the M values of a channel, the gradient of x is::

    γ r (g − a − x̂ b)                  a = mean g, b = mean g x̂

and if v is the gradient of that, with p = mean v, q = mean v x̂, c = mean v g::

    of g:   γ r (v − p − x̂ q)
    of x:  −γ r² (x̂ (c − p a − 3 q b) + b (v − p) + q (g − a))
    of γ:   M r (c − p a − q b)

Forward pass and first derivative are PyTorch's; on GPUs the second is one kernel or two (:mod:`.batch_norm_triton`).
There is no third derivative.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from foveal.compat import batch_norm_backward, batch_norm_forward
from foveal.kernels.support import fused_available, needed, observed


def second_order_batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """As :func:`torch.nn.functional.batch_norm`."""
    one_value = x.numel() <= x.shape[1]  # PyTorch raises its own error
    if not training or weight is None or bias is None or not torch.is_grad_enabled() or one_value:
        return F.batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)
    out: Tensor = _BatchNorm.apply(x, weight, bias, running_mean, running_var, momentum, eps)
    return out


class _BatchNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        momentum: float,
        eps: float,
    ) -> Tensor:
        out, mean, inverse_std, workspace, implementation = batch_norm_forward(
            x, weight, bias, running_mean, running_var, momentum, eps
        )
        ctx.save_for_backward(x, weight, mean, inverse_std, workspace)
        ctx.implementation, ctx.eps = implementation, eps
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        gradient: Any = _Gradient.apply if torch.is_grad_enabled() else _gradient
        wanted = [needed(ctx, i) for i in range(3)]
        return (*gradient(g, *ctx.saved_tensors, ctx.implementation, ctx.eps, wanted), None, None, None, None)


class _Gradient(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, g: Tensor, x: Tensor, weight: Tensor, mean: Tensor, inverse_std: Tensor, *more: Any
    ) -> tuple[Tensor | None, ...]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(g, x, weight, mean, inverse_std)
        return _gradient(g, x, weight, mean, inverse_std, *more)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, v: Tensor | None, grad_weight: Tensor | None, grad_bias: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        g, x, weight, mean, inverse_std = ctx.saved_tensors
        if v is not None and grad_weight is None and grad_bias is None and _fusable(x, v, g):
            from foveal.kernels.second_order import batch_norm_triton

            layout = _format(x)
            x, v, g = (t.contiguous(memory_format=layout) for t in (x, v, g))
            last = layout == torch.channels_last or x.ndim == 2
            gradients = batch_norm_triton.second_order(x, v, g, weight, mean, inverse_std, last)
        else:
            gradients = _second_order(v, grad_weight, grad_bias, g, x, weight, mean, inverse_std)
        return (*gradients, None, None, None, None, None, None)


def _gradient(
    g: Tensor,
    x: Tensor,
    weight: Tensor,
    mean: Tensor,
    inverse_std: Tensor,
    workspace: Tensor,
    implementation: int,
    eps: float,
    wanted: list[bool],
) -> tuple[Tensor | None, ...]:
    """PyTorch's gradients of x, weight and bias, those that are wanted."""
    g = g.contiguous(memory_format=_format(x))
    return batch_norm_backward(g, x, weight, mean, inverse_std, workspace, implementation, eps, wanted)


def _fusable(x: Tensor, *others: Tensor) -> bool:
    supported = x.dtype in (torch.float32, torch.bfloat16, torch.float16)
    return supported and fused_available(x.device) and not observed(x, *others)


def _format(x: Tensor) -> torch.memory_format:
    last = x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if last else torch.contiguous_format


def _second_order(
    v: Tensor | None,
    grad_weight: Tensor | None,
    grad_bias: Tensor | None,
    g: Tensor,
    x: Tensor,
    weight: Tensor,
    mean: Tensor,
    inverse_std: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of g, x and the weight, from the gradients v, grad_weight and grad_bias of the first derivative."""
    wide = torch.promote_types(x.dtype, torch.float32)
    over, shape = [i for i in range(x.ndim) if i != 1], [1, -1] + [1] * (x.ndim - 2)
    mean, r, scale = (t.to(wide).view(shape) for t in (mean, inverse_std, weight))
    wide_g, unit = g.to(wide), (x.to(wide) - mean) * r
    a, b = wide_g.mean(over, keepdim=True), (wide_g * unit).mean(over, keepdim=True)
    part = wide_g - a - unit * b
    of_g, of_x, of_weight = torch.zeros_like(unit), torch.zeros_like(unit), torch.zeros_like(r)
    if v is not None:
        v = v.to(wide)
        p, q = v.mean(over, keepdim=True), (v * unit).mean(over, keepdim=True)
        c = (v * wide_g).mean(over, keepdim=True)
        of_g = scale * r * (v - p - unit * q)
        of_x = -scale * r * r * (unit * (c - p * a - 3 * q * b) + b * (v - p) + q * (wide_g - a))
        of_weight = r * (c - p * a - q * b) * (x.numel() // x.shape[1])
    if grad_weight is not None:
        of_g, of_x = of_g + grad_weight.to(wide).view(shape) * unit, of_x + grad_weight.to(wide).view(shape) * r * part
    if grad_bias is not None:
        of_g = of_g + grad_bias.to(wide).view(shape)
    return of_g.to(g.dtype), of_x.to(x.dtype), of_weight.view(-1).to(weight.dtype)
