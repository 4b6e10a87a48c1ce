"""Dynamic convolution as a sum over taps of shifted maps, so that the map is not copied once for every tap.

On NVIDIA GPUs one kernel computes it (:mod:`foveal.kernels.dynamic.fused`). The backward keeps the map and the weights
only; where a second derivative, a transform or a tracer needs operators, autograd goes through the sum itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from foveal.compat import exporting
from foveal.kernels.aw.plain import first_order_suffices
from foveal.kernels.dynamic.fused import fusable, fused_dynamic_conv
from foveal.kernels.support import observed


def dynamic_conv(x: Tensor, weights: Tensor, kernel: tuple[int, int], padding: tuple[int, int, int, int]) -> Tensor:
    """Σ over taps m of K_m(q) · x(q + p_m), with weights of each position that the channels of a group share.

    Args:
        x: (N, C, H, W).
        weights: (N, G, h · w, H, W) for G groups.
        kernel: (h, w).
        padding: zeros to the left, right, top and bottom; the result has the size of ``x``.

    Returns:
        (N, C, H, W).
    """
    if first_order_suffices():
        if fusable(x, weights) and not exporting():
            return fused_dynamic_conv(x, weights, kernel, (padding[2], padding[0]))
        if not observed(x, weights):
            return _Taps.apply(x, weights, kernel, padding)
    return _sum(x, weights, kernel, padding)


def _windows(padded: Tensor, kernel: tuple[int, int]) -> Iterator[Tensor]:
    """For every tap, the part of padded maps (..., H + h − 1, W + w − 1) that it sees."""
    for i in range(kernel[0]):
        bottom = (i - kernel[0] + 1) or None  # from the end: sizes stay dynamic
        for j in range(kernel[1]):
            right = (j - kernel[1] + 1) or None
            yield padded[..., i:bottom, j:right]


def _sum(x: Tensor, weights: Tensor, kernel: tuple[int, int], padding: tuple[int, int, int, int]) -> Tensor:
    groups = weights.shape[1]
    padded = F.pad(x, padding).unflatten(1, (groups, -1))
    out: Tensor | None = None
    for tap, window in enumerate(_windows(padded, kernel)):
        term = weights[:, :, tap, None] * window
        out = term if out is None else out + term
    assert out is not None
    return out.flatten(1, 2)


def differentiable_gradients(
    need: Sequence[bool], g: Tensor, x: Tensor, weights: Tensor, kernel: tuple[int, int], padding: tuple[int, ...]
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of map and weights, where they are needed, that can be differentiated again."""
    left, right, top, bottom = padding
    out = _sum(x, weights, kernel, (left, right, top, bottom))
    wanted = [t for t, needed in zip((x, weights), need, strict=True) if needed]
    parts = iter(torch.autograd.grad(out, wanted, g, create_graph=True))
    dx, dw = (next(parts) if needed else None for needed in need)
    return dx, dw


class _Taps(torch.autograd.Function):
    """The sum with in-place additions; keeps ``x`` and ``weights``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: Tensor, kernel: tuple[int, int], padding: tuple[int, ...]) -> Tensor:
        ctx.save_for_backward(x, weights)
        ctx.kernel, ctx.padding = kernel, padding
        padded = F.pad(x, padding).unflatten(1, (weights.shape[1], -1))
        windows = _windows(padded, kernel)
        out = weights[:, :, 0, None] * next(windows)
        for tap, window in enumerate(windows, 1):
            out.addcmul_(weights[:, :, tap, None], window)
        return out.flatten(1, 2)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of maps and weights."""
        x, weights = ctx.saved_tensors
        kernel, padding = ctx.kernel, ctx.padding
        if torch.is_grad_enabled():
            return *differentiable_gradients(ctx.needs_input_grad[:2], g, x, weights, kernel, padding), None, None
        padded = F.pad(x, padding).unflatten(1, (weights.shape[1], -1))
        g = g.unflatten(1, (weights.shape[1], -1))
        dx = torch.zeros_like(padded) if ctx.needs_input_grad[0] else None
        dw = torch.empty_like(weights) if ctx.needs_input_grad[1] else None
        into = _windows(dx if dx is not None else padded, kernel)
        for tap, (window, target) in enumerate(zip(_windows(padded, kernel), into, strict=True)):
            if dx is not None:
                target.addcmul_(weights[:, :, tap, None], g)
            if dw is not None:
                dw[:, :, tap].copy_((g * window).sum(2))
        if dx is not None:
            left, _, top, _ = padding
            dx = dx[..., top : top + x.shape[2], left : left + x.shape[3]].flatten(1, 2)
        return dx, dw, None, None
