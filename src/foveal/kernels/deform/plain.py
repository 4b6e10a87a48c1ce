"""Deformable convolution in plain PyTorch: bilinear samples, then one matrix product; differentiable twice."""

from __future__ import annotations

import torch
from torch import Tensor


def sampling_points(
    offset: Tensor,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
) -> Tensor:
    """Where a deformable convolution samples its input.

    Args:
        offset: (N, G · K · 2, H', W') for G deformable groups and K kernel positions, y before x.
        kernel: (h, w).
        stride: of the convolution.
        padding: of the convolution.
        dilation: of the convolution.

    Returns:
        (N, G, K, H', W', 2): x and y in pixels of the input, (0, 0) being the centre of its first pixel.
    """
    rows, columns = offset.shape[2:]
    taps, device = kernel[0] * kernel[1], offset.device
    shifts = offset.unflatten(1, (-1, taps, 2))  # (N, G, K, 2, H', W')
    tap = torch.arange(taps, device=device)
    y = (tap // kernel[1] * dilation[0])[:, None] + torch.arange(rows, device=device) * stride[0] - padding[0]
    x = (tap % kernel[1] * dilation[1])[:, None] + torch.arange(columns, device=device) * stride[1] - padding[1]
    return torch.stack([shifts[:, :, :, 1] + x[:, None, :], shifts[:, :, :, 0] + y[:, :, None]], -1)


def deform_conv(
    x: Tensor,
    points: Tensor,
    modulation: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    groups: int = 1,
) -> Tensor:
    """Convolve samples of the input instead of its pixels.

    Args:
        x: (N, C1, H, W).
        points: (N, G, K, H', W', 2), as :func:`sampling_points` returns; outside of the input it is zero.
        modulation: (N, G, K, H', W'), what the samples are multiplied by, or None.
        weight: (C2, C1/groups, h, w).
        bias: (C2,) or None.
        groups: of the convolution.

    Returns:
        (N, C2, H', W').
    """
    n, channels, height, width = x.shape
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
        samples = samples * modulation.flatten(2)[:, :, None]
    samples = samples.flatten(1, 2).unflatten(2, (taps, rows * columns))  # (N, C1, K, H'·W')
    grouped = samples.unflatten(1, (groups, -1)).flatten(2, 3)
    kernels = weight.unflatten(0, (groups, -1)).flatten(2)
    out = (kernels @ grouped).flatten(1, 2).unflatten(2, (rows, columns))
    return out if bias is None else out + bias[:, None, None]
