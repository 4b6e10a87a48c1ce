"""Private API of Triton: a kernel that it has compiled, launched again without its wrappers in Python.

They take longer than the launch itself. What a version of Triton does not have is looked up at the first launch; then
the function falls back to what Triton offers in public.
"""

from __future__ import annotations

import ctypes
import inspect
import re
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from foveal import compat
from foveal.kernels.replay import Kernel

LAUNCHER = "iiiKKppOOOOOO"  # first arguments of the C function that launches: grid, stream, function, …, two hooks
MOST_MAPS = 256  # tensor maps that are kept for an argument
MAP_BYTES = 128  # of a tensor map
MOST_SHARED = 227 * 2**10  # bytes of shared memory; of more, Triton tells the driver
MOST_SCRATCH = 2  # parameters after those of the signature
FORMATS = {
    "i1": "b", "i8": "b", "i16": "h", "i32": "i", "i64": "q", "u1": "B", "u8": "B", "u16": "H", "u32": "I", "u64": "Q",
    "fp32": "f", "f32": "f", "fp64": "d",
}  # fmt: skip


class Address:
    """What Triton asks of a tensor that is known by its address."""

    def __init__(self, address: int) -> None:
        self.address = address

    def data_ptr(self) -> int:
        """The address."""
        return self.address


def compiled_launch(
    compiled: Any, grid: tuple[int, int, int], descriptors: Sequence[Any], rest: tuple[Any, ...]
) -> Callable[[Sequence[int | None]], Any] | None:
    """A function that launches a kernel which Triton has compiled, given the addresses of its tensors; None if unknown.

    Args:
        compiled: what a launch through Triton returned; None in its interpreter.
        grid: number of programs.
        descriptors: for every tensor, its descriptor or None for a pointer.
        rest: the arguments after the tensors.
    """
    descriptors = [None if item is None else _rebased(item, None) for item in descriptors]  # they would keep tensors
    direct = _direct_launch(compiled, grid, descriptors, rest)
    if direct is not None:
        return direct
    try:
        run = compiled[grid]
    except (TypeError, AttributeError):
        return None

    def launch(addresses: Sequence[int | None]) -> Any:
        tensors = [a if d is None else _rebased(d, a) for a, d in zip(addresses, descriptors, strict=True)]
        return run(*tensors, *rest)

    return launch


def _driver() -> Any:
    """Triton's driver for NVIDIA GPUs, if it launches as Triton 3.6 does."""
    driver = sys.modules.get("triton.backends.nvidia.driver")
    return driver if getattr(driver, "_BASE_ARGS_FORMAT", None) == LAUNCHER else None


def _direct_launch(
    compiled: Any, grid: tuple[int, int, int], descriptors: Sequence[Any], rest: tuple[Any, ...]
) -> Callable[[Sequence[int | None]], Any] | None:
    """As :func:`compiled_launch`, by the C function that Triton compiled for the kernel's signature.

    Tensor maps are kept by address: PyTorch's allocator returns the same addresses in every step.
    """
    driver, stream = _driver(), compat.raw_stream
    if driver is None or stream is None:
        return None
    try:
        launcher, metadata = compiled.run, compiled.metadata
        if launcher.global_scratch_size or launcher.profile_scratch_size:
            return None
        start = launcher.launch
        expand, about = driver.make_tensordesc_arg, list(metadata.tensordesc_meta or ())
        indices = [i for i, descriptor in enumerate(descriptors) if descriptor is not None]
        if len(about) != len(indices):
            return None
        if indices:
            start = inspect.getclosurevars(start).nonlocals["launcher"]
        flags = launcher.launch_cooperative_grid, launcher.launch_pdl
        head = compiled.function, *flags, None, None, compiled.packed_metadata, None, None, None
    except (AttributeError, KeyError, TypeError):
        return None
    device = torch.cuda.current_device()
    if not indices:
        return lambda addresses: start(*grid, stream(device), *head, *addresses, *rest)
    maps: dict[int, dict[int, list[Any]]] = {i: {} for i in indices}
    kinds = dict(zip(indices, about, strict=True))

    def launch(addresses: Sequence[int | None]) -> Any:
        arguments: list[Any] = []
        for i, address in enumerate(addresses):
            known = maps.get(i)
            if known is None:
                arguments.append(address)
                continue
            expanded = known.get(address)  # type: ignore[arg-type]
            if expanded is None:
                if len(known) >= MOST_MAPS:
                    known.clear()
                expanded = known[address] = expand(_rebased(descriptors[i], address), kinds[i])  # type: ignore[index]
            arguments += expanded
        return start(*grid, stream(device), *head, *arguments, *rest)

    return launch


def _rebased(descriptor: Any, address: int | None) -> Any:
    """A tensor descriptor like ``descriptor`` of the memory at ``address``, without checking it again."""
    copy = object.__new__(type(descriptor))
    copy.__dict__.update(descriptor.__dict__, base=Address(address or 0))
    return copy


# For the driver -----------------------------------------------------------------------------------------------------


def driver_kernel(
    compiled: Any, grid: tuple[int, int, int], descriptors: Sequence[Any], rest: tuple[Any, ...]
) -> Kernel | None:
    """What the driver needs to launch the kernel; None if unknown, or if the compiled code has other parameters.

    Arguments as in :func:`compiled_launch`; a descriptor still has its tensor.
    """
    try:
        launcher, metadata = compiled.run, compiled.metadata
        unusual = "profile_scratch_size", "launch_cooperative_grid", "launch_pdl", "gsan_enabled"
        if launcher.global_scratch_size or any(getattr(launcher, name, 0) for name in unusual):
            return None
        if metadata.num_ctas != 1 or metadata.shared > MOST_SHARED or 0 in grid:
            return None
        kinds, arguments = [str(kind) for kind in compiled.src.signature.values()], [*descriptors, *rest]
        about = list(metadata.tensordesc_meta or ())
        if len(about) != sum(descriptor is not None for descriptor in descriptors):
            return None  # of GPUs before Hopper, whose kernels get pointers
        parameters = list(_parameters(kinds, arguments, len(descriptors), iter(about)))
        sizes = [_size(parameter) for parameter in parameters]
        expected = _entry_sizes(compiled.asm["ptx"])
        scratch = expected[len(sizes) :]  # addresses of temporary memory, of which there is none
        if expected[: len(sizes)] != sizes or len(scratch) > MOST_SCRATCH or any(size != 8 for size in scratch):
            return None
        every = (*parameters, *[bytes(8)] * len(scratch))
        return Kernel(int(compiled.function), grid, 32 * metadata.num_warps, metadata.shared, every, compiled)
    except (AttributeError, KeyError, TypeError, ValueError, struct.error):
        return None


def _parameters(
    kinds: Sequence[str], arguments: Sequence[Any], tensors: int, about: Iterator[Any]
) -> Iterator[bytes | int | tuple[int, bytes]]:
    """Parameters of the compiled kernel, in order; constants are none of them."""
    for number, (kind, argument) in enumerate(zip(kinds, arguments, strict=True)):
        if kind == "constexpr":
            continue
        if kind.startswith("tensordesc"):
            tensor_map, *numbers = _expanded(argument, next(about))
            yield number, _content(tensor_map)
            dims = len(numbers) // 2
            yield from (struct.pack("i", size) for size in numbers[:dims])
            yield from (struct.pack("q", stride) for stride in numbers[dims:])
        elif kind[0] != "*":
            yield struct.pack(FORMATS[kind], argument)
        elif number < tensors and argument is None:
            yield number
        else:
            raise ValueError(f"parameter {number} is no tensor: {argument!r}")


def _expanded(descriptor: Any, about: Any) -> list[Any]:
    """The map of a tensor, its sizes and strides, as Triton passes them; versions differ in a last argument."""
    expand = sys.modules["triton.backends.nvidia.driver"].make_tensordesc_arg
    return expand(descriptor, about, *[None] * (len(inspect.signature(expand).parameters) - 2))


def _content(tensor_map: Any) -> bytes:
    """The bytes of a tensor map, the last ones of Triton's object."""
    kind = type(tensor_map)
    begin = id(tensor_map) + kind.__basicsize__ - MAP_BYTES
    if kind.__name__ != "PyCUtensorMap" or kind.__basicsize__ not in (192, 256) or begin % 64:
        raise TypeError(f"no tensor map that is known: {kind}")
    return ctypes.string_at(begin, MAP_BYTES)


def _size(parameter: bytes | int | tuple[int, bytes]) -> int:
    return len(parameter) if isinstance(parameter, bytes) else 8 if isinstance(parameter, int) else MAP_BYTES


def _entry_sizes(ptx: str) -> list[int]:
    """Bytes of each parameter of the kernel in PTX.

    >>> _entry_sizes(".entry f(.param .align 64 .b8 a[128], .param .u64 .ptr .global .align 1 b, .param .f32 c)")
    [128, 8, 4]
    """
    entry = re.search(r"\.entry\s+[\w$]+\s*\(([^)]*)\)", ptx)
    if entry is None:
        raise ValueError("no entry")
    found = re.findall(r"\.param\s+(?:\.align\s+\d+\s+)?\.[busf](\d+)[^,\[]*(?:\[(\d+)\])?", entry[1])
    return [int(bits) // 8 * int(count or 1) for bits, count in found]
