"""Choose the fastest way to launch a kernel, once for every shape, and remember it in the cache folder."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import TypeVar

import torch

from foveal.errors import RunError
from foveal.files import cache_folder, write_text

C = TypeVar("C")
REPEATS = 20
_chosen: dict[Hashable, object] = {}


def fastest(
    key: Hashable,
    candidates: Callable[[], Sequence[C]],
    launch: Callable[[C], object],
    device: torch.device,
    threads: int = 8,
) -> C:
    """The candidate that ``launch`` runs fastest with; measured when ``key`` is first seen on this kind of GPU.

    Candidates that do not fit the device are passed over. Without a GPU, or while a CUDA graph is being recorded,
    nothing can be measured and the first one is taken, unless the choice was made before.

    Args:
        key: what the choice depends on.
        candidates: makes the list of them.
        launch: runs one.
        device: where.
        threads: how many are compiled at a time; 1 if they choose among candidates of their own.
    """
    if key in _chosen:
        return _chosen[key]  # type: ignore[return-value]
    known = candidates()
    if device.type != "cuda":
        return known[0]
    path = _file(key, known, device)
    found = _read(path, known)
    if found is None:
        if torch.cuda.is_current_stream_capturing():
            return known[0]
        times = [(_milliseconds(partial(launch, fit)), fit) for fit in _compiled(known, launch, device, threads)]
        if not times:
            raise RuntimeError(f"no launch of {key} fits {torch.cuda.get_device_name(device)}")
        found = min(times, key=lambda pair: pair[0])[1]
        with contextlib.suppress(RunError):  # then it is measured again next time
            write_text(path, str(known.index(found)))
    _chosen[key] = found
    return found


def _file(key: Hashable, candidates: Sequence[object], device: torch.device) -> Path:
    """Where the choice is remembered: for one kind of GPU, these versions, this code and these candidates."""
    import triton

    about = (key, list(candidates), torch.cuda.get_device_name(device), torch.__version__, triton.__version__, _code())
    return cache_folder() / "launches" / hashlib.sha256(repr(about).encode()).hexdigest()[:24]


@cache
def _code() -> str:
    """A digest of the kernels' source."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _read(path: Path, candidates: Sequence[C]) -> C | None:
    try:
        return candidates[int(path.read_text(encoding="ascii"))]
    except (OSError, ValueError, IndexError):  # not there, or damaged
        return None


def _compiled(
    candidates: Sequence[C], launch: Callable[[C], object], device: torch.device, threads: int = 8
) -> list[C]:
    """Launch every candidate once, which compiles it, several at a time; returns those that fit the device."""
    from triton.runtime.errors import OutOfResources

    def fitting(candidate: C) -> list[C]:
        with torch.cuda.device(device):
            torch.cuda.synchronize()  # a new thread has no CUDA context of its own before its first call
            try:
                launch(candidate)
            except OutOfResources:
                return []
        return [candidate]

    first = fitting(candidates[0])  # alone: it also sets up what all of them share
    if threads == 1:
        return sum(map(fitting, candidates[1:]), first)
    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(fitting, candidates[1:]), first)


def _milliseconds(launch: Callable[[], object]) -> float:
    """Of ``REPEATS`` launches, recorded as a graph so that the time to launch does not count."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(torch.cuda.Stream()):
        graph.capture_begin()
        for _ in range(REPEATS):
            launch()
        graph.capture_end()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    graph.replay()
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)
