"""Gates on a feature map as operators, for ``torch.compile`` on NVIDIA GPUs.

Left to the compiler, a training step of a channel gate is some twenty small kernels, with a spatial gate forty. The
operators compute the gates and their gradients. The multiplication, and of a channel gate the gradient of the map, are
left to the compiler, which fuses them with what is around them: an operator would read and write the map once more.

As in :mod:`foveal.kernels.aw.compiled`, ``gates`` is differentiable, and PyTorch sees through it to two operators that
are not.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from foveal.kernels.gates import launch
from foveal.kernels.gates.launch import Kept, Norm, Pools
from foveal.kernels.gates.plan import layout

INPUTS = "Tensor x, Tensor?[] parameters, Tensor[] running, Tensor(a!)[] updated, float[] numbers, str options"
OPERATORS = {
    "gates": f"({INPUTS}) -> Tensor",
    "gates_forward": f"({INPUTS}) -> (Tensor, Tensor, Tensor)",
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
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The gates, and what their gradient needs: state, maps and moments, the last two empty without a spatial gate.

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
    kept = launch.gates(x.contiguous(memory_format=layout(x)), parameters, pools, norm)
    return (kept.state, x.new_empty(0), x.new_empty(0)) if norm is None else kept


@torch.library.register_fake("foveal::gates_forward")
def _(x, parameters, running, updated, numbers, text):
    (n, c, h, w), hidden = x.shape, parameters[0].shape[0]
    state = x.new_empty((n, 4 * c + 2 * hidden), dtype=torch.float32)
    if parameters[5] is None:
        return state, x.new_empty(0), x.new_empty(0)
    return state, x.new_empty((n, 4, h * w), dtype=torch.float32), x.new_empty(4, dtype=torch.float32)


@torch.library.impl("foveal::gates_backward", DEVICES)
def gates_backward(
    g: Tensor, x: Tensor, parameters: list[Tensor | None], kept: list[Tensor], text: str
) -> list[Tensor]:
    """Gradients of x and of those parameters that are not None; without a spatial gate, what that of x is made of."""
    pools, training = _options(text)
    last, whole = layout(x), parameters[5] is not None
    images, gradient = x.contiguous(memory_format=last), g.contiguous(memory_format=last)
    gradients = launch.backward(gradient, images, parameters, pools, Kept(*kept), training, True, whole=whole)
    return [part for part in gradients if part is not None]


@torch.library.register_fake("foveal::gates_backward")
def _(g, x, parameters, kept, text):
    (n, c), last = x.shape[:2], layout(x)
    first = x.new_empty((n, 2, c), dtype=torch.float32)
    if parameters[5] is not None:
        first = torch.empty_like(x.contiguous(memory_format=last))
    return [first, *(torch.empty_like(parameter) for parameter in parameters if parameter is not None)]


class _Gates(torch.autograd.Function):
    """x and parameters to the gated map, by the operators above."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *rest: Any) -> Tensor:
        *parameters, running, updated, numbers, ctx.text = rest
        kept = torch.ops.foveal.gates_forward.default(x, parameters, running, updated, numbers, ctx.text)
        ctx.save_for_backward(x, *parameters, *kept)
        return _multiplied(x, parameters, kept)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, *rest = ctx.saved_tensors
        parameters, kept = rest[:8], rest[8:]
        first, *found = torch.ops.foveal.gates_backward.default(g, x, parameters, kept, ctx.text)
        dx = first if parameters[5] is not None else _input_gradient(g, parameters[4], kept[0], first, ctx.text)
        gradients = iter(found)
        return dx, *(None if parameter is None else next(gradients) for parameter in parameters), None, None, None, None


def _channels(rows: Tensor, i: int, c: int) -> Tensor:
    """The i-th C numbers of the row of each sample, (N, C, 1, 1)."""
    return rows[:, i * c : (i + 1) * c, None, None]


def _multiplied(x: Tensor, parameters: Sequence[Tensor | None], kept: Sequence[Tensor]) -> Tensor:
    """The gated map."""
    (n, c, h, w), amount, (state, maps, moments) = x.shape, parameters[4], kept
    gate = _channels(state, 0, c)
    if parameters[5] is not None:
        mean, _, scale, shift = moments.unbind()
        gate = gate * torch.sigmoid((maps[:, 3].view(n, 1, h, w) - mean) * scale + shift)
    if amount is not None:
        gate = 1 + amount.float() * (gate - 1)
    return (x * gate).to(x.dtype)


def _input_gradient(g: Tensor, amount: Tensor | None, state: Tensor, pooled: Tensor, text: str) -> Tensor:
    """Gradient of the input of a channel gate, from that of the output and that of what was pooled, (N, 2, C)."""
    (_, c, h, w), (pools, _) = g.shape, _options(text)
    gate = _channels(state, 0, c)
    total = g * (gate if amount is None else 1 + amount.float() * (gate - 1))
    if pools.avg:
        total = total + pooled[:, 0, :, None, None]
    if pools.max:
        positions = torch.arange(h * w, device=g.device).view(h, w)
        total = total + torch.where(_channels(state, 3, c) == positions, pooled[:, 1, :, None, None], 0)
    return total.to(g.dtype)


@torch.library.impl("foveal::gates", "CompositeImplicitAutograd")
def gates(
    x: Tensor, parameters: list[Tensor | None], running: list[Tensor], updated: list[Tensor], numbers: list[float],
    text: str,
) -> Tensor:  # fmt: skip
    """The gated map; arguments as in :func:`gates_forward`."""
    return _Gates.apply(x, *parameters, running, updated, numbers, text)


def compiled_gates(x: Tensor, parameters: list[Any], pools: Pools, norm: Norm | None) -> Tensor:
    """The gated map by operators of a compiled graph; arguments as in :func:`foveal.kernels.gates.launch.forward`."""
    running: list[Tensor] = []
    updated: list[Tensor] = []
    numbers, training = [0.0, 0.0], False
    if norm is not None:
        numbers, training = [norm.momentum, norm.eps], norm.training
        statistics = [norm.running_mean, norm.running_var, norm.batches]
        running, updated = ([], statistics) if training else (statistics[:2], [])
    text = f"({pools.avg}, {pools.max}, {training})"
    return torch.ops.foveal.gates.default(x, parameters, running, updated, numbers, text)
