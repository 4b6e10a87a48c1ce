"""Deformable convolution in plain PyTorch: bilinear samples, then one matrix product; differentiable twice."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Geometry(NamedTuple):
    """What a deformable convolution is beside its tensors.

    Attributes:
        kernel: (h, w).
        stride, padding, dilation: of the convolution.
        deform_groups: of channels with offsets of their own, G.
        groups: of the convolution.
    """

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    deform_groups: int
    groups: int = 1

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of the result."""
        sides = zip((height, width), *self[:4], strict=True)
        h, w = ((side + 2 * p - d * (k - 1) - 1) // s + 1 for side, k, s, p, d in sides)
        return h, w


def sampling_points(offset: Tensor, g: Geometry) -> Tensor:
    """Where a deformable convolution samples its input.

    Args:
        offset: (N, G · K · 2, H', W') for K kernel positions, y before x.
        g: the geometry.

    Returns:
        (N, G, K, H', W', 2): x and y in pixels of the input, (0, 0) being the centre of its first pixel.
    """
    rows, columns = offset.shape[2:]
    taps, device = g.kernel[0] * g.kernel[1], offset.device
    shifts = offset.unflatten(1, (-1, taps, 2))  # (N, G, K, 2, H', W')
    tap = torch.arange(taps, device=device)
    y = (tap // g.kernel[1] * g.dilation[0])[:, None] + torch.arange(rows, device=device) * g.stride[0] - g.padding[0]
    x = (tap % g.kernel[1] * g.dilation[1])[:, None] + torch.arange(columns, device=device) * g.stride[1] - g.padding[1]
    return torch.stack([shifts[:, :, :, 1] + x[:, None, :], shifts[:, :, :, 0] + y[:, :, None]], -1)


def deform_conv(
    x: Tensor, offset: Tensor, modulation: Tensor | None, weight: Tensor, bias: Tensor | None, g: Geometry
) -> Tensor:
    """Convolve samples of the input instead of its pixels; outside of the input they are zero.

    Args:
        x: (N, C1, H, W).
        offset: (N, G · K · 2, H', W') for K kernel positions, y before x.
        modulation: (N, G · K, H', W'), what the samples are multiplied by, or None.
        weight: (C2, C1/groups, h, w).
        bias: (C2,) or None.
        g: the geometry.

    Returns:
        (N, C2, H', W').
    """
    n, channels, height, width = x.shape
    points = sampling_points(offset, g)
    parts, taps, rows, columns = points.shape[1:5]
    flat = x.reshape(n, parts, channels // parts, height * width)
    low = points.floor()
    part = points - low  # in [0, 1): how far towards the next pixel
    samples: Tensor | None = None
    for dy in (0, 1):
        for dx in (0, 1):
            px, py = low[..., 0].long() + dx, low[..., 1].long() + dy
            inside = (px >= 0) & (px < width) & (py >= 0) & (py < height)
            share = (part[..., 0] if dx else 1 - part[..., 0]) * (part[..., 1] if dy else 1 - part[..., 1])
            place = (py.clamp(0, height - 1) * width + px.clamp(0, width - 1)).flatten(2)  # (N, G, K·H'·W')
            picked = flat.gather(3, place[:, :, None].expand(-1, -1, channels // parts, -1))
            picked = picked * (share * inside).flatten(2)[:, :, None]
            samples = picked if samples is None else samples + picked
    assert samples is not None
    if modulation is not None:
        samples = samples * modulation.unflatten(1, (parts, taps)).flatten(2)[:, :, None]
    samples = samples.flatten(1, 2).unflatten(2, (taps, rows * columns))  # (N, C1, K, H'·W')
    grouped = samples.unflatten(1, (g.groups, -1)).flatten(2, 3)
    kernels = weight.unflatten(0, (g.groups, -1)).flatten(2)
    out = (kernels @ grouped).flatten(1, 2).unflatten(2, (rows, columns))
    return out if bias is None else out + bias[:, None, None]
