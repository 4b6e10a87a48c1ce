"""Dynamic convolution: each position computes the weights of its own neighbourhood.

Wu, Fan, Baevski, Dauphin, Auli: "Pay Less Attention with Lightweight and Dynamic Convolutions"
(https://arxiv.org/abs/1901.10430), for language; for images as Zhu et al. compare it in "An Empirical Study of Spatial
Attention Mechanisms in Deep Networks" (https://arxiv.org/abs/1904.05873).

Departures: the second paper does not say how its vision form is built. Here the weights come from the map itself, the
values from a 1×1 convolution of it; 16 groups and 5×5 taps are our reading, and where 16 does not divide the channels
the number of groups is their greatest common divisor. γ is multiplied into the weights of the output projection.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foveal.attention.checks import check_maps, check_sequences, check_whole
from foveal.attention.deform1d import last_of
from foveal.attention.insertion.registry import Start, check_start, register_mechanism
from foveal.attention.insertion.stages import InsideBlocks
from foveal.attention.records.record import Attends
from foveal.errors import UserError
from foveal.kernels.dynamic.taps import dynamic_conv


@register_mechanism("dynamic")
class DynamicConv2d(InsideBlocks):
    """Dynamic convolution: a softmax over fixed taps, from the content of each position.

    For tap m and group g of channels, with p_m the tap's offset::

        K_{·,g}(q) = softmax over m of d_{m,g}ᵀ x_q;   y_q = x_q + γ · W Σ_m K_{m,g}(q) V x_{q + p_m}

    Outside of the map x is zero, and the weights are not normalised again. γ is zero at first, so the module starts as
    the identity, whatever ``start`` says; it has no dimensions, and foveal's optimisers do not decay it.

    Args:
        channels: channels C of the map.
        kernel: side of the window; odd.
        groups: number of groups of channels that share weights; by default the greatest common divisor of 16 and C.
        start: both are the same.

    >>> DynamicConv2d(64)(torch.rand(2, 64, 7, 5)).shape
    torch.Size([2, 64, 7, 5])
    """

    kind = "weight"
    normalised = True

    def __init__(self, channels: int, *, kernel: int = 5, groups: int | None = None, start: Start = "identity") -> None:
        super().__init__()
        check_start(start)
        check_whole(channels=channels)
        self.channels, self.kernel = channels, kernel
        self.groups = math.gcd(16, channels) if groups is None else groups
        _check(channels, kernel, self.groups, odd=True)
        self.value = nn.Conv2d(channels, channels, 1, bias=False)
        self.weights = nn.Conv2d(channels, self.groups * kernel * kernel, 1, bias=False)
        self.proj = nn.Conv2d(channels, channels, 1)
        for conv in (self.value, self.weights, self.proj):
            nn.init.kaiming_uniform_(conv.weight, a=1)
        assert self.proj.bias is not None
        nn.init.zeros_(self.proj.bias)
        self.gamma = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        """Attend: (N, C, H, W) to (N, C, H, W)."""
        check_maps(x, self.channels)
        values, margin = self.value(x), self.kernel // 2
        logits = self.weights(x).unflatten(1, (self.groups, -1))
        weights = logits.softmax(2, dtype=torch.promote_types(logits.dtype, torch.float32))
        weights = weights.unflatten(2, (self.kernel, self.kernel))  # (N, G, k, k, H, W)
        self.note(weights)
        taps = weights.flatten(2, 3).to(values.dtype)
        gathered = dynamic_conv(values, taps, (self.kernel, self.kernel), (margin, margin, margin, margin))
        assert self.proj.bias is not None
        out = F.conv2d(gathered, self.gamma * self.proj.weight, self.gamma * self.proj.bias)
        return x + out.to(x.dtype)

    def extra_repr(self) -> str:
        """Show what the children do not."""
        return f"kernel={self.kernel}, groups={self.groups}"


class DynamicConv1d(Attends):
    """Dynamic convolution of sequences, in place of self-attention.

    Linear C → 2C, GLU, a softmax over taps from the result of each position, the sum over taps, Linear C → C.

    Args:
        channels: channels C of the sequence.
        kernel: number of taps; odd unless ``causal``.
        groups: number of groups of channels that share weights; must divide C.
        causal: whether a position sees itself and earlier ones only.
        drop: probability that a weight is dropped in training (DropConnect).

    >>> DynamicConv1d(64, kernel=3, groups=8)(torch.rand(2, 11, 64)).shape
    torch.Size([2, 11, 64])
    """

    kind = "weight"
    normalised = True

    def __init__(
        self, channels: int, *, kernel: int = 3, groups: int = 8, causal: bool = False, drop: float = 0.0
    ) -> None:
        super().__init__()
        _check(channels, kernel, groups, odd=not causal)
        if not (isinstance(drop, int | float) and 0 <= drop < 1):
            raise UserError(f"drop={drop!r}: expected a probability from 0 to below 1")
        self.channels, self.kernel, self.groups, self.causal, self.drop = channels, kernel, groups, causal, drop
        self.value = nn.Linear(channels, 2 * channels)
        self.weights = nn.Linear(channels, groups * kernel, bias=False)
        self.proj = nn.Linear(channels, channels)
        for linear in (self.value, self.weights, self.proj):
            nn.init.xavier_uniform_(linear.weight)
        for linear in (self.value, self.proj):
            nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Convolve.

        Args:
            x: (N, T, C).
            mask: bool (N, T), true for real positions and false for padding, which counts as zeros; the weights are not
                normalised again. All are real if left out.

        Returns:
            (N, T, C), zero at padding.
        """
        check_sequences(x, self.channels, mask)
        values = F.glu(self.value(x), -1)
        if mask is not None:
            values = values.masked_fill(~mask[..., None], 0)
        weights = self._weights(values).permute(0, 2, 3, 1)  # (N, G, K, T)
        self.note(weights)
        weights = F.dropout(weights, self.drop, self.training).to(values.dtype)
        left = self.kernel - 1 if self.causal else self.kernel // 2
        padding = (left, self.kernel - 1 - left, 0, 0)
        gathered = dynamic_conv(values.mT[:, :, None], weights[:, :, :, None], (1, self.kernel), padding)
        out = self.proj(gathered[:, :, 0].mT)
        return out if mask is None else out.masked_fill(~mask[..., None], 0)

    def _weights(self, values: Tensor) -> Tensor:
        """Weights of the taps at each position: (..., C) to (..., G, K)."""
        logits = self.weights(values).unflatten(-1, (self.groups, -1))
        return logits.softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))

    def step(self, x: Tensor, position: Tensor, cache: Tensor) -> Tensor:
        """The next position of each sequence, of a causal convolution.

        Args:
            x: (N, C).
            position: its number, int64 (1,), on the device.
            cache: values at earlier positions, (1, N, L, C); those of this one are written into it.

        Returns:
            (N, C).
        """
        values, past = F.glu(self.value(x), -1), cache[0]
        past.index_copy_(1, position, values[:, None].to(cache.dtype))
        window = last_of(past, position, self.kernel).to(values.dtype).unflatten(-1, (self.groups, -1))
        weights = self._weights(values).to(values.dtype)
        return self.proj(torch.einsum("ngk,nkgc->ngc", weights, window).flatten(1))

    def extra_repr(self) -> str:
        """Show what the children do not."""
        return f"kernel={self.kernel}, groups={self.groups}, causal={self.causal}, drop={self.drop}"


def _check(channels: int, kernel: int, groups: int, *, odd: bool) -> None:
    """Raise for options that no dynamic convolution can have."""
    check_whole(channels=channels, kernel=kernel, groups=groups)
    if odd and kernel % 2 == 0:
        raise UserError(f"kernel={kernel}: expected an odd number")
    if channels % groups:
        raise UserError(f"groups={groups} does not divide {channels} channels")
