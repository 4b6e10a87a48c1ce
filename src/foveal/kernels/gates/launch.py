"""Launch the Triton kernels of channel and spatial gates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from foveal.kernels.gates import channel_kernels as channel
from foveal.kernels.gates import convolution
from foveal.kernels.gates import gradient_kernels as channel_grad
from foveal.kernels.gates import spatial_kernels as spatial
from foveal.kernels.gates.plan import Plan, ceil, plan_for
from foveal.kernels.prepared import launch
from foveal.kernels.tape import empty, empty_like, taped

ROWS = 32  # rows of a sum that are added up at once
WEIGHTS = 32, 32, 16, 128, 16  # tile of the gradients of parameters: samples, channels, hidden values; rows, taps


class Norm(NamedTuple):
    """State and options of a batch norm of one channel."""

    running_mean: Tensor
    running_var: Tensor
    batches: Tensor
    momentum: float
    eps: float
    training: bool


class Pools(NamedTuple):
    """Which poolings the channel gate has."""

    avg: bool
    max: bool


class Kept(NamedTuple):
    """What the backward pass needs beside x and the parameters; rows and maps as the kernels describe them."""

    state: Tensor
    maps: Tensor
    moments: Tensor


Key = tuple[Any, ...]
"""See :func:`key_of`."""


def key_of(x: Tensor, parameters: Sequence[Any], pools: Pools) -> Key:
    """What launches depend on, beside options of their own."""
    kinds = [None if p is None else (p.dtype, p.shape, p.device, p.is_contiguous()) for p in parameters]
    conv = parameters[5]
    return x.shape, x.dtype, x.device, x.is_contiguous(), None if conv is None else conv.stride(), pools, *kinds


def forward(
    x: Tensor, parameters: Sequence[Any], pools: Pools, norm: Norm | None, key: Key | None = None
) -> tuple[Tensor, Kept]:
    """Multiply x (N, C, H, W), dense in one of both layouts, by its gates.

    Args:
        x: the map.
        parameters: weights and biases of the perceptron, (D, C), (D,), (C, D), (C,); the amount of the blend, () or
            None; weight of the spatial gate's convolution, (1, 2, K, K), weight and bias of its norm, (1,), or None.
        pools: of the channel gate.
        norm: of the spatial gate, or None without such a gate.
        key: :func:`key_of` them, if it is known.
    """
    whole_key = "gates", key or key_of(x, parameters, pools), None if norm is None else norm[3:]
    statistics = (None, None, None) if norm is None else norm[:3]
    out, state, maps, moments = taped(whole_key, _forward, (x, *parameters, *statistics), pools, norm)
    assert out is not None
    assert state is not None
    return out, Kept(state, state if maps is None else maps, state if moments is None else moments)


def _forward(x: Tensor, *inputs: Any) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Result, state, and of a spatial gate maps and moments."""
    amount, weight, gamma, beta = inputs[4:8]
    pools, norm = inputs[-2:]
    hidden = inputs[0].shape[0]
    plan, n, c, size = plan_for(x, hidden)
    out = empty_like(x)
    state, perceptron = _channel_forward(x, inputs[:4], pools, plan, norm is None)
    maps = moments = spread = None
    statistics: tuple[Any, ...] = None, None, None
    numbers: tuple[Any, ...] = 0, 0, 0.0, 0.0
    if norm is not None:
        maps, spread = _spatial_forward(x, state, weight, norm.training, plan)
        moments = empty((4,), torch.float32, x.device)
        statistics, numbers = norm[:3], (n * size, spread.shape[1], norm.momentum, norm.eps)
    grid, turns = plan.write
    excite = perceptron[0] is not None
    tensors = x, out, state, *perceptron, amount, maps, spread, gamma, beta, *statistics, moments
    flags = *pools, excite, amount is not None, norm is not None, norm is not None and norm.training
    parts, count = plan.pool[0][2], plan.pool[0][1] * plan.pool[0][2]
    sizes = size, c, hidden, *plan.steps, turns, parts, count, *numbers
    tiles = *plan.tile, plan.hidden if excite else 1, ROWS, convolution.MOMENTS
    launch(channel.multiply, grid, tensors, (*sizes, *flags, *tiles), num_warps=8)
    return out, state, maps, moments


def _channel_forward(
    x: Tensor, parameters: Sequence[Tensor], pools: Pools, plan: Plan, later: bool
) -> tuple[Tensor, tuple[Tensor | None, ...]]:
    """State; and what the multiplication computes the gate from, if that is left to it, as it may be with ``later``."""
    (w1, b1, w2, b2), (n, c), size = parameters, x.shape[:2], x.shape[2] * x.shape[3]
    hidden = w1.shape[0]
    grid, turns = plan.pool
    parts, count = grid[2], grid[1] * grid[2]
    state = empty((n, 4 * c + 2 * hidden), torch.float32, x.device)
    partial = empty((n, parts, 3, c), torch.float32, x.device)
    squeeze = parts == 1 or not pools.max
    rows = empty((n, count, 2, hidden), torch.float32, x.device) if squeeze else None
    deep = plan.hidden if squeeze else 1
    sizes: tuple[int, ...] = size, c, hidden, *plan.steps, turns, *pools, squeeze, *plan.tile, deep
    options = {"num_warps": 8} | (plan.registers[0] if pools.max else {})
    launch(channel.pool, grid, (x, partial, rows, w1), sizes, **options)
    if not squeeze:
        row, deep, warps = plan.row
        sizes = size, c, hidden, parts, *pools, row, deep
        launch(channel.perceptron, (n,), (partial, state, w1, b1, w2, b2), sizes, num_warps=warps)
    elif later:
        return state, (partial, rows, b1, w2, b2)
    else:
        sizes = size, c, hidden, parts, count, *pools, plan.tile[1], plan.hidden, ROWS
        launch(channel.excite, grid[:2], (partial, rows, state, b1, w2, b2), sizes, num_warps=8)
    return state, (None,) * 5


def gates(
    x: Tensor, parameters: Sequence[Any], pools: Pools, norm: Norm | None, key: Key | None = None
) -> Sequence[Tensor | None]:
    """State, and of a spatial gate maps and, in training, moments; arguments as in :func:`forward`."""
    whole_key = "gates alone", key or key_of(x, parameters, pools), None if norm is None else norm[3:]
    statistics = (None, None, None) if norm is None else norm[:3]
    return taped(whole_key, _gates, (x, *parameters, *statistics), pools, norm)


def _gates(x: Tensor, *inputs: Any) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """State, and of a spatial gate maps and, in training, moments."""
    weight, gamma, beta = inputs[5:8]
    pools, norm = inputs[-2:]
    plan, n, _, size = plan_for(x, inputs[0].shape[0])
    state, _ = _channel_forward(x, inputs[:4], pools, plan, later=False)
    if norm is None:
        return state, None, None
    maps, spread = _spatial_forward(x, state, weight, norm.training, plan)
    if not norm.training:
        return state, maps, None
    moments = empty((4,), torch.float32, x.device)
    numbers = n * size, spread.shape[1], norm.momentum, norm.eps, convolution.MOMENTS
    launch(spatial.norm, (1,), (spread, gamma, beta, *norm[:3], moments), numbers)
    return state, maps, moments


def _spatial_forward(x: Tensor, state: Tensor, weight: Tensor, training: bool, plan: Plan) -> tuple[Tensor, Tensor]:
    """The maps (N, 4, H·W) of the spatial gate, and in training sums of the convolution's output, (3, parts)."""
    n, c, h, w = x.shape
    size, across = h * w, plan.across
    maps = empty((n, 4, size), torch.float32, x.device)
    sizes: tuple[int, ...] = size, c, state.shape[1], *plan.steps, *across
    launch(spatial.pool_channels, (ceil(size, across[0]), n), (x, state, maps), sizes, num_warps=8)
    blocks = ceil(size, convolution.COLUMNS)
    spread = empty((3, n * blocks), torch.float32, x.device)
    sizes = h, w, *convolution.strides(weight), weight.shape[-1], training, convolution.COLUMNS
    launch(spatial.convolve, (n, blocks), (maps, weight, spread), sizes)
    return maps, spread


def backward(
    g: Tensor, x: Tensor, parameters: Sequence[Any], pools: Pools, kept: Kept, training: bool, of_parameters: bool,
    key: Key | None = None,
) -> list[Tensor | None]:  # fmt: skip
    """Gradients of x and all parameters, from that of the output.

    Args:
        g: gradient of the output, in the memory layout of x.
        x: as in :func:`forward`.
        parameters: as there.
        pools: as there.
        kept: what it returned.
        training: whether the norm of the spatial gate used the statistics of the batch.
        of_parameters: whether those of the parameters are needed; otherwise they have no meaning.
        key: as there.
    """
    whole_key = "gates backward", key or key_of(x, parameters, pools), training, of_parameters
    of_spatial = (None, None) if parameters[5] is None else kept[1:]
    tensors = (g, x, *parameters, kept.state, *of_spatial)
    return list(taped(whole_key, _backward, tensors, pools, training, of_parameters))


def _backward(g: Tensor, x: Tensor, *inputs: Any) -> list[Tensor | None]:
    """As :func:`backward`."""
    parameters, (state, maps, moments), (pools, training, of_parameters) = inputs[:8], inputs[8:11], inputs[11:]
    w1, _, w2, _, amount, weight, _, _ = parameters
    hidden = w1.shape[0]
    plan, n, c, size = plan_for(x, hidden)
    (grid, turns), flags = plan.gate if weight is not None else plan.pool, (amount is not None, weight is not None)
    parts, rows = grid[2], grid[1] * grid[2]
    gradients: list[Any] = [None if parameter is None else empty_like(parameter) for parameter in parameters]
    dmaps = taps = None
    deep, options = plan.hidden, {"num_warps": 8}
    if weight is not None:
        deep, options = min(16, deep), options | plan.registers[1]
        kept = Kept(state, maps, moments)
        dmaps, taps = _spatial_backward(g, x, amount, weight, kept, gradients, plan, training, of_parameters)
    logits = empty((n, parts, c), torch.float32, x.device)
    of_hidden = empty((n, rows, hidden), torch.float32, x.device)
    shares = empty((n, rows), torch.float32, x.device) if flags == (True, False) else None
    grads = empty((n, c + hidden), torch.float32, x.device)
    sizes: tuple[int, ...] = size, c, hidden, *plan.steps, turns, *flags, *plan.tile, plan.hidden
    tensors: tuple[Any, ...] = g, x, state, w2, logits, of_hidden, shares, amount, maps, dmaps, moments
    launch(channel_grad.gate_grad, grid, tensors, sizes, **options)
    dx = empty_like(x)
    grid, turns = plan.write
    sizes = size, c, hidden, *plan.steps, turns, parts, rows, *pools, *flags, *plan.tile, deep, ROWS
    tensors = g, dx, state, w1, logits, of_hidden, grads, amount, maps, dmaps, moments
    launch(channel_grad.input_grad, grid, tensors, sizes, **options)
    if of_parameters:
        count, columns = (0, 0) if taps is None else taps.shape
        extra = ceil(columns, WEIGHTS[4])
        programs = extra + ceil(c, WEIGHTS[1]) * ceil(hidden, WEIGHTS[2])
        sizes = n, c, hidden, rows, count, columns, extra, *pools, *flags, *WEIGHTS
        tensors = state, grads, shares, taps, *gradients[:6]
        launch(channel_grad.parameter_grad, (programs,), tensors, sizes)
    return [dx, *gradients]


def _spatial_backward(
    g: Tensor, x: Tensor, amount: Tensor | None, weight: Tensor, kept: Kept, gradients: list[Any], plan: Plan,
    training: bool, of_parameters: bool,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """The gradients of the maps (N, 3, H·W), and parts of that of the convolution's weight, (rows, 2·K²).

    Fills in those of the norm's parameters and of the amount.
    """
    (n, c, h, w), (state, maps, moments) = x.shape, kept
    size = h * w
    dmaps = empty((n, 3, size), torch.float32, x.device)
    grid, turns = plan.positions
    parts = grid[0] * grid[1]
    sums = empty((3, parts), torch.float32, x.device)
    sizes: tuple[int, ...] = size, c, state.shape[1], *plan.steps, turns, amount is not None, *plan.across
    launch(spatial.spatial_grad, grid, (g, x, state, maps, dmaps, moments, amount, sums), sizes, num_warps=8)
    norm = sums, moments, gradients[6], gradients[7], gradients[4]
    taps = convolution.gradient(dmaps, maps, weight, h, w, norm, parts, training, of_parameters)
    return dmaps, taps
