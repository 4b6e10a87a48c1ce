"""Deformable convolution of sequences: each position decides where the taps of the kernel look.

The one-dimensional form of :mod:`foveal.attention.deform`, which Zhu et al. insert before the self-attention of a
Transformer: "An Empirical Study of Spatial Attention Mechanisms in Deep Networks" (https://arxiv.org/abs/1904.05873).

Departures: in a decoder the taps are the position itself and the ones before it, and samples later than the position
are moved back to it; the paper does not say how the future is hidden.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foveal.attention.checks import check_sequences, check_whole
from foveal.attention.deform import SamplingPoints
from foveal.attention.records.record import Attends
from foveal.errors import UserError


class DeformConv1d(Attends):
    """Deformable convolution of sequences.

    For tap p_k of kernel w, with offsets Δp from a convolution of the kernel's own size, which is zero at first::

        y(q) = Σ_k w_k · x(q + p_k + Δp_k(q)) + b

    Between positions x is linear, outside of the sequence zero.

    Args:
        channels: channels C of the sequence.
        kernel: number of taps K; odd unless ``causal``.
        causal: whether a position sees itself and earlier ones only.

    >>> DeformConv1d(64)(torch.rand(2, 11, 64)).shape
    torch.Size([2, 11, 64])
    """

    kind = "points"

    def __init__(self, channels: int, *, kernel: int = 3, causal: bool = False) -> None:
        super().__init__()
        check_whole(channels=channels, kernel=kernel)
        if kernel % 2 == 0 and not causal:
            raise UserError(f"kernel={kernel}: expected an odd number")
        self.channels, self.kernel, self.causal = channels, kernel, causal
        self.offset = nn.Linear(kernel * channels, kernel)
        self.weight = nn.Linear(kernel * channels, channels)
        nn.init.zeros_(self.offset.weight)
        nn.init.zeros_(self.offset.bias)
        nn.init.xavier_uniform_(self.weight.weight)
        nn.init.zeros_(self.weight.bias)

    @property
    def left(self) -> int:
        """How many taps are before the position."""
        return self.kernel - 1 if self.causal else self.kernel // 2

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Convolve.

        Args:
            x: (N, T, C).
            mask: bool (N, T), true for real positions and false for padding, which counts as zeros. All are real if
                left out.

        Returns:
            (N, T, C).
        """
        check_sequences(x, self.channels, mask)
        if x.shape[1] == 0:
            raise UserError(f"sequences {tuple(x.shape)} have no positions: T must be at least 1")
        if mask is not None:
            x = x.masked_fill(~mask[..., None], 0)
        padded = F.pad(x, (0, 0, self.left, self.kernel - 1 - self.left))
        windows = padded.unfold(1, self.kernel, 1).mT.flatten(2)  # (N, T, K · C)
        positions = torch.arange(x.shape[1], device=x.device)
        return self._sampled(x, windows, positions)

    def _sampled(self, x: Tensor, windows: Tensor, positions: Tensor) -> Tensor:
        """The convolution at some positions, int64 (Q,), whose own windows are (N, Q, K · C): (N, Q, C)."""
        offset = self.offset(windows)
        taps = torch.arange(self.kernel, device=x.device) - self.left
        wide = torch.promote_types(offset.dtype, torch.float32)  # half precision could not tell long positions apart
        points = (positions[:, None] + taps).to(wide) + offset.to(wide)  # (N, Q, K)
        if self.causal:
            points = points.minimum(positions[:, None].to(wide))
        if self.watchers:  # as those of a map of one row
            places = points.mT[:, None, :, None]
            self.note(SamplingPoints(torch.stack([places, torch.zeros_like(places)], -1), None, (1, x.shape[1])))
        return self.weight(sampled(x, points).flatten(2))

    def step(self, x: Tensor, position: Tensor, cache: Tensor) -> Tensor:
        """The next position of each sequence.

        Args:
            x: (N, C).
            position: its number, int64 (1,), on the device.
            cache: the input at earlier positions, (1, N, L, C); this one is written into it.

        Returns:
            (N, C).
        """
        past = cache[0]
        past.index_copy_(1, position, x[:, None].to(cache.dtype))
        windows = last_of(past, position, self.kernel).to(x.dtype).flatten(1)[:, None]
        return self._sampled(past.to(x.dtype), windows, position)[:, 0]

    def extra_repr(self) -> str:
        """Show what the children do not."""
        return f"kernel={self.kernel}, causal={self.causal}"


def sampled(x: Tensor, points: Tensor) -> Tensor:
    """Values between the positions of sequences, linearly; zero outside.

    Args:
        x: (N, T, C).
        points: positions, (N, Q, K), float32 or wider.

    Returns:
        (N, Q, K, C), in the precision of ``x``.

    >>> sampled(torch.tensor([[[0.0], [10.0]]]), torch.tensor([[[0.3, 1.5, 7.0]]])).flatten()
    tensor([3., 5., 0.])
    """
    low = points.floor()
    share = points - low
    out: Tensor | None = None
    for step, weight in ((0, 1 - share), (1, share)):
        place = low.long() + step
        inside = (place >= 0) & (place < x.shape[1])
        index = place.clamp(0, x.shape[1] - 1).flatten(1)[..., None].expand(-1, -1, x.shape[2])
        part = x.gather(1, index).unflatten(1, points.shape[1:]) * (weight * inside).to(x.dtype)[..., None]
        out = part if out is None else out + part
    assert out is not None
    return out


def last_of(past: Tensor, position: Tensor, count: int) -> Tensor:
    """The positions up to ``position``, int64 (1,), of sequences (N, L, C): (N, count, C), zero before the first."""
    places = position + torch.arange(1 - count, 1, device=past.device)
    return past.index_select(1, places.clamp_min(0)) * (places >= 0).to(past.dtype)[:, None]
