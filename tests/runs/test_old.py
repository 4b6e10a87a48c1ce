"""Run folders of format 1 load, are reported, tested again, predicted with and resumed, as those of today."""

import json

import pytest
import torch
from PIL import Image
from small_texts import recipe as text_changes
from tiny import tiny_recipe

import foveal
from foveal.errors import RunError
from foveal.recipe import complete, load
from foveal.runs import RunFolder, grouped, read_run, read_runs
from foveal.runs.old import upgraded_checkpoint
from foveal.tasks import evaluate, fit, load_model, predict

FINISHED = ("refer", "sharpened", "baseline", "document", "voc")
TASKS = {"refer": "refer", "document": "document", "unfinished": "refer"}
SHARPENED = """
version: 2
task: classify
title: sharpened
data: {name: digits, size: 12}
model: {name: cifar_resnet20, depth: 8, width: 4}
loss:
  weights: {classification: 2, separability_last: 0.5}
  sharpen: {layers: [layer2, layer3], kind: gradcam}
optim: {name: sgd, lr: 0.1, schedule: onecycle}
train: {epochs: 1, batch: 63, eval_batch: 200, accelerator: cpu}
"""
BASELINE = ["title=baseline", "loss={}", "measure.class_attention={layers: [layer2, layer3], kind: gradcam}"]
CANVAS = "data.canvas=24"


@pytest.fixture
def photo(tmp_path):
    Image.new("RGB", (20, 20), (200, 30, 40)).save(tmp_path / "photo.png")
    return tmp_path / "photo.png"


# Reading --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*FINISHED, "unfinished"])
def test_reading(old_run, name):
    folder = old_run(name)
    run = read_run(folder)
    assert run.problems == ()
    assert (run.task, run.seed, run.finished) == (TASKS.get(name, "classify"), "0", name != "unfinished")
    assert len(run.epochs) == {"refer": 2, "voc": 2, "document": 4}.get(name, 1)
    assert RunFolder(folder).header() == {"format": 1}
    assert RunFolder(folder).recipe().version == 2
    assert run.environment["revision"] == "5d4ffa9"


@pytest.mark.parametrize("name", FINISHED)
def test_results_are_upgraded(old_run, name):
    folder = old_run(name)
    before = json.loads((folder / "result.json").read_text())
    result = RunFolder(folder).result()
    assert "format" not in before
    assert (result["format"], result["cell"], result["infos"]) == (2, None, {})
    assert {"parts", "curves", "published", "seed", "best_epoch", "step_seconds"} <= result.keys()
    assert not {"pixel_pr", "scale_accuracy", "class_attention", "average_precision"} & result.keys()
    metrics = {key.replace("mean_average_precision", "label_map"): value for key, value in before["metrics"].items()}
    assert result["metrics"] == metrics


def test_parts_and_curves_are_where_those_of_today_are(old_run):
    refer, sharpened, voc = (RunFolder(old_run(name)) for name in ("refer", "sharpened", "voc"))
    assert {len(values) for values in refer.result()["curves"]["pixel_pr"].values()} == {101}
    assert refer.result()["curves"]["scale_accuracy"].keys() == {"edges", "accuracy", "count"}
    parts = sharpened.result()["parts"]
    before = json.loads(sharpened.file("result.json").read_text())["class_attention"]
    assert parts.keys() == {"overlap_inner", "overlap_last", "inner_in_last"}
    assert parts["overlap_last"] == {part: before["overlap_last"][part] for part in ("right", "wrong")}
    assert len(voc.result()["parts"]["average_precision"]) == 20
    assert voc.result()["published"] == {"label_map": 0.8}
    assert all("val/label_map" in row for row in voc.epochs())


@pytest.mark.parametrize("name", FINISHED)
def test_the_model_loads(old_run, name):
    model, about = load_model(old_run(name))
    assert not model.training
    assert len(about["answers"]) == {"refer": 5, "document": 2, "voc": 20}.get(name, 10)
    assert "format" not in about
    if name == "refer":
        assert about["size"] == 24  # the old header did not say it


# Using ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FINISHED)
def test_testing_again_gives_the_same(old_run, old_data, name):
    folder = RunFolder(old_run(name))
    before = folder.result()
    evaluate(folder.path, data=old_data)
    stored, result = json.loads(folder.file("result.json").read_text()), folder.result()
    assert stored["format"] == 2
    assert stored["infos"].keys() == stored["metrics"].keys()
    for key in ("metrics", "parts", "curves"):
        assert _flat(result[key]) == pytest.approx(_flat(before[key]), abs=1e-5), key
    same = ("best_epoch", "epochs", "parameters", "published", "seconds", "seed", "title", "embedded")
    assert {key: result[key] for key in same} == {key: before[key] for key in same}


def _flat(tree):
    if isinstance(tree, dict):
        return {f"{k}/{name}": value for k, sub in tree.items() for name, value in _flat(sub).items()}
    values = tree if isinstance(tree, list) else [tree]
    return {str(i): value for i, value in enumerate(values) if value is not None}


@pytest.mark.parametrize("name", FINISHED)
def test_predicting(old_run, photo, name):
    inputs = {"document": ["The old animals often chase small mice."], "refer": [photo, "3"]}.get(name, [photo])
    prediction = predict(old_run(name), *inputs)
    assert sum(p for _, p in prediction.answers) == pytest.approx(1, rel=1e-4) or name == "voc"
    assert prediction.picture is not None


def test_two_of_them_beside_each_other(old_run, photo):
    prediction = predict(old_run("sharpened"), photo, beside=old_run("baseline"), label=["3"])
    assert list(prediction.models) == ["sharpened", "baseline"]


def test_the_report_of_all(old_run):
    for name in (*FINISHED, "unfinished"):
        top = old_run(name).parent
    text = foveal.see.report(top).read_text()
    for words in ("True-positive strength", "Overlap last", foveal.measure.LabelMAP.info.title, "Center-mass"):
        assert words in text
    for title in ("tiny", "sharpened", "baseline", "FAN-hatt-sup", "several labels"):
        assert title in text
    assert "maps: Grad-CAM" in text
    assert "unfinished" in text
    assert "damaged" not in text
    assert "pictures are missing" not in text


def test_a_finished_run_is_not_trained_again(old_run):
    folder = RunFolder(old_run("refer"))
    assert fit(folder.recipe(), folder.path, progress=False) == folder.result()
    assert not folder.last.exists()


def test_an_unfinished_run_is_resumed(old_run):
    folder = RunFolder(old_run("unfinished"))
    before = folder.epochs()
    result = fit(folder.recipe(), folder.path, progress=False)
    assert result["epochs"] == 3
    assert folder.epochs()[:1] == before
    assert folder.epochs()[1]["step"] == 12


@pytest.mark.parametrize("name", FINISHED)
def test_training_again_gives_the_losses_of_then(old_run, old_data, tmp_path, name):
    """The same seed, the same weights, order and dropout."""
    folder = RunFolder(old_run(name))
    fit(folder.recipe(), tmp_path / "again", data=old_data, progress=False)
    before, again = ([row["train/loss"] for row in rows.epochs()] for rows in (folder, RunFolder(tmp_path / "again")))
    assert again == pytest.approx(before, rel=2e-4)


# The same recipe ------------------------------------------------------------------------------------------------------


def recipe_of_today(name, tmp_path):
    if name == "document":
        return load("demo/document/sup", text_changes(**{"train.epochs": 4, "optim.lr": 0.03}))
    if name == "refer":
        return tiny_recipe(tmp_path, CANVAS, "train.epochs=2", "published.accuracy=0.5")
    if name == "unfinished":
        return tiny_recipe(tmp_path, CANVAS)
    return tiny_recipe(tmp_path, *(BASELINE if name == "baseline" else ()), text=SHARPENED)


@pytest.mark.parametrize("name", ["refer", "sharpened", "baseline", "document", "unfinished"])
def test_the_recipe_is_that_of_today(old_run, tmp_path, name):
    folder, recipe = RunFolder(old_run(name)), recipe_of_today(name, tmp_path)
    folder.check(recipe)
    recipe.optim.lr = 0.123
    with pytest.raises(RunError, match="another recipe"):
        folder.check(recipe)


def test_an_all_zero_loss_becomes_a_measurement(old_run):
    recipe = complete(RunFolder(old_run("baseline")).recipe())
    assert recipe.loss.sharpen is None
    assert (recipe.measure.class_attention.layers, recipe.measure.class_attention.kind) == (
        ["layer2", "layer3"],
        "gradcam",
    )


def test_runs_of_then_and_of_today_are_one_model(old_run, tmp_path):
    old = old_run("refer")
    fit(tiny_recipe(tmp_path, CANVAS, "train.epochs=2", "seed=1"), old.parent / "today", progress=False)
    text = (old / "recipe.yaml").read_text()
    (old / "recipe.yaml").write_text(text.replace("name: tiny.yaml", f"name: {tmp_path}/tiny.yaml"))
    (old / "result.json").write_text(
        json.dumps(json.loads((old / "result.json").read_text()) | {"recipe": f"{tmp_path}/tiny.yaml"})
    )
    ((key, (group,)),) = grouped(read_runs(old.parent)).items()
    assert key == ("refer", True, "MREF")
    assert (group.name, [run.seed for run in group.runs]) == ("tiny", ["0", "1"])


def test_a_checkpoint_of_before_the_renaming_keeps_its_best_score():
    state = {"best_model_score": torch.tensor(0.5)}
    old = {"epoch": 3, "callbacks": {"Checkpoint{'monitor': 'val/mean_average_precision', 'mode': 'max'}": state}}
    new = upgraded_checkpoint(old)
    assert new == {"epoch": 3, "callbacks": {"Checkpoint{'monitor': 'val/label_map', 'mode': 'max'}": state}}
    assert upgraded_checkpoint({"epoch": 3}) == {"epoch": 3}
