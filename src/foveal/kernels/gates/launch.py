"""Launch the Triton kernels of channel and spatial gates; tiles follow from the shape, nothing is searched."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from foveal.kernels.copies import sum_parts
from foveal.kernels.gates import channel_kernels as channel
from foveal.kernels.gates import spatial_kernels as spatial
from foveal.kernels.prepared import launch
from foveal.kernels.support import on_its_device
from foveal.kernels.tape import empty, empty_like, taped

ELEMENTS = 4096  # of a tile of a map, with 8 warps: 16 a thread
BUSY = 1024  # programs that keep a large GPU busy
POSITIONS = 1024  # of a program of the norm
ROWS, PROGRAMS = 16, 528  # positions of a tile of the convolution's weight gradient, and most programs


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


class _Plan(NamedTuple):
    """Tiles and grids for maps of one shape; the sizes are those of the kernels' arguments.

    Attributes:
        steps: from one position, and from one channel, to the next.
        tile: positions and channels of a tile.
        pool: grid and tiles a program where positions are summed.
        multiply: the same where every value is written.
        across: tile where channels are summed.
        positions: grid, tiles a program where channels are summed and the sums added up.
        row: channels and hidden values of a tile of the perceptron's weights, and its warps.
        columns: positions of a program of the convolution.
    """

    steps: tuple[int, int]
    tile: tuple[int, int]
    pool: tuple[tuple[int, int, int], int]
    multiply: tuple[tuple[int, int, int], int]
    across: tuple[int, int]
    positions: tuple[tuple[int, int], int]
    row: tuple[int, int, int]
    columns: int


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def _power(n: int) -> int:
    """The next power of two."""
    return 1 << (n - 1).bit_length()


@lru_cache(maxsize=1024)
def _plan(n: int, c: int, size: int, hidden: int, last: bool) -> _Plan:
    if last:
        wide = min(64, _power(c))
        tile = min(_power(size), ELEMENTS // wide), wide
        deep = min(128, _power(c))
        across = min(_power(size), ELEMENTS // deep), deep
    else:
        rows = min(256, _power(size))
        tile = rows, min(_power(c), ELEMENTS // rows)
        rows = min(128, _power(size))
        across = rows, min(_power(c), ELEMENTS // rows)
    blocks, tiles = _ceil(c, tile[1]), _ceil(size, tile[0])

    def parts(programs: int) -> tuple[tuple[int, int, int], int]:
        steps = _ceil(tiles, max(1, min(tiles, _ceil(programs, n * blocks))))
        return (n, blocks, _ceil(tiles, steps)), steps

    lines = _ceil(size, across[0])
    steps = _ceil(lines, max(1, min(lines, _ceil(BUSY, n))))
    weights = _power(c), min(_power(hidden), max(1, min(16, 2 * ELEMENTS // _power(c))))
    return _Plan(
        steps=(c, 1) if last else (1, size),
        tile=tile,
        pool=parts(BUSY),
        multiply=parts(4 * BUSY),
        across=across,
        positions=((n, _ceil(lines, steps)), steps),
        row=(*weights, 4 if weights[0] * weights[1] <= ELEMENTS // 2 else 8),
        columns=_columns(size),
    )


def layout(x: Tensor) -> torch.memory_format:
    """The memory layout the kernels read ``x`` in: its own, contiguous if it is neither."""
    last = not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if last else torch.contiguous_format


def _plan_for(x: Tensor, hidden: int) -> tuple[_Plan, int, int, int]:
    """The plan for ``x``, N, C and H·W."""
    n, c, h, w = x.shape
    return _plan(n, c, h * w, hidden, not x.is_contiguous()), n, c, h * w


def _key(name: str, x: Tensor, parameters: Sequence[Any], pools: Pools) -> tuple[Any, ...]:
    """What launches depend on, beside options of their own."""
    kinds = [None if parameter is None else (parameter.dtype, parameter.shape) for parameter in parameters]
    conv = parameters[5]
    layouts = x.is_contiguous(), conv is None or conv.is_contiguous()
    return name, x.shape, x.dtype, x.get_device(), layouts, pools, *kinds


def forward(x: Tensor, parameters: Sequence[Any], pools: Pools, norm: Norm | None) -> tuple[Tensor, Kept]:
    """Multiply x (N, C, H, W), dense in one of both layouts, by its gates.

    Args:
        x: the map.
        parameters: weights and biases of the perceptron, (D, C), (D,), (C, D), (C,); the amount of the blend, () or
            None; weight of the spatial gate's convolution, (1, 2, K, K), weight and bias of its norm, (1,), or None.
        pools: of the channel gate.
        norm: of the spatial gate, or None without such a gate.
    """
    key = *_key("gates", x, parameters, pools), None if norm is None else norm[3:]
    statistics = (None, None, None) if norm is None else norm[:3]
    out, state, maps, moments = taped(key, _forward, (x, *parameters, *statistics), pools, norm)
    assert out is not None
    assert state is not None
    return out, Kept(state, state if maps is None else maps, state if moments is None else moments)


def _forward(x: Tensor, *inputs: Any) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Result, state, and of a spatial gate maps and moments."""
    w1, b1, w2, b2, amount, weight, gamma, beta = inputs[:8]
    pools, norm = inputs[-2:]
    hidden = w1.shape[0]
    plan, n, c, size = _plan_for(x, hidden)
    tile, steps, (row, deep, warps) = plan.tile, plan.steps, plan.row
    out = empty_like(x)
    state = empty((n, 4 * c + 2 * hidden), torch.float32, x.device)
    grid, turns = plan.pool
    partial = empty((n, grid[2], 3, c), torch.float32, x.device)
    launch(channel.pool, grid, (x, partial), (size, c, *steps, turns, pools.max, *tile), num_warps=8)
    sizes: tuple[int, ...] = size, c, hidden, grid[2], *pools, row, deep
    launch(channel.perceptron, (n,), (partial, state, w1, b1, w2, b2), sizes, num_warps=warps)
    maps = moments = None
    if norm is not None:
        maps, moments = _spatial_forward(x, state, weight, gamma, beta, norm, plan)
    grid, turns = plan.multiply
    flags = amount is not None, norm is not None
    tensors = x, out, state, state if maps is None else maps, state if amount is None else amount
    launch(channel.multiply, grid, tensors, (size, c, hidden, *steps, turns, *flags, *tile), num_warps=8)
    return out, state, maps, moments


def _spatial_forward(
    x: Tensor, state: Tensor, weight: Tensor, gamma: Tensor, beta: Tensor, norm: Norm, plan: _Plan
) -> tuple[Tensor, Tensor]:
    """The maps (N, 5, H·W) of the spatial gate, and mean and 1/deviation of its norm (2,)."""
    n, c, h, w = x.shape
    size, kernel, across, columns = h * w, weight.shape[-1], plan.across, plan.columns
    maps = empty((n, 5, size), torch.float32, x.device)
    sizes: tuple[int, ...] = size, c, state.shape[1], *plan.steps, *across
    launch(spatial.pool_channels, (n, _ceil(size, across[0])), (x, state, maps), sizes, num_warps=8)
    blocks = _ceil(size, columns)
    parts = n * blocks
    partial = empty((3, parts), torch.float32, x.device)
    moments = empty((2,), torch.float32, x.device)
    sizes = h, w, 5 * size, 5 * size, 3 * size, *_strides(weight), kernel, norm.training, columns
    launch(spatial.convolve, (n, blocks), (maps, weight, maps, partial), sizes)
    launch(
        spatial.normalise,
        (_ceil(n * size, POSITIONS),),
        (maps, partial, gamma, beta, norm.running_mean, norm.running_var, norm.batches, moments),
        (n * size, size, parts, norm.momentum, norm.eps, norm.training, POSITIONS, min(POSITIONS, _power(parts))),
    )
    return maps, moments


def backward(
    g: Tensor, x: Tensor, parameters: Sequence[Any], pools: Pools, kept: Kept, training: bool, of_parameters: bool
) -> list[Tensor | None]:
    """Gradients of x and all parameters, from that of the output.

    Args:
        g: gradient of the output, in the memory layout of x.
        x: as in :func:`forward`.
        parameters: as there.
        pools: as there.
        kept: what it returned.
        training: whether the norm of the spatial gate used the statistics of the batch.
        of_parameters: whether those of the parameters are needed; otherwise they have no meaning.
    """
    key = *_key("gates backward", x, parameters, pools), training, of_parameters
    of_spatial = (None, None) if parameters[5] is None else kept[1:]
    tensors = (g, x, *parameters, kept.state, *of_spatial)
    return list(taped(key, _backward, tensors, pools, training, of_parameters))


def _backward(g: Tensor, x: Tensor, *inputs: Any) -> list[Tensor | None]:
    """As :func:`backward`."""
    parameters, (state, maps, moments), (pools, training, of_parameters) = inputs[:8], inputs[8:11], inputs[11:]
    w1, _, w2, _, amount, weight, gamma, _ = parameters
    hidden, maps = w1.shape[0], state if maps is None else maps
    plan, n, c, size = _plan_for(x, hidden)
    tile, steps, (row, deep, warps) = plan.tile, plan.steps, plan.row
    share, flags = state if amount is None else amount, (amount is not None, weight is not None)
    dx, grads = empty_like(x), empty_like(state)
    gradients: list[Any] = [None if parameter is None else empty_like(parameter) for parameter in parameters]
    damount = grads if amount is None else gradients[4]
    dmaps = state  # not used
    if weight is not None:
        kept = Kept(state, maps, moments)
        dmaps = _spatial_backward(
            g, x, share, weight, gamma, kept, damount, gradients, plan, training, flags[0], of_parameters
        )
    grid, turns = plan.pool
    partial = empty((n, grid[2], c), torch.float32, x.device)
    sizes: tuple[int, ...] = size, c, *steps, turns, *flags, *tile
    launch(channel.gate_grad, grid, (g, x, maps, dmaps, share, partial), sizes, num_warps=8)
    sizes = size, c, hidden, grid[2], *pools, *flags, row, deep
    launch(channel.perceptron_grad, (n,), (partial, state, grads, w1, w2, share), sizes, num_warps=warps)
    grid, turns = plan.multiply
    sizes = size, c, hidden, *steps, turns, *pools, *flags, *tile
    launch(channel.input_grad, grid, (g, dx, state, grads, maps, dmaps, share), sizes, num_warps=8)
    if of_parameters:
        sizes = n, c, hidden, *pools, flags[0] and not flags[1], 32, 32, 16
        grid = _ceil(c, 32), _ceil(hidden, 16), 1
        launch(channel.parameter_grad, grid, (state, grads, *gradients[:4], damount), sizes)
    return [dx, *gradients]


def _spatial_backward(
    g: Tensor, x: Tensor, share: Tensor, weight: Tensor, gamma: Tensor, kept: Kept, damount: Tensor,
    gradients: list[Any], plan: _Plan, training: bool, blend: bool, of_parameters: bool,
) -> Tensor:  # fmt: skip
    """The gradients of the maps (N, 3, H·W); fills in those of the gate's parameters and of the amount."""
    (n, c, h, w), (state, maps, moments) = x.shape, kept
    size, kernel, columns = h * w, weight.shape[-1], plan.columns
    dmaps = empty((n, 3, size), torch.float32, x.device)
    grid, turns = plan.positions
    parts = grid[0] * grid[1]
    partial = empty((3, parts), torch.float32, x.device)
    sizes: tuple[int, ...] = size, c, state.shape[1], *plan.steps, turns, blend, *plan.across
    launch(spatial.spatial_grad, grid, (g, x, state, maps, dmaps, moments, share, partial), sizes, num_warps=8)
    launch(
        spatial.norm_grad,
        (_ceil(n * size, POSITIONS),),
        (maps, dmaps, partial, gamma, moments, *gradients[6:], damount),
        (n * size, size, parts, training, blend, POSITIONS, min(POSITIONS, _power(parts))),
    )
    sizes = h, w, 3 * size, 3 * size, size, *_strides(weight), kernel, columns
    launch(spatial.convolution_input_grad, (n, _ceil(size, columns)), (dmaps, weight, dmaps), sizes)
    if of_parameters:
        _weight_grad(maps, dmaps, weight, h, w, 5 * size, 3 * size, gradients[5])
    return dmaps


def _weight_grad(
    pair: Tensor, g: Tensor, weight: Tensor, h: int, w: int, pair_step: int, g_step: int, out: Tensor
) -> None:
    """Gradient of the convolution's weight, (1, 2, K, K), into ``out``, which is laid out like it."""
    kernel, count = weight.shape[-1], len(g) * h * w
    steps = max(4, _ceil(count, ROWS * PROGRAMS))
    programs, taps = _ceil(count, ROWS * steps), 2 * kernel * kernel
    sums = empty((programs, taps), torch.float32, g.device)
    sizes: tuple[int, ...] = count, h, w, pair_step, g_step, *_strides(weight), steps, kernel, ROWS, _power(taps)
    launch(spatial.convolution_weight_grad, (programs,), (pair, g, sums), sizes)
    sum_parts(sums, out.dtype, out)


def _strides(weight: Tensor) -> tuple[int, int]:
    """From one channel of the convolution's weight (1, 2, K, K), and from one tap, to the next."""
    return (weight.shape[-1] ** 2, 1) if weight.is_contiguous() else (1, 2)


def _columns(size: int) -> int:
    """Positions of a program of the convolution."""
    return max(128, min(512, _power(size)))


@on_its_device
def convolve(pair: Tensor, weight: Tensor) -> Tensor:
    """The convolution of a spatial gate by itself: contiguous (N, 2, H, W) and (1, 2, K, K) to float32 (N, 1, H, W)."""
    n, _, h, w = pair.shape
    size, columns = h * w, _columns(h * w)
    out = torch.empty((n, 1, h, w), dtype=torch.float32, device=pair.device)
    sizes: tuple[int, ...] = h, w, 2 * size, size, 0, *_strides(weight), weight.shape[-1], False, columns
    launch(spatial.convolve, (n, _ceil(size, columns)), (pair, weight, out, out), sizes)
    return out


@on_its_device
def convolve_backward(g: Tensor, pair: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of both arguments of :func:`convolve`; all contiguous."""
    n, _, h, w = pair.shape
    size, columns = h * w, _columns(h * w)
    dpair = torch.empty_like(pair)
    sizes: tuple[int, ...] = h, w, size, 2 * size, 0, *_strides(weight), weight.shape[-1], columns
    launch(spatial.convolution_input_grad, (n, _ceil(size, columns)), (g, weight, dpair), sizes)
    dweight = torch.empty_like(weight)
    _weight_grad(pair, g, weight, h, w, 2 * size, size, dweight)
    return dpair, dweight
