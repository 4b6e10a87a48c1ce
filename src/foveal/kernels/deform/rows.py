"""Deformable convolution on a CPU: weighted sums of whole rows of channels, then one matrix product.

torchvision's operator works out the four pixels around a sample anew for each channel. With channels last they are
four contiguous rows, and a sample is their weighted sum: what ``embedding_bag`` computes, in vector instructions. The
product is a 1×1 convolution, which oneDNN runs faster than the same matrix product.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from foveal.kernels.deform.plain import Geometry, sampling_points
from foveal.kernels.support import in_layout_of, observed

CHUNK = 2**22  # most numbers in the samples of some images: what fits into a cache


def deform_conv_by_rows(
    x: Tensor, offset: Tensor, modulation: Tensor | None, weight: Tensor, bias: Tensor | None, g: Geometry
) -> Tensor:
    """Deformable convolution, some images at a time; their samples are taken again in the backward pass, not kept.

    Args:
        x: (N, C1, H, W), float32 or float64 as all others.
        offset: (N, G · K · 2, H', W') for K kernel positions, y before x.
        modulation: (N, G · K, H', W'), or None.
        weight: (C2, C1/groups, h, w).
        bias: (C2,) or None.
        g: the geometry.

    Returns:
        (N, C2, H', W'), differentiable once.
    """
    if observed(x, offset, weight):  # a compiler chooses what to keep, and transforms know no checkpoints
        return in_layout_of(x, _convolve(x, offset, modulation, weight, bias, g))
    images = max(1, CHUNK * len(x) * g.deform_groups * 2 // max(1, offset.numel() * x.shape[1]))
    scales = itertools.repeat(None) if modulation is None else modulation.split(images)
    chunks = [
        checkpoint(_convolve, *maps, weight, bias, g, use_reentrant=False, preserve_rng_state=False)
        for maps in zip(x.split(images), offset.split(images), scales, strict=False)
    ]
    return in_layout_of(x, chunks[0] if len(chunks) == 1 else torch.cat(chunks))


def _convolve(
    x: Tensor, offset: Tensor, modulation: Tensor | None, weight: Tensor, bias: Tensor | None, g: Geometry
) -> Tensor:
    """The convolution of the samples, as one of 1×1."""
    pointwise = weight.permute(0, 2, 3, 1).flatten(1)[:, :, None, None]  # (C2, K · C1/groups, 1, 1)
    return F.conv2d(_samples(x, offset, modulation, g), pointwise, bias, groups=g.groups)


def _samples(x: Tensor, offset: Tensor, modulation: Tensor | None, g: Geometry) -> Tensor:
    """(N, groups · K · C1/groups, H', W') in channels last."""
    n, channels, height, width = x.shape
    points = sampling_points(offset, g).permute(0, 3, 4, 2, 1, 5)  # (N, H', W', K, G, 2)
    low = points.detach().floor()
    across, down = (points - low).unbind(-1)  # in [0, 1): how far towards the next pixel
    left, top = low.clamp(-2, max(height, width)).long().unbind(-1)
    image = torch.arange(n, device=x.device)[:, None, None, None, None]
    group = torch.arange(g.deform_groups, device=x.device)
    places, shares = [], []
    for column, share_across in ((left, 1 - across), (left + 1, across)):
        for row, share_down in ((top, 1 - down), (top + 1, down)):
            inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
            pixel = (image * height + row.clamp(0, height - 1)) * width + column.clamp(0, width - 1)
            places.append(pixel * g.deform_groups + group)
            shares.append(share_across * share_down * inside)
    weights = torch.stack(shares, -1)  # (N, H', W', K, G, 4), as the places
    if modulation is not None:
        taps = modulation.unflatten(1, (g.deform_groups, -1))
        weights = weights * taps.permute(0, 3, 4, 2, 1)[..., None]
    rows = x.permute(0, 2, 3, 1).reshape(-1, channels // g.deform_groups)  # (N · H · W · G, C1/G)
    bags = torch.stack(places, -1).flatten(0, -2)
    samples = F.embedding_bag(bags, rows, mode="sum", per_sample_weights=weights.flatten(0, -2))
    samples = samples.view(*points.shape[:4], g.groups, channels // g.groups)
    return samples.transpose(3, 4).flatten(3).permute(0, 3, 1, 2)
