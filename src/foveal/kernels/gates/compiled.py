"""A channel and a spatial gate as one operator, for ``torch.compile`` on NVIDIA GPUs.

The compiler makes many kernels of a spatial gate, some of them slow: maxima over channels, and a convolution of two
maps to one. The operator runs what eager mode runs, :mod:`.launch`. Running statistics of the norm are updated outside
of it, because an operator with a gradient may not change its arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from foveal.compat import exporting
from foveal.kernels.gates.fused import DTYPES, supported, usual_conv, usual_norm
from foveal.kernels.support import fused_available


@torch.library.custom_op("foveal::gates", mutates_args=())
def gates(
    x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, amount: Tensor | None, weight: Tensor, gamma: Tensor,
    beta: Tensor, statistics: list[Tensor], avg: bool, largest: bool, training: bool, eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The map x times its gates, and what the gradient needs; arguments as :func:`.launch.forward` has them."""
    from foveal.kernels.gates import launch

    x = x.contiguous(memory_format=launch.layout(x))
    norm = launch.Norm(statistics[0], statistics[1], None, 0.0, eps, training)
    parameters = w1, b1, w2, b2, amount, weight, gamma, beta
    out, kept = launch.forward(x, parameters, launch.Pools(avg, largest), norm)
    return out, *kept


@gates.register_fake
def _(x, w1, b1, w2, b2, amount, weight, gamma, beta, statistics, avg, largest, training, eps):
    n, c, h, w = x.shape
    state = x.new_empty((n, 4 * c + 2 * w1.shape[0]), dtype=torch.float32)
    maps, moments = x.new_empty((n, 5, h * w), dtype=torch.float32), x.new_empty(2, dtype=torch.float32)
    return _dense(x), state, maps, moments


def _dense(x: Tensor) -> Tensor:
    """Memory like x, in channels last if x is and contiguous otherwise."""
    last = not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)
    return torch.empty_like(x, memory_format=torch.channels_last if last else torch.contiguous_format)


@torch.library.custom_op("foveal::gates_backward", mutates_args=())
def gates_backward(
    g: Tensor, x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, amount: Tensor | None, weight: Tensor,
    gamma: Tensor, beta: Tensor, state: Tensor, maps: Tensor, moments: Tensor, avg: bool, largest: bool, training: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of x and all parameters; that of an amount which is None is empty."""
    from foveal.kernels.gates import launch

    parameters = w1, b1, w2, b2, amount, weight, gamma, beta
    layout = launch.layout(x)
    g, x = g.contiguous(memory_format=layout), x.contiguous(memory_format=layout)
    kept = launch.Kept(state, maps, moments)
    gradients = launch.backward(g, x, parameters, launch.Pools(avg, largest), kept, training, True)
    return tuple(g.new_empty(0) if gradient is None else gradient for gradient in gradients)  # type: ignore


@gates_backward.register_fake
def _(g, x, w1, b1, w2, b2, amount, weight, gamma, beta, *rest):
    parameters = w1, b1, w2, b2, amount, weight, gamma, beta
    return _dense(x), *(g.new_empty(0) if t is None else torch.empty_like(t) for t in parameters)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:9], *output[1:])
    ctx.options = inputs[10:13]


def _gradients(ctx: Any, g: Tensor, *unused: Any) -> tuple[Any, ...]:
    gradients = list(gates_backward(g, *ctx.saved_tensors, *ctx.options))
    if ctx.saved_tensors[5] is None:
        gradients[5] = None
    return *gradients, [None] * 2, None, None, None, None


gates.register_autograd(_gradients, setup_context=_save)


def compiled_gates(
    x: Tensor, pools: Sequence[str], squeeze: Any, excite: Any, amount: Tensor | None, conv: Any, norm: Any
) -> Tensor | None:
    """Both gates in a compiled graph; None where the compiler must see the modules. Arguments as ``fused_gates``."""
    if exporting() or not fused_available(x.device) or not (usual_conv(conv) and usual_norm(norm)):
        return None
    parameters = [squeeze.weight, squeeze.bias, excite.weight, excite.bias, amount, conv.weight, norm.weight, norm.bias]
    if any(parameter is not None and parameter.dtype not in DTYPES for parameter in parameters):
        return None
    if len(set(pools)) < len(pools) or x.ndim != 4 or not supported(x, parameters):
        return None
    statistics = [norm.running_mean, norm.running_var]
    kinds = "avg" in pools, "max" in pools
    out, _, _, moments = gates(x, *parameters, statistics, *kinds, norm.training, norm.eps)
    if norm.training:
        _track(norm, moments.detach(), x.shape[0] * x.shape[2] * x.shape[3])
    return out


def _track(norm: Any, moments: Tensor, count: int) -> None:
    """Update the running statistics as ``nn.BatchNorm2d`` does; ``moments``: mean and inverse deviation of a batch."""
    variance = (moments[1:].pow(-2) - norm.eps) * (count / (count - 1))
    norm.running_mean.lerp_(moments[:1].to(norm.running_mean.dtype), norm.momentum)
    norm.running_var.lerp_(variance.to(norm.running_var.dtype), norm.momentum)
    norm.num_batches_tracked.add_(1)
