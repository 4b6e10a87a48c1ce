"""Commands on whole tables: demo, list, reproduce, compare."""

import csv
import json
from pathlib import Path

import pytest
from fake_runs import write_run

from foveal.errors import UserError
from foveal.reproduce import cells

TABLE = """
about: how wide
settings:
  task: refer
  data: {name: mref, digits: embedded, triples: [60, 20, 20], canvas: 30, count: [1, 2], scale: [0.3, 0.5]}
  model: {name: hattnet, hidden: 4, stages: 2}
  train: {epochs: 1, batch: 20, eval_batch: 20, accelerator: cpu}
rows:
  narrow: {title: narrow, model: {channels: 2}}
  wide: {title: wide, model: {channels: 6}}
published:
  accuracy: {narrow: 0.25, wide: 0.75}
"""


@pytest.fixture
def table(tmp_path, monkeypatch) -> Path:
    """A folder with a table of one's own, which is the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "widths.yaml").write_text(TABLE)
    return tmp_path


# List -------------------------------------------------------------------------------------------------------


def test_list(call):
    status, out, _ = call("list")
    assert status == 0
    names = set(out.split())
    assert {"recipes", "tables", "tasks", "models", "data", "mechanisms", "losses", "metrics"} <= names
    assert {"hattnet/table1/mref-hattnet-ctx", "hattnet/table1", "hattnet_ctx", "mdist", "cifar_resnet20"} <= names


@pytest.mark.parametrize(
    ("what", "name", "summary"),
    [
        ("recipes", "hattnet/table1/mref-soft", ""),
        ("recipes", "demo/classify", ""),
        ("tables", "demo/refer", "5 cells"),
        ("tables", "hattnet/table1", "15 cells"),
        ("tasks", "refer", "an image"),
        ("tasks", "document", "a text"),
        ("models", "hattnet_ctx", ""),
        ("data", "mref", "digit"),
        ("mechanisms", "aw", "AW"),
        ("losses", "mask", ""),
        ("metrics", "accuracy", "Accuracy, %"),
        ("metrics", "label_map", "Label mAP"),
    ],
)
def test_lists_have_a_line_on_each(call, what, name, summary):
    status, out, _ = call("list", what)
    title, *lines = out.splitlines()
    assert (status, title) == (0, what)
    rows = {line.split()[0]: line.strip() for line in lines}
    assert summary in rows[name]
    if what != "recipes":
        assert all(len(line.split()) > 1 for line in lines), "every name has a summary"


# Demo -------------------------------------------------------------------------------------------------------


def test_demo_on_a_small_table(call, table):
    status, out, _ = call("demo", "widths.yaml", "--jobs", 1)
    assert status == 0
    assert out.startswith("widths.yaml: how wide\n")
    assert "[2/2] widths.yaml/wide seed 0: accuracy" in out
    (heading,) = (line.replace("┃", " ").split() for line in out.splitlines() if "┃" in line)
    assert heading == ["narrow", "wide"]
    rows = [[cell.strip() for cell in line.split("│")] for line in out.splitlines() if "│" in line]
    assert {"Accuracy, %", "parameters", "seconds"} <= {row[1] for row in rows}
    assert all(len(row) == 5 for row in rows)
    assert "…" not in out
    assert f"Open it in a browser: {table / 'runs/widths/report.html'}" in out
    assert (table / "runs/widths/report.html").exists()


@pytest.mark.parametrize(("problem", "status"), [(UserError("mistake"), 2), (ValueError("bug"), 1)])
def test_runs_that_fail_by_a_mistake_are_status_2(call, monkeypatch, tmp_path, problem, status):
    def fit(*args, **options):
        raise problem if "soft" in str(args) else UserError("mistake")

    monkeypatch.setattr("foveal.tasks.train.fit", fit)
    ended = call("demo", "--jobs", 1, "--out", tmp_path)
    assert ended.status == status
    assert "5 run(s) failed; the first: demo/refer/" in ended.err
    assert "The same command resumes with the rest" in ended.err


# Reproduce and compare --------------------------------------------------------------------------------------


def test_reproduce_and_compare(call, table):
    words = ("reproduce", "./widths.yaml", "--seeds", 2, "--csv", "rows.csv")
    status, out, _ = call(*words)
    assert status == 0
    assert out.startswith("./widths.yaml: 4 runs, 0 finished before\n")
    assert "embedded data, not the paper's" in out
    lines = [[cell.strip() for cell in line.split("│")] for line in out.splitlines() if "│" in line]
    narrow = next(line for line in lines if line[2:4] == ["narrow", "Accuracy, %"])
    assert narrow[4] == "25.00"
    assert "±" in narrow[5]
    assert narrow[6] == "2"
    assert "widths.yaml/wide − widths.yaml/narrow: accuracy" in out
    assert (table / "runs/widths/report.html").exists()
    rows = list(csv.DictReader((table / "rows.csv").open()))
    assert {(row["recipe"], row["run_seeds"]) for row in rows} == {
        ("widths.yaml/narrow", "0 1"),
        ("widths.yaml/wide", "0 1"),
    }
    assert "4 runs, 4 finished before" in call(*words).out
    status, out, _ = call("compare", "rows.csv", "widths.yaml/narrow", "widths.yaml/wide")
    assert status == 0
    assert "widths.yaml/wide − widths.yaml/narrow: accuracy" in out
    assert "(paired t-test, 2 seeds)" in out
    status, _, err = call("compare", "rows.csv", "widths.yaml/narrow", "widths.yaml/wide", "--metric", "acuracy")
    assert status == 2
    assert "did you mean 'accuracy'" in err


def test_seeds_are_added_to_the_file_in_several_sittings(call, table):
    words = ("reproduce", "widths.yaml", "--only", "narrow", "--csv", "rows.csv")
    assert call(*words).status == 0
    status, out, _ = call(*words, "--seeds", 2, "--missing", "--out", "another")
    assert status == 0
    assert out.startswith("widths.yaml: 2 runs, 0 finished before, 1 in rows.csv\n[1/1] widths.yaml/narrow seed 1: ")
    rows = list(csv.DictReader((table / "rows.csv").open()))
    assert {row["run_seeds"] for row in rows} == {"0 1"}
    assert len({row["metric"] for row in rows}) == len(rows)
    status, out, _ = call(*words, "--seeds", 2, "--missing", "--out", "a third")
    assert status == 0
    assert out.startswith("widths.yaml: 2 runs, 0 finished before, 2 in rows.csv\n")
    assert "Accuracy, %" in out  # what the file has is shown
    assert not (table / "a third").exists()
    status, _, err = call("reproduce", "widths.yaml", "--missing")
    assert status == 2
    assert "name it with --csv" in err


def test_runs_that_the_file_loses_are_told(call, table):
    words = ("reproduce", "widths.yaml", "--only", "narrow", "--csv", "rows.csv")
    assert "no longer" not in call(*words, "--seeds", 2).out
    text = (table / "rows.csv").read_text()
    (table / "rows.csv").write_text(text.replace(",CPU,", ",another machine,"))
    assert "rows.csv no longer has 1 run(s) of other settings or of another machine" in call(*words).out


@pytest.mark.parametrize("csv", ["/proc/rows.csv", "widths.yaml/rows.csv"])
def test_a_file_that_cannot_be_written_is_an_error_before_anything_is_trained(call, table, csv):
    status, _, err = call("reproduce", "widths.yaml", "--csv", csv)
    assert status == 2
    assert f"cannot write {csv}" in err
    assert not (table / "runs").exists()


def test_a_file_of_something_else_is_an_error_before_anything_is_trained(call, table):
    (table / "notes.csv").write_text("a,b\n1,2\n")
    status, _, err = call("reproduce", "widths.yaml", "--csv", "notes.csv")
    assert status == 2
    assert "notes.csv is not a file of `foveal reproduce --csv`" in err
    assert not (table / "runs").exists()


def test_rows_are_written_whenever_a_run_has_ended(call, table, monkeypatch):
    """What is killed then has lost nothing."""
    monkeypatch.setattr("foveal.see.report", lambda folder: folder / "report.html")
    seen = []

    def run_all(todo, *, after, **options):
        for cell in todo:
            write_run(cell.out, seed=cell.recipe.seed, kept=False)
            after()
            seen.append(len(list(csv.DictReader((table / "rows.csv").open()))))
        return []

    monkeypatch.setattr("foveal.reproduce.run_all", run_all)
    assert call("reproduce", "widths.yaml", "--csv", "rows.csv").status == 0
    assert seen[0] > 0
    assert seen == [seen[0], 2 * seen[0]]


def test_what_is_finished_of_a_table_is_shown_and_nothing_is_run(call, monkeypatch, tmp_path):
    cell = cells("hattnet/table1", 1, tmp_path)[3]
    cell.out.mkdir(parents=True)
    result = {"metrics": {"accuracy": 0.4321}, "parameters": 7, "epochs": 2, "seconds": 3.0, "embedded": False}
    result |= {"title": "T", "dataset": "D", "data": "digits"}
    (cell.out / "result.json").write_text(json.dumps(result))
    (cell.out / "environment.json").write_text(json.dumps({"gpu": None, "packages": {"torch": "2"}}))
    monkeypatch.setattr("foveal.see.report", lambda folder: folder / "report.html")
    words = ("reproduce", "hattnet/table1", "--seeds", 2, "--out", tmp_path, "--csv", tmp_path / "x.csv", "--finished")
    status, out, _ = call(*words)
    assert status == 0
    assert "30 runs, 1 finished before" in out
    assert "43.21" in out
    rows = list(csv.DictReader((tmp_path / "x.csv").open()))
    assert [(row["recipe"], row["run_seeds"]) for row in rows] == [(cell.recipe.name, "0")]
    assert [path.parent for path in tmp_path.rglob("result.json")] == [cell.out]


def test_a_table_without_its_data_is_one_line(call, monkeypatch, tmp_path):
    monkeypatch.delenv("FOVEAL_DATA", raising=False)
    status, out, err = call("reproduce", "hattnet/table1", "--out", tmp_path)
    assert status == 2
    assert out == "hattnet/table1: 15 runs, 0 finished before\n"
    assert "set FOVEAL_DATA (or --data)" in err
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_finished_run_of_other_settings_is_not_shown_as_one_of_these(call, table):
    assert call("reproduce", "widths.yaml").status == 0
    status, _, err = call("reproduce", "widths.yaml", "optim.lr=0.5")
    assert status == 2
    assert "holds a run of another recipe; choose another --out" in err


# Compare runs -----------------------------------------------------------------------------------------------


def write_runs(folder, **accuracies):
    for title, values in accuracies.items():
        for seed, accuracy in enumerate(values):
            run = write_run(folder / title / f"seed{seed}", title, seed=seed, kept=False)
            result = json.loads((run / "result.json").read_text())
            result["metrics"]["accuracy"] = accuracy
            (run / "result.json").write_text(json.dumps(result))


def test_compare_runs(call, tmp_path):
    write_runs(tmp_path, SOFT=[0.5, 0.6, 0.7], HARD=[0.6, 0.65, 0.9])
    for folders in ([tmp_path], [tmp_path / "SOFT", tmp_path / "HARD"]):
        status, out, _ = call("compare", *folders)
        assert status == 0
        lines = out.splitlines()
        rows = {line.split()[0]: line for line in lines[:-1]}
        assert lines[0] == "MREF"
        assert "60.00 ± 10.00" in rows["SOFT"]
        assert "71.67 ± 16.07" in rows["HARD"]
        assert "(paired t-test, 3 seeds)" in lines[-1]
    assert lines[-1].startswith("HARD − SOFT: accuracy +11.67 points")
    out = call("compare", tmp_path, "--unpaired").out
    assert "accuracy -11.67 points" in out  # by name, HARD is the first
    assert "(not paired: Welch's t-test, 3 and 3 runs)" in out


def test_compare_single_runs_and_what_cannot_be_compared(call, tmp_path):
    write_runs(tmp_path, SOFT=[0.5], HARD=[0.6])
    status, out, _ = call("compare", tmp_path / "SOFT/seed0", tmp_path / "HARD/seed0")
    assert status == 0
    assert "60.00" in out
    assert "t-test" not in out
    status, _, err = call("compare", tmp_path / "SOFT")
    assert status == 2
    assert "give finished runs of two recipes on the same data, got SOFT on MREF" in err
    status, _, err = call("compare", "results.csv", "soft")
    assert status == 2
    assert "foveal compare results.csv FIRST SECOND" in err
    status, _, err = call("compare", tmp_path, "--metric", "acuracy")
    assert "did you mean 'accuracy'" in err
