"""Compile the kernels of a function in parallel threads, before it runs.

Triton compiles a kernel when it is first launched. :func:`compile_ahead` runs a function without launching anything:
every kernel it would launch is compiled in a thread. The first real launch waits for that.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import torch

R = TypeVar("R")


class _State(threading.local):
    """Whether this thread collects kernels instead of launching them."""

    collecting = False


_state = _State()
_compiled: dict[Hashable, Future[Any]] = {}
_begun: set[int] = set()  # kernels in it
_pool: ThreadPoolExecutor | None = None


def compile_ahead(function: Callable[..., R], *arguments: Any) -> R:
    """Run a function that allocates and launches, without launching; what it returns has no meaningful values."""
    _state.collecting = True
    try:
        return function(*arguments)
    finally:
        _state.collecting = False


def collecting() -> bool:
    """Whether launches are only compiled now."""
    return _state.collecting


def compile_in_thread(
    kernel: Any, grid: tuple[int, ...], arguments: Sequence[Any], rest: Sequence[Any], options: Mapping[str, int]
) -> None:
    """Begin to compile ``kernel`` for ``arguments``, which have no memory, unless it is compiled already."""
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(min(16, os.cpu_count() or 1), "compile")
    key = _signature(kernel, arguments, rest, options)
    if key not in _compiled:
        device = torch.cuda.current_device()

        def compile() -> None:
            with torch.cuda.device(device):
                kernel.warmup(*arguments, *rest, grid=grid, **options)

        _begun.add(id(kernel))
        _compiled[key] = _pool.submit(compile)


def wait(kernel: Any, arguments: Sequence[Any], rest: Sequence[Any], options: Mapping[str, int]) -> None:
    """Wait for a compilation that has begun; its errors are those of the launch, which follows."""
    if id(kernel) not in _begun:
        return
    begun = _compiled.get(_signature(kernel, arguments, rest, options))
    if begun is not None:
        with contextlib.suppress(Exception):
            begun.result()


def _signature(kernel: Any, arguments: Sequence[Any], rest: Sequence[Any], options: Mapping[str, int]) -> Hashable:
    """What a kernel is compiled for: types, constants, and of other numbers what Triton looks at."""
    parameters, general = kernel.params[len(arguments) :], set(kernel.do_not_specialize or ())
    return (
        id(kernel),
        tuple(_kinds(arguments)),
        tuple(
            value if parameter.is_constexpr or not isinstance(value, int)
            else parameter.name in general or (value == 1, value % 16 == 0)
            for parameter, value in zip(parameters, rest, strict=True)
        ),
        tuple(options.items()),
    )  # fmt: skip


def _kinds(arguments: Sequence[Any]) -> Iterator[Hashable]:
    """Dtypes, and blocks of tensor descriptors."""
    for argument in arguments:
        if argument is None:
            yield None
        else:
            base = getattr(argument, "base", argument)
            yield base.dtype, tuple(getattr(argument, "block_shape", ()))
