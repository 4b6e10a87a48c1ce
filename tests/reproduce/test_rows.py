"""The file of rows, to which runs are added."""

import csv
from concurrent.futures import ThreadPoolExecutor

import pytest
from fake_cells import finished_cells, metrics

from foveal.errors import DataError, RunError
from foveal.reproduce import read_csv, recorded, runs_of, seed_values, shown, summarise, write_csv


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


def test_rows_that_do_not_say_their_seeds():
    known, unknown = ({"recipe": "a", "values": "0.1 0.3", "run_seeds": seeds} for seeds in ("4 7", ""))
    assert (seed_values(known), seed_values(unknown)) == ({4: 0.1, 7: 0.3}, {})
    assert runs_of([known]) == {("a", "4"), ("a", "7")}
    assert len(runs_of([unknown])) == 2
    assert not runs_of([unknown]) & runs_of([known])


def test_two_that_write_at_once_lose_no_row(tmp_path):
    (row, *_), path = summarise(finished_cells(tmp_path, [metrics(accuracy=0.5)])), tmp_path / "x.csv"

    def add(first):
        for number in range(first, first + 20):
            write_csv(path, [row | {"recipe": f"mine/{number}"}])

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(add, (0, 20)))
    assert {row["recipe"] for row in read_csv(path)} == {f"mine/{number}" for number in range(40)}


def rows_of(folder, values, first_seed=0, **changes):
    """Rows of a recipe whose runs have these accuracies, from ``first_seed`` on."""
    folder = folder / f"from{first_seed}"
    folder.mkdir()
    cells = finished_cells(folder, [metrics(accuracy=value) for value in values], first_seed=first_seed)
    return [row | changes for row in summarise(cells)]


def test_seeds_are_added(tmp_path):
    path = tmp_path / "x.csv"
    assert write_csv(path, rows_of(tmp_path, [0.5, 0.6], revision="a", seconds=10.0))[0]["run_seeds"] == "0 1"
    (row,) = write_csv(path, rows_of(tmp_path, [0.8, 0.9], 1, revision="b", seconds=40.0))
    assert (row["run_seeds"], row["values"], row["seeds"]) == ("0 1 2", "0.5000 0.8000 0.9000", 3)
    assert row["mean"] == pytest.approx(0.7333)
    assert row["std"] == pytest.approx(0.2082)
    assert row["seconds"] == 30.0  # of one and of two
    assert row["revision"] == "a; b"
    write_csv(path, rows_of(tmp_path, [0.4], 3, revision="b"))
    (row,) = read_csv(path)
    assert (row["run_seeds"], row["revision"]) == ("0 1 2 3", "a; b")


def test_the_published_number_is_compared_with_the_mean_of_all(tmp_path):
    path = tmp_path / "x.csv"
    write_csv(path, rows_of(tmp_path, [0.5], published=0.4))
    (row,) = write_csv(path, rows_of(tmp_path, [0.7], 1, published=0.4))
    assert row["difference"] == pytest.approx(0.2)


@pytest.mark.parametrize(
    "changes",
    [{"hardware": "H200"}, {"torch": "2"}, {"settings": "f"}, {"overrides": "a=1"}, {"older": "of older code"}],
)
def test_seeds_of_other_settings_or_of_older_code_are_replaced(tmp_path, changes):
    path = tmp_path / "x.csv"
    write_csv(path, rows_of(tmp_path, [0.5, 0.6], **changes))
    (row,) = write_csv(path, rows_of(tmp_path, [0.7], 2))
    assert (row["run_seeds"], row["std"]) == ("2", "")
    assert [row["run_seeds"] for row in read_csv(path)] == ["2"]


@pytest.mark.parametrize("changes", [{"hardware": "H200"}, {"torch": "2"}])
def test_a_row_may_be_completed_on_another_machine(tmp_path, changes):
    path = tmp_path / "x.csv"
    write_csv(path, rows_of(tmp_path, [0.5, 0.6], **changes))
    for seed in (2, 3):
        (row,) = write_csv(path, rows_of(tmp_path, [0.7], seed), anywhere=True)
    (name,) = changes
    assert row["run_seeds"] == "0 1 2 3"
    here = rows_of(tmp_path, [0.7], 4)[0][name]
    assert row[name] == f"{changes[name]}; {here}"
    (row,) = write_csv(path, rows_of(tmp_path, [0.7], 5, lr="7"), anywhere=True)
    assert row["run_seeds"] == "5"  # other settings are another model


def test_metrics_that_new_runs_lack_stay(tmp_path):
    """Measures of wrong answers, for example, where a new run has none; of a seed that was run again they go."""
    path, both = tmp_path / "x.csv", metrics(accuracy=0.5, true_positive_strength=0.1)
    write_csv(path, summarise(finished_cells(tmp_path, [both, both])))
    write_csv(path, rows_of(tmp_path, [0.7, 0.8], 1))
    seeds = {row["metric"]: row["run_seeds"] for row in read_csv(path)}
    assert seeds == {"accuracy": "0 1 2", "true_positive_strength": "0"}
    rows = shown(read_csv(path), ["mine/a"], {"accuracy": "Right answers"})
    assert [(row["metric"], row["title"], row["embedded"], row["published"]) for row in rows] == [
        ("accuracy", "Right answers", False, ""),
        ("true_positive_strength", "True-positive strength", False, ""),
    ]


def test_a_file_that_cannot_be_locked(tmp_path, monkeypatch):
    monkeypatch.setenv("FOVEAL_CACHE", "/proc/nowhere")
    with pytest.raises(RunError, match="set FOVEAL_CACHE"):
        write_csv(tmp_path / "x.csv", rows_of(tmp_path, [0.5]))


def test_what_the_file_has_of_the_settings_of_today(tmp_path):
    cells = finished_cells(tmp_path, [metrics(accuracy=value) for value in (0.5, 0.6, 0.7)])
    rows = summarise(cells[:2])
    assert recorded(cells, rows) == cells[:2]
    path = tmp_path / "x.csv"
    write_csv(path, rows)
    assert recorded(cells, read_csv(path)) == cells[:2]
    assert recorded(cells, [row | {"lr": "7"} for row in rows]) == []
    assert recorded(cells, [row | {"older": "revision not recorded"} for row in rows]) == []


@pytest.mark.parametrize("content", ["a,b\n1,2\n", "\xff\xfe"])
def test_a_file_of_something_else_stays_as_it_is(tmp_path, content):
    path = tmp_path / "x.csv"
    path.write_text(content, encoding="latin-1")
    with pytest.raises(DataError, match="not a file of `foveal reproduce --csv`"):
        write_csv(path, rows_of(tmp_path, [0.5]))
    assert path.read_text(encoding="latin-1") == content
