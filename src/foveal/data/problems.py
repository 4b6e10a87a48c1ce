"""What is wrong with the files of a dataset: training stops at the first problem, a check lists them all.

Readers run once for both. A reader puts every part that it could do without, such as one of many files, in a
``with collected():`` block. Usually the block does nothing. While a dataset is checked, it notes the error and reading
goes on after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foveal.errors import DataError

Progress = Callable[..., Iterable[Any]]
"""``progress(steps, description=..., total=...)`` iterates over ``steps``; ``rich.progress.track`` is one."""


@dataclass(frozen=True)
class Problem:
    """Something wrong with the files of a dataset.

    Attributes:
        message: the file, what is wrong with it, and what to do.
        stops: whether training would stop at it; if not, it is only suspicious.
        file: the file, where only that one is concerned.
    """

    message: str
    stops: bool = True
    file: Path | None = None

    def __str__(self) -> str:
        return self.message


_problems: ContextVar[list[Problem] | None] = ContextVar("problems", default=None)


@contextmanager
def collecting() -> Iterator[list[Problem]]:
    """The list of problems that ``collected`` blocks note until the block ends."""
    problems: list[Problem] = []
    token = _problems.set(problems)
    try:
        yield problems
    finally:
        _problems.reset(token)


@contextmanager
def collected() -> Iterator[None]:
    """Data that reading can go on without: while problems are collected, an error in the block is noted, not raised."""
    try:
        yield
    except DataError as error:
        problems = _problems.get()
        if problems is None:
            raise
        problems.append(Problem(str(error)))


def is_checking() -> bool:
    """Whether problems are collected, so that a reader may look for what does not stop training."""
    return _problems.get() is not None


def note(message: str) -> None:
    """Add a problem that does not stop training, if problems are collected."""
    problems = _problems.get()
    if problems is not None:
        problems.append(Problem(message, stops=False))
