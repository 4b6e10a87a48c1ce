"""Commands on models: sites and bench."""

import json
import re
from dataclasses import asdict
from pathlib import Path

import pytest
import timm
import torch

import foveal
from foveal.attention import Gate
from foveal.attention.insertion import registry
from foveal.cli.terminal import console

BENCHMARKS = sorted((Path(__file__).resolve().parents[2] / "benchmarks").glob("*.py"))


def cells(out: str, first: str) -> list[str]:
    """The row of the table that starts with ``first``."""
    rows = [re.split(r"  +", line) for line in out.splitlines()]
    (row,) = [row for row in rows if row[0] == first]
    return row


def test_a_timm_model(call):
    status, out, _ = call("sites", "resnet18", "--mechanism", "se")
    assert status == 0
    assert "se in resnet18" in out
    assert cells(out, "layer1.0.bn2") == ["layer1.0.bn2", "BatchNorm2d", "64×56×56", "580", "0.001"]
    assert cells(out, "layer4.1.bn2") == ["layer4.1.bn2", "BatchNorm2d", "512×7×7", "33,312", "0.066"]
    assert cells(out, "8 sites") == ["8 sites", "89,080", "0.174"]


def test_aw_is_the_default(call):
    status, out, _ = call("sites", "resnet50")
    assert status == 0
    assert cells(out, "16 sites")[1] == "165,208"
    assert cells(out, "layer2.0.conv2")[1:3] == ["Conv2d", "128×28×28"]


def test_a_torchvision_model_and_a_glob(call):
    status, out, _ = call("sites", "shufflenet_v2_x0_5", "--mechanism", "cbam", "--at", "stage2.0.branch2.?")
    assert status == 2  # a ReLU is among them
    status, out, _ = call("sites", "shufflenet_v2_x0_5", "--mechanism", "cbam", "--at", "stage2.?.branch2.0")
    assert status == 0
    assert cells(out, "4 sites")[0] == "4 sites"
    assert cells(out, "stage2.3.branch2.0")[2] == "24×28×28"


def test_options_of_the_mechanism(call):
    status, out, _ = call("sites", "resnet18", "--mechanism", "spatial", "terms=0010", "heads=4", "start=identity")
    assert status == 0
    assert "spatial terms=0010 heads=4 start=identity in resnet18" in out
    shown = json.loads(call("sites", "resnet18", "terms=0010", "heads=4", "--mechanism", "spatial", "--json").out)
    model = timm.create_model("resnet18")
    expected = foveal.sites(model, "spatial", terms="0010", heads=4)
    assert shown == json.loads(json.dumps([asdict(site) for site in expected]))
    assert shown[0]["flops"] < foveal.sites(model, "spatial", heads=4)[0].flops


def test_names_are_never_cut(call, monkeypatch):
    monkeypatch.setattr(console, "width", 40)
    model, mechanism = "mobilenetv3_small_050", ("--mechanism", "cbam")
    names = [site.name for site in foveal.sites(timm.create_model(model), "cbam")]
    lines = call("sites", model, *mechanism).out.splitlines()
    assert [line.split()[0] for line in lines[2:-1]] == names
    assert [row["name"] for row in json.loads(call("sites", model, *mechanism, "--json").out)] == names


def test_a_model_of_foveal_that_takes_more_than_an_image(call):
    status, out, _ = call("sites", "hattnet", "--mechanism", "se")
    assert status == 0
    assert "?" in out
    total = [line for line in out.splitlines() if " sites" in line]
    assert len(total) == 1
    assert total[0].strip("│ ").endswith("?")


def test_a_mechanism_of_ones_own(call, monkeypatch):
    monkeypatch.setattr(registry, "_MECHANISMS", dict(registry._MECHANISMS))

    @foveal.register_mechanism("one")
    class One(Gate):
        """One number."""

        def __init__(self, channels, *, start):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(1))

        def forward(self, x):
            return x * self.scale

    status, out, _ = call("sites", "resnet18", "--mechanism", "one")
    assert status == 0
    assert cells(out, "8 sites")[1:] == ["8", "0.000"]


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (["resnet81"], "unknown model 'resnet81'; did you mean 'resnet"),
        (["qqqqqqqq"], "unknown model 'qqqqqqqq'"),
        (["resnet18", "--mechanism", "cbm"], "unknown mechanism 'cbm'; did you mean 'cbam'"),
        (["resnet18", "--at", "layer1.0.convv1"], "unknown layer 'layer1.0.convv1'; did you mean 'layer1.0.conv1'"),
        (["resnet18", "--mechanism", "spatial", "terms=0020"], "terms='0020': expected four digits"),
        (["resnet18", "reductoin=8"], "did you mean 'reduction'"),
        (["resnet18", "spatial"], "'spatial': expected an option of the mechanism as key=value"),
        (["resnet18", "at=layer1.*"], "chosen with --at"),
        (["resnet18", "model=3"], "model= is no option"),
        (["resnet18", "--at", "layer1.0.bn1"], "'aw' cannot be put on layer1.0.bn1 (BatchNorm2d)"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(call, words, advice):
    status, out, err = call("sites", *words)
    assert (status, out) == (2, "")
    assert advice in err
    assert err.count("\n") == 1


def test_benchmarks_are_listed(call):
    status, out, _ = call("bench")
    assert status == 0
    lines = dict(line.split(None, 1) for line in out.splitlines()[1:])  # each says what it measures
    assert lines.keys() == {path.stem for path in BENCHMARKS}
    assert "beside the plain convolution" in lines["aw"]


@pytest.mark.parametrize("name", [path.stem for path in BENCHMARKS])
def test_the_options_of_a_benchmark_are_its_own(call, name):
    status, out, _ = call("bench", name, "--", "--help")
    assert status == 0
    assert f"usage: {name}.py" in out


def test_a_remark_is_one_line(call):
    status, out, err = call("sites", "mobilenetv3_small_050", "--mechanism", "se")
    assert status == 0
    assert "11 sites" in out
    (line,) = err.splitlines()
    assert line.startswith("note: MobileNetV3 has squeeze and excitation already")
    assert "models.py" not in line


def test_an_unknown_model_does_not_list_all_of_timm(call):
    status, _, err = call("sites", "bert")
    assert status == 2
    assert "named as in timm or torchvision" in err
    assert len(err) < 200
