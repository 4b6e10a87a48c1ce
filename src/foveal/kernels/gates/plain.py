"""Channel and spatial gates in plain PyTorch: the reference of the fused form, and what runs everywhere.

The layers are given as callables: modules, or functions of the parameters at hand.

Maxima are taken by ``max``, which stores their indices, not by ``amax``: its gradient searches for the maximum again,
and compiled half-precision code, which rounds differently the second time, finds none and divides by zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Layer = Callable[[Tensor], Tensor]


def channel_gate(x: Tensor, pools: Sequence[str], squeeze: Layer, excite: Layer) -> Tensor:
    """Sigmoid of the sum, over ``pools`` (``avg``, ``max``), of a perceptron of x (N, C, H, W) pooled: (N, C)."""
    pooled = [x.mean((2, 3)) if pool == "avg" else x.flatten(2).max(2).values for pool in pools]
    if len(pooled) == 1:
        return torch.sigmoid(excite(torch.relu(squeeze(pooled[0]))))
    return torch.sigmoid(excite(torch.relu(squeeze(torch.stack(pooled)))).sum(0))


def spatial_gate(x: Tensor, conv: Layer, norm: Layer) -> Tensor:
    """Sigmoid of a normalised convolution of the maximum and mean over the channels of x (N, C, H, W): (N, H, W)."""
    stacked = torch.cat([x.max(1, keepdim=True).values, x.mean(1, keepdim=True)], 1)
    return torch.sigmoid(norm(conv(stacked))).squeeze(1)


def multiply(x: Tensor, channel: Tensor, amount: Tensor | None) -> Tensor:
    """x·(1 + amount·(gate − 1)), rounded once; x·gate without an amount. x (N, C, H, W), gate (N, C)."""
    if amount is None:
        return x * channel.to(x.dtype)[:, :, None, None]
    channel = channel.to(torch.promote_types(channel.dtype, torch.float32))
    return (x * (1 + amount * (channel - 1))[:, :, None, None]).to(x.dtype)


def blend(x: Tensor, attended: Tensor, amount: Tensor | None) -> Tensor:
    """x + amount·(attended − x); the attended map itself without an amount."""
    return attended if amount is None else torch.lerp(x, attended, amount.to(x.dtype))
