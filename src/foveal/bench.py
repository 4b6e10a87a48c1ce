"""What the benchmarks share: time and memory of a function, and rows of results in a file."""

from __future__ import annotations

import csv
import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch


def clock(run: Callable[[], object], device: torch.device, seconds: float = 0.3, *, graph: bool = True) -> float:
    """Median milliseconds of ``run``.

    Args:
        run: what to time; it has been run before.
        device: where it works.
        seconds: how long to repeat it; on a CPU five times as long.
        graph: on a GPU record a CUDA graph and time its replay, so that the device's work counts and not the time that
            Python takes to launch it.
    """
    times: list[float] = []
    if device.type != "cuda":
        until = time.perf_counter() + 5 * seconds
        while len(times) < 5 or time.perf_counter() < until:
            start = time.perf_counter()
            run()
            times.append(1e3 * (time.perf_counter() - start))
        return statistics.median(times)
    if graph:
        run = recorded(run)
    until = time.perf_counter() + seconds
    while len(times) < 10 or time.perf_counter() < until:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def recorded(run: Callable[[], object]) -> Callable[[], object]:
    """``run`` as a CUDA graph that can be replayed."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):  # where what is left from earlier runs does not get in the way of recording
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def peak(run: Callable[[], object], *, above: bool = False) -> float:
    """Most memory in MiB that a GPU holds while it does ``run``; ``above`` what it holds already, if you like."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated() if above else 0
    run()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - held) / 2**20


def cleared() -> float:
    """Let go of what earlier measurements left on a GPU; MiB that it holds all the same, none without one."""
    gc.collect()
    if not torch.cuda.is_available():
        return 0.0
    torch._C._cuda_clearCublasWorkspaces()  # one of 32 MiB for every stream that ever multiplied matrices
    return torch.cuda.memory_allocated() / 2**20


def hardware(device: torch.device) -> str:
    """What a figure was measured on."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU, {torch.get_num_threads()} threads"


def write_rows(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Write ``rows`` as CSV."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
