"""Every cell of a paper's table, several seeds each, ours beside the published number."""

from __future__ import annotations

import csv
import io
import itertools
import math
import multiprocessing
import os
import signal
import statistics
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TimeElapsedColumn

from foveal.errors import InterruptedRunError, TrainingError, UserError, unknown
from foveal.files import write_text
from foveal.recipe import Recipe, available, load
from foveal.tasks.callbacks import read_journal
from foveal.tasks.folder import check_recipe
from foveal.tasks.run import build_source, fit, read_result

SLOWEST = ("stn", "hattnet_ctx", "hattnet", "hard", "soft")  # first, so that no long run is left for the end
SCORES = ("accuracy", "top5_accuracy", "mean_average_precision", "weighted_average_precision")
STRENGTHS = ("true_positive_strength", "true_positive_strength_last", "true_positive_strength_resized")
CLASS_ATTENTION = ("overlap_inner", "overlap_last", "inner_in_last", "pointing_game", "energy_in_box")
METRICS = (*SCORES, "center_mass", *STRENGTHS, *CLASS_ATTENTION)


@dataclass(frozen=True)
class Cell:
    """One run of one cell: a recipe, a seed and the folder it lies in."""

    recipe: Recipe
    out: Path

    @property
    def done(self) -> bool:
        """Whether it is finished."""
        return (self.out / "result.json").exists()

    def __str__(self) -> str:
        return f"{self.recipe.name} seed {self.recipe.seed}"


@dataclass(frozen=True)
class Failure:
    """A cell, and what went wrong with it."""

    cell: Cell
    error: Exception

    def __str__(self) -> str:
        return f"{self.cell}: {self.error}"


def tables() -> dict[str, list[str]]:
    """Names of all tables and of the recipes that are their cells."""
    found: dict[str, list[str]] = {}
    for name in available():
        published = load(name).published
        if published is not None:
            found.setdefault(published.table, []).append(name)
    return found


def cells(table: str, seeds: int, out: Path, overrides: Iterable[str] = (), first_seed: int = 0) -> list[Cell]:
    """All runs of ``table``, each in ``out/table/recipe/seed``."""
    known = tables()
    if table not in known:
        raise unknown("table", table, known)
    return named_cells(known[table], seeds, out / table, overrides, first_seed)


def named_cells(
    names: Iterable[str], seeds: int, out: Path, overrides: Iterable[str] = (), first_seed: int = 0
) -> list[Cell]:
    """Runs of the recipes ``names`` in ``out/recipe/seed``: seed by seed, slowest models first."""
    if seeds < 1 or first_seed < 0:
        raise UserError(f"--seeds {seeds} --first-seed {first_seed}: expected at least one, from 0 on")
    numbers = range(first_seed, first_seed + seeds)
    recipes = [load(name, [*overrides, f"seed={seed}"]) for name in names for seed in numbers]
    recipes.sort(key=lambda r: (r.seed, SLOWEST.index(r.model["name"]) if r.model["name"] in SLOWEST else 0))
    return [Cell(r, out / Path(r.name).name / f"seed{r.seed}") for r in recipes]


def run_cell(cell: Cell, data: str | None, threads: int | None, progress: bool) -> dict[str, Any]:
    """Train and test one cell in this process."""
    import torch

    if threads is not None:
        torch.set_num_threads(threads)
        os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    return fit(cell.recipe, cell.out, data=data, progress=progress)


def run_all(todo: Sequence[Cell], *, data: str | None = None, jobs: int = 1, say: Any = print) -> list[Failure]:
    """Run the cells that are not done, ``jobs`` at a time; one that fails does not stop the others.

    A dataset that is missing or damaged stops them all before any is trained.

    Args:
        todo: the cells.
        data: folder of real datasets.
        jobs: how many processes run side by side; on one GPU small models fill each other's gaps.
        say: called with a line for every cell that ends.

    Returns:
        The failures.
    """
    if jobs < 1:
        raise UserError(f"--jobs {jobs}: expected at least one")
    for cell in todo:
        check_recipe(cell.recipe, cell.out)  # a result of other settings must not pass for one of these
    waiting = [cell for cell in todo if not cell.done]
    for recipe in {str(cell.recipe.data): cell.recipe for cell in waiting}.values():
        build_source(recipe, data)
    failures: list[Failure] = []
    ended = _one_by_one(waiting, data) if jobs == 1 else _side_by_side(waiting, data, jobs)
    for i, (cell, result) in enumerate(ended, 1):
        try:
            said = _line(i, len(waiting), cell, result())
        except InterruptedRunError:
            raise
        except Exception as error:  # reported; the other cells go on
            failures.append(Failure(cell, error))
            said = f"[{i}/{len(waiting)}] {cell} FAILED: {error}"
        say(said)
    return failures


Ended = tuple[Cell, Callable[[], dict[str, Any]]]
"""A cell, and a function that returns its result or raises what went wrong."""


def _one_by_one(waiting: Sequence[Cell], data: str | None) -> Iterator[Ended]:
    for cell in waiting:
        yield cell, partial(run_cell, cell, data, None, True)


def _side_by_side(waiting: Sequence[Cell], data: str | None, jobs: int) -> Iterator[Ended]:
    threads = max(1, (os.cpu_count() or 1) // jobs)
    others = set(multiprocessing.active_children())
    left, running = iter(waiting), dict[Future[dict[str, Any]], Cell]()
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, spawn, _obey_the_parent) as pool, _Bars(waiting) as bars:
        try:
            while True:
                # No more than can run at once: what a pool has queued cannot be taken back when the user stops it.
                for cell in itertools.islice(left, jobs - len(running)):
                    running[pool.submit(run_cell, cell, data, threads, False)] = cell
                if not running:
                    return
                for future in wait(running, timeout=0.5, return_when=FIRST_COMPLETED).done:
                    yield running.pop(future), future.result
                bars.update()
        except BrokenProcessPool as error:
            raise TrainingError(
                "a process died, perhaps for lack of memory; fewer --jobs need less. The same command goes on"
            ) from error
        except BaseException as stop:  # whatever it was, nobody waits for the results any more
            for child in set(multiprocessing.active_children()) - others:
                child.terminate()  # a run can be resumed from its last epoch whenever it is killed
            if isinstance(stop, KeyboardInterrupt):
                raise InterruptedRunError("stopped. The same command goes on where this one was") from stop
            raise


def _obey_the_parent() -> None:
    """In a new process: leave Ctrl-C to the parent, and do not outlive it if it is killed."""
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
            "{task.description}", BarColumn(), "{task.fields[said]}", TimeElapsedColumn(), console=Console(stderr=True)
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
            if i not in self.bars and (cell.out / "recipe.yaml").exists() and not cell.done:
                self.bars[i] = self.progress.add_task(str(cell), total=cell.recipe.train.epochs, said="")
            if i in self.bars:
                rows = read_journal(cell.out / "metrics.jsonl")
                scores = {k: v for k, v in rows[-1].items() if k.startswith("val/") and k != "val/loss"} if rows else {}
                score = next((f"{v:.1%}" for v in scores.values()), "")
                self.progress.update(self.bars[i], completed=len(rows), said=score, visible=not cell.done)


def _line(i: int, n: int, cell: Cell, result: dict[str, Any]) -> str:
    m = result["metrics"]
    names = [name for name in SCORES if m.get(name) is not None]
    score = " · ".join(f"{name.replace('_', ' ')} {m[name]:.2%}" for name in names)
    strength = f" · strength {m['true_positive_strength']:.1%}" if "true_positive_strength" in m else ""
    return f"[{i}/{n}] {cell}: {score}{strength} · {result['epochs']} epochs · {result['seconds']:.0f} s"


def scores(result: dict[str, Any]) -> dict[str, float]:
    """All metrics of a run by name, those of a part as ``average_precision/cat`` or ``pointing_game/wrong``."""
    each = {f"average_precision/{name}": value for name, value in result.get("average_precision", {}).items()}
    for name, split in result.get("class_attention", {}).items():
        each |= {f"{name}/{answers}": split[answers] for answers in ("right", "wrong")}
    found = {name: result["metrics"].get(name) for name in METRICS} | each
    return {name: value for name, value in found.items() if value is not None}


def summarise(ran: Iterable[Cell]) -> list[dict[str, Any]]:
    """One row a recipe and metric: the published value, ours with its spread over seeds, and how it was made."""
    by_recipe: dict[str, list[Cell]] = {}
    for cell in ran:
        if cell.done:
            by_recipe.setdefault(cell.recipe.name, []).append(cell)
    rows = []
    for name, group in by_recipe.items():
        results = [read_result(cell.out) for cell in group]
        recipe, published = group[0].recipe, group[0].recipe.published
        assert published is not None
        measured = {cell.recipe.seed: scores(result) for cell, result in zip(group, results, strict=True)}
        for metric in dict.fromkeys(itertools.chain(*measured.values())):
            found = {seed: each[metric] for seed, each in measured.items() if metric in each}
            values = list(found.values())
            said = getattr(published, metric, None)
            mean = statistics.mean(values)
            rows.append(
                {
                    "table": published.table,
                    "recipe": name,
                    "model": published.row,
                    "dataset": published.column,
                    "metric": metric,
                    "published": "" if said is None else round(said, 4),
                    "mean": round(mean, 4),
                    "std": round(statistics.stdev(values), 4) if len(values) > 1 else "",
                    "difference": "" if said is None else round(mean - said, 4),
                    "seeds": len(values),
                    "values": " ".join(f"{v:.4f}" for v in values),
                    "run_seeds": " ".join(map(str, found)),
                    "parameters": results[0]["parameters"],
                    "epochs": round(statistics.mean(r["epochs"] for r in results), 1),
                    "seconds": round(statistics.mean(r["seconds"] for r in results), 1),
                    "step_seconds": _step(results),
                    "precision": recipe.train.precision,
                    "embedded": results[0]["embedded"],
                    "hardware": _hardware(group[0].out),
                }
            )
    order = {metric: i for i, metric in enumerate(METRICS)}
    rows.sort(key=lambda r: (r["table"], order.get(r["metric"], len(order)), r["metric"], r["dataset"], r["model"]))
    return rows


def _step(results: Sequence[dict[str, Any]]) -> float | str:
    steps = [r["step_seconds"] for r in results if r.get("step_seconds")]
    return round(statistics.median(steps), 6) if steps else ""


def _hardware(out: Path) -> str:
    import json

    about = json.loads((out / "environment.json").read_text())
    return f"{about['gpu'] or 'CPU'}, torch {about['packages'].get('torch', '?')}"


def write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write ``rows``; rows of other tables and recipes that are in the file already stay."""
    kept: list[dict[str, Any]] = []
    if path.exists():
        ours = {(row["table"], row["recipe"]) for row in rows}
        with open(path, newline="", encoding="utf-8") as file:
            kept = [row for row in csv.DictReader(file) if (row.get("table"), row.get("recipe")) not in ours]
    if not rows:
        return
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(kept + rows)
    write_text(path, text.getvalue(), "Free some space or choose another --csv; the same command goes on")


def spread(row: dict[str, Any]) -> str:
    """``mean ± spread`` in percent.

    >>> spread({"mean": 0.9851, "std": 0.002})
    '98.51 ± 0.20'
    """
    std = row.get("std")
    has = std not in (None, "") and math.isfinite(float(std))
    return f"{100 * float(row['mean']):.2f}" + (f" ± {100 * float(std):.2f}" if has else "")  # type: ignore[arg-type]
