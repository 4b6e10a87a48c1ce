"""Launch the kernels that pad, pack and add up; like PyTorch's operators, but they can be recorded."""

from __future__ import annotations

import torch
from torch import Tensor

from foveal.kernels import copy_kernels
from foveal.kernels.prepared import launch
from foveal.kernels.tape import do_not_record, empty, empty_strided

BLOCK = 1024  # values of a program
ROWS, COLUMNS = 16, 256  # of a tile of a sum


def _programs(size: int, block: int) -> tuple[int]:
    return (-(-size // block),)


def sum_parts(parts: Tensor, dtype: torch.dtype) -> Tensor:
    """Sum of contiguous parts over their first axis, in ``dtype``."""
    out = empty(parts.shape[1:], dtype, parts.device)
    count, size = len(parts), out.numel()
    rest = count, size, ROWS, COLUMNS
    launch(copy_kernels.sum_parts, _programs(size, COLUMNS), (parts, out), rest, num_warps=4)
    return out


def padded(x: Tensor, h: int, w: int) -> Tensor:
    """(N, C, H, W) in channels last, padded with zeros to (N, C, h, w)."""
    n, c, height, width = x.shape
    if (height, width) == (h, w):
        return x
    out = empty_strided((n, c, h, w), (c * h * w, 1, c * w, c), x.dtype, x.device)
    sizes = out.numel(), height, width, c, h, w, BLOCK
    launch(copy_kernels.pad, _programs(out.numel(), BLOCK), (x, out), sizes, num_warps=4)
    return out


def packed_shape(c2: int, into: int, taps: int, groups: int, together: int) -> tuple[int, int, int]:
    """Shape of packed weights (C2, ``into``, ``taps``)."""
    return -(-groups // together) * together * (c2 // groups), taps, together * into


def packed(weight: Tensor, dtype: torch.dtype, groups: int, together: int) -> Tensor:
    """Weights (C2, C1/groups, h, w) as (C2 or more, h·w, G1) of ``dtype``, block-diagonal within super-groups.

    A super-group is ``together`` groups; the last one may be incomplete, and is filled up with zeros.
    """
    c2, into, h, w = weight.shape
    last = weight.is_contiguous(memory_format=torch.channels_last)
    if not (last or weight.is_contiguous()):
        do_not_record()
        weight = weight.contiguous()
    out, taps = c2 // groups, h * w
    shape = packed_shape(c2, into, taps, groups, together)
    result = empty(shape, dtype, weight.device)
    strides = (taps * into, 1, into) if last else (into * taps, taps, 1)
    sizes = result.numel(), c2, shape[2], into, out, together, *strides, taps, BLOCK
    launch(copy_kernels.pack, _programs(result.numel(), BLOCK), (weight, result), sizes, num_warps=4)
    return result
