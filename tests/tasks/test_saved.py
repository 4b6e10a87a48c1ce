"""Trained models with attention, saved and loaded in one line."""

import json
import shutil

import pytest
import timm
import torch
from tiny import DIGITS, tiny_recipe
from torch import nn

import foveal
from foveal.errors import RunError, UserError
from foveal.tasks import fit, load_model

X = torch.rand(2, 3, 32, 32)


def attended_network():
    torch.manual_seed(0)
    network = timm.create_model("resnet10t", num_classes=3)
    foveal.insert(network, "se", reduction=4)
    foveal.insert(network, "aw", at="layer2.0.conv2", start="paper")
    return network.eval()


def test_by_name(tmp_path):
    network = attended_network()
    foveal.save(network, tmp_path / "model", "resnet10t", num_classes=3)
    again = foveal.load(tmp_path / "model")
    assert not again.training
    torch.testing.assert_close(again(X), network(X), rtol=0, atol=0)
    assert list(again.state_dict()) == list(network.state_dict())


def test_the_sites_are_those_of_then(tmp_path, monkeypatch):
    network = attended_network()
    foveal.save(network, tmp_path / "model", "resnet10t", num_classes=3)
    monkeypatch.setattr(foveal.attention.SqueezeExcite, "usual", classmethod(lambda cls, model: ["layer1.0.bn1"]))
    torch.testing.assert_close(foveal.load(tmp_path / "model")(X), network(X), rtol=0, atol=0)


def test_a_network_of_ones_own(tmp_path):
    def build():
        return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())

    network = build().eval()
    foveal.insert(network, "cbam", at="1")
    foveal.insert(network, "cbam", at="1", stack=True)
    foveal.save(network, tmp_path / "model")
    torch.testing.assert_close(foveal.load(tmp_path / "model", build())(X), network(X), rtol=0, atol=0)
    with pytest.raises(UserError, match=r"foveal\.load\(folder, model\)"):
        foveal.load(tmp_path / "model")


def test_a_run(tmp_path, monkeypatch):
    recipe = tiny_recipe(
        tmp_path, "train.epochs=1", "train.batch=400", "model={name: resnet10t, insert: se, depth: null}", text=DIGITS
    )
    fit(recipe, tmp_path / "run", progress=False)
    expected = load_model(tmp_path / "run")[0](X)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("recipe.yaml", "weights.safetensors"):
        shutil.copy(tmp_path / "run" / name, elsewhere)
    monkeypatch.setattr(foveal.attention.SqueezeExcite, "usual", classmethod(lambda cls, model: ["layer1.0.bn1"]))
    torch.testing.assert_close(foveal.load(elsewhere)(X), expected, rtol=0, atol=0)


@pytest.mark.parametrize("folder", [None, 3])
def test_what_is_no_folder(folder):
    with pytest.raises(UserError, match=r"a run folder or one that foveal\.save wrote"):
        foveal.load(folder)


def test_damaged(tmp_path):
    foveal.save(nn.Sequential(nn.Conv2d(3, 8, 3)), tmp_path)
    with pytest.raises(RunError, match="does not fit the model"):
        foveal.load(tmp_path, nn.Sequential(nn.Conv2d(3, 9, 3)))
    (tmp_path / "model.json").write_text(json.dumps({"format": 1}))
    with pytest.raises(RunError, match=r"save the model again with foveal\.save"):
        foveal.load(tmp_path)
    with pytest.raises(UserError, match="plain values"):
        foveal.save(nn.ReLU(), tmp_path, "x", option=nn.ReLU())


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot make the folder"):
        foveal.save(attended_network(), tmp_path / "file" / "inside")
