"""Choose the fastest launch configuration of a kernel, once a shape, and keep the choice in the cache folder."""

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
BENCH_MS = 2  # milliseconds of launches in the CUDA graph that times a candidate
_chosen: dict[Hashable, object] = {}


def fastest(
    key: Hashable,
    candidates: Callable[[], Sequence[C]],
    launch: Callable[[C], object],
    device: torch.device,
    threads: int = 8,
) -> C:
    """The candidate that ``launch`` runs fastest with, measured when ``key`` is first seen on this type of GPU.

    Candidates that do not fit the device are skipped. Without a GPU, or while a CUDA graph is being captured, nothing
    can be measured: the first candidate is returned, unless the choice is known already.

    Args:
        key: what the choice depends on.
        candidates: returns the list of candidates.
        launch: runs one candidate.
        device: where it runs.
        threads: how many candidates are compiled in parallel; 1 if a launch itself calls :func:`fastest`.
    """
    if key in _chosen:
        return _chosen[key]  # type: ignore[return-value]
    options = candidates()
    if device.type != "cuda":
        return options[0]
    path = _choice_file(key, options, device)
    choice = _read_choice(path, options)
    if choice is None:
        if torch.cuda.is_current_stream_capturing():
            return options[0]
        compiled = _compile(options, launch, device, threads)
        if not compiled:
            raise RuntimeError(f"no launch of {key} fits {torch.cuda.get_device_name(device)}")
        times = [(_milliseconds(partial(launch, option)), option) for option in compiled]
        choice = min(times, key=lambda pair: pair[0])[1]
        with contextlib.suppress(RunError):  # the cache is not writable: measured again in the next process
            write_text(path, str(options.index(choice)))
    _chosen[key] = choice
    return choice


def _choice_file(key: Hashable, options: Sequence[object], device: torch.device) -> Path:
    """Where the choice is kept: specific to the type of GPU, the versions, the kernels' code and the candidates."""
    import triton

    name = torch.cuda.get_device_name(device)
    parts = (key, list(options), name, torch.__version__, triton.__version__, _code_digest())
    return cache_folder() / "launches" / hashlib.sha256(repr(parts).encode()).hexdigest()[:24]


@cache
def _code_digest() -> str:
    """A digest of the source of all kernels."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _read_choice(path: Path, options: Sequence[C]) -> C | None:
    try:
        return options[int(path.read_text(encoding="ascii"))]
    except (OSError, ValueError, IndexError):  # missing or damaged
        return None


def _compile(options: Sequence[C], launch: Callable[[C], object], device: torch.device, threads: int) -> list[C]:
    """Launch every candidate once, which compiles it, several in parallel; returns those that fit the device."""
    from triton.runtime.errors import OutOfResources

    def try_launch(option: C) -> list[C]:
        with torch.cuda.device(device):
            torch.cuda.synchronize()  # a new thread has no CUDA context before its first call
            try:
                launch(option)
            except OutOfResources:
                return []
        return [option]

    first = try_launch(options[0])  # alone: it also sets up what all candidates share
    if threads == 1:
        return sum(map(try_launch, options[1:]), first)
    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(try_launch, options[1:]), first)


def _milliseconds(launch: Callable[[], object]) -> float:
    """Median time of one launch, replayed from a CUDA graph, so that the launch overhead does not count."""
    from triton.testing import do_bench_cudagraph

    return do_bench_cudagraph(launch, rep=BENCH_MS, return_mode="median")
