"""Convolutional block attention module.

Woo, Park, Lee, Kweon: "CBAM: Convolutional Block Attention Module" (https://arxiv.org/abs/1807.06521). The two gates
can be switched independently, since the AW-convolution paper uses two reduced forms: ``pools=("avg", "max"),
spatial=False`` and ``pools=("avg",), spatial=True``.
"""

from __future__ import annotations

from torch import Tensor, nn

from foveal.attention.insertion.registry import Blend, Gate, Start, bottleneck, register_mechanism
from foveal.attention.records.record import Attends
from foveal.compat import only_computes
from foveal.errors import UserError, unknown
from foveal.kernels.gates.fused import fused_gates
from foveal.kernels.gates.plain import blend, channel_gate, spatial_gate


class ChannelGate(Attends):
    """One multilayer perceptron over pooled channels; its outputs for all poolings are added before the sigmoid."""

    kind = "channel"

    def __init__(self, channels: int, *, reduction: int, pools: tuple[str, ...]) -> None:
        super().__init__()
        self.pools = pools
        hidden = bottleneck(channels, reduction)
        self.squeeze = nn.Linear(channels, hidden)
        self.excite = nn.Linear(hidden, channels)

    def forward(self, x: Tensor) -> Tensor:
        """Gate of ``x`` (N, C, H, W): (N, C)."""
        gate = channel_gate(x, self.pools, self.squeeze, self.excite)
        self.note(gate)
        return gate


class SpatialGate(Attends):
    """A 7×7 convolution over the maximum and mean of the channels at every position."""

    kind = "spatial"

    def __init__(self, *, kernel: int = 7) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 1, kernel, padding=kernel // 2, bias=False)
        self.norm = nn.BatchNorm2d(1)

    def forward(self, x: Tensor) -> Tensor:
        """Gate of ``x`` (N, C, H, W): (N, H, W)."""
        if self.training and len(x) * x.shape[2] * x.shape[3] == 1:
            raise UserError(
                "one sample with a 1×1 map cannot be normalised in training mode: train with a batch of at least two, "
                "or switch the attention to eval mode"
            )
        gate = spatial_gate(x, self.conv, self.norm)
        self.note(gate)
        return gate


@register_mechanism("cbam")
class CBAM(Gate):
    """Convolutional block attention: a channel gate, then a spatial gate; each can be switched.

    Args:
        channels: channels C of the feature map.
        reduction: C divided by this is the width of the channel gate's bottleneck, at least 1.
        pools: poolings of the channel gate: ``avg``, ``max`` or both.
        spatial: whether the spatial gate follows.
        start: ``identity`` to start as the identity (one more parameter), ``paper`` for the published module.

    >>> import torch
    >>> CBAM(64)(torch.rand(2, 64, 7, 5)).shape
    torch.Size([2, 64, 7, 5])
    """

    kind = "spatial"

    def __init__(
        self,
        channels: int,
        *,
        reduction: int = 16,
        pools: str | tuple[str, ...] | list[str] = ("avg", "max"),
        spatial: bool = True,
        start: Start = "paper",
    ) -> None:
        super().__init__()
        pools = (pools,) if isinstance(pools, str) else tuple(pools)
        if not pools:
            raise UserError("pools is empty; expected avg, max or both")
        for pool in pools:
            if pool not in ("avg", "max"):
                raise unknown("pooling", pool, ("avg", "max"))
        self.channel = ChannelGate(channels, reduction=reduction, pools=pools)
        self.spatial = SpatialGate() if spatial else None
        if self.spatial is not None and start == "paper":  # as in the authors' code: the gate is uniform at first
            nn.init.kaiming_normal_(self.spatial.conv.weight, mode="fan_out", nonlinearity="relu")
            nn.init.zeros_(self.spatial.norm.weight)
        self.blend = Blend(start)

    def forward(self, x: Tensor) -> Tensor:
        """Gate ``x`` (N, C, H, W)."""
        out = self._fused(x)
        if out is not None:
            return out
        channel = self.channel(x)
        if self.spatial is None:
            return self.blend(x, channel)
        attended = x * channel.to(x.dtype)[:, :, None, None]
        return blend(x, attended, channel, self.spatial(attended), self.blend.amount)

    def _fused(self, x: Tensor) -> Tensor | None:
        """The result in few launches, or None where the plain form must run."""
        channel, spatial = self.channel, self.spatial
        if channel.watchers or not (only_computes(channel, ChannelGate) and only_computes(self.blend, Blend)):
            return None
        gate: tuple[nn.Module, ...] = ()
        if spatial is not None:
            if spatial.watchers or not only_computes(spatial, SpatialGate):
                return None
            gate = spatial.conv, spatial.norm
        return fused_gates(x, channel.pools, channel.squeeze, channel.excite, self.blend.amount, *gate)
