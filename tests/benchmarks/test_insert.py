"""The price of attention: what is measured, kept, skipped and said."""

import csv
import importlib.util
import json
import sys
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest
import timm
import torch
from torch import nn

import foveal
from foveal.attention import Gate
from foveal.attention.insertion import registry
from foveal.bench import write_rows
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


@pytest.fixture
def pretended(insert, monkeypatch):
    """``side_by_side`` without processes: takes figures of mechanisms from a dictionary and notes what it ran."""
    ran, figures = [], {}

    def side_by_side(jobs, **options):
        for job in list(jobs)[:: -1 if options["most"] > 1 else 1]:  # the plain model may come last
            assert insert.Case(**json.loads(job.words[3])) == job.name
            ran.append((job.name.mechanism, *job.parts))
            default = {"ms": 2.0, "peak MiB": 1.0, "first s": 1.0}
            yield from ((job, part, figures.get(job.name.mechanism, default)) for part in job.parts)

    monkeypatch.setattr(insert, "side_by_side", side_by_side)
    return ran, figures


def test_a_process_that_fails_is_a_row(insert, tmp_path, pretended):
    ran, figures = pretended
    figures["aw"] = {"error": "the process ended with status -9: killed"}
    words = ["--isolate", "--parts", "infer", "--mechanism", "aw", "se", "--csv", str(tmp_path / "rows.csv")]
    insert.main([*SMALL, *words])
    rows = read(tmp_path / "rows.csv")
    assert [row["error"] for row in rows] == ["the process ended with status -9: killed", ""]
    assert [(row["jobs"], row["time ratio"]) for row in rows] == [("1", ""), ("1", "1.0")]
    assert ran == [("plain", "infer"), ("aw", "infer"), ("se", "infer")]


def test_rows_wait_for_the_plain_model(insert, tmp_path, pretended):
    ran, figures = pretended
    figures["plain"] = {"ms": 1.0, "peak MiB": 1.0, "first s": 1.0}
    words = ["--isolate", "--jobs", "2", "--mechanism", "aw", "se", "--csv", str(tmp_path / "rows.csv")]
    insert.main([*SMALL, *words])
    assert ran[-1] == ("plain", "train", "infer")
    assert {(row["mechanism"], row["part"], row["time ratio"], row["jobs"]) for row in read(tmp_path / "rows.csv")} == {
        (mechanism, part, "2.0", "2") for mechanism in ("aw", "se") for part in ("train", "infer")
    }


def test_the_plain_model_of_the_file_is_not_measured_again(insert, tmp_path, pretended):
    ran, figures = pretended
    figures["plain"] = {"ms": 1.25, "peak MiB": 4.0, "first s": 3.0}
    words = ["--isolate", "--csv", str(tmp_path / "rows.csv"), "--mechanism"]
    insert.main([*SMALL, *words, "aw", "--parts", "infer"])
    ran.clear()
    figures.clear()
    insert.main([*SMALL, *words, "aw", "se"])
    assert ran == [("plain", "train"), ("aw", "train"), ("se", "train", "infer")]
    rows = {(row["mechanism"], row["part"]): row for row in read(tmp_path / "rows.csv")}
    assert len(rows) == 4
    plain = [rows["se", "infer"][f"plain {name}"] for name in ("ms", "peak MiB", "first s")]
    assert plain == ["1.25", "4.0", "3.0"]
    assert rows["se", "train"]["plain ms"] == "2.0"
    ran.clear()
    insert.main([*SMALL, *words, "cbam", "--parts", "infer", "--jobs", "2"])
    assert ran == [("cbam", "infer"), ("plain", "infer")]  # first steps in company are not compared with those alone
    ran.clear()
    insert.main([*SMALL, *words, "se", "--parts", "infer", "--again"])
    assert ran == [("plain", "infer"), ("se", "infer")]


def test_a_file_without_the_column_jobs_can_be_continued(insert, tmp_path, pretended):
    path = tmp_path / "rows.csv"
    words = ["--isolate", "--parts", "infer", "--csv", str(path), "--mechanism"]
    insert.main([*SMALL, *words, "aw"])
    (row,) = read(path)
    del row["jobs"]
    write_rows(path, [row])
    insert.main([*SMALL, *words, "aw", "se"])
    assert [(row["mechanism"], row["jobs"]) for row in read(path)] == [("aw", ""), ("se", "1")]


def test_a_child_is_ready_before_it_times_itself(insert, monkeypatch, capsys):
    timed = []
    monkeypatch.setattr(insert, "clock_beside", lambda runs, *_: timed.append(1) or dict.fromkeys(runs, 5.0))
    said = []

    def readline():
        said.append((capsys.readouterr().out, len(timed)))
        return "\n"

    monkeypatch.setattr(sys, "stdin", SimpleNamespace(readline=readline))
    case = insert.Case("cifar_resnet20", 2, 8, "se", "eager", "cpu", False, 0.01)
    insert.main(["--case", json.dumps(asdict(case)), "--parts", "infer"])
    assert said == [('{"ready": "infer"}\n', 0)]
    message = json.loads(capsys.readouterr().out)
    assert (message["part"], message["ms"]) == ("infer", 5.0)
    begin, end = message["spans"]["first s"]
    assert end - begin == pytest.approx(message["first s"], abs=0.05)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(readline=str))
    with pytest.raises(SystemExit):  # nobody answers
        insert.main(["--case", json.dumps(asdict(case)), "--parts", "infer"])


@pytest.mark.slow
def test_a_process_each(insert, tmp_path):
    insert.main([*SMALL, "--isolate", "--jobs", "2", "--mechanism", "se", "--csv", str(tmp_path / "rows.csv")])
    rows = read(tmp_path / "rows.csv")
    assert [(row["part"], row["jobs"], row["error"]) for row in rows] == [("train", "2", ""), ("infer", "2", "")]


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
    cases = insert.groups(insert.parsed(["--preset", "h200", "--mechanism", "aw"]))
    assert [case.mode for _, case in cases] == ["eager"] * 8 + ["default"] * 8 + ["reduce-overhead"] * 8
    assert (cases[0][1].model, cases[0][1].batch, cases[0][1].size) == ("resnet50", 64, 224)


def test_what_is_important_comes_first(insert, monkeypatch):
    monkeypatch.setitem(insert.PRESETS, "two", ((("resnet18", 2), ("convnext_tiny", 2)), tuple(insert.MODES)))
    monkeypatch.setattr(insert, "usual_mechanisms", {"resnet18": ["aw", "se", "x"], "convnext_tiny": ["se"]}.get)
    options = insert.parsed(["resnet18"])
    options.preset = "two"
    cases = insert.groups(options)
    assert [(plain.model, plain.mode, *(case.mechanism for case in attended)) for plain, *attended in cases] == [
        ("resnet18", "eager", "aw", "se"), ("convnext_tiny", "eager", "se"),
        ("resnet18", "default", "aw", "se"), ("convnext_tiny", "default", "se"),
        ("resnet18", "eager", "x"), ("resnet18", "default", "x"),
        ("resnet18", "reduce-overhead", "aw", "se"), ("convnext_tiny", "reduce-overhead", "se"),
        ("resnet18", "reduce-overhead", "x"),
    ]  # fmt: skip
    assert {plain.mechanism for plain, *_ in cases} == {"plain"}


@pytest.mark.parametrize("words", [["--jobs", "0"], ["--jobs", "2", "--no-isolate"]])
def test_wrong_jobs(insert, words):
    with pytest.raises(UserError, match=f"--jobs {words[1]}: expected at least 1, and 1 with --no-isolate"):
        insert.parsed(["resnet18", *words])
    assert insert.parsed(["resnet18", "--jobs", "2"]).isolate
