"""What the benchmarks share: time and memory of a function, and rows of results in a CSV file."""

from __future__ import annotations

import csv
import gc
import importlib.util
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch.utils.benchmark import Timer

from foveal.compat import clear_cublas_workspaces
from foveal.revision import revision

BLOCK = 0.2  # seconds between two synchronisations with a GPU


def clock(run: Callable[[], object], device: torch.device, seconds: float = 0.3, *, graph: bool = True) -> float:
    """Median milliseconds of ``run``.

    Args:
        run: what to time; it has been run before.
        device: where it runs.
        seconds: how long to repeat it; on a CPU five times as long.
        graph: on a GPU capture a CUDA graph and time its replay, so that only the device's work counts and not the
            launch overhead of Python.
    """
    if device.type == "cuda" and graph and importlib.util.find_spec("triton") is not None:
        from triton.testing import do_bench_cudagraph

        return do_bench_cudagraph(run, rep=100 * seconds, return_mode="median")  # replayed ten times
    timer = Timer("run()", globals={"run": run}, num_threads=torch.get_num_threads())
    repeats = timer.blocked_autorange(min_run_time=seconds if device.type == "cuda" else 5 * seconds)
    return 1e3 * repeats.median


def clock_beside(
    runs: Mapping[str, Callable[[], object]], device: torch.device, seconds: float = 1.0, least: int = 3
) -> dict[str, float]:
    """Median milliseconds of each of ``runs``, with all the time that Python takes, measured in turns.

    Whatever else the machine does then slows all of them alike, so that their ratios hold.

    Args:
        runs: what to time, by name; all have been run before.
        device: where they run.
        seconds: how long to repeat each.
        least: how often to repeat each at least.
    """
    times: dict[str, list[float]] = {name: [] for name in runs}
    blocks = dict.fromkeys(runs, 1)  # runs between two synchronisations: people do not wait for a GPU at every step
    until = time.perf_counter() + seconds * len(runs)
    while min(map(len, times.values())) < least or time.perf_counter() < until:
        for name, run in runs.items():
            took = stopwatch(run, device, blocks[name])
            times[name].append(took)
            blocks[name] = max(1, round(BLOCK / took)) if device.type == "cuda" else 1
    return {name: 1e3 * statistics.median(taken) for name, taken in times.items()}


def stopwatch(run: Callable[[], object], device: torch.device, repeats: int = 1) -> float:
    """Seconds of one ``run``, until the device is done with it, as a mean over ``repeats``."""
    synchronize = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        run()
    synchronize()
    return (time.perf_counter() - start) / repeats


def host_time(run: Callable[[], object], device: torch.device, repeats: int = 20) -> float:
    """Median microseconds until ``run`` returns: Python's and the launches', without waiting for a GPU."""
    times = []
    for _ in range(repeats):
        if device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return 1e6 * statistics.median(times)


def launches(run: Callable[[], object]) -> int:
    """Number of kernels that ``run`` launches on a GPU; it has been run before."""
    with torch.profiler.profile(activities=_activities()) as profiler:
        run()
        torch.cuda.synchronize()
    return sum(event.name.startswith(("cudaLaunchKernel", "cuLaunchKernel")) for event in profiler.events())


def gpu_time(run: Callable[[], object], repeats: int = 3) -> float:
    """Milliseconds that the kernels of ``run`` take on a GPU, one after the other; it has been run before.

    Where that is far less than the time of ``run``, the GPU waits for Python.
    """
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(repeats):
            run()
        torch.cuda.synchronize()
    on_gpu = torch.autograd.DeviceType.CUDA
    return sum(event.device_time for event in profiler.events() if event.device_type == on_gpu) / repeats / 1e3


def _activities() -> list[torch.profiler.ProfilerActivity]:
    kinds = torch.profiler.ProfilerActivity
    return [kinds.CPU, kinds.CUDA] if torch.cuda.is_available() else [kinds.CPU]


def peak_on_cpu(run: Callable[[], object]) -> float:
    """Peak MiB that PyTorch holds on a CPU during ``run``, above what it held before."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else the profiler prints when it starts and stops
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    held = highest = 0
    for event in sorted(profiler.events(), key=lambda event: event.time_range.end):
        held += event.self_cpu_memory_usage
        highest = max(highest, held)
    return highest / 2**20


def peak(run: Callable[[], object], *, above: bool = False) -> float:
    """Peak memory in MiB that a GPU holds during ``run``; with ``above``, only what exceeds the memory held before."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated() if above else 0
    run()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - held) / 2**20


def cleared() -> float:
    """Free what earlier measurements left on the GPU; returns the MiB that it still holds, 0 without a GPU."""
    gc.collect()
    if not torch.cuda.is_available():
        return 0.0
    clear_cublas_workspaces()
    return torch.cuda.memory_allocated() / 2**20


def hardware(device: torch.device) -> str:
    """Name of the hardware that a number was measured on."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU, {torch.get_num_threads()} threads"


def write_rows(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Write ``rows`` as CSV; those that do not say which revision measured them get that of foveal's source."""
    path.parent.mkdir(parents=True, exist_ok=True)
    columns, now = dict.fromkeys([*rows[0], "revision"]), revision() or ""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(columns), lineterminator="\n")
        writer.writeheader()
        writer.writerows({"revision": now, **row} for row in rows)
