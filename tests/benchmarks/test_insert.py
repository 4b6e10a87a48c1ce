"""The price of attention: what is measured, kept, skipped and said."""

import csv
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import timm
import torch
from forked import Forked
from torch import nn

import foveal
from foveal.attention import Gate
from foveal.attention.insertion import registry
from foveal.errors import UserError

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "insert.py"
SMALL = ("cifar_resnet20", "--batch", "2", "--size", "8", "--seconds", "0.01", "--device", "cpu", "--no-isolate")


@pytest.fixture(scope="module")
def insert():
    spec = importlib.util.spec_from_file_location("bench_insert", SCRIPT)
    module = sys.modules["bench_insert"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def _caches(monkeypatch, insert):
    for name in insert.CACHES:  # changed by the benchmark
        monkeypatch.setenv(name, "")


def read(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_rows_stand_beside_the_plain_model(insert, tmp_path, capsys):
    path = tmp_path / "rows.csv"
    insert.main([*SMALL, "--mechanism", "aw", "se", "reduction=4", "--csv", str(path)])
    rows = read(path)
    assert [(row["mechanism"], row["part"]) for row in rows] == [
        (mechanism, part) for mechanism in ("aw", "se reduction=4") for part in ("train", "infer")
    ]
    for row in rows:
        assert row["error"] == ""
        assert float(row["time ratio"]) == pytest.approx(float(row["ms"]) / float(row["plain ms"]), abs=0.01)
        assert float(row["memory ratio"]) > 1
        assert float(row["first s"]) > 0
        assert row["compile s"] == ""
    assert rows[0]["plain ms"] == rows[2]["plain ms"] != rows[1]["plain ms"]
    out = capsys.readouterr().out
    assert "× the time of a training step (" in out
    assert "× the time of inference (" in out
    assert "s at the first one" in out


def test_rows_of_the_file_are_not_measured_again(insert, tmp_path, monkeypatch, capsys):
    words = [*SMALL, "--parts", "infer", "--csv", str(tmp_path / "rows.csv")]
    insert.main([*words, "--mechanism", "aw"])
    (before,) = read(tmp_path / "rows.csv")
    measured = []

    def measure(cases, part, caches):
        measured.append([case.mechanism for case in cases])
        return [{"ms": 1.0, "peak MiB": 1.0, "first s": 1.0}] * len(cases)

    monkeypatch.setattr(insert, "measure", measure)
    insert.main([*words, "--mechanism", "aw", "se", "--minutes", "-1"])
    assert measured == []  # there is no time
    insert.main([*words, "--mechanism", "aw", "se"])
    assert measured == [["plain", "se"]]
    assert [row["mechanism"] for row in read(tmp_path / "rows.csv")] == ["aw", "se"]
    assert read(tmp_path / "rows.csv")[0] == before
    capsys.readouterr()
    insert.main([*words, "--mechanism", "aw", "se"])
    assert len(measured) == 1
    assert capsys.readouterr().out.count("│ infer │") == 2  # what the file has is shown
    insert.main([*words, "--mechanism", "aw", "--again"])
    assert measured[1:] == [["plain", "aw"]]
    assert [row["ms"] for row in read(tmp_path / "rows.csv")] == ["1.0", "1.0"]


def test_what_fails_is_a_row_and_the_rest_goes_on(insert, tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_MECHANISMS", dict(registry._MECHANISMS))

    @foveal.register_mechanism("broken")
    class Broken(Gate):
        """Fails in training."""

        def __init__(self, channels, *, start="identity"):
            super().__init__()

        def forward(self, x):
            if self.training:
                raise RuntimeError("no\nsuch luck")
            return x

    insert.main([*SMALL, "--mechanism", "broken", "se", "--csv", str(tmp_path / "rows.csv")])
    rows = read(tmp_path / "rows.csv")
    assert [row["error"] for row in rows] == ["RuntimeError: no such luck", "", "", ""]
    assert rows[0]["ms"] == ""


def test_a_model_that_does_not_compile(insert, tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda model, mode: (_ for _ in ()).throw(ValueError(f"not in {mode}")))
    words = ["--mechanism", "se", "--modes", "eager", "default", "--parts", "infer"]
    insert.main([*SMALL, *words, "--csv", str(tmp_path / "rows.csv")])
    assert [row["error"] for row in read(tmp_path / "rows.csv")] == ["", "plain model: ValueError: not in default"]


def test_a_process_that_dies_or_takes_too_long_is_a_row(insert, tmp_path, monkeypatch):
    def run(words, timeout, **options):
        if '"se"' in words[3]:
            raise subprocess.TimeoutExpired(words, timeout)
        status, figures = (
            (-9, "") if '"aw"' in words[3] else (0, '{"part": "infer", "ms": 1, "first s": 1, "peak MiB": 1}')
        )
        return subprocess.CompletedProcess(words, status, figures + "\n", "killed\n")

    monkeypatch.setattr(subprocess, "run", run)
    words = ["--isolate", "--timeout", "7", "--parts", "infer", "--mechanism", "aw", "se", "cbam"]
    insert.main([*SMALL, *words, "--csv", str(tmp_path / "rows.csv")])
    errors = [row["error"] for row in read(tmp_path / "rows.csv")]
    assert errors == ["the process ended with status -9: killed", "not done after 7 s", ""]


@pytest.mark.slow
def test_a_process_each(insert, tmp_path, monkeypatch):
    statuses = []

    def run(words, timeout, **options):
        ended = Forked(
            "import runpy, sys; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')", *words[1:]
        )
        statuses.append(ended.wait(timeout))
        return statuses[-1]

    monkeypatch.setattr(subprocess, "run", run)
    insert.main([*SMALL, "--isolate", "--mechanism", "se", "--csv", str(tmp_path / "rows.csv")])
    rows = read(tmp_path / "rows.csv")
    assert [(row["part"], row["error"]) for row in rows] == [("train", ""), ("infer", "")]
    assert [status.returncode for status in statuses] == [0, 0]


@pytest.mark.slow
def test_compiled(insert, tmp_path, monkeypatch):
    def any_model(name):
        return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.AdaptiveAvgPool2d(1), nn.Flatten())

    monkeypatch.setattr(insert, "any_model", any_model)
    words = ["--modes", "default", "--parts", "train", "--mechanism", "se"]
    insert.main([*SMALL, *words, "--csv", str(tmp_path / "rows.csv")])
    (row,) = read(tmp_path / "rows.csv")
    assert row["error"] == ""
    assert float(row["compile s"]) > 0
    assert float(row["plain compile s"]) > 0


def test_the_host_time_of_a_site(insert, capsys):
    insert.main([*SMALL, "--mechanism", "aw", "--profile"])
    out = capsys.readouterr().out
    assert "(2, 32, 4, 4)" in out
    assert "with backward µs" in out
    assert "aten::" in out


def test_mechanisms_with_options(insert):
    assert insert.mechanisms_of(["aw", "cbam pools=avg", "se", "reduction=8", "start=paper"]) == [
        "aw", "cbam pools=avg", "se reduction=8 start=paper",
    ]  # fmt: skip
    model = timm.create_model("resnet18")
    done = insert.insert_all(model, "aw+se reduction=8 at=layer1.*.bn2")
    assert [(one.mechanism, len(one.sites)) for one in done] == [("aw", 16), ("se", 2)]
    assert model.layer1[0].bn2.attached.se.squeeze.out_features == 8


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (["reduction=8"], "expected the name of a mechanism, then its options"),
        (["aww"], "did you mean 'aw'"),
        (["aw", "reductoin=8"], "did you mean 'reduction'"),
        (["se+"], "unknown mechanism ''"),
    ],
)
def test_wrong_mechanisms_are_said_before_anything_is_measured(insert, words, match, monkeypatch):
    monkeypatch.setattr(insert, "run_all", None)
    with pytest.raises(UserError, match=match):
        insert.main([*SMALL, "--mechanism", *words])


def test_a_model_is_needed(insert):
    with pytest.raises(UserError, match="foveal bench insert resnet50 --mechanism aw"):
        insert.main([])


def test_presets(insert):
    assert insert.usual_mechanisms("resnet18")[:3] == ["aw", "se", "cbam"]
    for models, modes in insert.PRESETS.values():
        assert set(modes) <= set(insert.MODES)
        assert all(timm.is_model(model) for model, _ in models)
    cases = list(insert.groups(insert.parsed(["--preset", "h200", "--mechanism", "aw"])))
    modes = [case.mode for _, case in cases]
    assert modes == ["eager", "default"] * 8 + ["reduce-overhead"] * 8
    assert (cases[0][1].model, cases[0][1].batch, cases[0][1].size) == ("resnet50", 64, 224)
