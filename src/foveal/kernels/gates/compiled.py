"""Gates on a feature map as operators, for ``torch.compile`` on NVIDIA GPUs.

Left to the compiler, a training step of a channel gate is some twenty small kernels, with a spatial gate forty. The
operators compute the gates and their gradients. The multiplication is left to the compiler, which fuses it with what is
around: an operator would read and write the map once more.

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
from foveal.kernels.gates.launch import Kept, Key, Norm, Pools
from foveal.kernels.support import described, in_layout_of

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
    """Pools of the channel gate, and whether the spatial gate's norm is in training: the first part of ``text``."""
    avg, most, training = ast.literal_eval(text.partition(";")[0])
    return Pools(avg, most), training


def _key(x: Tensor, text: str) -> Key:
    """As :func:`foveal.kernels.gates.launch.key_of`; ``text`` says what there is to know of the parameters."""
    return text, x.shape, x.dtype, x.get_device(), x.is_contiguous()


@torch.library.impl("foveal::gates_forward", DEVICES)
def gates_forward(
    x: Tensor, parameters: list[Tensor | None], running: list[Tensor], updated: list[Tensor], numbers: list[float],
    text: str,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The gates, and what their gradient needs: state; of a spatial gate maps; in training its moments; or nothing.

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
    x = in_layout_of(x, x)
    kept = launch.gates(x, parameters, pools, norm, _key(x, text))
    return tuple(x.new_empty(0) if tensor is None else tensor for tensor in kept)


@torch.library.register_fake("foveal::gates_forward")
def _(x, parameters, running, updated, numbers, text):
    (n, c, h, w), hidden = x.shape, parameters[0].shape[0]
    state = x.new_empty((n, 4 * c + 2 * hidden), dtype=torch.float32)
    maps = x.new_empty(0) if parameters[5] is None else x.new_empty((n, 4, h * w), dtype=torch.float32)
    return state, maps, x.new_empty(4, dtype=torch.float32) if updated else x.new_empty(0)


@torch.library.impl("foveal::gates_backward", DEVICES)
def gates_backward(
    g: Tensor, x: Tensor, parameters: list[Tensor | None], kept: list[Tensor], text: str
) -> list[Tensor]:
    """Gradients of x and of those parameters that are not None."""
    pools, training = _options(text)
    x = in_layout_of(x, x)
    gradients = launch.backward(in_layout_of(x, g), x, parameters, pools, Kept(*kept), training, True, _key(x, text))
    return [gradient for gradient in gradients if gradient is not None]


@torch.library.register_fake("foveal::gates_backward")
def _(g, x, parameters, kept, text):
    dx = torch.empty_like(in_layout_of(x, x))
    return [dx, *(torch.empty_like(parameter) for parameter in parameters if parameter is not None)]


class _Gates(torch.autograd.Function):
    """x and parameters to the gated map, by the operators above."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *rest: Any) -> Tensor:
        *parameters, running, updated, numbers, ctx.text = rest
        forward = torch.ops.foveal.gates_forward.default
        state, maps, moments = forward(x, parameters, running, updated, numbers, ctx.text)
        spatial = None
        if running:
            norm = _moments(parameters, running, numbers[1])
            spatial, moments = (maps, norm), torch.cat(norm)
        elif updated:
            spatial = maps, moments.split(1)
        ctx.save_for_backward(x, *parameters, state, maps, moments)
        return _multiplied(x, parameters[4], state, spatial)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, *rest = ctx.saved_tensors
        parameters, kept = rest[:8], rest[8:]
        dx, *found = torch.ops.foveal.gates_backward.default(g, x, parameters, kept, ctx.text)
        gradients = iter(found)
        return dx, *(None if parameter is None else next(gradients) for parameter in parameters), None, None, None, None


def _moments(parameters: Sequence[Any], running: Sequence[Tensor], eps: float) -> tuple[Tensor, ...]:
    """Those of the spatial gate in eval mode, each (1,)."""
    mean, variance, gamma, beta = (tensor.float() for tensor in (*running, *parameters[6:]))
    inverse = torch.rsqrt(variance + eps)
    return mean, inverse, gamma * inverse, beta


def _multiplied(
    x: Tensor, amount: Tensor | None, state: Tensor, spatial: tuple[Tensor, Sequence[Tensor]] | None
) -> Tensor:
    """The gated map; ``spatial`` are maps and moments of the spatial gate."""
    n, c, h, w = x.shape
    gate = state[:, :c, None, None]
    if spatial is not None:
        maps, (mean, _, scale, shift) = spatial
        gate = gate * torch.sigmoid((maps[:, 3].view(n, 1, h, w) - mean) * scale + shift)
    if amount is not None:
        gate = 1 + amount.float() * (gate - 1)
    return (x * gate).to(x.dtype)


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
    text = f"({pools.avg}, {pools.max}, {training})" + described(parameters)
    return torch.ops.foveal.gates.default(x, parameters, running, updated, numbers, text)
