"""Many cells, one by one and side by side."""

import json
import signal
import time
from pathlib import Path

import pytest
from forked import Forked
from tiny import tiny_recipe, write_recipe

from foveal.errors import DataError, RunError, UserError
from foveal.reproduce import Cell, run_all
from foveal.reproduce.jobs import _score, summary
from foveal.runs import RunFolder

IGNORE = {"say": lambda line: None}


def tiny_cells(folder: Path, seeds: int = 2) -> list[Cell]:
    recipes = [tiny_recipe(folder, "train.epochs=1", f"seed={seed}") for seed in range(seeds)]
    return [Cell(recipe, folder / f"seed{recipe.seed}") for recipe in recipes]


def test_finished_cells_are_not_run_again(tmp_path):
    todo, lines = tiny_cells(tmp_path), []
    assert run_all(todo, say=lines.append) == []
    assert [line.split(":")[0] for line in lines] == [f"[{i}/2] {todo[i - 1]}" for i in (1, 2)]
    assert all(cell.done for cell in todo)
    lines.clear()
    assert run_all(todo, say=lines.append) == []
    assert lines == []


def test_a_failing_cell_does_not_stop_the_others(tmp_path):
    bad = Cell(tiny_recipe(tmp_path, "data.triples=[10, 5, 5]"), tmp_path / "bad")  # less than one batch
    todo, lines = tiny_cells(tmp_path, 1), []
    (failure,) = run_all([bad, *todo], say=lines.append)
    assert "do not fill one batch" in str(failure)
    assert failure.cell is bad
    assert "FAILED" in lines[0]
    assert todo[0].done


def test_rows_that_cannot_be_written_do_not_stop_the_others(tmp_path):
    """What is wrong with the file is told when all have ended."""
    todo, calls = tiny_cells(tmp_path), []

    def after():
        calls.append(1)
        raise RunError(f"cannot write, {len(calls)}")

    with pytest.raises(RunError, match="cannot write, 1"):
        run_all(todo, after=after, **IGNORE)
    assert len(calls) == 2
    assert all(cell.done for cell in todo)


@pytest.mark.slow
def test_side_by_side_and_a_failing_cell(tmp_path):
    todo = tiny_cells(tmp_path)
    bad = Cell(tiny_recipe(tmp_path, "data.triples=[10, 5, 5]"), tmp_path / "bad")
    (failure,) = run_all([*todo, bad], jobs=2, **IGNORE)
    assert "do not fill one batch" in str(failure)
    assert all(cell.done for cell in todo)


@pytest.mark.slow
def test_processes_have_the_environment_of_now(tmp_path, monkeypatch):
    """They are forked from one that may have been started long ago."""
    for cell, revision in zip(tiny_cells(tmp_path), ("first", "second"), strict=True):
        monkeypatch.setenv("FOVEAL_REVISION", revision)
        assert run_all([cell], jobs=2, **IGNORE) == []
        assert json.loads((cell.out / "environment.json").read_text())["revision"] == revision


@pytest.mark.parametrize("jobs", [1, 2])
def test_missing_data_stops_all_before_any_is_trained(tmp_path, monkeypatch, jobs):
    monkeypatch.delenv("FOVEAL_DATA", raising=False)
    bad, lines = Cell(tiny_recipe(tmp_path, "data.digits=mnist"), tmp_path / "bad"), []
    with pytest.raises(DataError, match="MNIST"):
        run_all([*tiny_cells(tmp_path), bad], jobs=jobs, say=lines.append)
    assert lines == []
    assert not list(tmp_path.glob("*/recipe.yaml"))


def test_results_of_other_settings_do_not_pass_for_these(tmp_path):
    todo = tiny_cells(tmp_path, 1)
    run_all(todo, **IGNORE)
    with pytest.raises(RunError, match="choose another --out"):
        run_all([Cell(tiny_recipe(tmp_path, "train.epochs=2"), todo[0].out)], **IGNORE)


@pytest.mark.slow
def test_runs_are_stopped_after_some_time_and_go_on(tmp_path):
    """A process that waits for work ends with those that have some."""
    short = Cell(tiny_recipe(tmp_path, "train.epochs=1"), tmp_path / "short")
    long = Cell(tiny_recipe(tmp_path, "train.epochs=100000"), tmp_path / "long")
    ended = []
    began = time.monotonic()
    assert run_all([short, long], jobs=2, minutes=0.25, after=lambda: ended.append(short.done), **IGNORE) == []
    assert time.monotonic() - began < 60
    assert ended == [True]
    assert not long.done
    assert RunFolder(long.out).epochs()
    with open(long.out / "metrics.jsonl") as journal:
        first = journal.readline()
    run_all([short, long], jobs=2, minutes=0.1, **IGNORE)
    assert (long.out / "metrics.jsonl").read_text().startswith(first)


def test_some_time(tmp_path):
    with pytest.raises(UserError, match="--minutes 0"):
        run_all(tiny_cells(tmp_path, 1), minutes=0, **IGNORE)


def test_at_least_one_job(tmp_path):
    with pytest.raises(UserError, match="--jobs 0"):
        run_all(tiny_cells(tmp_path), jobs=0)


def test_a_run_in_one_line(tmp_path):
    todo = tiny_cells(tmp_path, 1)
    run_all(todo, **IGNORE)
    result = RunFolder(todo[0].out).result()
    line = summary(result)
    assert line.startswith(f"accuracy {100 * result['metrics']['accuracy']:.2f} % · true-positive strength ")
    assert "area of the target" not in line  # neither direction of it is better
    assert " · 1 epochs · " in line
    own = {"metrics": {"delay": 3.25, "none": None}, "epochs": 2, "seconds": 7.0}
    own["infos"] = {"delay": {"title": "Delay", "unit": "ms", "better": "lower"}}
    assert summary(own) == "delay 3.25 ms · 2 epochs · 7 s"
    assert _score({"epoch": 1, "val/loss": 2.0, "val/accuracy": 0.5}) == "50.0 %"
    assert _score({"epoch": 1, "train/loss": 2.0}) == ""


SIDE_BY_SIDE = """
import sys
from pathlib import Path
from foveal.recipe import load
from foveal.reproduce import Cell, run_all
recipes = [load(sys.argv[1], ["train.epochs=5000", f"seed={i}"]) for i in range(6)]
run_all([Cell(recipe, Path(sys.argv[2]) / str(recipe.seed)) for recipe in recipes], jobs=2)
"""


@pytest.mark.slow
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGKILL])
def test_stopping_the_first_process_stops_all_and_starts_nothing_new(tmp_path, stop):
    """A terminal's Ctrl-C reaches all processes, but ``kill`` only one."""
    out = tmp_path / "out"
    child = Forked(SIDE_BY_SIDE, write_recipe(tmp_path), out)
    try:
        deadline = time.monotonic() + 300
        while len(list(out.glob("*/last.ckpt"))) < 2:
            assert child.poll() is None, child.errors()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        child.send_signal(stop)
        message = child.wait(60).stderr  # of the last of the processes too
    finally:
        child.stop_all()
    assert ("InterruptedRunError: stopped. The same command resumes" in message) == (stop == signal.SIGINT)
    assert len(list(out.glob("*/recipe.yaml"))) == 2
