"""Which launch configuration a kernel uses for a shape.

In this order: what an explicit search on this machine measured (a file in the cache folder), a table that comes with
the package, and the candidates themselves, which a model of the shape sorts best first. Only the configuration that is
used is compiled. A search measures all candidates; it happens inside :func:`searching` and nowhere else.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from foveal.files import cache_folder, write_text
from foveal.kernels import tape
from foveal.kernels.ahead import collecting
from foveal.kernels.support import capability

C = TypeVar("C")
R = TypeVar("R")
Table = dict[str, dict[str, Any]]
"""GPU -> its capability, and ``choices``: kernel and shape -> batch size -> candidate as text."""
SHIPPED = Path(__file__).parent / "launches.json"
MOST = 12  # candidates that a search measures: those that are best as far as is known
BENCH_MS = 2  # milliseconds of launches in the CUDA graph that times a candidate
_chosen: dict[Key, Any] = {}
_running: Search | None = None


@dataclass(frozen=True)
class Key:
    """What a choice depends on: kernel, shape without its batch size, batch size, and device."""

    kernel: str
    shape: str
    batch: int
    device: torch.device


@dataclass
class Search:
    """What a search found.

    Attributes:
        table: the fastest candidates, to be written by :func:`write_table`.
        times: for every key, milliseconds of the candidate that would have been used without it, and of the fastest.
    """

    table: Table = field(default_factory=dict)
    times: dict[Key, tuple[float, float]] = field(default_factory=dict)


def run(key: Key, candidates: Callable[[], Sequence[C]], launch: Callable[[C], R], threads: int = 8) -> R:
    """Launch a kernel with the candidate that is chosen for ``key``; returns what ``launch`` returns.

    Args:
        key: what the choice depends on.
        candidates: returns the candidates, best first as far as is known; those that do not fit the GPU are skipped.
        launch: runs one candidate.
        threads: how many candidates a search compiles in parallel; 1 if a launch itself calls :func:`run`.
    """
    choice = _chosen.get(key)
    return _first_run(key, candidates(), launch, threads) if choice is None else launch(choice)


def _first_run(key: Key, options: Sequence[C], launch: Callable[[C], R], threads: int) -> R:
    if key.device.type != "cuda":
        return launch(options[0])
    from triton.runtime.errors import OutOfResources

    known = _from_tables(key, options)
    options = [*known, *(option for option in options if option not in known)]
    if collecting():  # whether it fits the GPU, only a launch tells
        return launch(options[0])
    if _running is not None and not torch.cuda.is_current_stream_capturing():
        options = [_search(key, options, launch, threads, _running)]
    for option in options:
        try:
            result = launch(option)
        except OutOfResources:
            continue
        _chosen[key] = option
        return result
    raise RuntimeError(_nothing_fits(key))


# Tables -----------------------------------------------------------------------------------------------------------


def user_table() -> Path:
    """Where choices of a search on this machine are kept."""
    return cache_folder() / "launches.json"


def _from_tables(key: Key, options: Sequence[C]) -> list[C]:
    """The candidates that tables name for this shape: of the user first; an exact batch size before a similar one."""
    by_text = {str(option): option for option in options}
    named = []
    for path in (user_table(), SHIPPED):
        batches = _choices(path, _gpu(key.device), capability(key.device)).get(f"{key.kernel} {key.shape}", {})
        nearest = sorted((max(key.batch, n) / min(key.batch, n), n) for n in map(int, batches))
        named += [batches[str(n)] for ratio, n in nearest if ratio <= 2]
    return [by_text[text] for text in dict.fromkeys(named) if text in by_text]


@cache
def _choices(path: Path, gpu: str, capability: tuple[int, int]) -> dict[str, dict[str, str]]:
    """Choices in a table for this GPU, or for another of the same capability."""
    table = _read_table(path)
    similar = [entry for entry in table.values() if entry["capability"] == list(capability)]
    entry = table.get(gpu) or next(iter(similar), None)
    return entry["choices"] if entry else {}


def _read_table(path: Path) -> Table:
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        for entry in table.values():
            for batches in entry["choices"].values():
                assert all(int(n) > 0 and isinstance(text, str) for n, text in batches.items())
            assert isinstance(entry["capability"], list)
    except (OSError, ValueError, AttributeError, KeyError, TypeError, AssertionError):  # missing or damaged
        return {}
    return table


def write_table(path: Path, measured: Table) -> None:
    """Add measured choices to the table in ``path``."""
    table = _read_table(path)
    for gpu, entry in measured.items():
        choices = table.setdefault(gpu, {"capability": entry["capability"], "choices": {}})["choices"]
        for shape, batches in entry["choices"].items():
            choices.setdefault(shape, {}).update(batches)
    write_text(path, json.dumps(table, indent=0, sort_keys=True, ensure_ascii=False) + "\n")
    _choices.cache_clear()


# Search -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def searching() -> Iterator[Search]:
    """Inside, every kernel measures its candidates at every new shape; yields what is found. Not thread-safe."""
    global _running
    before, _running = _running, Search()
    _chosen.clear()
    tape.forget()
    try:
        yield _running
    finally:
        _running = before
        tape.forget()


def _search(key: Key, options: Sequence[C], launch: Callable[[C], object], threads: int, search: Search) -> C:
    """The fastest candidate; those that do not fit the device are skipped."""
    tape.do_not_record()
    compiled = _compile(options[:MOST], launch, key.device, threads)
    if not compiled:
        raise RuntimeError(_nothing_fits(key))
    times = [_milliseconds(partial(launch, option)) for option in compiled]
    choice = compiled[times.index(min(times))]
    search.times[key] = times[0], min(times)
    gpu = search.table.setdefault(_gpu(key.device), {"capability": list(capability(key.device)), "choices": {}})
    gpu["choices"].setdefault(f"{key.kernel} {key.shape}", {})[str(key.batch)] = str(choice)
    return choice


def _nothing_fits(key: Key) -> str:
    return f"no launch of {key.kernel} ({key.shape}, batch {key.batch}) fits {_gpu(key.device)}"


def _gpu(device: torch.device) -> str:
    return torch.cuda.get_device_name(device)


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
