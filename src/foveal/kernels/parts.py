"""Several small float32 tensors in one allocation: a launch needs addresses alone, and allocations take time."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from foveal.kernels.tape import empty


class Part:
    """A part of a flat buffer, as an argument of a launch, which needs its address alone: far cheaper than a view."""

    __slots__ = ("buffer", "first", "size")

    def __init__(self, buffer: Tensor, first: int, size: int) -> None:
        self.buffer, self.first, self.size = buffer, first, size

    @property
    def dtype(self) -> Any:
        """Of the buffer."""
        return self.buffer.dtype

    def data_ptr(self) -> int:
        """Where it begins."""
        return self.buffer.data_ptr() + self.first * self.buffer.element_size()

    def get_device(self) -> int:
        """Number of the buffer's GPU, −1 on a CPU."""
        return self.buffer.get_device()

    def view(self) -> Tensor:
        """The same as a tensor."""
        return self.buffer[self.first : self.first + self.size]


@cache
def starts(sizes: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    """Where parts of these sizes begin in a buffer of float32, each at a multiple of 16 bytes; and its length."""
    first = [0]
    for size in sizes:
        first.append(first[-1] + -(-size // 4) * 4)
    return tuple(first[:-1]), first[-1]


def parts(sizes: tuple[int, ...], device: torch.device | Tensor) -> tuple[Tensor, list[Part]]:
    """Memory for float32 parts of these sizes, or that of a given buffer: one allocation instead of many."""
    begin, length = starts(sizes)
    buffer = device if isinstance(device, Tensor) else empty((length,), torch.float32, device)
    return buffer, [Part(buffer, first, size) for first, size in zip(begin, sizes, strict=True)]


def divided(buffer: Tensor, sizes: tuple[int, ...]) -> list[Tensor]:
    """The parts of a buffer as tensors."""
    chunks = buffer.split_with_sizes([-(-size // 4) * 4 for size in sizes])
    return [chunk if size % 4 == 0 else chunk[:size] for chunk, size in zip(chunks, sizes, strict=True)]
