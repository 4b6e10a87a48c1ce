"""Launches of Triton kernels whose arguments are prepared once: all but the addresses of tensors."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from foveal.kernels.ahead import collecting, compile_in_thread, wait
from foveal.kernels.parts import Part
from foveal.kernels.replay import Kernel
from foveal.kernels.tape import note_launch
from foveal.kernels.triton_launch import compiled_launch, driver_kernel

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
        self.again: Callable[[Sequence[int | None]], Any] | None = None
        self.for_driver: Kernel | None = None

    def __call__(self, *tensors: Argument) -> None:
        """Launch it; every tensor has the same shape, strides and dtype as at the first launch."""
        if collecting():
            self._compile(tensors)
            return
        bits = 0
        addresses: list[int | None] = []
        for tensor in tensors:
            if tensor is None:
                addresses.append(None)
            else:
                address = tensor.data_ptr()
                bits |= address
                addresses.append(address)
        again = None if bits & 15 else self.again
        note_launch(again, addresses, self.for_driver)
        if again is not None:
            again(addresses)
            return
        tensors = tuple(tensor.view() if isinstance(tensor, Part) else tensor for tensor in tensors)
        descriptors, arguments = self._arguments(tensors)
        wait(self.kernel, arguments, self.rest, self.options)
        compiled = self.kernel[self.grid](*arguments, *self.rest, **self.options)
        if DIRECT and not bits & 15:
            self.again = compiled_launch(compiled, self.grid, descriptors, self.rest)
            self.for_driver = driver_kernel(compiled, self.grid, descriptors, self.rest)

    def _arguments(self, tensors: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """For every tensor, its descriptor or None; and what Triton takes."""
        from triton.tools.tensor_descriptor import TensorDescriptor

        descriptors = [
            None if view is None else TensorDescriptor(tensor, *view)
            for tensor, view in zip(tensors, self.views, strict=True)
        ]
        return descriptors, [t if item is None else item for t, item in zip(tensors, descriptors, strict=True)]

    def _compile(self, tensors: Sequence[Argument]) -> None:
        """Compile it in a thread, unless that has been done."""
        if self.again is None:
            from triton.runtime.jit import MockTensor

            _, arguments = self._arguments([None if tensor is None else MockTensor(tensor.dtype) for tensor in tensors])
            compile_in_thread(self.kernel, self.grid, arguments, self.rest, self.options)


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
