import copy

import pytest
import timm
import torch
from small_net import MECHANISMS, SmallNet, images, tree
from torch import nn

import foveal
from foveal.attention import Site
from foveal.errors import UnknownNameError, UserError


def parameters(model):
    return sum(p.numel() for p in model.parameters())


def se_flops(channels, reduction=16):
    return 2 * 2 * channels * (channels // reduction)


def aw_flops(c1, c2, taps, reduction=16):
    hidden = max(1, c2 // reduction)
    return 2 * taps * (c1 * hidden + hidden * c2)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_nothing_changes(mechanism):
    model, x = SmallNet().train(), images()
    model.norm2.eval()
    state, modules = copy.deepcopy(model.state_dict()), tree(model)
    training = [module.training for module in model.modules()]
    foveal.sites(model, mechanism, example=x)
    assert tree(model) == modules
    assert [module.training for module in model.modules()] == training
    torch.testing.assert_close(dict(model.state_dict()), dict(state), rtol=0, atol=0)
    assert not any(module._forward_hooks for module in model.modules())
    assert model(x).isfinite().all()


@pytest.mark.parametrize("start", ["paper", "identity"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("name", ["own", "resnet18", "mobilenetv1_100"])
def test_it_says_what_insertion_does(name, mechanism, start):
    model = SmallNet() if name == "own" else timm.create_model(name)
    rows = foveal.sites(model, mechanism, start=start, example=torch.zeros(1, 3, 32, 32))
    before = parameters(model)
    done = foveal.insert(model, mechanism, start=start)
    assert [row.name for row in rows] == done.sites
    assert sum(row.parameters for row in rows) == parameters(model) - before
    assert all(row.layer == type(model.get_submodule(row.name))._plain.__name__ for row in rows)


def test_shapes_and_flops_of_squeeze_and_excitation():
    rows = foveal.sites(timm.create_model("resnet18"), "se")
    expected = [
        Site(f"layer{i + 1}.{j}.bn2", "BatchNorm2d", (c, 56 >> i, 56 >> i), 2 * c * c // 16 + c // 16 + c, se_flops(c))
        for i, c in enumerate([64, 128, 256, 512])
        for j in (0, 1)
    ]
    assert rows == expected


def test_shapes_and_flops_of_aw():
    example = torch.zeros(3, 3, 20, 26)  # the number is for one sample
    rows = {row.name: row for row in foveal.sites(SmallNet(), "aw", at=["stem", "grouped", "last"], example=example)}
    assert [row.shape for row in rows.values()] == [(8, 20, 26), (16, 10, 13), (12, 10, 13)]
    assert rows["stem"].flops == aw_flops(3, 8, 9)
    assert rows["grouped"].flops == aw_flops(16, 16, 9)
    assert rows["last"].flops == aw_flops(16, 12, 3)
    assert rows["grouped"].parameters == 16 * 1 + 1 * 16 + 2 * 1 + 2 * 16


def test_options_and_at_reach_the_mechanism():
    model = timm.create_model("resnet18")
    (row,) = foveal.sites(model, "se", at="layer1.0.conv1", reduction=8)
    assert (row.name, row.flops) == ("layer1.0.conv1", se_flops(64, 8))
    spatial = foveal.sites(model, "cbam", at="layer1.0.conv1")[0]
    channel = foveal.sites(model, "cbam", at="layer1.0.conv1", spatial=False)[0]
    assert spatial.parameters - channel.parameters == 100
    assert spatial.flops - channel.flops == 2 * 2 * 49 * 56 * 56


class TakesADict(SmallNet):
    def forward(self, x):
        return super().forward(x["image"])


@pytest.mark.parametrize(
    ("model", "example"),
    [(SmallNet(), torch.zeros(1, 4, 8, 8)), (TakesADict(), None), (nn.Sequential(nn.Conv2d(1, 8, 3)), None)],
    ids=["wrong channels", "no tensor", "wrong default"],
)
def test_a_model_that_cannot_be_run(model, example):
    rows = foveal.sites(model, "se", example=example)
    assert rows
    assert all((row.shape, row.flops) == (None, None) and row.parameters > 0 for row in rows)


def test_the_example_has_the_size_of_a_timm_model():
    model = timm.create_model("test_resnet")  # for images of 160×160
    assert model.default_cfg["input_size"] == (3, 160, 160)
    assert foveal.sites(model, "se", at="layer1.0.bn1")[0].shape[1:] == (40, 40)
    (row,) = foveal.sites(nn.Sequential(nn.Conv2d(3, 16, 2, stride=2)), "se")
    assert row.shape == (16, 112, 112)


def test_double_precision_models_are_measured():
    assert foveal.sites(SmallNet().double(), "se")[0].shape == (8, 224, 224)


def test_errors():
    with pytest.raises(UnknownNameError, match=r"did you mean 'layer1\.0\.conv1'"):
        foveal.sites(timm.create_model("resnet18"), "aw", at="layer1.0.convv1")
    with pytest.raises(UserError, match="share_out=8 does not divide 12"):
        foveal.sites(SmallNet(), "aw", share_out=8)


@pytest.mark.parametrize("model", [None, "resnet18", 3])
def test_what_is_no_model(model):
    with pytest.raises(UserError, match=r"model must be a torch\.nn\.Module, not scripted or traced, got"):
        foveal.sites(model, "se")
