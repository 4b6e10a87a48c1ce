"""Sizes of an AW-convolution, and the layouts in which its kernels see tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from foveal.kernels.prepared import View
from foveal.kernels.tape import do_not_record, empty_strided

SUPER_GROUP = 64  # channels of a super-group, as far as possible: what fills a tile of the tensor cores


def ceil_div(a: int, b: int) -> int:
    """``a`` divided by ``b``, rounded up; ``triton.cdiv`` takes microseconds, and a launch needs many of them."""
    return -(-a // b)


def out_size(size: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    """Side of a convolution's output."""
    return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


def groups_together(c1: int, c2: int, groups: int, unit: int) -> int:
    """How many groups a super-group has.

    As many as fit into :data:`SUPER_GROUP` channels, such that it starts and ends at whole units, in which tensor
    descriptors count; if none fit, the fewest.

    >>> groups_together(128, 128, 32, 8), groups_together(888, 888, 37, 8), groups_together(512, 256, 1, 8)
    (16, 2, 1)
    """
    wide = [k for k in range(1, groups + 1) if c1 // groups * k % unit == c2 // groups * k % unit == 0]
    fitting = [k for k in wide if k * max(c1, c2) // groups <= SUPER_GROUP]
    return fitting[-1] if fitting else wide[0]


@dataclass(frozen=True)
class Geometry:
    """Sizes of one convolution, its dtype and its device.

    Attributes:
        n, c1, h, w: of the input.
        c2: output channels.
        kh, kw: of the kernel.
        stride: along both axes.
        padding, dilation: along each.
        groups: of the convolution.
        dtype, device: of all tensors.
        exact: whether float32 products are exact, not TF32.
    """

    n: int
    c1: int
    h: int
    w: int
    c2: int
    kh: int
    kw: int
    stride: int
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int
    dtype: torch.dtype
    device: torch.device
    exact: bool

    @cached_property
    def oh(self) -> int:
        """Height of the output."""
        return out_size(self.h, self.kh, self.stride, self.padding[0], self.dilation[0])

    @cached_property
    def ow(self) -> int:
        """Width of the output."""
        return out_size(self.w, self.kw, self.stride, self.padding[1], self.dilation[1])

    @cached_property
    def taps(self) -> int:
        """Number of kernel positions."""
        return self.kh * self.kw

    @cached_property
    def together(self) -> int:
        """Number of groups of a super-group."""
        return groups_together(self.c1, self.c2, self.groups, 16 // self.dtype.itemsize)

    @cached_property
    def super_groups(self) -> int:
        """Number of super-groups; the last one may be incomplete."""
        return ceil_div(self.groups, self.together)

    @cached_property
    def group(self) -> tuple[int, int]:
        """Input and output channels of a group."""
        return self.c1 // self.groups, self.c2 // self.groups

    @cached_property
    def wide(self) -> tuple[int, int]:
        """Input and output channels of a super-group."""
        return self.group[0] * self.together, self.group[1] * self.together

    @cached_property
    def units(self) -> tuple[int, ...]:
        """Channels of input and output, and of a super-group's, in units of 16 bytes; and a unit."""
        unit = 16 // self.dtype.itemsize
        return *(channels // unit for channels in (self.c1, self.c2, *self.wide)), unit

    @cached_property
    def precision(self) -> str:
        """Triton's name for the precision of products."""
        return "ieee" if self.exact else "tf32"

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """What all kernels are compiled for: stride, padding, dilation and size of the kernel."""
        return self.stride, *self.padding, *self.dilation, self.kh, self.kw

    @cached_property
    def text(self) -> str:
        """All but batch size and device, as a table of launches names it."""
        dtype = str(self.dtype).removeprefix("torch.") + ("" if self.dtype != torch.float32 else f" {self.precision}")
        sizes = f"{self.c1}x{self.h}x{self.w} to {self.c2}, {self.kh}x{self.kw}, groups {self.groups}"
        return f"{dtype} {sizes}, stride {self.stride}, padding {self.padding}, dilation {self.dilation}"

    @cached_property
    def inside(self) -> int:
        """Number of pairs of an output and a kernel position that fall on the input, of all taps·H'·W'."""
        pairs = 1
        for axis, (size, out, kernel) in enumerate(((self.h, self.oh, self.kh), (self.w, self.ow, self.kw))):
            step, pad = self.dilation[axis], self.padding[axis]
            pairs *= sum(0 <= o * self.stride + k * step - pad < size for o in range(out) for k in range(kernel))
        return pairs


def channels_last(x: Tensor) -> Tensor:
    """(N, C, H, W) whose memory is that of a contiguous (N, H, W, C); free for a channels-last tensor.

    Strides of axes of size one may be anything; kernels use the address alone.
    """
    if x.is_contiguous(memory_format=torch.channels_last):
        return x
    do_not_record()
    return x.contiguous(memory_format=torch.channels_last)


def empty_last(sizes: tuple[int, int, int, int], like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Memory for (N, C, H, W) in channels last, on the device of ``like`` and in its dtype or another."""
    _, c, h, w = sizes
    return empty_strided(sizes, (c * h * w, 1, c * w, c), dtype or like.dtype, like.device)


def interleaved(n: int, h: int, w: int, c: int, stride: int, block: list[int]) -> View:
    """View of contiguous (N, H, W, C) as (N, H/S, S, W/S, S·C); H and W multiples of S."""
    shape = [n, h // stride, stride, w // stride, stride * c]
    return shape, [h * w * c, stride * w * c, w * c, stride * c, 1], block


def contiguous(shape: Sequence[int], block: list[int]) -> View:
    """View of a contiguous tensor in ``shape``."""
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return list(shape), strides, block
