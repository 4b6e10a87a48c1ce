"""Repeat what a function launched and allocated, without running the function again.

A fused layer is some ten launches, and the Python that prepares them can take longer than the GPU takes to run them.
All of it depends on shapes and options alone. So it runs twice for each of them: the first call compiles, the second is
recorded, and later ones replay the record with the addresses of new tensors. It is a CUDA graph whose addresses are
free. Where possible that is done in C (:mod:`.replay`).

A function that is recorded allocates through :func:`empty`, :func:`empty_strided` and :func:`empty_like` only, launches
through :mod:`foveal.kernels.prepared` only, and returns whole allocations. Where it must do anything else, it calls
:func:`do_not_record`, and runs every time.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import threading
from collections.abc import Callable, Hashable, Sequence
from functools import partial, reduce
from operator import itemgetter, or_
from typing import Any

import torch
from torch import Tensor

from foveal import compat
from foveal.kernels import replay

ALIGN = 512  # bytes: where temporary memory begins
MOST = 4096  # tapes that are kept
Function = Callable[..., Sequence[Tensor | None]]
Launch = Callable[[Sequence[int | None]], Any]


class _State(threading.local):
    """What this thread records now, or None."""

    recording: Recording | None = None


_state = _State()
_tapes: dict[Hashable, Tape | CompiledTape | None] = {}


class Recording:
    """What a function has done so far; it keeps what was allocated, so that no address is used twice."""

    def __init__(self) -> None:
        self.allocated: list[Tensor] = []
        self.launches: list[tuple[Launch, Sequence[int | None], replay.Kernel | None]] = []
        self.valid = True


class Tape:
    """Launches and allocations of one call, to be repeated with other tensors.

    Args:
        outputs: size, strides and dtype of each result, or None.
        scratch: bytes of temporary memory.
        places: for every address that is used, which tensor it belongs to (inputs, outputs, temporary memory) and how
            many bytes after its beginning it is.
        launches: what to call with the addresses, and which of them.
        device: of all tensors.
    """

    def __init__(
        self,
        outputs: list[tuple[tuple[int, ...], tuple[int, ...], torch.dtype] | None],
        scratch: int,
        places: list[tuple[int, int]],
        launches: list[tuple[Launch, Callable[[list[int | None]], Sequence[int | None]]]],
        device: torch.device,
    ) -> None:
        self.outputs = [
            None if o is None else partial(torch.empty_strided, o[0], o[1], dtype=o[2], device=device) for o in outputs
        ]
        self.scratch = partial(torch.empty, scratch, dtype=torch.uint8, device=device) if scratch else None
        self.places, self.launches = places, launches

    def __call__(self, tensors: Sequence[Tensor | None]) -> list[Tensor | None] | None:
        """The results, or None if an address is not a multiple of 16 bytes, which Triton compiles in."""
        bases = [0 if tensor is None else tensor.data_ptr() for tensor in tensors]
        if reduce(or_, bases) & 15:
            return None
        results = [None if output is None else output() for output in self.outputs]
        bases += [result.data_ptr() for result in results if result is not None]
        if self.scratch is not None:
            scratch = self.scratch()  # kept until all is launched
            bases.append(scratch.data_ptr())
        addresses: list[int | None] = [bases[i] + offset for i, offset in self.places]
        addresses.append(None)
        for launch, choose in self.launches:
            launch(choose(addresses))
        return results


class CompiledTape:
    """The same in C.

    Args:
        program: launches and allocations.
        kernels: what it launches, which must stay.
        device: of all tensors.
    """

    def __init__(self, program: replay.Program, kernels: Sequence[replay.Kernel], device: torch.device) -> None:
        self.program, self.kernels, self.device = program, kernels, device.index

    def __call__(self, tensors: Sequence[Tensor | None]) -> list[Tensor | None] | None:
        """As :class:`Tape`; also None if this thread has not used the GPU yet."""
        return self.program(tensors, compat.raw_stream(self.device))  # type: ignore[misc]


def known(key: Hashable) -> bool:
    """Whether :func:`taped` was called with this key."""
    return key in _tapes


def taped(
    key: Hashable, function: Function, tensors: Sequence[Tensor | None], *options: Any
) -> Sequence[Tensor | None]:
    """``function(*tensors, *options)`` on the GPU of the first tensor, repeated from a tape once there is one.

    Args:
        key: everything that decides what the function does, but for the values and addresses of tensors: the function
            itself, shapes, strides, dtypes, device, options, and which tensors are None.
        function: returns a sequence of tensors, or None in it.
        tensors: its tensors, which do not overlap.
        *options: its other arguments.
    """
    first = tensors[0]
    if first is not None and first.is_cuda and first.get_device() != torch.cuda.current_device():
        with torch.cuda.device_of(first):
            return taped(key, function, tensors, *options)
    tape = _tapes.get(key, False)
    if tape is False or _state.recording is not None:
        if len(_tapes) >= MOST and not (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
            _tapes.clear()  # and with them graphs, which must not be destroyed during a capture
        if len(_tapes) < MOST:
            _tapes.setdefault(key, None)
        return function(*tensors, *options)
    if tape is not None:
        results = tape(tensors)  # type: ignore[operator]
        return function(*tensors, *options) if results is None else results
    recording = _state.recording = Recording()
    try:
        results = function(*tensors, *options)
    finally:
        _state.recording = None
    _tapes[key] = _tape(recording, tensors, results) if recording.valid else None
    return results


def repeated(key: Hashable, tensors: Sequence[Tensor | None]) -> Sequence[Tensor | None] | None:
    """What :func:`taped` returns from a tape; None if there is none, or it cannot be used now.

    To be asked first where it takes time to make the options of the function.
    """
    tape, first = _tapes.get(key), tensors[0]
    if tape is None or _state.recording is not None or first is None:
        return None
    if first.is_cuda and first.get_device() != torch.cuda.current_device():
        return None
    return tape(tensors)


def forget() -> None:
    """Drop all tapes: other launches may be the right ones now."""
    _tapes.clear()


def do_not_record() -> None:
    """Called where something else than allocating and launching is done: the running function is not recorded."""
    if _state.recording is not None:
        _state.recording.valid = False


def note_launch(
    launch: Launch | None, addresses: Sequence[int | None], for_driver: replay.Kernel | None = None
) -> None:
    """Called at every launch; ``launch`` repeats it, or is None if it cannot be repeated; the driver may do so, too."""
    recording = _state.recording
    if recording is not None:
        if launch is None:
            recording.valid = False
        else:
            recording.launches.append((launch, addresses, for_driver))


def _allocated(tensor: Tensor) -> Tensor:
    if _state.recording is not None:
        _state.recording.allocated.append(tensor)
    return tensor


def empty(size: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """As ``torch.empty``."""
    return _allocated(torch.empty(size, dtype=dtype, device=device))


def empty_strided(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """As ``torch.empty_strided``."""
    return _allocated(torch.empty_strided(size, stride, dtype=dtype, device=device))


def empty_like(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """As ``torch.empty_like``."""
    return _allocated(torch.empty_like(tensor, dtype=dtype))


# From a recording to a tape ---------------------------------------------------------------------------------------


def _tape(
    recording: Recording, tensors: Sequence[Tensor | None], results: Sequence[Tensor | None]
) -> Tape | CompiledTape | None:
    """The tape of a recording; None if it does not tell which tensor an address belongs to."""
    returned = {result.data_ptr(): i for i, result in enumerate(results) if result is not None}
    temporary = [tensor for tensor in recording.allocated if tensor.data_ptr() not in returned]
    kept = [tensor for tensor in recording.allocated if tensor.data_ptr() in returned]
    outputs = [result for result in results if result is not None]
    if len(kept) != len(outputs) or {_range(t) for t in kept} != {_range(t) for t in outputs}:
        return None
    first, scratch = len(tensors) + len(outputs), 0
    ranges = {_range(tensor): (i, 0) for i, tensor in enumerate(tensors) if tensor is not None}
    ranges |= {_range(tensor): (len(tensors) + i, 0) for i, tensor in enumerate(outputs)}
    for tensor in temporary:
        ranges[_range(tensor)] = first, scratch
        scratch += -(-_bytes(tensor) // ALIGN) * ALIGN
    known = sorted((start, end, *place) for (start, end), place in ranges.items() if end > start)
    count = sum(_bytes(tensor) > 0 for tensor in (*(t for t in tensors if t is not None), *recording.allocated))
    if len(known) != count or any(one[1] > other[0] for one, other in itertools.pairwise(known)):
        return None  # some overlap
    starts, places = [entry[0] for entry in known], dict[int, tuple[int, tuple[int, int]]]()
    for _, addresses, _ in recording.launches:
        for address in addresses:
            if address is None or address in places:
                continue
            i = bisect.bisect_right(starts, address) - 1
            if i < 0 or address >= known[i][1]:
                return None
            start, _, base, offset = known[i]
            places[address] = len(places), (base, offset + address - start)
    nothing = len(places)  # the address after all others is None
    launches = []
    for launch, addresses, _ in recording.launches:
        indices = [nothing if address is None else places[address][0] for address in addresses]
        launches.append((launch, itemgetter(*indices) if len(indices) > 1 else _single(indices[0])))
    shapes = [None if t is None else (tuple(t.shape), t.stride(), t.dtype) for t in results]
    device = next(tensor.device for tensor in (*tensors, *outputs) if tensor is not None)
    kernels = [kernel for _, _, kernel in recording.launches if kernel is not None]
    if len(kernels) == len(launches) and replay.available():
        located = [
            [None if address is None else places[address][1] for address in addresses]
            for _, addresses, _ in recording.launches
        ]
        with contextlib.suppress(ValueError):  # too many parameters
            program = replay.program(len(tensors), shapes, scratch, list(zip(kernels, located, strict=True)))
            return CompiledTape(program, kernels, device)
    return Tape(shapes, scratch, [place for _, place in places.values()], launches, device)


def _single(index: int) -> Callable[[list[int | None]], Sequence[int | None]]:
    return lambda addresses: (addresses[index],)


def _bytes(tensor: Tensor) -> int:
    """From the first to the last element."""
    if tensor.numel() == 0:
        return 0
    steps = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (steps + 1) * tensor.element_size()


def _range(tensor: Tensor) -> tuple[int, int]:
    return tensor.data_ptr(), tensor.data_ptr() + _bytes(tensor)
