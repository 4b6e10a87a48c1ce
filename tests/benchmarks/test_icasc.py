"""The benchmark of Sharpen: which steps are measured, and what stands in a row."""

import csv
import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from foveal.errors import UserError
from foveal.models.registry import any_model

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "icasc.py"


@pytest.fixture(scope="module")
def icasc():
    spec = importlib.util.spec_from_file_location("bench_icasc", SCRIPT)
    module = sys.modules["bench_icasc"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_rows_of_two_models(icasc, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)  # set by the benchmark, like the next
    precision = torch.get_float32_matmul_precision()
    path = tmp_path / "rows.csv"
    small = ("--at", "layer2", "layer3", "--batch", "2", "--size", "16", "--rounds", "1")
    try:
        icasc.main(["--models", "cifar_resnet20", "cifar_resnet56", *small, "--csv", str(path)])
    finally:
        torch.set_float32_matmul_precision(precision)
    with open(path, newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["measure"] == "step ms"]
    usual = ["plain", "first order", "second order"]
    more = ["first order, last layer alone", "first order, frozen batch norm", "two backwards"]
    assert [row["form"] for row in rows] == [*usual, *more, *usual]
    assert [row["model"] for row in rows] == ["cifar_resnet20"] * 6 + ["cifar_resnet56"] * 3
    for row in rows:
        plain = next(other for other in rows if (other["model"], other["form"]) == (row["model"], "plain"))
        assert float(row["ratio to plain"]) == pytest.approx(float(row["value"]) / float(plain["value"]), rel=0.01)
    assert "cifar_resnet56 at 16, second order" in capsys.readouterr().out


def test_layers_are_the_last_two_stages(icasc):
    assert icasc.last_stages(any_model("resnet18")) == ("layer3", "layer4")
    assert icasc.last_stages(any_model("regnety_002")) == ("s3", "s4")
    with pytest.raises(UserError, match="--at INNER LAST"):
        icasc.last_stages(any_model("mobilenetv2_035"))
