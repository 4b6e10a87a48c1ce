"""Dynamic convolution as one kernel on NVIDIA GPUs: a custom operator, and the same called directly."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from foveal.kernels.support import fused_available, observed, on_its_device

TILE = 2048  # values of a tile, with 4 warps
MOST_CHANNELS = 256  # of a group


def fusable(x: Tensor, weights: Tensor) -> bool:
    """Whether the kernels support maps (N, C, H, W) and weights (N, G, K, H, W)."""
    return (
        x.shape[1] // weights.shape[1] <= MOST_CHANNELS
        and x.dtype in (torch.float32, torch.bfloat16, torch.float16)
        and x.numel() > 0
        and max(x.numel(), weights.numel()) < 2**31
        and fused_available(x.device)
    )


@on_its_device
def _forward(x: Tensor, weights: Tensor, kernel: Any, corner: Any) -> Tensor:
    maps, weights = _last(x), weights.contiguous()
    out = torch.empty_like(maps)
    _prepared("forward", maps.shape, weights.shape[1], tuple(kernel), tuple(corner), x.dtype, weights.dtype, x.device)(
        maps, weights, out
    )
    return out.permute(0, 3, 1, 2)


@on_its_device
def _backward(g: Tensor, x: Tensor, weights: Tensor, kernel: Any, corner: Any) -> tuple[Tensor, Tensor]:
    maps, gradient, weights = _last(x), _last(g), weights.contiguous()
    dx, dw = torch.empty_like(maps), torch.empty_like(weights)
    _prepared("backward", maps.shape, weights.shape[1], tuple(kernel), tuple(corner), x.dtype, weights.dtype, x.device)(
        gradient, maps, weights, dx, dw
    )
    return dx.permute(0, 3, 1, 2), dw


def _last(maps: Tensor) -> Tensor:
    """(N, C, H, W) as (N, H, W, C), contiguous; a view of a map in channels last."""
    return maps.permute(0, 2, 3, 1).contiguous()


@lru_cache(1024)
def _prepared(kind: str, shape: Any, groups: int, kernel: Any, corner: Any, *state: Any) -> Any:
    """A kernel for maps of ``shape`` (N, H, W, C); ``state`` is dtypes and device."""
    from foveal.kernels.dynamic import triton_kernels
    from foveal.kernels.prepared import Prepared

    n, h, w, c = shape
    block = 1 << (c // groups - 1).bit_length()
    tile = TILE // block
    grid = -(-n * h * w // tile), groups
    rest = n * h * w, h, w, c, groups, *kernel, *corner, tile, block
    views = (None,) * (3 if kind == "forward" else 5)
    return Prepared(getattr(triton_kernels, kind), grid, views, rest, {"num_warps": 4})


@torch.library.custom_op("foveal::dynamic_conv2d", mutates_args=())
def dynamic_conv2d(x: Tensor, weights: Tensor, kernel: list[int], corner: list[int]) -> Tensor:
    """Dynamic convolution of (N, C, H, W) with weights (N, G, h · w, H, W); ``corner``: zeros above and to the left."""
    return _forward(x, weights, kernel, corner)


@dynamic_conv2d.register_fake
def _(x, weights, kernel, corner):
    n, c, h, w = x.shape
    return x.new_empty(n, h, w, c).permute(0, 3, 1, 2)


@torch.library.custom_op("foveal::dynamic_conv2d_backward", mutates_args=())
def dynamic_conv2d_backward(
    g: Tensor, x: Tensor, weights: Tensor, kernel: list[int], corner: list[int]
) -> tuple[Tensor, Tensor]:
    """Gradients of map and weights."""
    return _backward(g, x, weights, kernel, corner)


@dynamic_conv2d_backward.register_fake
def _(g, x, weights, kernel, corner):
    n, c, h, w = x.shape
    return x.new_empty(n, h, w, c).permute(0, 3, 1, 2), weights.new_empty(weights.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor | None) -> None:
    x, weights, ctx.kernel, ctx.corner = inputs
    ctx.save_for_backward(x, weights)


def _gradients(ctx: Any, g: Tensor) -> tuple[Any, ...]:
    return *dynamic_conv2d_backward(g, *ctx.saved_tensors, ctx.kernel, ctx.corner), None, None


dynamic_conv2d.register_autograd(_gradients, setup_context=_save)


class _Direct(torch.autograd.Function):
    """The same without the dispatch of a custom operator in Python."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        _save(ctx, inputs, None)
        x, weights, kernel, corner = inputs
        return _forward(x, weights, kernel, corner)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        """Gradients of map and weights."""
        x, weights = ctx.saved_tensors
        if torch.is_grad_enabled():
            from foveal.kernels.dynamic.taps import differentiable_gradients

            (h, w), (top, left) = ctx.kernel, ctx.corner
            padding = left, w - 1 - left, top, h - 1 - top
            return *differentiable_gradients(ctx.needs_input_grad[:2], g, x, weights, ctx.kernel, padding), None, None
        if observed(g):
            return _gradients(ctx, g)
        return *_backward(g, x, weights, ctx.kernel, ctx.corner), None, None


def fused_dynamic_conv(x: Tensor, weights: Tensor, kernel: tuple[int, int], corner: tuple[int, int]) -> Tensor:
    """:func:`dynamic_conv2d`, called directly where nobody must see an operator."""
    return (dynamic_conv2d if observed(x, weights) else _Direct.apply)(x, weights, kernel, corner)
