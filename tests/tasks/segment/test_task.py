"""Segmentation through whole runs: training, resuming, testing again, predicting, the report."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from readhtml import read
from tiny import tiny_recipe
from torch import nn

from foveal.attention import DeformConv2d
from foveal.data.embedded import signals
from foveal.errors import UserError
from foveal.measure import mean_iou
from foveal.recipe import load
from foveal.recipe.grids import conclusions
from foveal.runs import RunFolder
from foveal.see import report
from foveal.tasks import evaluate, fit, load_model
from foveal.tasks.base import make_task
from foveal.tasks.segment.costs import PeakMemory, mflops
from foveal.tasks.segment.task import Segment, on_one_canvas, pixel_loss
from foveal.tasks.train import _build_source, build_source

TINY = """
version: 2
task: segment
title: tiny
data: {name: signals}
model:
  name: segmenter
  backbone: resnet18
  options: {layers: [1, 1, 1, 1], channels: [8, 8, 8, 8], stem_type: deep, stem_width: 4}
  features: [1, 2]
  width: 8
  insert: {mechanism: cbam}
optim: {name: sgd, lr: 0.05, schedule: poly}
train: {epochs: 2, batch: 10, eval_batch: 8, accelerator: cpu}
"""
CPU = torch.device("cpu")


@pytest.fixture(scope="module", autouse=True)
def small_signals():
    with pytest.MonkeyPatch.context() as patch:
        for split, count in (("train", 40), ("val", 10), ("test", 20)):
            patch.setitem(signals.COUNTS, split, count)
        _build_source.cache_clear()
        yield
    _build_source.cache_clear()


class Run:
    def __init__(self, folder, *changes):
        folder.mkdir(exist_ok=True)
        self.out = folder / "run"
        self.recipe = tiny_recipe(folder, *changes, text=TINY)
        self.result = fit(self.recipe, self.out, progress=False)

    @torch.no_grad()
    def predicted(self):
        """Predictions and labels of the test images, by a plain loop."""
        source = build_source(self.recipe)
        model, _ = load_model(self.out)
        mean, std = (torch.tensor(value).view(3, 1, 1) for value in (source.mean, source.std))
        batches = [
            (model((batch["image"] / 255 - mean) / std)["out"].argmax(1), batch["label"])
            for batch in source.loader("test", 7, device=CPU)
        ]
        return (torch.cat(values) for values in zip(*batches, strict=True))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return Run(tmp_path_factory.mktemp("segment"))


def test_the_scores_are_those_of_the_saved_weights(run):
    prediction, label = run.predicted()
    metrics, parts = run.result["metrics"], run.result["parts"]["mean_iou"]
    assert metrics["mean_iou"] == pytest.approx(float(mean_iou(prediction, label, 4)))
    counted = label != 255
    assert metrics["pixel_accuracy"] == pytest.approx(float((prediction == label)[counted].float().mean()))
    assert list(parts) == ["road", "lamp", "driving", "waiting"]
    both, either = ((prediction == 0) & (label == 0)).sum(), ((prediction == 0) | (label == 0)) & counted
    assert parts["road"] == pytest.approx(float(both / either.sum()))


def test_the_journal_has_both_losses(run):
    rows = RunFolder(run.out).epochs()
    assert {"train/segmentation", "train/auxiliary", "val/mean_iou", "val/loss"} <= rows[-1].keys()
    for row in rows:  # the auxiliary loss counts 0.4
        assert row["train/loss"] == pytest.approx(row["train/segmentation"] + 0.4 * row["train/auxiliary"], rel=1e-4)
    assert rows[-1]["train/loss"] < rows[0]["train/loss"]


def test_tested_again(run):
    assert evaluate(run.out)["metrics"] == pytest.approx(run.result["metrics"])


def test_resumed(run, tmp_path):
    """A run that is stopped after an epoch ends as one that is not."""
    recipe = tiny_recipe(tmp_path, text=TINY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Segment, "on_train_epoch_start", _stop_in_second_epoch(Segment.on_train_epoch_start))
        with pytest.raises(RuntimeError, match="stopped"):
            fit(recipe, tmp_path / "run", progress=False)
    assert len(RunFolder(tmp_path / "run").epochs()) == 1
    result = fit(recipe, tmp_path / "run", progress=False)
    assert result["metrics"] == pytest.approx(run.result["metrics"], abs=1e-6)


def _stop_in_second_epoch(original):
    def start(self):
        if self.current_epoch == 1:
            raise RuntimeError("stopped")
        original(self)

    return start


def test_the_report(run, tmp_path):
    other = Run(tmp_path, "model.insert=null", "title=plain", "train.epochs=1")
    text = read(report([run.out, other.out], tmp_path / "report.html").read_text(encoding="utf-8")).text
    for words in ("Mean IoU", "lamp", "What they paint", "tiny", "plain", "truth"):
        assert words in text
    assert "mean IoU of" in text
    assert "What it costs" not in text  # of two models
    third = Run(tmp_path / "third", "title=third", "train.epochs=1")
    text = read(report([run.out, other.out, third.out], tmp_path / "report.html").read_text(encoding="utf-8")).text
    assert "Nothing cheaper is better than" in text
    assert "MFLOPs of a crop" in text
    assert "What the paper concludes" not in text


def test_the_report_of_a_table_has_the_papers_conclusions(run, tmp_path):
    for number in range(3):
        out = tmp_path / str(number)
        shutil.copytree(run.out, out)
        result = json.loads((out / "result.json").read_text())
        place = {"table": "spatial/atlas", "row": f"r{number}", "column": "deformable", "place": [number, 1]}
        result |= {"title": f"r{number} · deformable", "cell": place}
        result["metrics"]["peak_memory"] = 100.0 + number
        (out / "result.json").write_text(json.dumps(result))
    report(tmp_path, tmp_path / "report.html")
    page = read((tmp_path / "report.html").read_text(encoding="utf-8")).text
    assert "MiB in training" in page
    assert "Nothing cheaper is better than r0, deformable (" in page  # the column is not said twice
    for sentence in conclusions("spatial/atlas"):
        assert sentence in page


def test_validation_and_checkpoints_now_and_then(run, tmp_path):
    rare = Run(tmp_path, "train.check_every=2")
    scores = [[("val/mean_iou" in row) for row in RunFolder(out).epochs()] for out in (run.out, rare.out)]
    assert scores == [[True, True], [False, True]]
    states = [torch.load(out / "last.ckpt", weights_only=True)["state_dict"] for out in (run.out, rare.out)]
    torch.testing.assert_close(states[1], states[0])


def test_cudnn_searches_for_training_crops_only(run, tmp_path, monkeypatch):
    seen = []
    for name in ("training_step", "validation_step", "test_step"):
        step = getattr(Segment, name)

        def spy(self, *arguments, step=step, name=name):
            seen.append((name, torch.backends.cudnn.benchmark))
            return step(self, *arguments)

        monkeypatch.setattr(Segment, name, spy)
    Run(tmp_path)
    assert set(seen) == {("training_step", True), ("validation_step", False), ("test_step", False)}


def test_memory_is_that_of_the_training_steps_of_this_run(tmp_path, monkeypatch):
    """Neither of an earlier run in the same process, nor of validation with its larger batches."""
    allocated = [999]  # by an earlier run
    for name, needed in (("training_step", 10), ("validation_step", 50), ("test_step", 70)):
        step = getattr(Segment, name)

        def spy(self, *arguments, step=step, needed=needed):
            allocated.append(needed)
            return step(self, *arguments)

        monkeypatch.setattr(Segment, name, spy)
    monkeypatch.setattr(PeakMemory, "_reset", lambda self, device: allocated.clear())
    monkeypatch.setattr(PeakMemory, "_read", lambda self, device: max(allocated, default=0) * 2**20)
    run = Run(tmp_path)
    assert run.result["metrics"]["peak_memory"] == 10
    assert evaluate(run.out)["metrics"]["peak_memory"] == 10


def test_arithmetic_of_convolutions():
    plain, deformable = nn.Conv2d(3, 4, 3, padding=1), DeformConv2d(3, 4, 3, padding=1)
    assert mflops(plain, (6, 5)) == pytest.approx(2 * 3 * 4 * 9 * 30 / 1e6)
    assert mflops(deformable, (6, 5)) == pytest.approx(2 * 3 * (4 + 18) * 9 * 30 / 1e6)
    assert plain.training


def test_samples(run):
    stored = RunFolder(run.out).tensors("samples.safetensors")
    assert {name: tuple(values.shape) for name, values in stored.tensors.items()} == {
        "image": (12, 3, 64, 128),
        "label": (12, 64, 128),
        "prediction": (12, 64, 128),
    }
    assert stored.about["palette"][1] == "#f0c020"


def test_samples_of_several_sizes_are_on_one_canvas():
    sides = ((2, 5), (4, 3))
    batches = [{"image": torch.ones(2, 3, *size), "label": torch.zeros(2, *size)} for size in sides]
    whole = on_one_canvas(batches)
    assert {name: tuple(values.shape) for name, values in whole.items()} == {"image": (4, 3, 4, 5), "label": (4, 4, 5)}
    assert [int((label == 0).sum()) for label in whole["label"]] == [10, 10, 12, 12]  # 255 elsewhere
    assert whole["image"].sum() == 3 * 44


def test_mirrored_and_sliding_tests(run, tmp_path):
    """The recipe chooses how images are predicted; the loss of the same images and weights then differs a little."""
    losses = []
    for change in ("measure.flip=false", "measure.flip=true", "measure.window=[48, 64]"):
        recipe = tiny_recipe(tmp_path, change, text=TINY)
        task = make_task(recipe, build_source(recipe), load_model(run.out)[0]).eval()
        with torch.no_grad():
            task.validation_step(next(iter(task.source.loader("test", 8, device=CPU))), 0)
        losses.append(float(task.val_loss.compute()))
    assert len(set(losses)) == 3
    assert losses == pytest.approx([losses[0]] * 3, rel=0.2)


# Losses -----------------------------------------------------------------------------


def test_the_loss_ignores_what_does_not_count():
    logits, label = torch.randn(2, 3, 4, 5), torch.randint(0, 3, (2, 4, 5))
    label[0, :, :2] = 255
    expected = torch.stack(
        [
            -logits[n, :, i, j].log_softmax(0)[label[n, i, j]]
            for n in range(2)
            for i in range(4)
            for j in range(5)
            if label[n, i, j] != 255
        ]
    ).mean()
    torch.testing.assert_close(pixel_loss(logits, label.to(torch.uint8)), expected)
    smooth = F.cross_entropy(logits, label, ignore_index=255, label_smoothing=0.1)
    torch.testing.assert_close(pixel_loss(logits, label, 0.1), smooth)


def test_a_batch_in_which_nothing_counts():
    logits = torch.randn(1, 3, 2, 2, requires_grad=True)
    loss = pixel_loss(logits, torch.full((1, 2, 2), 255))
    loss.backward()
    assert loss == 0
    assert (logits.grad == 0).all()


def test_a_network_of_torchvision(tmp_path):
    recipe = tiny_recipe(tmp_path, "model={name: lraspp_mobilenet_v3_large}", text=TINY)
    task = make_task(recipe, build_source(recipe))
    batch = next(iter(task.source.loader("train", 2, device=CPU)))
    assert list(task.losses(batch)) == ["segmentation"]


class Flat(nn.Module):
    """A network that puts out plain logits."""

    def __init__(self, shape):
        super().__init__()
        self.shape, self.conv = shape, nn.Conv2d(3, 4, 1)

    def forward(self, x):
        return self.conv(x) if self.shape is None else torch.zeros(self.shape)


def test_a_network_of_ones_own(tmp_path):
    recipe = tiny_recipe(tmp_path, text=TINY)
    task = make_task(recipe, build_source(recipe), Flat(None))
    batch = next(iter(task.source.loader("train", 2, device=CPU)))
    assert task.losses(batch)["segmentation"].isfinite()


# Bad input --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("data={name: digits}", "needs images with masks, such as data.name=signals"),
        ("model={name: resnet18}", "is no segmentation network"),
        ("model={name: segmenter, backbone: vit_tiny_patch16_224, width: 8}", "cannot take images of 48×112"),
        ("loss.weights={auxilary: 1}", "did you mean 'auxiliary'"),
        ("loss.weights={auxiliary: 0, segmentation: 0}", "nothing would be learnt"),
    ],
)
def test_bad_recipes(tmp_path, change, message):
    recipe = tiny_recipe(tmp_path, change, text=TINY)
    source = build_source(recipe)
    with pytest.raises(UserError, match=message):
        make_task(recipe, source)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("measure.window=[0, 5]", "measure.window"),
        ("measure.stride=0", "measure.stride"),
        ("loss.label_smoothing=2", "at most 1"),
    ],
)
def test_bad_options(tmp_path, change, message):
    with pytest.raises(UserError, match=message):
        tiny_recipe(tmp_path, change, text=TINY)


def test_batch_norms_see_all_gpus(tmp_path):
    recipe = load(tiny_path(tmp_path), ["train.devices=2", "train.accelerator=gpu"])
    assert Segment.complete(recipe).train.sync_batchnorm
    assert not Segment.complete(replace(recipe, train=replace(recipe.train, accelerator="cpu"))).train.sync_batchnorm
    assert not Segment.complete(load(tiny_path(tmp_path))).train.sync_batchnorm


def tiny_path(folder):
    (folder / "tiny.yaml").write_text(TINY)
    return folder / "tiny.yaml"


# Prediction -------------------------------------------------------------------------


def test_the_command_writes_a_picture(run, tmp_path, monkeypatch):
    from typer.testing import CliRunner

    from foveal.cli import app

    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (90, 40), (200, 100, 50)).save("photo.jpg")
    result = CliRunner().invoke(app, ["predict", str(run.out), "photo.jpg", "--at", "5,6"])
    assert result.exit_code == 0, result.output
    assert "--at needs a model with attention between positions" in result.output
    assert Image.open("photo-segmented.png").width > 90
    data = json.loads((tmp_path / "photo-segmented.json").read_text())
    assert sum(length for _, length in data["models"]["tiny"]["runs"]) == 90 * 40
    assert sum(data["models"]["tiny"]["shares"].values()) == pytest.approx(1)
