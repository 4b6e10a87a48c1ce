"""Checks of the tensors that measures take."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from foveal.errors import UserError
from foveal.supervise._inputs import check_tensors


def at_least_float32(values: Tensor) -> Tensor:
    """Widen half precision and integers to float32; float64 stays.

    >>> at_least_float32(torch.ones(1, dtype=torch.bfloat16)).dtype
    torch.float32
    """
    return values.to(torch.promote_types(values.dtype, torch.float32))


def warn_without_target(counted: Tensor, reason: str = "its mask is false everywhere", result: str = "nan") -> None:
    """Warn if none of the samples has a target, so that there is nothing to measure.

    Args:
        counted: bool (N,), which samples have one.
        reason: why a sample has none.
        result: what comes back.
    """
    if not bool(counted.any()):
        reason = reason if len(counted) else "the batch is empty"
        warnings.warn(f"no sample has a target ({reason}): the result is {result}", stacklevel=3)


def check_maps(attention: Tensor, mask: Tensor) -> None:
    """Raise unless ``attention`` (N, H, W) is finite and not negative and ``mask`` (N, H, W) is bool."""
    check_tensors(attention=attention, mask=mask)
    if attention.ndim != 3 or 0 in attention.shape[1:]:
        raise UserError(f"attention must be (N, H, W), one map per sample, got shape {tuple(attention.shape)}")
    if mask.dtype != torch.bool:
        raise UserError(f"mask must be bool, got {mask.dtype}; compare it first, for example mask > 0")
    if mask.shape != attention.shape:
        raise UserError(
            f"attention {tuple(attention.shape)} and mask {tuple(mask.shape)} differ in shape; "
            "bring the attention to the size of the mask with foveal.measure.attention_map"
        )
    check_values(attention)


def check_values(attention: Tensor) -> None:
    """Raise unless ``attention`` is finite and not negative."""
    if not bool(((attention >= 0) & (attention < float("inf"))).all()):
        raise UserError("attention must be finite and not negative; give probabilities (after sigmoid or softmax)")
