"""What the benchmarks share: time and memory of a function, and rows of results in a CSV file."""

from __future__ import annotations

import csv
import gc
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch.utils.benchmark import Timer

from foveal.compat import clear_cublas_workspaces


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
    """Write ``rows`` as CSV."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
