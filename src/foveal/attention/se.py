"""Squeeze and excitation.

Hu, Shen, Sun: "Squeeze-and-Excitation Networks" (https://arxiv.org/abs/1709.01507). The two layers have biases, as in
the networks that the AW-convolution paper compares with.
"""

from __future__ import annotations

from torch import Tensor, nn

from foveal.attention.insertion.registry import Blend, Gate, Start, bottleneck, register_mechanism
from foveal.compat import only_computes
from foveal.kernels.gates.fused import fused_gates
from foveal.kernels.gates.plain import channel_gate


@register_mechanism("se")
class SqueezeExcite(Gate):
    """Squeeze and excitation: every channel scaled by a gate computed from all channels' means.

    Args:
        channels: channels C of the feature map.
        reduction: C divided by this is the width of the bottleneck, at least 1.
        start: ``identity`` to start as the identity (one more parameter), ``paper`` for the published module.

    >>> import torch
    >>> SqueezeExcite(64, start="paper")(torch.rand(2, 64, 7, 5)).shape
    torch.Size([2, 64, 7, 5])
    """

    kind = "channel"

    def __init__(self, channels: int, *, reduction: int = 16, start: Start = "paper") -> None:
        super().__init__()
        hidden = bottleneck(channels, reduction)
        self.squeeze = nn.Linear(channels, hidden)
        self.excite = nn.Linear(hidden, channels)
        self.blend = Blend(start)

    def forward(self, x: Tensor) -> Tensor:
        """Gate ``x`` (N, C, H, W)."""
        if not self.watchers and only_computes(self.blend, Blend):
            out = fused_gates(x, ("avg",), self.squeeze, self.excite, self.blend.amount)
            if out is not None:
                return out
        gate = channel_gate(x, ("avg",), self.squeeze, self.excite)
        self.note(gate)
        return self.blend(x, gate)
