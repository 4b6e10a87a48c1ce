"""Launches of Triton kernels whose arguments are prepared once: all but the addresses of tensors."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from foveal.compat import compiled_launch
from foveal.kernels.parts import Part

View = tuple[list[int], list[int], list[int]]
"""Shape, strides and block of a tensor that a kernel reads through a tensor descriptor."""
DIRECT = os.environ.get("FOVEAL_DIRECT_LAUNCH", "1") != "0"  # whether launches skip what Triton does again every time
MOST = 4096  # prepared launches that are kept
_ready: dict[Any, Prepared] = {}


Argument = Tensor | Part | None
"""What a kernel takes as a tensor."""


class Prepared:
    """One kernel for one shape.

    Triton binds and inspects all arguments at every launch to find the compiled kernel. Here nothing but the tensors
    can change, and of them only the address: the first launch goes through Triton, which compiles; later ones take the
    kernel that it returned, as long as all addresses are multiples of 16 bytes, which Triton compiles in.

    Args:
        kernel: decorated with ``triton.jit``; tensors are its first arguments.
        grid: number of programs along up to three axes.
        views: for every tensor, how a descriptor sees its memory, or None for a pointer.
        rest: the other arguments.
        options: of Triton: warps and stages.
    """

    def __init__(
        self,
        kernel: Any,
        grid: tuple[int, ...],
        views: Sequence[View | None],
        rest: Sequence[Any],
        options: Mapping[str, int],
    ) -> None:
        x, y, z = (*grid, 1, 1)[:3]
        self.kernel, self.grid, self.views = kernel, (x, y, z), views
        self.rest, self.options = tuple(rest), options
        self.again: Callable[[list[int | None]], Any] | None = None

    def __call__(self, *tensors: Argument) -> None:
        """Launch it; every tensor has the same shape, strides and dtype as at the first launch."""
        bits = 0
        addresses: list[int | None] = []
        for tensor in tensors:
            if tensor is None:
                addresses.append(None)
            else:
                address = tensor.data_ptr()
                bits |= address
                addresses.append(address)
        if self.again is not None and not bits & 15:
            self.again(addresses)
            return
        tensors = tuple(tensor.view() if isinstance(tensor, Part) else tensor for tensor in tensors)
        descriptors = [
            None if view is None else TensorDescriptor(tensor, *view)
            for tensor, view in zip(tensors, self.views, strict=True)
        ]
        arguments = [tensor if item is None else item for tensor, item in zip(tensors, descriptors, strict=True)]
        compiled = self.kernel[self.grid](*arguments, *self.rest, **self.options)
        if DIRECT and not bits & 15:
            self.again = compiled_launch(compiled, self.grid, descriptors, self.rest)


def launch(
    kernel: Any, grid: tuple[int, ...], tensors: tuple[Argument, ...], rest: tuple[Any, ...], **options: int
) -> None:
    """``kernel[grid](*tensors, *rest, **options)``, prepared at the first launch with these arguments.

    Args:
        kernel: decorated with ``triton.jit``; it reads all tensors through pointers. The first is not None.
        grid: number of programs along up to three axes.
        tensors: its first arguments.
        rest: the other ones, numbers and strings.
        **options: of Triton: warps and stages.
    """
    kinds = tuple([None if tensor is None else tensor.dtype for tensor in tensors])
    key = id(kernel), grid, rest, kinds, tensors[0].get_device(), *options.values()  # type: ignore[union-attr]
    prepared = _ready.get(key)
    if prepared is None:
        if len(_ready) >= MOST:
            _ready.clear()
        prepared = _ready[key] = Prepared(kernel, grid, (None,) * len(tensors), rest, options)
    prepared(*tensors)
