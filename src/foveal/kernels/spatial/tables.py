"""Constant tables of spatial attention: offsets, codes of positions, which keys are near. Kept by size."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch
from torch import Tensor

from foveal.compat import dispatch_mode_active

BASE = 1000.0  # of the wavelengths
MOST = 256  # tables that are kept
_TABLES: dict[Hashable, Tensor] = {}


def offsets(queries: int, keys: int, strides: tuple[int, int], device: torch.device | None = None) -> Tensor:
    """Query minus key coordinate along one axis, in pixels of the map: float32 (queries, keys).

    >>> offsets(4, 2, (1, 2))
    tensor([[ 0., -2.],
            [ 1., -1.],
            [ 2.,  0.],
            [ 3.,  1.]])
    """
    q, k = (
        torch.arange(n, device=device, dtype=torch.float32) * s for n, s in zip((queries, keys), strides, strict=True)
    )
    return q[:, None] - k


def position_code(offset: Tensor, frequencies: int, base: float = BASE) -> Tensor:
    """The sinusoidal code of an offset δ: sin(δ/dim_i), then cos(δ/dim_i), with dim_i = base^(i/frequencies).

    Args:
        offset: (...), float32 or wider.
        frequencies: D_R/4; of a sequence, which has one axis, D_R/2.
        base: of the wavelengths.

    Returns:
        (..., 2 · frequencies).
    """
    exponents = torch.arange(frequencies, device=offset.device, dtype=offset.dtype) / frequencies
    angles = offset[..., None] / base**exponents
    return torch.cat([angles.sin(), angles.cos()], -1)


def relative_codes(
    queries: int, keys: int, strides: tuple[int, int], magnitude: float, frequencies: int, like: Tensor
) -> Tensor:
    """Codes of all offsets along one axis, divided by √2, minus that of the first key.

    Returns:
        (queries, keys − 1, 2 · frequencies), float32, or float64 if ``like`` is.
    """
    dtype = torch.promote_types(like.dtype, torch.float32)

    def make() -> Tensor:
        codes = position_code(magnitude * offsets(queries, keys, strides, like.device).to(dtype), frequencies)
        return (codes[:, 1:] - codes[:, :1]) * 0.5**0.5

    return _kept(("codes", queries, keys, strides, magnitude, frequencies, dtype, like.device), make)


def sequence_codes(first: int, last: int, frequencies: int, base: float, like: Tensor) -> Tensor:
    """Codes of the whole numbers from ``first`` to ``last``: (last − first + 1, 2 · frequencies), float32 or wider."""
    dtype = torch.promote_types(like.dtype, torch.float32)

    def make() -> Tensor:
        return position_code(torch.arange(first, last + 1, device=like.device, dtype=dtype), frequencies, base)

    return _kept(("sequence", first, last, frequencies, base, dtype, like.device), make)


def sequence_table(projected: Tensor, keys: int) -> Tensor:
    """What a sequence has for each query and key, relative to the first key.

    Args:
        projected: of the offsets (query minus key) from −(keys − 1) on, one after the other, (queries + keys − 1, ...).
        keys: their number.

    Returns:
        (queries, keys − 1, ...).

    >>> sequence_table(torch.tensor([-2, -1, 0, 1, 2]), 3)
    tensor([[-1, -2],
            [-1, -2],
            [-1, -2]])
    """
    windows = projected.unfold(0, keys, 1)  # (queries, ..., keys), the last key first
    table = windows.flip(-1).movedim(-1, 1)
    return table[:, 1:] - table[:, :1]


def near(queries: int, keys: int, strides: tuple[int, int], reach: int, device: torch.device) -> Tensor:
    """Which keys are at most ``reach`` pixels away along one axis: bool (queries, keys)."""
    return _kept(
        ("near", queries, keys, strides, reach, device),
        lambda: offsets(queries, keys, strides, device).abs() <= reach,
    )


def one_hot(h: int, w: int, x: int, y: int, empty: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Which column is a key's own along x, and which along y.

    Args:
        h: number of keys along y.
        w: number of keys along x.
        x: number of columns of the x axis: as many as it has keys, or one less: then its first key has none; or 0.
        y: the same of the y axis.
        empty: number of columns that follow.
        dtype: of the table.
        device: of the table.

    Returns:
        (1, h, w, 1, x + y + empty).
    """

    def make() -> Tensor:
        across = torch.eye(w, dtype=dtype, device=device)[:, w - x :]
        down = torch.eye(h, dtype=dtype, device=device)[:, h - y :]
        parts = [across.expand(h, w, x), down[:, None].expand(h, w, y), across.new_zeros(h, w, empty)]
        return torch.cat(parts, -1)[None, :, :, None]

    return _kept(("one hot", h, w, x, y, empty, dtype, device), make)


def _kept(name: Hashable, make: Callable[[], Tensor]) -> Tensor:
    """A table made before, or a new one."""
    if torch.compiler.is_compiling() or dispatch_mode_active():
        return make()
    if name not in _TABLES:
        with torch.inference_mode(False), torch.no_grad():
            table = make()
        if table.is_cuda and torch.cuda.is_current_stream_capturing():
            return table  # memory of a CUDA graph, filled at its replay only
        while len(_TABLES) >= MOST:
            del _TABLES[next(iter(_TABLES))]
        _TABLES[name] = table
    return _TABLES[name]
