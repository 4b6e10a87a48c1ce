"""A Triton kernel that is ready to launch for one shape: all but the tensors is prepared once."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from foveal.compat import compiled_launch, rebased

View = tuple[list[int], list[int], list[int]]
"""Shape, strides and block of a tensor that a kernel reads through a tensor descriptor."""
DIRECT = os.environ.get("FOVEAL_DIRECT_LAUNCH", "1") != "0"  # whether launches skip what Triton does again every time


class Prepared:
    """One kernel for one shape.

    Triton binds and inspects all arguments at every launch to find the compiled kernel. Here nothing but the tensors
    can change, and of them only the address: the first launch goes through Triton, which compiles; later ones take the
    kernel that it returned, as long as all addresses are multiples of 16 bytes, which Triton compiles in.

    Args:
        kernel: decorated with ``triton.jit``; tensors are its first arguments.
        grid: number of programs along up to three axes.
        views: for every tensor, how a descriptor sees it, or None for a pointer.
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
        self.kernel, self.grid, self.views = kernel, (*grid, 1, 1)[:3], views
        self.rest, self.options = tuple(rest), options
        self.again: Callable[..., Any] | None = None
        self.descriptors: list[TensorDescriptor | None] = []

    def __call__(self, *tensors: Tensor | None) -> None:
        """Launch it; every tensor has the same shape, strides and dtype as at the first launch."""
        aligned = all(tensor is None or tensor.data_ptr() % 16 == 0 for tensor in tensors)
        if self.again is not None and aligned:
            self.again(
                *(
                    tensor if descriptor is None else rebased(descriptor, tensor)
                    for tensor, descriptor in zip(tensors, self.descriptors, strict=True)
                ),
                *self.rest,
            )
            return
        descriptors = [
            None if view is None else TensorDescriptor(tensor, *view)
            for tensor, view in zip(tensors, self.views, strict=True)
        ]
        arguments = [tensor if item is None else item for tensor, item in zip(tensors, descriptors, strict=True)]
        compiled = self.kernel[self.grid](*arguments, *self.rest, **self.options)
        if DIRECT and aligned:
            self.descriptors = [None if item is None else rebased(item, None) for item in descriptors]
            self.again = compiled_launch(compiled, self.grid)
