"""Results of many runs as rows."""

import json

import pytest
from fake_cells import finished_cells, metrics

from foveal.errors import RunError
from foveal.reproduce import Cell, spread, summarise
from foveal.reproduce.summary import scores


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


def test_environment_without_what_is_looked_for(tmp_path):
    (cell,) = finished_cells(tmp_path, [metrics(accuracy=0.5)])
    (cell.out / "environment.json").write_text(json.dumps({"gpu": "H200", "packages": {}}))
    assert [summarise([cell])[0][column] for column in ("hardware", "torch", "revision")] == ["H200", "", ""]
    for content in ("{", "[]", "{}"):
        (cell.out / "environment.json").write_text(content)
        assert summarise([cell])[0]["hardware"] == ""
    (cell.out / "environment.json").unlink()
    assert summarise([cell])[0]["hardware"] == ""
