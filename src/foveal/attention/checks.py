"""Checks that mechanisms share: of their options when they are built, of their input when they run."""

from __future__ import annotations

from numbers import Integral

import torch
from torch import Tensor

from foveal.errors import UserError


def check_whole(least: int = 1, others: str = "", **options: object) -> None:
    """Raise unless each of the named options is a whole number of at least ``least``.

    Args:
        least: the bound.
        others: what else is allowed, for the message.
        options: by name.

    >>> check_whole(heads=2.5)
    Traceback (most recent call last):
    foveal.errors.UserError: heads=2.5: expected a whole number of at least 1
    """
    for name, value in options.items():
        if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
            expected = f"a whole number of at least {least}" + (f", {others}" if others else "")
            raise UserError(f"{name}={value!r}: expected {expected}")


def check_pair(least: int = 1, **options: object) -> None:
    """Raise unless each of the named options is a whole number of at least ``least``, or two for height and width."""
    for name, value in options.items():
        sides = value if isinstance(value, tuple | list) else (value, value)
        if len(sides) != 2:
            raise UserError(f"{name}={value!r}: expected one number, or two for height and width")
        for side in sides:
            check_whole(least, **{name: side})


def check_maps(x: Tensor, channels: int) -> None:
    """Raise unless ``x`` is floating-point maps with so many channels and at least one position."""
    if x.ndim != 4 or x.shape[1] != channels:
        raise UserError(f"expected maps (N, {channels}, H, W), got {tuple(x.shape)}")
    if x.shape[2] == 0 or x.shape[3] == 0:
        raise UserError(f"maps {tuple(x.shape)} have no positions: H and W must be at least 1")
    _check_floating(x)


def check_sequences(x: Tensor, channels: int, mask: Tensor | None = None) -> None:
    """Raise unless ``x`` is floating-point sequences with so many channels, and ``mask`` fits them."""
    if x.ndim != 3 or x.shape[-1] != channels:
        raise UserError(f"expected sequences (N, T, {channels}), got {tuple(x.shape)}")
    if mask is not None and (mask.dtype != torch.bool or mask.shape != x.shape[:2]):
        raise UserError(f"mask must be bool {tuple(x.shape[:2])}, got {mask.dtype} {tuple(mask.shape)}")
    _check_floating(x)


def _check_floating(x: Tensor) -> None:
    if not x.is_floating_point():
        raise UserError(f"expected floating-point numbers, got {x.dtype}: convert the input, such as by x.float()")
