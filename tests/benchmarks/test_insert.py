"""The price of attention: what is measured, kept, skipped and said."""

import csv
import importlib.util
import json
import os
import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import timm
import torch
from torch import nn

import foveal
from foveal.attention import Gate
from foveal.attention.insertion import registry
from foveal.errors import UserError

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "insert.py"
SMALL = ("cifar_resnet20", "--batch", "2", "--size", "8", "--seconds", "0.01", "--device", "cpu")


@pytest.fixture(scope="module")
def insert():
    spec = importlib.util.spec_from_file_location("bench_insert", SCRIPT)
    module = sys.modules["bench_insert"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_rows_stand_beside_the_plain_model(insert, tmp_path, capsys):
    path = tmp_path / "rows.csv"
    insert.main([*SMALL, "--mechanism", "aw", "se", "reduction=4", "--csv", str(path)])
    rows = read(path)
    assert [(row["mechanism"], row["part"]) for row in rows] == [
        (mechanism, part) for part in ("train", "infer") for mechanism in ("aw", "se reduction=4")
    ]
    for row in rows:
        assert row["error"] == ""
        assert float(row["time ratio"]) == pytest.approx(float(row["ms"]) / float(row["plain ms"]), abs=0.01)
        assert float(row["memory ratio"]) > 1
        assert row["first s"] == row["plain first s"] == ""
    assert rows[0]["plain ms"] == rows[1]["plain ms"] != rows[2]["plain ms"]
    out = capsys.readouterr().out
    assert "× the time of a training step (" in out
    assert "× the time of inference (" in out
    assert "at the first one" not in out


def test_rows_of_the_file_are_not_measured_again(insert, tmp_path, monkeypatch, capsys):
    words = [*SMALL, "--parts", "infer", "--csv", str(tmp_path / "rows.csv")]
    insert.main([*words, "--mechanism", "aw"])
    (before,) = read(tmp_path / "rows.csv")
    measured = []

    def measure(cases, part):
        measured.append([case.mechanism for case in cases])
        return [{"ms": 1.0, "peak MiB": 1.0}] * len(cases)

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
    assert capsys.readouterr().out.count("  plain ") == 2  # what the file has is shown, from two sittings
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
    monkeypatch.setattr(torch, "compile", lambda model, mode, **_: (_ for _ in ()).throw(ValueError(f"not in {mode}")))
    words = ["--mechanism", "se", "--modes", "eager", "default", "--parts", "infer"]
    insert.main([*SMALL, *words, "--csv", str(tmp_path / "rows.csv")])
    assert [row["error"] for row in read(tmp_path / "rows.csv")] == ["", "ValueError: not in default"]


@pytest.fixture
def pretended(insert, monkeypatch):
    """``side_by_side`` without processes: takes figures of mechanisms from a dictionary and notes what it ran."""
    ran, figures = [], {}

    def side_by_side(jobs, **options):
        for job in list(jobs)[::-1]:
            ran.append((*(item["mechanism"] for item in job.items), *job.parts))
            default = {"first s": 1.0} if "--first" in job.words else {"ms": 2.0, "peak MiB": 1.0}
            for part in job.parts:
                yield job, part, [figures.get((item["mechanism"], *default), default) for item in job.items]

    monkeypatch.setattr(insert, "side_by_side", side_by_side)
    return ran, figures


TIMES, FIRST = ("ms", "peak MiB"), ("first s",)


def test_a_group_is_a_process(insert, tmp_path, pretended):
    ran, figures = pretended
    figures["plain", *TIMES] = {"ms": 1.0, "peak MiB": 4.0}
    figures["aw", *TIMES] = {"error": "OutOfMemoryError: CUDA out of memory"}
    words = ["--jobs", "2", "--parts", "infer", "--modes", "eager", "default", "--mechanism", "aw", "se"]
    insert.main([*SMALL, *words, "--csv", str(tmp_path / "rows.csv")])
    assert ran == [("plain", "aw", "se", "infer")] * 2
    rows = read(tmp_path / "rows.csv")
    assert [row["error"] for row in rows] == ["OutOfMemoryError: CUDA out of memory", ""] * 2
    assert [(row["jobs"], row["ms"], row["plain ms"], row["time ratio"]) for row in rows[:2]] == [
        ("2", "", "1.0", ""), ("2", "2.0", "1.0", "2.0"),
    ]  # fmt: skip


def test_what_will_be_measured_again_is_no_row(insert, tmp_path, monkeypatch):
    def side_by_side(jobs, **options):
        (job,) = jobs
        plain, attended = {"ms": 1.0, "peak MiB": 1.0}, {"ms": 3.0, "peak MiB": 1.0}
        yield job, "infer", [plain, None, attended]
        assert [row["mechanism"] for row in read(tmp_path / "rows.csv")] == ["se"]
        yield replace(job, items=job.items[:2]), "infer", [{"ms": 2.0, "peak MiB": 1.0}, attended]

    monkeypatch.setattr(insert, "side_by_side", side_by_side)
    words = ["--jobs", "2", "--parts", "infer", "--mechanism", "aw", "se", "--csv", str(tmp_path / "rows.csv")]
    insert.main([*SMALL, *words])
    assert [(row["mechanism"], row["time ratio"]) for row in read(tmp_path / "rows.csv")] == [
        ("se", "3.0"), ("aw", "1.5"),
    ]  # fmt: skip


def test_what_is_missing_is_measured_beside_the_plain_model(insert, tmp_path, pretended):
    ran, figures = pretended
    words = ["--jobs", "2", "--csv", str(tmp_path / "rows.csv"), "--mechanism"]
    insert.main([*SMALL, *words, "aw", "--parts", "infer"])
    figures["plain", *TIMES] = {"ms": 1.0, "peak MiB": 1.0}
    insert.main([*SMALL, *words, "aw", "se", "--parts", "infer"])
    assert ran == [("plain", "aw", "infer"), ("plain", "se", "infer")]
    assert [row["time ratio"] for row in read(tmp_path / "rows.csv")] == ["1.0", "2.0"]  # each with its own process


def test_first_steps_are_processes_of_their_own(insert, tmp_path, pretended, capsys):
    ran, figures = pretended
    figures["plain", *FIRST] = {"first s": 0.25}
    words = ["--jobs", "2", "--parts", "infer", "--csv", str(tmp_path / "rows.csv"), "--mechanism", "aw"]
    insert.main([*SMALL, *words])
    ran.clear()
    insert.main([*SMALL, *words, "se", "--first", "--modes", "eager", "default"])
    groups, first = [one for one in ran if len(one) > 2], [one for one in ran if len(one) == 2]
    assert groups == [("plain", "aw", "se", "infer"), ("plain", "se", "infer")]  # eager has a row of AW
    assert first == [("se", "infer"), ("aw", "infer"), ("plain", "infer")] * 2  # also of the row that was there
    rows = read(tmp_path / "rows.csv")
    assert [(row["first s"], row["plain first s"], row["ms"]) for row in rows] == [("1.0", "0.25", "2.0")] * 4
    assert {(row["mode"], row["compile s"], row["plain compile s"]) for row in rows} == {
        ("eager", "", ""), ("default", "1.0", "0.25"),
    }  # fmt: skip
    assert "+0.8 s at the first one" in capsys.readouterr().out
    ran.clear()
    insert.main([*SMALL, *words, "se", "--first"])
    assert ran == []


def test_a_group_is_ready_before_it_is_timed(insert, monkeypatch, capsys):
    timed = []
    monkeypatch.setattr(insert, "clock_beside", lambda runs, *_: timed.append(1) or dict.fromkeys(runs, 5.0))
    said = []

    def readline():
        said.append((capsys.readouterr().out, len(timed)))
        return "\n"

    monkeypatch.setattr(sys, "stdin", SimpleNamespace(readline=readline))
    case = insert.Case("cifar_resnet20", 2, 8, "plain", "eager", "cpu", False, 0.01)
    items = [asdict(case), asdict(replace(case, mechanism="no_such_mechanism")), asdict(replace(case, mechanism="se"))]
    work = json.dumps({"items": items, "parts": ["infer"]})
    insert.main(["--job", work])
    assert said == [('{"ready": "infer"}\n', 0)]
    message = json.loads(capsys.readouterr().out)
    assert message["part"] == "infer"
    assert [figures.get("ms") for figures in message["figures"]] == [5.0, None, 5.0]
    assert "no_such_mechanism" in message["figures"][1]["error"]
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(readline=str))
    with pytest.raises(SystemExit):  # nobody answers
        insert.main(["--job", work])


def test_a_first_step_has_empty_caches(insert, monkeypatch, capsys):
    folders = []

    def step_of(*_):
        folders.append([os.environ[name] for name in insert.CACHES])
        return (lambda: None), 0.0

    monkeypatch.setattr(insert, "step_of", step_of)
    monkeypatch.setenv("FOVEAL_CACHE", "mine")
    case = insert.Case("cifar_resnet20", 2, 8, "plain", "eager", "cpu", False, 0.01)
    insert.main(["--first", "--job", json.dumps({"items": [asdict(case)], "parts": ["infer"]})])
    (figures,) = json.loads(capsys.readouterr().out)["figures"]
    assert list(figures) == ["first s"]
    assert len(set(folders[0])) == 3
    assert "mine" not in folders[0]
    assert not [folder for folder in folders[0] if Path(folder).exists()]
    assert os.environ["FOVEAL_CACHE"] == "mine"


def test_the_table_is_not_cut(insert, pretended, capsys):
    _, figures = pretended
    figures["se", *TIMES] = {"error": "RuntimeError: no such luck"}
    insert.main([*SMALL, "--jobs", "2", "--parts", "infer", "--first", "--mechanism", "aw", "se", "cbam pools=avg"])
    lines = capsys.readouterr().out.split("\n\n")[-1].rstrip().splitlines()
    assert lines == [
        "cifar_resnet20, batch 2, 8×8, eager, inference",
        "                    time        ms   memory      MiB   first step, s",
        "  plain                        2.0                 1             1.0",
        "  aw               1.00×       2.0    1.00×        1             1.0",
        "  se             failed: RuntimeError: no such luck",
        "  cbam pools=avg   1.00×       2.0    1.00×        1             1.0",
    ]


@pytest.mark.slow
def test_in_a_process(insert, tmp_path):
    insert.main([*SMALL, "--jobs", "2", "--mechanism", "se", "--csv", str(tmp_path / "rows.csv")])
    rows = read(tmp_path / "rows.csv")
    found = {(row["part"], row["jobs"], row["error"]) for row in rows}  # in any order
    assert found == {("train", "2", ""), ("infer", "2", "")}


@pytest.mark.slow
def test_compiled(insert, tmp_path, monkeypatch):
    def any_model(name):
        return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.AdaptiveAvgPool2d(1), nn.Flatten())

    monkeypatch.setattr(insert, "any_model", any_model)
    words = ["--modes", "default", "--parts", "train", "--mechanism", "se"]
    insert.main([*SMALL, *words, "--csv", str(tmp_path / "rows.csv")])
    (row,) = read(tmp_path / "rows.csv")
    assert row["error"] == ""
    assert float(row["ms"]) < 1000  # neither model is compiled again while it is timed
    assert float(row["plain ms"]) < 1000


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


def test_a_second_plain_model_is_a_control(insert, tmp_path):
    path = tmp_path / "rows.csv"
    insert.main([*SMALL, "--parts", "infer", "--mechanism", "none", "se", "--csv", str(path)])
    control, gated = read(path)
    assert (control["mechanism"], gated["mechanism"], control["error"]) == ("none", "se", "")
    assert float(control["memory ratio"]) == 1
    assert control["plain ms"] == gated["plain ms"]
    assert insert.insert_all(timm.create_model("resnet18"), "none") == []


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (["none", "reduction=8"], "unknown mechanism 'none'"),
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


def test_wrong_jobs(insert):
    with pytest.raises(UserError, match="--jobs 0: expected at least 1"):
        insert.parsed(["resnet18", "--jobs", "0"])
