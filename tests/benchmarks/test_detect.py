"""The benchmark of detectors on a CPU: what its rows say."""

import csv
import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "detect.py"


@pytest.fixture(scope="module")
def detect():
    spec = importlib.util.spec_from_file_location("bench_detect", SCRIPT)
    module = sys.modules["bench_detect"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_rows(detect, tmp_path, capsys):
    detect.main(["--models", "plain", "AW-SE", "--seconds", "0.01", "--csv", str(tmp_path / "rows.csv")])
    with open(tmp_path / "rows.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["phase"], row["model"]) for row in rows] == [
        (phase, model) for phase in ("train", "infer") for model in ("plain", "AW-SE")
    ]
    assert rows[0]["ratio"] == rows[2]["ratio"] == "1.0"
    assert all(float(row["ms"]) > 0 for row in rows)
    assert "64 px infer" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["plain", "SE", "CBAM", "AW", "spatial 1111", "spatial 0010", "deformable + 0010"])
def test_every_model_can_be_built(detect, name):
    import torch

    model = detect.build(detect.MODELS[name], 64, torch.device("cpu"))
    attached = [key for key in model.state_dict() if ".attached." in key]
    assert bool(attached) == (name != "plain")
