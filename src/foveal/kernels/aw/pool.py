"""Adaptive average pooling to a few cells, as a matrix product for channels-last maps on a GPU.

PyTorch's own kernel for these reads a cell's window one value after the other, which is meant for many cells, not for
the nine of a 3×3 kernel. A product with a matrix of windows reads the map once.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from foveal.compat import exporting

MOST_CACHED = 256  # sizes of maps whose windows are cached; detectors see a new size in every batch
_cache: dict[tuple[object, ...], tuple[Tensor, Tensor]] = {}


def average_pool(x: Tensor, size: tuple[int, int]) -> Tensor:
    """Mean of ``x`` (N, C, H, W) in each of h×w cells: (N, C, h, w), as ``F.adaptive_avg_pool2d``."""
    if exporting() and not all(isinstance(side, int) for side in x.shape[2:]):
        return average_by_masks(x, size)  # otherwise ONNX would keep the windows of the example's size
    return average_by_product(x, size) if x.is_cuda else F.adaptive_avg_pool2d(x, size)


def average_by_masks(x: Tensor, size: tuple[int, int]) -> Tensor:
    """The same by products with rows, then columns; exports for maps of any size."""
    masks = (_in_cell(side, cells, x.device).to(x.dtype) for side, cells in zip(x.shape[2:], size, strict=True))
    down, across = (mask / mask.sum(1, keepdim=True) for mask in masks)
    return down @ x @ across.T


def average_by_product(x: Tensor, size: tuple[int, int]) -> Tensor:
    """The same as one matrix product.

    For half precision it returns float32: sums that are rounded to half precision once, or of one cell the exact mean.
    """
    if size == (1, 1):  # which a compiler fuses with what computes x
        return x.mean((2, 3), keepdim=True, dtype=torch.promote_types(x.dtype, torch.float32))
    n, c, h, w = x.shape
    weights, rest = _windows(h, w, size, x)
    means = weights @ x.permute(0, 2, 3, 1).reshape(n, h * w, c)
    return (means * rest).view(n, *size, c).permute(0, 3, 1, 2)


def _windows(h: int, w: int, size: tuple[int, int], x: Tensor) -> tuple[Tensor, Tensor]:
    """Weights of the H·W positions in each cell's mean, as a product of (cells, H·W) and float32 (cells, 1).

    The former are powers of two, exact in half precision, and so small that no sum is larger than its terms.
    """
    key = (h, w, size, x.dtype, x.device)
    if key not in _cache or torch.compiler.is_compiling():
        with torch.inference_mode(False):
            rows, columns = (_in_cell(side, cells, x.device) for side, cells in ((h, size[0]), (w, size[1])))
            inside = (rows[:, None, :, None] & columns[None, :, None, :]).view(size[0] * size[1], h * w)
            area = inside.sum(1, keepdim=True, dtype=torch.float32)
            power = torch.exp2(area.log2().ceil())
            windows = (inside / power).to(x.dtype), power / area
        real = type(windows[0]) is Tensor and not torch.compiler.is_compiling()
        if not real or (x.is_cuda and torch.cuda.is_current_stream_capturing()):
            return windows  # they belong to a trace or a captured graph
        while len(_cache) >= MOST_CACHED:
            _cache.pop(next(iter(_cache)), None)
        _cache[key] = windows
    return _cache[key]


def _in_cell(side: int, cells: int, device: torch.device) -> Tensor:
    """Which positions of a side belong to each cell, bool (cells, side): floor of its start to ceiling of its end."""
    cell = torch.arange(cells, device=device)[:, None]
    position = torch.arange(side, device=device)
    return (position >= cell * side // cells) & (position < -(-(cell + 1) * side // cells))
