"""Detection through whole runs: training, resuming, testing again, predicting, the report."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from shutil import copytree

import pytest
import torch
from PIL import Image
from readhtml import read
from tiny import tiny_recipe
from torch import nn

from foveal.attention import RegionGraph, watch
from foveal.cli.runs import _show_result
from foveal.data.embedded import companions
from foveal.errors import UserError
from foveal.measure import CenterMass, box_scores
from foveal.recipe import load
from foveal.see import Found, report
from foveal.supervise import region_pairs
from foveal.tasks import evaluate, fit, load_model
from foveal.tasks.base import make_task
from foveal.tasks.detect.prediction import Look, _reference
from foveal.tasks.detect.samples import Sample, packed, unpacked
from foveal.tasks.prediction import predict
from foveal.tasks.relations import RelationMetrics
from foveal.tasks.train import _build_source, build_source

TINY = """
version: 2
task: detect
title: tiny
data: {name: companions}
model:
  name: detector
  backbone: resnet18
  options: {layers: [1, 1, 1, 1], channels: [8, 8, 16, 16], stem_type: deep, stem_width: 8}
  features: [2, 3]
  width: 16
  hidden: 32
  anchors: [[20], [28], [40]]
  min_size: [64, 80]
  max_size: 112
  candidates: 60
  proposals_train: 20
  proposals_test: 15
  regions: 12
  insert: {mechanism: se, at: "backbone.fpn.*_blocks.*.0", before: true}
optim: {name: adamw, lr: 0.01, schedule: onecycle}
train: {epochs: 2, batch: 8, eval_batch: 6, accelerator: cpu}
"""
CPU = torch.device("cpu")
COUNTS = {"train": 48, "val": 6, "test": 10}
pytestmark = pytest.mark.usefixtures("small_companions")


class Run:
    def __init__(self, folder, *changes):
        folder.mkdir(exist_ok=True)
        self.out = folder / "run"
        self.recipe = tiny_recipe(folder, *changes, text=TINY)
        self.result = fit(self.recipe, self.out, progress=False)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return Run(tmp_path_factory.mktemp("detect"))


@torch.no_grad()
def found_and_true(run):
    """Detections and targets of the test images, one by one."""
    model, _ = load_model(run.out)
    found, true = [], []
    for batch in build_source(run.recipe).loader("test", 1, device=CPU):
        found += model([image / 255 for image in batch["image"]])
        true += batch["target"]
    return found, true


def test_the_scores_are_those_of_the_saved_weights(run):
    expected = box_scores(*found_and_true(run), classes=15)
    metrics = run.result["metrics"]
    assert set(metrics) == {"box_ap", "box_ap50", "box_ap75", "box_ap_small", "box_ap_medium", "box_ap_large"}
    assert metrics["box_ap"] == pytest.approx(expected.ap, abs=1e-4)
    assert metrics["box_ap50"] == pytest.approx(expected.ap50, abs=1e-4)
    assert metrics["box_ap_large"] is None
    assert list(run.result["parts"]["box_ap"])[-1] == "triangle"
    assert evaluate(run.out)["metrics"] == metrics


def test_it_learns_all_losses(run):
    rows = [json.loads(line) for line in (run.out / "metrics.jsonl").read_text().splitlines()]
    names = {"train/classifier", "train/box_reg", "train/objectness", "train/rpn_box_reg", "train/loss"}
    assert names <= rows[0].keys()
    assert rows[1]["train/loss"] < rows[0]["train/loss"]


def test_samples(run):
    from foveal.runs import RunFolder

    stored = RunFolder(run.out).tensors("samples.safetensors")
    samples = unpacked(stored.tensors)
    assert 1 < len(samples) <= 12
    source = build_source(run.recipe)
    first = next(iter(source.loader("test", 6, device=CPU)))
    assert torch.equal(samples[0].image, first["image"][0])
    assert torch.equal(samples[0].true.boxes, first["target"][0]["boxes"])
    again = unpacked(packed(samples))
    assert all(torch.equal(a.found.boxes, b.found.boxes) for a, b in zip(samples, again, strict=True))


def test_a_large_sample_is_made_smaller():
    target = {
        "boxes": torch.tensor([[100.0, 50, 800, 400]]),
        "labels": torch.tensor([2]),
        "iscrowd": torch.tensor([False]),
    }
    found = {"boxes": target["boxes"], "labels": target["labels"], "scores": torch.tensor([0.9])}
    sample = Sample.of(torch.zeros(3, 480, 960, dtype=torch.uint8), found, target)
    assert sample.image.shape == (3, 240, 480)
    assert sample.true.boxes.tolist() == sample.found.boxes.tolist() == [[50, 25, 400, 200]]


def test_predict(run, tmp_path):
    """A photograph of any size: boxes are in its own pixels."""
    file = tmp_path / "photo.png"
    Image.new("RGB", (200, 120), (40, 60, 90)).save(file)
    prediction = predict(run.out, file, score=0.0, most=3)
    assert prediction.stem == "photo-detected"
    assert prediction.caption == "The objects"
    objects = prediction.data["models"]["tiny"]
    assert prediction.data["size"] == [120, 200]
    assert len(objects) <= 3
    assert [one["score"] for one in objects] == sorted((one["score"] for one in objects), reverse=True)
    for one in objects:
        assert one["class"] in prediction.data["classes"]
        assert 0 <= one["box"][0] <= one["box"][2] <= 200
        assert 0 <= one["box"][1] <= one["box"][3] <= 120
    json.dumps(prediction.data)
    sure = predict(run.out, file, score=1.0)
    assert sure.data["models"]["tiny"] == []
    assert "--score lowers it" in sure.lines["tiny"][0]
    for options, message in (({"score": 2.0}, "--score 2"), ({"most": 0}, "--most 0")):
        with pytest.raises(UserError, match=message):
            predict(run.out, file, **options)
    with pytest.raises(UserError, match="leave 'cat' out"):
        predict(run.out, file, "cat")


def test_predict_shows_what_a_region_attends_to(focused, run, tmp_path):
    file = tmp_path / "photo.png"
    Image.fromarray(companions.generate("test", 1)["image"][0].permute(1, 2, 0).numpy()).save(file)
    alone = predict(focused.out, file, score=1.0)
    pairs = alone.data["relations"]["FAN"]
    weights = [pair["weight"] for pair in pairs]
    assert 0 < len(pairs) <= 100
    assert weights == sorted(weights, reverse=True)
    assert 0 < sum(weights) <= 1 + 1e-3
    ends = torch.tensor([[pair[key] for key in ("subject", "object")] for pair in pairs])  # (pairs, 2, 4)
    assert ((ends[..., :2] <= ends[..., 2:]) & (ends[..., :2] >= 0) & (ends[..., 2:] <= 112)).all()
    json.dumps(alone.data)
    plain = predict(run.out, file, score=1.0)
    assert "relations" not in plain.data
    assert alone.picture.width > 1.9 * plain.picture.width  # a panel more
    assert alone.caption == "The objects and where it looked"
    left, top, right, bottom = pairs[0]["subject"]
    there = f"{(left + right) / 2},{(top + bottom) / 2}"
    elsewhere = predict(focused.out, file, score=1.0, at=there)
    assert elsewhere.picture.size == alone.picture.size
    assert list(predict(run.out, file, beside=focused.out).data["relations"]) == ["FAN"]
    assert "nothing to show" in predict(run.out, file, at=there).remark
    for at, message in (("7", "expected x,y"), ("300,3", "outside the image")):
        with pytest.raises(UserError, match=message):
            predict(focused.out, file, at=at)


def test_the_region_that_attends():
    """The surest object, or the smallest at a point; of regions where no object is."""
    objects = torch.tensor([[0.0, 0, 90, 90], [10, 10, 30, 30], [5, 5, 50, 50]])
    regions = torch.tensor([[60.0, 60, 70, 70], [91, 91, 99, 99], [92, 92, 95, 95]])
    found = Found(objects, torch.ones(3, dtype=torch.int64), torch.tensor([0.9, 0.8, 0.7]))
    looks = {"plain": Look(found, None), "FAN": Look(found, RegionGraph(torch.zeros(3, 3), regions))}
    assert _reference({"plain": looks["plain"]}, None) is None
    assert _reference(looks, None).tolist() == [0, 0, 90, 90]
    assert _reference(looks, (20, 20)).tolist() == [10, 10, 30, 30]
    assert _reference(looks, (40, 40)).tolist() == [5, 5, 50, 50]
    assert _reference(looks, (94, 94)).tolist() == [92, 92, 95, 95]
    assert _reference(looks, (98, 2)).tolist() == [60, 60, 70, 70]  # nothing is around it
    nothing = Found(objects[:0], found.labels[:0], found.scores[:0])
    assert _reference({"FAN": Look(nothing, looks["FAN"].graph)}, None).tolist() == [60, 60, 70, 70]


def test_the_report(run):
    page = read(report(run.out).read_text(encoding="utf-8"))
    assert "What they find" in page.text
    assert "tiny reached an AP of" in page.text
    assert "AP50, %" in page.text


def test_resumed_as_if_never_stopped(run, tmp_path):
    half = Run(tmp_path / "half", "train.epochs=1", "optim.schedule=constant")
    whole = Run(tmp_path / "whole", "optim.schedule=constant")
    recipe = replace(half.recipe, train=replace(half.recipe.train, epochs=2))
    for name in ("result.json", "weights.safetensors"):
        (half.out / name).unlink()
    (half.out / "recipe.yaml").write_text(recipe.dump())
    resumed = fit(recipe, half.out, progress=False)
    assert resumed["metrics"] == whole.result["metrics"]


class Boxes(nn.Module):
    """Says the same of every image; a model of one's own."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, images, targets=None):
        if self.training:
            return {"loss_classifier": self.weight**2}
        found = {"boxes": torch.tensor([[1.0, 1, 9, 9]]), "labels": torch.tensor([1]), "scores": torch.tensor([0.5])}
        return [found for _ in images]


def test_a_model_of_ones_own(run):
    source = build_source(run.recipe)
    task = make_task(run.recipe, source, Boxes())
    batch = next(iter(source.loader("train", 4, device=CPU)))
    total, losses = task.train().weighed(batch)
    assert list(losses) == ["classifier"]
    assert float(total.detach()) == 1
    assert task.batch_size(batch) == 4


def test_compiled_parts(run, monkeypatch):
    """Backbone and head of regions are compiled, the rest is not."""
    recipe = replace(run.recipe, train=replace(run.recipe.train, compile=True))
    task, compiled = make_task(recipe, build_source(recipe)), []
    monkeypatch.setattr(nn.Module, "compile", lambda self, **options: compiled.append(type(self).__name__))
    task.on_fit_start()
    assert compiled == ["PyramidBackbone", "TwoMLPHead"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["model={name: resnet18}"], "model resnet18 is no detector"),
        (["data={name: digits}"], "needs images with boxes"),
        (["loss.weights={clasifier: 2}"], "classifier"),
        (["model.num_classes=4"], "comes from the data"),
    ],
)
def test_bad_recipes(tmp_path, changes, message):
    recipe = tiny_recipe(tmp_path, text=TINY)
    if changes[0].startswith("model={"):
        recipe = replace(recipe, model={"name": "resnet18"})
    elif changes[0].startswith("data={"):
        recipe = replace(recipe, data={"name": "digits"})
    else:
        recipe = tiny_recipe(tmp_path, *changes, text=TINY)
    with pytest.raises(UserError, match=message):
        make_task(recipe, build_source(recipe))


@pytest.mark.parametrize("change", ["measure.iou=1.5", "measure.pairs=[10, 0]", "measure.training_images=-1"])
def test_measures_out_of_bounds(tmp_path, change):
    with pytest.raises(UserError, match=rf"{change.partition('=')[0].partition('.')[2]}.*: expected"):
        tiny_recipe(tmp_path, change, text=TINY)


def test_data_without_relations_are_refused_before_training(tmp_path):
    """Not in the test, after hours of training."""
    recipe = tiny_recipe(tmp_path, "model.insert={mechanism: focused}", "measure.relations=annotated", text=TINY)
    source = build_source(recipe)
    make_task(recipe, source)
    unrelated = copy.copy(source)
    unrelated.related = False
    with pytest.raises(UserError, match="has no annotated relations; use category or instance"):
        make_task(recipe, unrelated)


def test_a_detector_of_torchvision_by_its_name(run):
    recipe = replace(run.recipe, model={"name": "fasterrcnn_mobilenet_v3_large_320_fpn"})
    with torch.device("meta"):
        from foveal.models.build import build_model

        model = build_model(recipe.model, {"num_classes": 16})
    assert model.roi_heads.box_predictor.cls_score.out_features == 16


@pytest.mark.parametrize(
    ("name", "needs"), [("maskrcnn_resnet50_fpn", "masks"), ("keypointrcnn_resnet50_fpn", "keypoints")]
)
def test_detectors_that_need_more_than_boxes_are_refused(run, name, needs):
    recipe = replace(run.recipe, model={"name": name, "weights_backbone": None})
    with torch.device("meta"), pytest.raises(UserError, match=f"{name} learns from {needs}.*RetinaNet, FCOS or SSD"):
        make_task(recipe, build_source(recipe))


def test_a_detector_of_one_stage(run):
    """Its losses have other names."""
    model = {"name": "ssdlite320_mobilenet_v3_large", "weights_backbone": None}
    recipe = replace(run.recipe, model=model)
    task, source = make_task(recipe, build_source(recipe)), build_source(recipe)
    batch = next(iter(source.loader("train", 2, device=CPU)))
    total, losses = task.train().weighed(batch)
    assert losses.keys() == {"classification", "bbox_regression"}
    assert total.isfinite()
    assert len(task.eval().detect(batch)) == 2


@pytest.mark.slow
def test_the_demo_learns(tmp_path):
    """A part of the demo's pictures and epochs: far above chance."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(companions, "COUNTS", {"train": 120, "val": 10, "test": 30})
        patch.setattr(companions, "cached", lambda name, key, make: make())
        _build_source.cache_clear()
        recipe = load("demo/detect/plain", ["train.epochs=8", "train.batch=8", "train.select=last"])
        result = fit(recipe, tmp_path / "run", progress=False)
    _build_source.cache_clear()
    assert result["metrics"]["box_ap50"] > 0.1


@pytest.fixture(scope="module")
def focused(tmp_path_factory):
    relation = '{relation: {loss: relations, at: "*.focused", options: {kind: annotated}}}'
    changes = ("model.insert={mechanism: focused}", f"loss.attention={relation}", "loss.weights={relation: 0.01}")
    measured = ("measure.relations=annotated", "measure.pairs=[50, 225]", "measure.training_images=16")
    return Run(tmp_path_factory.mktemp("focused"), *changes, *measured, "train.epochs=1", "title=FAN")


def test_focused_attention_is_supervised_and_measured(focused):
    metrics = focused.result["metrics"]
    assert {"relation_recall@50", "relation_recall@225", "center_mass"} <= metrics.keys()
    assert metrics["relation_recall@50"] <= metrics["relation_recall@225"] <= 1
    (row,) = [json.loads(line) for line in (focused.out / "metrics.jsonl").read_text().splitlines()]
    assert row["train/relation"] > 0
    assert evaluate(focused.out)["metrics"] == metrics


@torch.no_grad()
def test_the_center_mass_of_training_images(focused):
    """Of whole batches, so many that there are enough images."""
    model, source = load_model(focused.out)[0], build_source(focused.recipe)
    metric, pairs = CenterMass(), focused.recipe.measure.relations
    for batch in list(source.loader("train", 6, device=CPU))[:3]:  # 18 images: the next after 16
        with watch(model) as seen:
            model([image / 255 for image in batch["image"]])
        record = seen["roi_heads.box_head.attached.focused"]
        sizes = [image.shape[-2:] for image in batch["image"]]
        metric.update(record, region_pairs(record, batch["target"], sizes, pairs))
    assert focused.result["metrics"]["center_mass_train"] == pytest.approx(float(metric.compute()), rel=1e-4)


def test_training_images_are_looked_at_as_test_images_are(focused, tmp_path, monkeypatch):
    """In the same precision, and also if they are fewer than a batch of the test."""
    copytree(focused.out, tmp_path / "run")
    recipe = tmp_path / "run" / "recipe.yaml"
    text = recipe.read_text().replace("eval_batch: 6", "eval_batch: 60").replace("precision: '32'", "precision: bf16")
    recipe.write_text(text)
    seen = {}
    for name in ("update", "update_training"):
        before = getattr(RelationMetrics, name)
        monkeypatch.setattr(
            RelationMetrics, name, lambda *args, f=before, n=name: (seen.update({n: args[1].noted.q.dtype}), f(*args))
        )
    assert evaluate(tmp_path / "run")["notes"]["center_mass_train"].endswith("of 16 images")
    assert seen == {"update": torch.bfloat16, "update_training": torch.bfloat16}


def test_no_object_one_object_and_two(focused):
    """Each alone in a batch: losses are finite, and only a pair has something to say of relations."""
    recipe = replace(focused.recipe, seed=0)
    task, source = make_task(recipe, build_source(recipe)).train(), build_source(recipe)
    batch = next(iter(source.loader("train", 1, device=CPU)))
    whole = batch["target"][0]
    said = []
    for count in (0, 1, len(whole["labels"])):
        kept = {key: whole[key][:count] for key in ("boxes", "labels", "iscrowd", "difficult")}
        kept["relations"] = whole["relations"][(whole["relations"] < count).all(1)]
        torch.manual_seed(0)  # the objects that are related are not among the regions of every draw
        total, losses = task.weighed({**batch, "target": [whole | kept]})
        total.backward()
        assert total.isfinite()
        assert all(p.grad is None or p.grad.isfinite().all() for p in task.parameters())
        said.append(float(losses["relation"].detach()))
    assert said[:2] == [0, 0]
    assert said[2] > 0


def test_the_result_says_of_how_many_images_the_center_mass_is(focused):
    notes = focused.result["notes"]
    assert notes.keys() == {"center_mass", "center_mass_train"}
    assert notes["center_mass"].endswith("of 10 images")
    assert notes["center_mass_train"].endswith("of 18 images")


def test_a_center_mass_that_is_undefined(focused, tmp_path, capsys):
    """Regions that show nothing: not a zero, and the result, the terminal and the report say why."""
    copytree(focused.out, tmp_path / "run")
    recipe = tmp_path / "run" / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("iou: 0.5", "iou: 0.999"))
    result = evaluate(tmp_path / "run")
    assert result["metrics"]["center_mass"] is result["metrics"]["center_mass_train"] is None
    assert result["metrics"]["relation_recall@225"] == 0  # there are relations
    note = "regions show two related objects in 0 of 10 images"
    assert result["notes"]["center_mass"] == note
    _show_result(result)
    assert f"undefined   ({note})" in capsys.readouterr().out
    page = read(report(tmp_path / "run").read_text(encoding="utf-8"))
    assert f"Center-mass is undefined: {note}" in page.text


def test_the_report_shows_relations_and_their_recall(run, focused, tmp_path):
    """Of the models that have attention between regions: the others have none to show."""
    text = report([run.out, focused.out], tmp_path / "page.html").read_text(encoding="utf-8")
    page = read(text)
    assert "What regions attend to" in page.text
    assert text.count('alt="what a region attends to in FAN, test image ') == 2  # one image of each batch
    assert "what a region attends to in tiny" not in text
    source = build_source(focused.recipe)
    first = next(iter(source.loader("test", 6, device=CPU)))["target"][0]
    digit, shape = (source.answers[first["labels"][n] - 1] for n in first["relations"][0])
    assert f"test image 1: {digit}, related to {shape}" in page.text
    assert "How many relations they find" in page.text
