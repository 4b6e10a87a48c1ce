"""Two runs asked about one image, and the true class framed."""

from __future__ import annotations

import shutil

import pytest
import torch
from PIL import Image

from foveal.errors import UserError
from foveal.recipe import load
from foveal.see.class_maps import TRUE
from foveal.tasks import fit
from foveal.tasks.folder import read_tensors, write_tensors
from foveal.tasks.predict import _true, predict
from foveal.tasks.run import load_model

RECIPE = """
version: 1
task: classify
title: sharpened
data: {name: digits, size: 12}
model: {name: cifar_resnet20, depth: 8, width: 4}
loss: {sharpen: {inner: layer2, last: layer3, kind: gradcam}}
optim: {name: sgd, lr: 0.1, schedule: onecycle}
train: {epochs: 1, batch: 200, eval_batch: 400, accelerator: cpu}
"""
RUNS = {
    "sharpened": [],
    "plain": ["loss.sharpen=null", "title=plain"],
    "gated": ["model.insert=cbam", "title=gated"],
}
GREEN = tuple(int(TRUE[i : i + 2], 16) for i in (1, 3, 5))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("predict")
    (folder / "tiny.yaml").write_text(RECIPE)
    for name, changes in RUNS.items():
        fit(load(folder / "tiny.yaml", changes), folder / name, progress=False)
    Image.new("RGB", (20, 20), (90, 20, 200)).save(folder / "photo.png")
    return folder


def green(picture: Image.Image) -> int:
    """How many pixels the frames of true classes have, and their names."""
    return sum(count for count, colour in picture.getcolors(1 << 20) if colour == GREEN)


def test_two_runs_beside_each_other(runs) -> None:
    photo = runs / "photo.png"
    one, other = (predict(runs / name, photo) for name in ("sharpened", "plain"))
    both = predict(runs / "sharpened", photo, beside=runs / "plain")
    assert both.models == {"sharpened": one.answers, "plain": other.answers}
    assert other.picture is None  # without losses on attention nobody asks for class maps
    assert one.picture is not None
    assert both.picture is not None
    assert both.picture.size == (one.picture.width, 2 * one.picture.height)
    assert both.picture.crop((0, 0, *one.picture.size)).tobytes() == one.picture.tobytes()
    turned = predict(runs / "plain", photo, beside=runs / "sharpened")
    assert list(turned.models) == ["plain", "sharpened"]
    assert turned.picture is not None
    assert turned.picture.size == both.picture.size


def test_the_true_class_is_framed(runs) -> None:
    unknown, said = (predict(runs / "sharpened", runs / "photo.png", label=label) for label in ([], ["3"]))
    assert unknown.picture is not None
    assert said.picture is not None
    assert green(unknown.picture) == 0
    assert green(said.picture) > 0
    first = said.answers[0][0]
    framed = predict(runs / "sharpened", runs / "photo.png", label=[first], beside=runs / "plain").picture
    assert framed is not None
    assert green(framed) > 4 * 4 * 180


def test_gates_and_class_maps_of_an_inserted_mechanism(runs) -> None:
    assert "cbam" in str(load_model(runs / "gated")[0])
    gated, alone = (predict(runs / name, runs / "photo.png").picture for name in ("gated", "sharpened"))
    assert gated is not None
    assert alone is not None
    assert gated.height > alone.height + 180  # the gates above, the class maps below


def test_runs_that_cannot_stand_beside_each_other(runs, tmp_path) -> None:
    other = tmp_path / "other"
    shutil.copytree(runs / "plain", other)
    weights, about = read_tensors(other / "weights.safetensors")
    about["answers"] = [f"class {i}" for i in range(10)]
    write_tensors(other / "weights.safetensors", weights, about, "")
    with pytest.raises(
        UserError, match=r"knows other classes \(class 0, .*\) than .* \(0, 1, .*; give a run on the same"
    ):
        predict(runs / "sharpened", runs / "photo.png", beside=other)
    with pytest.raises(UserError, match="is the same run; name another one"):
        predict(runs / "plain", runs / "photo.png", beside=runs / "gated" / ".." / "plain")


def test_true_classes_by_name() -> None:
    about = {"answers": ["cow", "dog", "sheep"], "multilabel": False}
    assert _true(about, []) is None
    assert torch.equal(_true(about, ["sheep"]), torch.tensor([2]))
    assert torch.equal(_true(about | {"multilabel": True}, ["cow", "sheep"]), torch.tensor([[1, 0, 1]]))
    with pytest.raises(UserError, match="knows one class an image; give one true class instead of cow, dog"):
        _true(about, ["cow", "dog"])
    with pytest.raises(UserError, match=r"unknown class 'shep'; did you mean 'sheep'\?"):
        _true(about, ["shep"])
