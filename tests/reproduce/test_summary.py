"""Results of many runs as rows."""

import csv
import json

import pytest
from fake_runs import write_run
from tiny import tiny_recipe

from foveal.errors import RunError
from foveal.recipe import Cell as Place
from foveal.reproduce import Cell, spread, summarise, write_csv
from foveal.reproduce.summary import scores

DELAY = {"title": "Delay", "unit": "ms", "better": "lower", "about": ""}


def finished_cells(folder, results, name="mine/a", place=(0, 0), published=None):
    """Cells of one recipe whose runs have these metrics, one a seed."""
    runs = []
    for seed, changes in enumerate(results):
        recipe = tiny_recipe(folder, f"seed={seed}")
        recipe.name, recipe.cell = name, Place("t", "R", "C", place)
        recipe.published = published or {}
        out = write_run(folder / name / f"seed{seed}", seed=seed, kept=False, **changes)
        runs.append(Cell(recipe, out))
    return runs


def metrics(**values):
    infos = {"delay": DELAY} if "delay" in values else {}
    return {"metrics": values, "infos": infos, "parts": {}, "parameters": 7, "epochs": 2, "seconds": 3.0}


def test_rows_are_mean_and_spread_of_the_results(tmp_path):
    results = [metrics(accuracy=accuracy, true_positive_strength=0.1) for accuracy in (0.5, 0.6, 0.7)]
    rows = summarise(finished_cells(tmp_path, results, published={"accuracy": 0.5}))
    first = rows[0]
    assert first["metric"] == "accuracy"
    assert first["mean"] == pytest.approx(0.6)
    assert first["std"] == pytest.approx(0.1)
    assert first["difference"] == pytest.approx(0.1)
    assert (first["seeds"], first["run_seeds"], first["values"]) == (3, "0 1 2", "0.5000 0.6000 0.7000")
    assert (first["table"], first["model"], first["dataset"]) == ("t", "R", "C")
    assert (first["title"], first["unit"], first["better"]) == ("Accuracy", "%", "higher")
    assert (first["hardware"], first["torch"]) == ("CPU", "2.9.0")
    assert spread(first) == "60.00 ± 10.00"
    assert rows[1]["published"] == rows[1]["difference"] == ""


def test_a_metric_of_any_unit(tmp_path):
    (row,) = summarise(finished_cells(tmp_path, [metrics(delay=3.5)], published={"delay": 4.0}))
    assert (row["unit"], row["better"], row["published"], row["difference"]) == ("ms", "lower", 4.0, -0.5)
    assert row["std"] == ""
    assert spread(row) == "3.50"


def test_parts_follow_the_metrics(tmp_path):
    results = [
        metrics(accuracy=0.5)
        | {"parts": {"average_precision": {"cat": 0.25, "dog": None}, "accuracy": {"right": 1.0, "wrong": 0.0}}}
        for _ in range(2)
    ]
    rows = summarise(finished_cells(tmp_path, results))
    assert [row["metric"] for row in rows] == [
        "accuracy",
        "average_precision/cat",
        "accuracy/right",
        "accuracy/wrong",
    ]
    assert rows[1]["title"] == "Average precision, cat"
    assert scores(results[0]).keys() == {"accuracy", "average_precision/cat", "accuracy/right", "accuracy/wrong"}


def test_a_metric_that_only_some_seeds_have(tmp_path):
    rows = summarise(finished_cells(tmp_path, [metrics(accuracy=0.5), metrics(accuracy=0.6, delay=3.0)]))
    assert {row["metric"]: row["run_seeds"] for row in rows} == {"accuracy": "0 1", "delay": "1"}


def test_rows_come_in_the_order_of_the_table(tmp_path):
    late = finished_cells(tmp_path, [metrics(accuracy=0.5)], "mine/a", (1, 0))
    early = finished_cells(tmp_path, [metrics(accuracy=0.5)], "mine/z", (0, 0))
    assert [row["recipe"] for row in summarise([*late, *early])] == ["mine/z", "mine/a"]


def test_runs_that_are_not_finished_are_left_out(tmp_path):
    (cell,) = finished_cells(tmp_path, [metrics(accuracy=0.5)])
    waiting = Cell(cell.recipe, tmp_path / "waiting")
    assert [row["seeds"] for row in summarise([cell, waiting])] == [1]
    assert summarise([waiting]) == []


def test_a_damaged_result_is_named(tmp_path):
    (cell,) = finished_cells(tmp_path, [metrics(accuracy=0.5)])
    (cell.out / "result.json").write_text("{")
    with pytest.raises(RunError, match=f"foveal test {cell.out}"):
        summarise([cell])


def test_a_recipe_outside_a_table(tmp_path):
    (cell,) = finished_cells(tmp_path, [metrics(accuracy=0.5)])
    cell.recipe.cell = None
    (row,) = summarise([cell])
    assert (row["table"], row["model"], row["dataset"]) == ("", "tiny", "MREF")


def test_the_file_keeps_rows_of_others(tmp_path):
    rows = summarise(finished_cells(tmp_path, [metrics(accuracy=0.5, true_positive_strength=0.1)]))
    path = tmp_path / "x.csv"

    def tables():
        with open(path, newline="") as file:
            return sorted(row["table"] for row in csv.DictReader(file))

    write_csv(path, rows)
    write_csv(path, [{**row, "table": "other"} for row in rows])
    write_csv(path, rows)  # replaces its own rows, keeps the others
    assert tables() == ["other", "other", "t", "t"]
    write_csv(path, [{**row, "recipe": "another"} for row in rows])  # a table of which only one cell was run
    assert len(tables()) == 6
    write_csv(path, [])
    assert len(tables()) == 6


def test_a_file_of_before_units_is_completed(tmp_path):
    """Old rows stay; the columns are those of today."""
    rows = summarise(finished_cells(tmp_path, [metrics(accuracy=0.5)]))
    path = tmp_path / "x.csv"
    path.write_text("table,recipe,metric,mean,values,gone\nother,b,accuracy,0.4,0.4,1\n")
    write_csv(path, rows)
    with open(path, newline="") as file:
        old, new = csv.DictReader(file)
    assert (old["recipe"], old["mean"], old["unit"]) == ("b", "0.4", "")
    assert (new["recipe"], new["unit"]) == ("mine/a", "%")


def test_environment_without_what_is_looked_for(tmp_path):
    (cell,) = finished_cells(tmp_path, [metrics(accuracy=0.5)])
    (cell.out / "environment.json").write_text(json.dumps({"gpu": "H200", "packages": {}}))
    assert [summarise([cell])[0][column] for column in ("hardware", "torch", "revision")] == ["H200", "", ""]
    for content in ("{", "[]", "{}"):
        (cell.out / "environment.json").write_text(content)
        assert summarise([cell])[0]["hardware"] == ""
    (cell.out / "environment.json").unlink()
    assert summarise([cell])[0]["hardware"] == ""
