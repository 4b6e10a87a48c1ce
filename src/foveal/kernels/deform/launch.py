"""Launch the Triton kernels of deformable convolution, beside one matrix product; tiles follow from the shape."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from foveal.kernels.deform import triton_kernels
from foveal.kernels.deform.plain import Geometry
from foveal.kernels.prepared import Prepared
from foveal.kernels.support import on_its_device

TILE = 2048  # values of a tile, with 4 warps
CHANNELS = 64  # most of a tile


def channels_of_tile(channels: int, groups: int) -> int:
    """Largest power of two that divides the channels of a group, at most ``CHANNELS``."""
    return math.gcd(channels // groups, CHANNELS)


@on_its_device
def forward(x: Tensor, offset: Tensor, modulation: Tensor | None, weight: Tensor, g: Geometry) -> Tensor:
    """The convolution (N, C2, H', W'), channels last, all in one dtype.

    Args:
        x: (N, C1, H, W).
        offset: (N, G · K · 2, H', W').
        modulation: (N, G · K, H', W') or None.
        weight: (C2, C1, h, w).
        g: the geometry.
    """
    maps, points, scales = _last(x), _last(offset), None if modulation is None else _last(modulation)
    out = _samples(maps, points, scales, g) @ _matrix(weight).mT
    return out.view(*points.shape[:3], -1).permute(0, 3, 1, 2)


@on_its_device
def backward(
    gradient: Tensor, x: Tensor, offset: Tensor, modulation: Tensor | None, weight: Tensor, g: Geometry
) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """Gradients of map, offsets, modulation and weight. Samples are not kept but computed again."""
    maps, points, scales = _last(x), _last(offset), None if modulation is None else _last(modulation)
    rows = _last(gradient).flatten(0, 2)
    d_weight = rows.mT @ _samples(maps, points, scales, g)
    d_samples = rows @ _matrix(weight)
    d_x = torch.zeros(maps.shape, dtype=torch.float32, device=x.device)
    d_points, d_scales = torch.empty_like(points), None if scales is None else torch.empty_like(scales)
    launch = _prepared("scatter", maps.shape, points.shape[:3], g, scales is not None, x.dtype, x.device)
    launch(d_samples, maps, points, scales, d_x, d_points, d_scales)
    d_kernel = d_weight.view(len(weight), *weight.shape[2:], -1)
    first, second, last = (None if t is None else t.permute(0, 3, 1, 2) for t in (d_points, d_scales, d_kernel))
    assert first is not None
    assert last is not None
    return d_x.to(x.dtype).permute(0, 3, 1, 2), first, second, last


def _last(maps: Tensor) -> Tensor:
    """(N, C, H, W) as (N, H, W, C), contiguous; a view of a map in channels last."""
    return maps.permute(0, 2, 3, 1).contiguous()


def _matrix(weight: Tensor) -> Tensor:
    """(C2, C1, h, w) as (C2, h · w · C1)."""
    return weight.permute(0, 2, 3, 1).reshape(len(weight), -1)


def _samples(maps: Tensor, points: Tensor, scales: Tensor | None, g: Geometry) -> Tensor:
    """(N · H' · W', K · C1)."""
    taps = g.kernel[0] * g.kernel[1]
    samples = maps.new_empty(math.prod(points.shape[:3]), taps * maps.shape[3])
    launch = _prepared("gather", maps.shape, points.shape[:3], g, scales is not None, maps.dtype, maps.device)
    launch(maps, points, scales, samples)
    return samples


@lru_cache(1024)
def _prepared(kind: str, shape: Any, result: Any, g: Geometry, modulated: bool, *state: Any) -> Prepared:
    """A kernel for maps of ``shape`` (N, H, W, C) and a ``result`` (N, H', W'); ``state`` is dtype and device."""
    (_, h, w, c), taps = shape, g.kernel[0] * g.kernel[1]
    positions, block = math.prod(result), channels_of_tile(shape[3], g.deform_groups)
    tile = TILE // block
    rest = (
        positions, h, w, result[1], result[2], taps, g.kernel[1], *g.stride, *g.padding, *g.dilation,
        c, g.deform_groups, modulated, tile, block,
    )  # fmt: skip
    gathers = kind == "gather"
    grid = -(-positions // tile), taps, c // block if gathers else g.deform_groups
    kernel = triton_kernels.gather if gathers else triton_kernels.scatter
    return Prepared(kernel, grid, (None,) * (4 if gathers else 7), rest, {"num_warps": 4})
