"""The launches and allocations of a tape in C (``replay.c``), where that can be compiled.

Triton needs a C compiler for its own launchers, unless its cache is filled already. Where anything of this fails,
:mod:`foveal.kernels.tape` does the same in Python; ``FOVEAL_REPLAY=0`` asks for that. ``FOVEAL_GRAPHS=0`` asks for
launches one by one, instead of all of a tape as one CUDA graph.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from foveal import compat

ENABLED = os.environ.get("FOVEAL_REPLAY", "1") != "0"
GRAPHS = os.environ.get("FOVEAL_GRAPHS", "1") != "0"
FUNCTIONS = ("cuLaunchKernelEx", "cuTensorMapReplaceAddress", "cuCtxGetCurrent")
GRAPH_FUNCTIONS = (
    "cuGraphCreate", "cuGraphAddKernelNode_v2", "cuGraphInstantiateWithFlags", "cuGraphExecKernelNodeSetParams_v2",
    "cuGraphLaunch", "cuGraphExecDestroy", "cuGraphDestroy", "cuStreamIsCapturing",
)  # fmt: skip
Program = Callable[[Sequence[Tensor | None], int], list[Tensor | None] | None]
"""Results of a call, given its tensors and a stream. None, and nothing is done, if an address is not a multiple of 16
bytes, or if this thread has not used the GPU yet."""
Allocation = tuple[tuple[int, ...], tuple[int, ...], Any]
"""Size, strides and dtype."""
Place = tuple[int, int]
"""Which tensor an address belongs to (inputs, outputs, temporary memory), and how many bytes after its beginning."""


class Kernel(NamedTuple):
    """What the driver needs to launch a compiled kernel, beside the addresses of its tensors.

    Attributes:
        function: its handle.
        grid: number of programs along three axes.
        threads: of a program.
        shared: bytes of shared memory.
        parameters: for each, its bytes; or the number of the tensor whose address it is; or that and the 128 bytes of
            a tensor map, in which the address is replaced.
        owner: what keeps the kernel loaded.
    """

    function: int
    grid: tuple[int, int, int]
    threads: int
    shared: int
    parameters: tuple[bytes | int | tuple[int, bytes], ...]
    owner: Any = None


@cache
def _module() -> Any:
    """The compiled ``replay.c``; None where it cannot be compiled."""
    try:
        from triton.backends.nvidia import driver
        from triton.runtime.build import compile_module_from_src

        source = Path(__file__).with_suffix(".c").read_text()
        headers = str(Path(driver.__file__).parent / "include")
        return compile_module_from_src(source, "foveal_replay", include_dirs=[headers])
    except Exception:  # no compiler, no header of Python or CUDA, another Triton: Python does it
        return None


@cache
def _functions() -> tuple[int, ...] | None:
    """Addresses of the driver's functions; None where there is no driver, or an old one."""
    return _addresses(FUNCTIONS)


@cache
def _graph_functions() -> tuple[int, ...]:
    """Addresses of the driver's functions for graphs; none where it lacks one of them."""
    return (_addresses(GRAPH_FUNCTIONS) if GRAPHS else None) or ()


def _addresses(names: Sequence[str]) -> tuple[int, ...] | None:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        functions = [getattr(driver, name) for name in names]
    except (OSError, AttributeError):
        return None
    return tuple(ctypes.cast(function, ctypes.c_void_p).value or 0 for function in functions)


def available() -> bool:
    """Whether tapes can be repeated in C; compiles it at the first call."""
    known = ENABLED and None not in (compat.empty_on_gpu, compat.raw_stream, _functions())
    return known and _module() is not None


def program(
    inputs: int,
    outputs: Sequence[Allocation | None],
    scratch: int,
    launches: Sequence[tuple[Kernel, Sequence[Place | None]]],
) -> Program:
    """A tape as a function in C; only if :func:`available`.

    Args:
        inputs: number of its tensors.
        outputs: its results.
        scratch: bytes of temporary memory.
        launches: kernels, each with the places of its tensors.
    """
    functions = _functions()
    assert functions is not None
    kernels = tuple(
        (kernel.function, *kernel.grid, kernel.threads, kernel.shared, _parameters(kernel, places))
        for kernel, places in launches
    )
    temporary = ((scratch,), (1,), torch.uint8) if scratch else None
    options = compat.empty_on_gpu, inputs, tuple(outputs), temporary
    return _module().Program(*functions, _graph_functions(), *options, kernels)


def _parameters(kernel: Kernel, places: Sequence[Place | None]) -> tuple[Any, ...]:
    """Parameters with the places of their addresses."""
    result: list[Any] = []
    for parameter in kernel.parameters:
        if isinstance(parameter, bytes):
            result.append(parameter)
            continue
        number, *tensor_map = (parameter,) if isinstance(parameter, int) else parameter
        place = places[number]
        assert place is not None  # a tensor that is None is no parameter of a compiled kernel
        result.append((*place, *tensor_map))
    return tuple(result)
