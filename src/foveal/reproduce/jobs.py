"""Run many cells, one by one or side by side; one that fails does not stop the others."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence, Set
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TimeElapsedColumn

from foveal.errors import InterruptedRunError, TrainingError, UserError
from foveal.metric_info import metric_info
from foveal.reproduce.cells import Cell
from foveal.runs import RunFolder


@dataclass(frozen=True)
class Failure:
    """A cell, and what went wrong with it."""

    cell: Cell
    error: Exception

    def __str__(self) -> str:
        return f"{self.cell}: {self.error}"


def run_cell(cell: Cell, data: str | None, jobs: int, threads: int | None, progress: bool) -> dict[str, Any]:
    """Train and test one cell in this process, one of ``jobs`` side by side."""
    import torch

    from foveal.tasks.train import fit

    if threads is not None:
        torch.set_num_threads(threads)
        os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    return fit(cell.recipe, cell.out, data=data, progress=progress, jobs=jobs)


def run_all(
    todo: Sequence[Cell],
    *,
    data: str | None = None,
    jobs: int = 1,
    minutes: float | None = None,
    say: Callable[[str], Any] = print,
    after: Callable[[], Any] = lambda: None,
) -> list[Failure]:
    """Run the cells that are not done, ``jobs`` at a time; one that fails does not stop the others.

    A dataset that is missing or damaged stops them all before any is trained.

    Args:
        todo: the cells.
        data: folder of real datasets.
        jobs: how many processes run side by side; on one GPU small models fill each other's gaps.
        minutes: stop after this time, also what is under way. The next call goes on with it from its last checkpoint.
        say: called with a line for every cell that ends.
        after: called whenever one has ended; what it raises is raised when all have ended.

    Returns:
        The failures.
    """
    if jobs < 1:
        raise UserError(f"--jobs {jobs}: expected at least one")
    if minutes is not None and minutes <= 0:
        raise UserError(f"--minutes {minutes:g}: expected more than 0")
    until = None if minutes is None else time.monotonic() + 60 * minutes
    for cell in todo:
        RunFolder(cell.out).check(cell.recipe)  # a result of other settings must not pass for one of these
    waiting = [cell for cell in todo if not cell.done]
    from foveal.tasks.train import build_source  # imported here: to look at results needs neither PyTorch nor a task

    for recipe in {str(cell.recipe.data): cell.recipe for cell in waiting}.values():
        build_source(recipe, data)
    failures: list[Failure] = []
    late: UserError | None = None
    jobs = min(jobs, max(1, len(waiting)))
    here = jobs == 1 and until is None  # in a process of its own, a run can be stopped
    ended = _one_by_one(waiting, data) if here else _side_by_side(waiting, data, jobs, until)
    for i, (cell, result) in enumerate(ended, 1):
        try:
            message = f"[{i}/{len(waiting)}] {cell}: {summary(result())}"
        except InterruptedRunError:
            raise
        except Exception as error:  # reported; the other cells go on
            failures.append(Failure(cell, error))
            message = f"[{i}/{len(waiting)}] {cell} FAILED: {error}"
        say(message)
        try:
            after()
        except UserError as error:
            late = late or error
    if late is not None:
        raise late
    return failures


Ended = tuple[Cell, Callable[[], dict[str, Any]]]
"""A cell, and a function that returns its result or raises what went wrong."""


def _one_by_one(waiting: Sequence[Cell], data: str | None) -> Iterator[Ended]:
    for cell in waiting:
        yield cell, partial(run_cell, cell, data, 1, None, True)


def _side_by_side(waiting: Sequence[Cell], data: str | None, jobs: int, until: float | None) -> Iterator[Ended]:
    import torch

    threads = None if jobs == 1 else max(1, torch.get_num_threads() // jobs)
    others = set(multiprocessing.active_children())
    left, running = iter(waiting), dict[Future[dict[str, Any]], Cell]()
    with ProcessPoolExecutor(jobs, _processes(), _start, (dict(os.environ),)) as pool, _Bars(waiting) as bars:
        try:
            while True:
                # No more than can run at once: what a pool has queued cannot be taken back when the user stops it.
                for cell in itertools.islice(left, jobs - len(running)):
                    running[pool.submit(run_cell, cell, data, jobs, threads, False)] = cell
                if not running:
                    return
                if until is not None and time.monotonic() > until:
                    _kill(others)
                    return
                for future in wait(running, timeout=0.5, return_when=FIRST_COMPLETED).done:
                    yield running.pop(future), future.result
                bars.update()
        except BrokenProcessPool as error:
            raise TrainingError(
                "a process died, perhaps for lack of memory; fewer --jobs need less. The same command resumes"
            ) from error
        except BaseException as stop:  # whatever it was, nobody waits for the results any more
            _kill(others)
            if isinstance(stop, KeyboardInterrupt):
                raise InterruptedRunError("stopped. The same command resumes where this one ended") from stop
            raise


def _kill(others: Set[BaseProcess]) -> None:
    """Kill all processes but ``others``; a run can be resumed from its last checkpoint whenever it is killed."""
    for child in set(multiprocessing.active_children()) - others:
        child.kill()  # Lightning would handle a request to end, and the process go on waiting for work


def _processes() -> BaseContext:
    """How processes are started: forked from one that has imported PyTorch and nothing else, where that is safe."""
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["foveal.tasks.train"])
    return context


def _start(environment: dict[str, str]) -> None:
    """In a new process: leave Ctrl-C to the parent, and do not outlive it if it is killed."""
    os.environ.clear()  # it is that of the time when the first of these processes was started
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


class _Bars:
    """A progress bar for every run under way, read from its journal; nothing where there is no terminal."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self.cells = cells
        self.progress = Progress(
            "{task.description}",
            BarColumn(),
            "{task.fields[status]}",
            TimeElapsedColumn(),
            console=Console(stderr=True),
        )
        self.bars: dict[int, TaskID] = {}

    def __enter__(self) -> _Bars:
        if self.progress.console.is_terminal:
            self.progress.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.progress.stop()

    def update(self) -> None:
        """Show how far each run is."""
        if not self.progress.console.is_terminal:
            return
        for i, cell in enumerate(self.cells):
            if i not in self.bars and RunFolder(cell.out).exists and not cell.done:
                self.bars[i] = self.progress.add_task(str(cell), total=cell.recipe.train.epochs, status="")
            if i in self.bars:
                rows = RunFolder(cell.out).epochs()
                score = _score(rows[-1]) if rows else ""
                self.progress.update(self.bars[i], completed=len(rows), status=score, visible=not cell.done)


def _score(row: dict[str, Any]) -> str:
    """The validation score of an epoch."""
    scores = ((key.removeprefix("val/"), value) for key, value in row.items() if key.startswith("val/"))
    return next((metric_info(key).with_unit(value) for key, value in scores if key != "loss"), "")


def summary(result: dict[str, Any]) -> str:
    """The metrics of a run in one line."""
    infos = {key: metric_info(key, result.get("infos", {}).get(key)) for key in result["metrics"]}
    shown = [(infos[key], value) for key, value in result["metrics"].items() if value is not None and infos[key].better]
    metrics = " · ".join(f"{info.title.lower()} {info.with_unit(value, 2)}" for info, value in shown[:4])
    return f"{metrics} · {result['epochs']} epochs · {result['seconds']:.0f} s"
