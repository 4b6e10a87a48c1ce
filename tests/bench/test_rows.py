"""Rows of benchmarks: each says which revision of foveal's source measured it."""

import csv

import pytest

from foveal.bench import write_rows
from foveal.bench.prices import Case, Rows, compared, sentence, table

CASE = Case("resnet18", 2, 32, "aw", "eager", "cpu", False, 0.1)


def read(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def measured(rows, path, **figures):
    row = compared(CASE, "train", {"ms": 1.0}, {"ms": 2.0, **figures}, rows.row(CASE, "train"))
    rows.add(row)
    return [row["revision"] for row in read(path)]


def test_rows_get_the_revision_that_measured_them(tmp_path, monkeypatch):
    path = tmp_path / "new" / "rows.csv"
    monkeypatch.setenv("FOVEAL_REVISION", "abc")
    write_rows(path, [{"what": "a", "ms": 1}, {"what": "b", "ms": 2, "revision": "older"}])
    assert read(path) == [
        {"what": "a", "ms": "1", "revision": "abc"},
        {"what": "b", "ms": "2", "revision": "older"},
    ]


def test_outside_a_checkout_the_revision_is_empty(tmp_path, monkeypatch):
    monkeypatch.setattr("foveal.bench.revision", lambda: None)
    write_rows(tmp_path / "rows.csv", [{"what": "a"}])
    assert read(tmp_path / "rows.csv") == [{"what": "a", "revision": ""}]


@pytest.mark.parametrize(("again", "expected"), [(False, "abc; def"), (True, "def")])
def test_a_price_that_is_completed_later_names_both_revisions(tmp_path, monkeypatch, again, expected):
    path = tmp_path / "rows.csv"
    monkeypatch.setenv("FOVEAL_REVISION", "abc")
    assert measured(Rows(path, again=False), path) == ["abc"]
    monkeypatch.setenv("FOVEAL_REVISION", "def")
    assert measured(Rows(path, again=again), path) == [expected]


def test_rows_of_before_there_were_revisions_stay_without(tmp_path, monkeypatch):
    path = tmp_path / "rows.csv"
    monkeypatch.setenv("FOVEAL_REVISION", "abc")
    measured(Rows(path, again=False), path)
    old = [{key: value for key, value in row.items() if key != "revision"} | {"batch": "7"} for row in read(path)]
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(old[0]))
        writer.writeheader()
        writer.writerows(old)
    assert measured(Rows(path, again=False), path) == ["", "abc"]


def test_the_work_of_the_gpu_is_told_where_it_is_known():
    plain, attended = {"ms": 10.0, "gpu ms": 5.0, "peak MiB": 100.0}, {"ms": 15.0, "gpu ms": 6.0, "peak MiB": 110.0}
    row = compared(CASE, "train", plain, attended, {})
    assert row["gpu ratio"] == 1.2
    assert "1.50× the time of a training step (10.0 → 15.0 ms), 1.20× the work of the GPU, 1.10×" in sentence(row)
    head, first, second = table([row]).splitlines()[-3:]
    assert head.split() == ["time", "ms", "GPU", "ms", "memory", "MiB"]
    assert first.split() == ["plain", "10.0", "5.0", "100"]
    assert second.split() == ["aw", "1.50×", "15.0", "1.20×", "6.0", "1.10×", "110"]
