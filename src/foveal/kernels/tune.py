"""Choose the fastest way to launch a kernel, once for every shape."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import torch

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
    """The candidate that ``launch`` runs fastest with; measured when ``key`` is first seen in this process.

    Candidates that do not fit the device are passed over. Without a GPU, or while a CUDA graph is being recorded,
    nothing can be measured and the first one is taken.

    Args:
        key: what the choice depends on.
        candidates: makes the list of them.
        launch: runs one.
        device: where.
        threads: how many are compiled at a time; 1 if they choose among candidates of their own.
    """
    if key in _chosen:
        return _chosen[key]  # type: ignore[return-value]
    if device.type != "cuda" or torch.cuda.is_current_stream_capturing():
        return candidates()[0]
    times = [(_milliseconds(partial(launch, fit)), fit) for fit in _compiled(candidates(), launch, device, threads)]
    if not times:
        raise RuntimeError(f"no launch of {key} fits {torch.cuda.get_device_name(device)}")
    _chosen[key] = min(times, key=lambda pair: pair[0])[1]
    return _chosen[key]  # type: ignore[return-value]


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
