"""Gates on a feature map as operators, for ``torch.compile`` on NVIDIA GPUs.

Left to the compiler, a training step of a channel gate is some twenty small kernels, with a spatial gate forty. The
operators run what eager mode runs, :mod:`.launch`. As in :mod:`foveal.kernels.aw.compiled`, ``gates`` is
differentiable, and PyTorch sees through it to two operators that are not.
"""

from __future__ import annotations

import ast
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from foveal.kernels.gates import launch
from foveal.kernels.gates.launch import Kept, Norm, Pools

INPUTS = "Tensor x, Tensor?[] parameters, Tensor[] running, Tensor(a!)[] updated, float[] numbers, str options"
OPERATORS = {
    "gates": f"({INPUTS}) -> Tensor",
    "gates_forward": f"({INPUTS}) -> (Tensor, Tensor, Tensor, Tensor)",
    "gates_backward": "(Tensor g, Tensor x, Tensor?[] parameters, Tensor[] kept, str options) -> Tensor[]",
}
for name, schema in OPERATORS.items():
    torch.library.define(f"foveal::{name}", schema, tags=torch.Tag.pt2_compliant_tag)
DEVICES = ("cuda", "cpu")  # on a CPU only in Triton's interpreter


@lru_cache(maxsize=1024)
def _options(text: str) -> tuple[Pools, bool]:
    """Pools of the channel gate, and whether the spatial gate's norm is in training."""
    avg, most, training = ast.literal_eval(text)
    return Pools(avg, most), training


@torch.library.impl("foveal::gates_forward", DEVICES)
def gates_forward(
    x: Tensor, parameters: list[Tensor | None], running: list[Tensor], updated: list[Tensor], numbers: list[float],
    text: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The gated map, and what its gradient needs: state, maps and moments, the last two empty without a spatial gate.

    Args:
        x: (N, C, H, W).
        parameters: as in :func:`foveal.kernels.gates.launch.forward`.
        running: in eval mode, mean and variance of the spatial gate's norm.
        updated: in training, the same and the number of batches, which are updated.
        numbers: momentum and epsilon of the norm; the compiler may replace numbers by symbols.
        text: see :func:`_options`.
    """
    pools, training = _options(text)
    norm = None
    if parameters[5] is not None:
        mean, variance, batches = updated or (*running, None)
        momentum, eps = numbers
        norm = Norm(mean, variance, batches, momentum, eps, training)  # type: ignore[arg-type]
    out, kept = launch.forward(x.contiguous(memory_format=launch.layout(x)), parameters, pools, norm)
    if norm is None:
        return out, kept.state, x.new_empty(0), x.new_empty(0)
    return out, *kept


@torch.library.register_fake("foveal::gates_forward")
def _(x, parameters, running, updated, numbers, text):
    (n, c, h, w), hidden = x.shape, parameters[0].shape[0]
    state = x.new_empty((n, 4 * c + 2 * hidden), dtype=torch.float32)
    out = torch.empty_like(x.contiguous(memory_format=launch.layout(x)))
    if parameters[5] is None:
        return out, state, x.new_empty(0), x.new_empty(0)
    return out, state, x.new_empty((n, 4, h * w), dtype=torch.float32), x.new_empty(4, dtype=torch.float32)


@torch.library.impl("foveal::gates_backward", DEVICES)
def gates_backward(
    g: Tensor, x: Tensor, parameters: list[Tensor | None], kept: list[Tensor], text: str
) -> list[Tensor]:
    """Gradients of x and of those parameters that are not None."""
    pools, training = _options(text)
    last = launch.layout(x)
    images, gradient = x.contiguous(memory_format=last), g.contiguous(memory_format=last)
    gradients = launch.backward(gradient, images, parameters, pools, Kept(*kept), training, True)
    return [part for part in gradients if part is not None]


@torch.library.register_fake("foveal::gates_backward")
def _(g, x, parameters, kept, text):
    dx = torch.empty_like(x.contiguous(memory_format=launch.layout(x)))
    return [dx, *(torch.empty_like(parameter) for parameter in parameters if parameter is not None)]


class _Gates(torch.autograd.Function):
    """x and parameters to the gated map, by the operators above."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *rest: Any) -> Tensor:
        *parameters, running, updated, numbers, ctx.text = rest
        out, *kept = torch.ops.foveal.gates_forward.default(x, parameters, running, updated, numbers, ctx.text)
        ctx.save_for_backward(x, *parameters, *kept)
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, *rest = ctx.saved_tensors
        parameters, kept = rest[:8], rest[8:]
        dx, *found = torch.ops.foveal.gates_backward.default(g, x, parameters, kept, ctx.text)
        gradients = iter(found)
        return dx, *(None if parameter is None else next(gradients) for parameter in parameters), None, None, None, None


@torch.library.impl("foveal::gates", "CompositeImplicitAutograd")
def gates(
    x: Tensor, parameters: list[Tensor | None], running: list[Tensor], updated: list[Tensor], numbers: list[float],
    text: str,
) -> Tensor:  # fmt: skip
    """The gated map; arguments as in :func:`gates_forward`."""
    return _Gates.apply(x, *parameters, running, updated, numbers, text)


def compiled_gates(x: Tensor, parameters: list[Any], pools: Pools, norm: Norm | None) -> Tensor:
    """The gated map as an operator of a compiled graph; arguments as in :func:`foveal.kernels.gates.launch.forward`."""
    running: list[Tensor] = []
    updated: list[Tensor] = []
    numbers, training = [0.0, 0.0], False
    if norm is not None:
        numbers, training = [norm.momentum, norm.eps], norm.training
        statistics = [norm.running_mean, norm.running_var, norm.batches]
        running, updated = ([], statistics) if training else (statistics[:2], [])
    text = f"({pools.avg}, {pools.max}, {training})"
    return torch.ops.foveal.gates.default(x, parameters, running, updated, numbers, text)
