"""Which form of AW-convolution is used for a shape. All give the same result."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Literal

import torch
from torch import Tensor, nn

from foveal.compat import exporting
from foveal.errors import UserError
from foveal.kernels.aw.fused import fusable
from foveal.kernels.aw.plain import first_order_suffices

Path = Literal["auto", "loop", "grouped", "taps", "products", "fused"]
PATHS = ("auto", "loop", "grouped", "taps", "products", "fused")
MOST_KERNEL_ELEMENTS = 2**28  # in all kernels of a batch, for the form with one kernel a sample
LEAST_WORK = 2**23  # multiplications in a sample's convolution, for a loop over samples on a CPU


def form_for(path: Path, x: Tensor, conv: nn.Conv2d, weight: Tensor, constant_in: bool) -> Path:
    """The form for this input: ``path``, or with ``auto`` one chosen by device and shape.

    Args:
        path: what was asked for.
        x: (N, C1, H, W), in the dtype of the result.
        conv: for its options.
        weight: (C2, C1/groups, h, w).
        constant_in: whether the attention is the same for all input channels of a group.
    """
    if path in ("taps", "products", "fused") and not constant_in:
        raise UserError(f"path={path!r} needs attention that is constant along input channels (leave share_in out)")
    if path == "products" and conv.groups > 1:
        raise UserError(f"path='products' is for one group; this convolution has {conv.groups}")
    if path not in ("auto", "fused"):
        return path
    if exporting() or x.shape[0] == 0:  # taps keep the batch size dynamic
        return "taps" if constant_in else "grouped"
    first_order, on_cpu = first_order_suffices(), x.device.type == "cpu" and not torch.compiler.is_compiling()
    positions = x.shape[2] * x.shape[3] // (conv.stride[0] * conv.stride[1])
    if constant_in:
        if first_order and fusable(x, weight, conv.stride, conv.dilation, conv.groups):
            return "fused"
        if path == "fused" and first_order:
            _warn_not_fused()
        if conv.kernel_size == (1, 1):
            return "taps"
        # Where a map has fewer positions than channels, building kernels takes longer than scaling their products.
        several = x.shape[0] > 1 or not on_cpu
        if first_order and several and conv.groups == 1 and positions <= conv.in_channels:
            return "products"
    # Channels last, a convolution of many groups is slow on a CPU; a loop pays if samples take longer than Python.
    if first_order and on_cpu and (not x.is_contiguous() or positions * weight.numel() >= LEAST_WORK):
        return "loop"
    return "taps" if constant_in and len(x) * weight.numel() > MOST_KERNEL_ELEMENTS else "grouped"


def scales_output(path: Path, form: Path, x: Tensor, conv: nn.Conv2d) -> bool:
    """Whether the kernel is 1×1 and the form is free: on a channels-last map, its output may be scaled.

    Args:
        path: what was asked for.
        form: what :func:`form_for` chose.
        x: (N, C1, H, W).
        conv: for its options.
    """
    free = form == "taps" and path != "taps" and conv.kernel_size == (1, 1) and first_order_suffices()
    return free and x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()


@cache
def _warn_not_fused() -> None:
    """Warn once that the fused form is not available and a plain one is used."""
    warnings.warn(
        "path='fused' needs an NVIDIA GPU, Triton, a kernel larger than 1×1, channels in multiples of 8, equal "
        "strides, and no dilation with a stride; elsewhere another form is used, with the same result",
        stacklevel=2,
    )
