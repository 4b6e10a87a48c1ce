import contextlib
import csv
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from tiny import hears_ctrl_c, write_recipe

from foveal.errors import DataError, RunError, UnknownNameError, UserError
from foveal.recipe import Published, load
from foveal.tasks import reproduce
from foveal.tasks.reproduce import Cell, cells, named_cells, run_all, summarise, tables, write_csv


def tiny_cells(folder, seeds=2):
    made = []
    for seed in range(seeds):
        recipe = load(write_recipe(folder), ["train.epochs=1", f"seed={seed}"])
        recipe.published = Published(table="t", row="R", column="C", accuracy=0.5)
        made.append(Cell(recipe, folder / f"seed{seed}"))
    return made


def test_table1_has_all_fifteen_cells_with_the_published_numbers():
    found = {(r.title, r.data["name"]): r.published for r in map(load, tables()["hattnet/table1"])}
    assert len(found) == 15
    assert found["HAttNet-CTX", "mbg"].accuracy == 0.8101
    assert found["HAttNet-CTX", "mref"].true_positive_strength == 0.2259
    assert found["STN", "mdist"].accuracy == 0.3832
    assert found["STN", "mdist"].true_positive_strength is None
    ours = {(r.title, r.data["name"]): r.published.accuracy for r in map(load, tables()["hattnet/table1-ours"])}
    assert ours == {k: v.accuracy for k, v in found.items()}


def test_unknown_table(tmp_path):
    with pytest.raises(UnknownNameError, match="unknown table 'hattnet/table'; did you mean 'hattnet/table"):
        cells("hattnet/table", 1, tmp_path)


def test_every_run_has_its_own_folder(tmp_path):
    made = cells("hattnet/table1", 3, tmp_path)
    assert len({c.out for c in made}) == len(made) == 45


def test_a_table_cut_short_has_whole_seeds(tmp_path):
    seeds = [c.recipe.seed for c in cells("hattnet/table1", 2, tmp_path)]
    assert seeds == [0] * 15 + [1] * 15


def test_finished_cells_are_not_run_again(tmp_path):
    todo = tiny_cells(tmp_path)
    said = []
    assert run_all(todo, say=said.append) == []
    assert len(said) == 2
    said.clear()
    assert run_all(todo, say=said.append) == []
    assert said == []


def test_side_by_side_and_a_failing_cell(tmp_path):
    todo = tiny_cells(tmp_path)
    bad = load(write_recipe(tmp_path), ["data.triples=[10, 5, 5]"])  # less than one batch
    failures = run_all([*todo, Cell(bad, tmp_path / "bad")], jobs=2, say=lambda line: None)
    assert len(failures) == 1
    assert "do not fill one batch" in str(failures[0])
    assert all(cell.done for cell in todo)


@pytest.mark.parametrize("jobs", [1, 2])
def test_missing_data_stops_all_before_any_is_trained(tmp_path, monkeypatch, jobs):
    monkeypatch.delenv("FOVEAL_DATA", raising=False)
    bad = Cell(load(write_recipe(tmp_path), ["data.digits=mnist"]), tmp_path / "bad")
    said = []
    with pytest.raises(DataError, match="mref needs the official MNIST files"):
        run_all([*tiny_cells(tmp_path), bad], jobs=jobs, say=said.append)
    assert said == []
    assert not list(tmp_path.glob("*/recipe.yaml"))


def test_results_of_other_settings_do_not_pass_for_these(tmp_path):
    todo = tiny_cells(tmp_path, 1)
    run_all(todo, say=lambda line: None)
    other = Cell(load(write_recipe(tmp_path), ["train.epochs=2"]), todo[0].out)
    with pytest.raises(RunError, match="holds a run of another recipe"):
        run_all([other], say=lambda line: None)


SIDE_BY_SIDE = """
import sys
from pathlib import Path
from foveal.recipe import load
from foveal.tasks.reproduce import Cell, run_all
if __name__ == "__main__":
    recipes = [load(sys.argv[1], ["train.epochs=5000", f"seed={i}"]) for i in range(6)]
    run_all([Cell(recipe, Path(sys.argv[2]) / str(recipe.seed)) for recipe in recipes], jobs=2)
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_stopping_the_first_process_stops_all_and_starts_nothing_new(tmp_path, how):
    """A terminal's Ctrl-C reaches all processes, but ``kill`` only one."""
    script, out = tmp_path / "script.py", tmp_path / "out"
    script.write_text(SIDE_BY_SIDE)
    words = [sys.executable, script, write_recipe(tmp_path), out]
    child = subprocess.Popen(
        words,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        preexec_fn=hears_ctrl_c,
    )
    try:
        deadline = time.monotonic() + 120
        while len(list(out.glob("*/last.ckpt"))) < 2:
            assert child.poll() is None, child.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        child.send_signal(how)
        _, said = child.communicate(timeout=60)  # the pipe is closed when the last of the processes is gone
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
    assert ("InterruptedRunError: stopped. The same command goes on" in said) == (how == signal.SIGINT)
    assert len(list(out.glob("*/recipe.yaml"))) == 2


def test_rows_are_mean_and_spread_of_the_results(tmp_path, monkeypatch):
    todo = tiny_cells(tmp_path, 3)
    for cell, accuracy in zip(todo, (0.5, 0.6, 0.7), strict=True):
        cell.out.mkdir()
        metrics = {"accuracy": accuracy, "true_positive_strength": 0.1}
        result = {"metrics": metrics, "parameters": 7, "epochs": 2, "seconds": 3.0, "embedded": True}
        result |= {"title": "T", "dataset": "D", "data": "digits"}
        (cell.out / "result.json").write_text(json.dumps(result))
        (cell.out / "environment.json").write_text(json.dumps({"gpu": None, "packages": {"torch": "2"}}))
    rows = summarise(todo)
    first = rows[0]
    assert first["metric"] == "accuracy"
    assert first["mean"] == pytest.approx(0.6)
    assert first["std"] == pytest.approx(0.1)
    assert first["difference"] == pytest.approx(0.1)
    assert first["seeds"] == 3
    assert first["run_seeds"] == "0 1 2"
    assert reproduce.spread(first) == "60.00 ± 10.00"
    assert rows[1]["published"] == ""
    path = tmp_path / "x.csv"
    write_csv(path, rows)
    write_csv(path, [{**row, "table": "other"} for row in rows])
    write_csv(path, rows)  # replaces its own rows, keeps the others
    with open(path, newline="") as file:
        assert sorted(row["table"] for row in csv.DictReader(file)) == ["other", "other", "t", "t"]
    write_csv(path, [{**row, "recipe": "another"} for row in rows])  # a table of which only one cell was run
    with open(path, newline="") as file:
        assert len(list(csv.DictReader(file))) == 6


def test_seeds_may_begin_elsewhere(tmp_path):
    found = named_cells(["demo/soft", "demo/hard"], 2, tmp_path, first_seed=5)
    assert [(cell.recipe.seed, cell.out.name) for cell in found] == [(5, "seed5")] * 2 + [(6, "seed6")] * 2
    with pytest.raises(UserError, match="first-seed"):
        named_cells(["demo/soft"], 1, tmp_path, first_seed=-1)
