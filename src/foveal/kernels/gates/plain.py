"""Channel and spatial gates in plain PyTorch: the reference of the fused form, and what runs everywhere.

The layers are given as callables: modules, or functions of the parameters at hand.

Maxima are taken by ``max``, which stores their indices, not by ``amax``: its gradient searches for the maximum again,
and compiled half-precision code, which rounds differently the second time, finds none and divides by zero. PyTorch's
gradient of ``max`` scatters into a map of zeros, always contiguous: the compiler cannot fuse it, and what follows on a
channels-last map is transposed. Compiled, the gradient compares indices instead, which is one expression of the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from foveal.compat import exporting, only_computes

Layer = Callable[[Tensor], Tensor]


def channel_gate(x: Tensor, pools: Sequence[str], squeeze: Layer, excite: Layer) -> Tensor:
    """Sigmoid of the sum, over ``pools`` (``avg``, ``max``), of a perceptron of x (N, C, H, W) pooled: (N, C)."""
    pooled = [x.mean((2, 3)) if pool == "avg" else largest_position(x) for pool in pools]
    dtype = _own_dtype(squeeze, excite) if torch.compiler.is_compiling() and not exporting() else None
    if dtype is None:
        return _perceptron(pooled, squeeze, excite)
    # The products are tiny. Autocast would launch four kernels that round their weights and biases.
    with torch.autocast(x.device.type, enabled=False):
        return _perceptron([pool.to(dtype) for pool in pooled], squeeze, excite)


def _own_dtype(*layers: Layer) -> torch.dtype | None:
    """The dtype of linear layers that are nothing else and have one dtype; None of others."""
    if not all(isinstance(layer, nn.Module) and only_computes(layer, nn.Linear) for layer in layers):
        return None
    dtypes = {layer.weight.dtype for layer in layers}  # type: ignore[attr-defined]
    return dtypes.pop() if len(dtypes) == 1 else None


def _perceptron(pooled: list[Tensor], squeeze: Layer, excite: Layer) -> Tensor:
    """The gate from the poolings, each (N, C)."""
    if len(pooled) == 1:
        return torch.sigmoid(excite(torch.relu(squeeze(pooled[0]))))
    return torch.sigmoid(excite(torch.relu(squeeze(torch.stack(pooled)))).sum(0))


def spatial_gate(x: Tensor, conv: Layer, norm: Layer) -> Tensor:
    """Sigmoid of a normalised convolution of the maximum and mean over the channels of x (N, C, H, W): (N, H, W)."""
    stacked = torch.cat([largest_channel(x), x.mean(1, keepdim=True)], 1)
    return torch.sigmoid(norm(conv(stacked))).squeeze(1)


def multiply(x: Tensor, channel: Tensor, amount: Tensor | None) -> Tensor:
    """x·(1 + amount·(gate − 1)), rounded once; x·gate without an amount. x (N, C, H, W), gate (N, C)."""
    if amount is None:
        return x * channel.to(x.dtype)[:, :, None, None]
    channel = channel.to(torch.promote_types(channel.dtype, torch.float32))
    return (x * (1 + amount * (channel - 1))[:, :, None, None]).to(x.dtype)


def blend(x: Tensor, attended: Tensor, channel: Tensor, spatial: Tensor, amount: Tensor | None) -> Tensor:
    """Blend: x + amount·(attended·spatial − x), rounded once if compiled; attended·spatial without an amount.

    Args:
        x: (N, C, H, W).
        attended: x times its channel gate, (N, C, H, W); compiled, it is not read, so that no second map is kept.
        channel: (N, C).
        spatial: (N, H, W).
        amount: () or None.
    """
    if not torch.compiler.is_compiling():
        attended = attended * spatial.to(x.dtype)[:, None]
        return attended if amount is None else torch.lerp(x, attended, amount.to(x.dtype))
    channel, spatial = (gate.to(torch.promote_types(gate.dtype, torch.float32)) for gate in (channel, spatial))
    channel, spatial = channel[:, :, None, None], spatial[:, None]
    if amount is None:
        return (x * (channel * spatial)).to(x.dtype)
    # Both summands are maps of one channel, so that the gradient of the amount needs no pass of its own.
    return (x * ((torch.ones_like(spatial) - amount) + channel * (amount * spatial))).to(x.dtype)


def largest_position(x: Tensor) -> Tensor:
    """Maximum of every channel of x (N, C, H, W): (N, C)."""
    if not torch.compiler.is_compiling():
        return x.flatten(2).max(2).values
    values: Tensor = _LargestPosition.apply(x)
    return values


def largest_channel(x: Tensor) -> Tensor:
    """Maximum over the channels of x (N, C, H, W): (N, 1, H, W)."""
    if not torch.compiler.is_compiling():
        return x.max(1, keepdim=True).values
    values: Tensor = _LargestChannel.apply(x)
    return values


class _LargestPosition(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        values, indices = x.flatten(2).max(2)
        ctx.save_for_backward(indices)
        ctx.size = x.shape[2:]
        return values

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (indices,), (h, w) = ctx.saved_tensors, ctx.size
        positions = torch.arange(h * w, device=g.device).view(h, w)
        return torch.where(positions == indices[:, :, None, None], g[:, :, None, None], 0)


class _LargestChannel(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        values, indices = x.max(1, keepdim=True)
        ctx.save_for_backward(indices)
        ctx.channels = x.shape[1]
        return values

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (indices,) = ctx.saved_tensors
        channels = torch.arange(ctx.channels, device=g.device)[:, None, None]
        return torch.where(channels == indices, g, 0)
