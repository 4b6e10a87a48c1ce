"""Whole runs of task scene, on a saved detector and on weights from a file."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from PIL import Image
from small_detector import small_detector
from tiny import tiny_recipe

import foveal
from foveal import registry
from foveal.errors import UserError
from foveal.models.registry import _MODELS, any_model, register
from foveal.models.scene import SceneNet
from foveal.runs import RunFolder, Stored, read_run
from foveal.tasks import Task, fit, load_model, predict, register_task
from foveal.tasks.scene.detector import load_detector, rebuild_detector
from foveal.tasks.train import evaluate

NAME = "tiny_rcnn"
RECIPE = """
version: 2
task: scene
title: scene
data: {name: imagefolder, folder: rooms, size: 48, val_fraction: 0.25, augment: none}
model: {name: scene_net, detector: {folder: DETECTOR}, channels: 8, hidden: 8, proposals: 20}
optim: {name: adamw, lr: 0.03}
train: {epochs: 6, batch: 6, eval_batch: 8, accelerator: cpu}
"""


def tiny_rcnn(detections: int = 100):
    """A detector of someone's own."""
    return small_detector(box_detections_per_img=detections)


class TinyDetect(Task):
    """A task whose models are detectors."""

    def losses(self, batch):
        return {}

    def validation_step(self, batch, batch_idx):
        pass

    def test_step(self, batch, batch_idx):
        pass

    @classmethod
    def rebuild(cls, recipe, about):
        network = tiny_rcnn(about["detections"])
        foveal.insert(network, "focused", key_channels=8)
        return network


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Two kinds of rooms, and a detector with focused attention."""
    folder = tmp_path_factory.mktemp("scene")
    draw = torch.Generator().manual_seed(0)
    for label, colour in (("cellar", 60), ("kitchen", 190)):
        for split, count in (("train", 12), ("test", 4)):
            (folder / "rooms" / split / label).mkdir(parents=True)
            for n in range(count):
                pixels = (colour + 40 * torch.randn(48, 48, 3, generator=draw)).clamp(0, 255).byte()
                Image.fromarray(pixels.numpy()).save(folder / "rooms" / split / label / f"{n}.png")
    models, tasks = dict(_MODELS), dict(registry.tasks.items())
    register(tiny_rcnn)(tiny_rcnn)
    register_task("tiny-detect")(TinyDetect)
    detector = any_model(NAME, detections=50)
    with torch.no_grad():
        for parameter in detector.parameters():
            parameter += 0.01
    torch.save(detector.state_dict(), folder / "plain.pth")
    foveal.insert(detector, "focused", key_channels=8)
    foveal.save(detector, folder / "detector", NAME, detections=50)
    yield folder
    for known, before in ((_MODELS, models), (registry.tasks._things, tasks)):
        known.clear()
        known.update(before)


def recipe(place, *changes):
    return tiny_recipe(place, *changes, text=RECIPE.replace("DETECTOR", str(place / "detector")))


@pytest.fixture(scope="module")
def run(place):
    """A run whose detector has been deleted since."""
    shutil.copytree(place / "detector", place / "gone")
    change = f"model.detector.folder={place / 'gone'}"
    fit(recipe(place, change), place / "run", data=place, progress=False)
    shutil.rmtree(place / "gone")
    return place / "run"


def test_a_run_holds_its_detector(place, run):
    result = read_run(run).result
    assert result["metrics"]["accuracy"] > 0.9  # dark and bright
    model, about = load_model(run)
    assert isinstance(model, SceneNet)
    assert model.regions == "focused"
    saved = foveal.load(place / "detector")
    for name, value in saved.state_dict().items():
        assert torch.equal(model.detector.state_dict()[name], value)  # it is frozen
    assert about["answers"] == ["cellar", "kitchen"]
    assert about["view"]["mean"] == [0, 0, 0]  # the detector normalises
    assert evaluate(run, data=place)["metrics"] == pytest.approx(result["metrics"])
    assert isinstance(load_model(run)[0], SceneNet)


def test_prediction_and_report_show_relations(place, run):
    prediction = predict(run, place / "rooms" / "test" / "cellar" / "0.png")
    assert prediction.answers[0][0] == "cellar"
    assert prediction.picture is not None
    page = foveal.see.report(run).read_text(encoding="utf-8")
    assert "What regions attend to" in page
    assert page.count('alt="what a region attends to in scene"') == 6


def test_weights_from_a_file(place):
    """A state dict of torchvision's, without attention."""
    section = f"{{name: {NAME}, checkpoint: plain.pth}}"
    changes = [f"model.detector={section}", "model.regions=features", "train.epochs=1"]
    fit(recipe(place, *changes), place / "file", data=place, progress=False)
    model, _ = load_model(place / "file")
    weights = torch.load(place / "plain.pth", weights_only=True)
    assert all(torch.equal(model.detector.state_dict()[name], value) for name, value in weights.items())
    prediction = predict(place / "file", place / "rooms" / "test" / "cellar" / "0.png")
    assert prediction.picture is None
    assert "no attention between regions" in prediction.remark


def test_a_detector_from_a_run(place):
    """Of any task: only its recipe and what it kept of its data are needed to build it again."""
    run = RunFolder(place / "detector-run")
    run.path.mkdir()
    detector = foveal.load(place / "detector")
    text = "{version: 2, task: tiny-detect, data: {name: digits}, model: {name: tiny_rcnn, insert: focused}}"
    run.file("recipe.yaml").write_text(text)
    run.write_tensors("weights.safetensors", Stored(detector.state_dict(), {"detections": 7}))
    loaded, how = load_detector({"folder": str(run.path)}, None)
    again = rebuild_detector(json.loads(json.dumps(how)))
    for network in (loaded, again):
        assert network.roi_heads.detections_per_img == 7
        assert list(network.state_dict()) == list(detector.state_dict())
    assert all(torch.equal(loaded.state_dict()[name], value) for name, value in detector.state_dict().items())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["model.detector=null"], "model.detector"),
        (["model.name=resnet18"], "model.name=scene_net"),
        (["model.detector={checkpoint: x.pth}"], "folder, a trained detector"),
        (["model.detector.insert=focused"], "leave insert out"),
        (["model.detector.folder=nowhere"], "nowhere"),
        (["model.num_classes=3"], "comes from the data"),
        (["model.pol=mean"], "pool"),
        (["loss.sharpen={}"], "is for task classify"),
        (["data={name: mref, digits: embedded, triples: [6, 2, 2]}"], "task scene needs labelled images"),
    ],
)
def test_bad_recipes(place, changes, message, tmp_path):
    with pytest.raises(UserError, match=message):
        fit(recipe(place, *changes), tmp_path / "run", data=place, progress=False)
