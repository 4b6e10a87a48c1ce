"""The scenes of a dataset with boxes: batches, whole runs, predictions."""

from __future__ import annotations

import pytest
import torch
from PIL import Image
from small_detector import small_detector
from tiny import tiny_recipe

import foveal
from foveal.data import dataset
from foveal.data.embedded import companions
from foveal.data.embedded.confusion import SHAPES
from foveal.errors import UserError
from foveal.models.registry import _MODELS, register
from foveal.runs import read_run
from foveal.tasks import evaluate, fit, load_model, predict
from foveal.tasks.attended import unpacked
from foveal.tasks.base import make_task
from foveal.tasks.scene.source import BoxScenes, padded, scene_source, unpadded

COUNTS = {"train": 30, "val": 5, "test": 12}
pytestmark = pytest.mark.usefixtures("small_companions")
CPU = torch.device("cpu")
RECIPE = """
version: 2
task: scene
title: scene
data: {name: companions}
model: {name: scene_net, detector: {folder: DETECTOR}, channels: 8, hidden: 8, proposals: 10}
optim: {name: adamw, lr: 0.01}
train: {epochs: 1, batch: 10, eval_batch: 5, accelerator: cpu}
"""


def tiny_companions_rcnn():
    """A detector whose input has the size of the pictures."""
    return small_detector(min_size=companions.SHORT, max_size=companions.LONG)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a detector that has focused attention."""
    folder, models = tmp_path_factory.mktemp("scenes"), dict(_MODELS)
    register(tiny_companions_rcnn)(tiny_companions_rcnn)
    detector = tiny_companions_rcnn()
    foveal.insert(detector, "focused", key_channels=8)
    foveal.save(detector, folder / "detector", "tiny_companions_rcnn")
    yield folder
    _MODELS.clear()
    _MODELS.update(models)


@pytest.fixture(scope="module")
def run(place):
    fit(recipe(place), place / "run", progress=False)
    return place / "run"


def recipe(place, *changes):
    return tiny_recipe(place, *changes, text=RECIPE.replace("DETECTOR", str(place / "detector")))


def boxes():
    entry = dataset("companions")
    return entry.build(entry.options(), None)


def test_batches_are_those_of_the_dataset_with_its_scenes():
    source = boxes()
    scenes = scene_source(source)
    assert isinstance(scenes, BoxScenes)
    assert (scenes.answers, scenes.size) == (list(SHAPES), companions.LONG)
    for split, place in (("train", {"epoch": 3, "seed": 1}), ("test", {})):
        expected = source.loader(split, 5, device=CPU, **place)
        batches = scenes.loader(split, 5, device=CPU, **place)
        assert len(batches) == len(expected)
        for batch, lists in zip(batches, expected, strict=True):
            assert batch["image"].shape == (5 if split == "train" else len(lists["image"]), 3, 112, 112)
            assert batch["label"].tolist() == [int(target["scene"]) for target in lists["target"]]
            assert torch.equal(batch["index"], lists["index"])
            images = unpadded(batch["image"], batch["size"])
            assert all(torch.equal(*pair) for pair in zip(images, lists["image"], strict=True))


def test_what_is_beside_a_picture_is_black():
    images = [torch.full((3, 2, 4), 9, dtype=torch.uint8), torch.full((3, 4, 3), 9, dtype=torch.uint8)]
    targets = [{"scene": torch.tensor(n)} for n in range(2)]
    batch = padded({"image": images, "target": targets, "index": torch.arange(2)}, side=4)
    assert batch["size"].tolist() == [[2, 4], [4, 3]]
    assert batch["image"].sum().item() == 9 * 3 * (8 + 12)


def test_other_datasets_stay_as_they_are():
    entry = dataset("digits")
    digits = entry.build(entry.options(), None)
    assert scene_source(digits) is digits
    without = boxes()
    without.scenes = None
    assert scene_source(without) is without


def test_the_detector_sees_pictures_as_they_are(place):
    """In their own shape: padding to a square would make them smaller."""
    task = make_task(recipe(place), boxes())
    inputs = [image for batch in task.source.loader("test", 5, device=CPU) for image in task.inputs(batch)]
    shapes = [tuple(image.shape[1:]) for image in inputs]
    assert set(shapes) == {(80, 112), (112, 80)}
    images, _ = task.model.detector.transform(inputs)
    assert images.image_sizes == shapes


def test_samples_of_all_batches_keep_what_their_regions_attend_to(run):
    stored = read_run(run).samples
    assert 0 <= read_run(run).result["metrics"]["accuracy"] <= 1
    assert stored.tensors["image"].shape[1:] == (3, 112, 112)
    seen = unpacked(stored.tensors)
    assert len(seen) == len(stored.tensors["label"]) > 5
    for attended, (height, width) in zip(seen, stored.tensors["size"].tolist(), strict=True):
        assert len(attended.boxes)
        assert (attended.boxes <= torch.tensor([width, height, width, height]) + 0.01).all()
    assert evaluate(run)["metrics"] == read_run(run).result["metrics"]
    assert "What regions attend to" in foveal.see.report(run).read_text(encoding="utf-8")


def test_a_prediction_is_that_of_the_test(run, tmp_path):
    model, about = load_model(run)
    batch = next(iter(BoxScenes(boxes()).loader("test", 1, device=CPU)))
    (picture,) = unpadded(batch["image"], batch["size"])
    Image.fromarray(picture.permute(1, 2, 0).numpy()).save(tmp_path / "picture.png")
    prediction = predict(run, tmp_path / "picture.png")
    with torch.no_grad():
        expected = model([picture / 255]).softmax(1)[0]
    assert about["answers"] == list(SHAPES)
    assert prediction.picture is not None
    for name, probability in prediction.answers:
        assert probability == pytest.approx(float(expected[list(SHAPES).index(name)]), abs=1e-5)


def test_a_dataset_without_scenes_names_one_that_has_them(place, monkeypatch):
    source = boxes()
    monkeypatch.setattr(source, "scenes", None)
    with pytest.raises(UserError, match=r"boxes and scenes, such as data\.name=companions; data\.name=companions has"):
        make_task(recipe(place), source)
