"""What all tasks share: named losses and their weights, metrics of any unit and direction, optional methods."""

import json

import pytest
import torch
from readhtml import read
from safetensors.torch import load_file
from small_texts import recipe as text_changes
from small_texts import write_texts
from tiny import SHARPEN, tiny_recipe

import foveal
from foveal import registry
from foveal.errors import UserError
from foveal.recipe import complete, load
from foveal.runs import RunFolder
from foveal.tasks import fit, load_model, predict
from foveal.tasks.base import Task, find_task, make_task
from foveal.tasks.train import build_source

OWN = """
version: 2
task: brightness
title: narrow
data: {name: grey-images}
model: {name: brightness_net, channels: 2}
loss: {weights: {shrinkage: 0.5}}
optim: {lr: 0.02}
train: {epochs: 6, batch: 16, eval_batch: 16, accelerator: cpu}
published: {brightness_error: 3.5}
"""


@pytest.fixture(scope="module")
def own(brightness, tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    return folder / "run", fit(tiny_recipe(folder, text=OWN), folder / "run", progress=False)


# Losses ---------------------------------------------------------------------------------------------------------------


def weighed(row: dict[str, float], weights: dict[str, float]) -> float:
    return sum(weight * row[f"train/{name}"] for name, weight in weights.items())


def test_the_logged_loss_is_the_weighed_sum_of_the_logged_parts(own):
    rows = RunFolder(own[0]).epochs()
    assert len(rows) == 6
    for row in rows:
        assert row["train/loss"] == pytest.approx(weighed(row, {"squares": 1, "shrinkage": 0.5}), abs=2e-6)
        assert row["train/shrinkage"] > 0


def test_losses_on_class_attention_are_weighed_and_logged(tmp_path):
    weights = {"classification": 2, "separability_inner": 0, "separability_last": 0.5, "consistency_inner": 3}
    recipe = tiny_recipe(tmp_path, f"loss.weights={json.dumps(weights)}", text=SHARPEN)
    fit(recipe, tmp_path / "run", progress=False)
    (row,) = RunFolder(tmp_path / "run").epochs()
    del weights["separability_inner"]  # of weight 0: it is not computed
    assert "train/separability_inner" not in row
    assert all(row[f"train/{name}"] for name in weights)
    assert row["train/loss"] == pytest.approx(weighed(row, weights), abs=1e-5)


@pytest.mark.parametrize(("changes", "weight"), [({}, 0.1), ({"loss.weights.relation": 2}, 2)])
def test_the_usual_weight_of_a_loss_is_the_tasks(tmp_path, changes, weight):
    recipe = load("demo/document/sup", text_changes(**{"train.epochs": 1, **changes}))
    fit(recipe, tmp_path / "run", data=write_texts(tmp_path / "data"), progress=False)
    (row,) = RunFolder(tmp_path / "run").epochs()
    assert row["train/relation"] > 0
    assert row["train/loss"] == pytest.approx(weighed(row, {"classification": 1, "relation": weight}), abs=1e-5)


def test_a_weight_multiplies_the_gradient(tmp_path):
    gradients = []
    for weight in (1, 3):
        recipe = tiny_recipe(tmp_path, f"loss.weights.answer={weight}")
        torch.manual_seed(0)
        task = make_task(recipe, build_source(recipe)).eval()
        batch = next(iter(task.source.loader("train", 8, device=torch.device("cpu"))))
        total, losses = task.weighed(batch)
        total.backward()
        torch.testing.assert_close(total.detach(), weight * losses["answer"])
        assert not losses["answer"].requires_grad
        gradients.append([p.grad for p in task.model.parameters()])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(3 * one, other)


def test_a_weight_of_a_loss_that_the_recipe_does_not_have(tmp_path):
    recipe = tiny_recipe(tmp_path, "loss={weights: {separability_lst: 2}}", text=SHARPEN)
    with pytest.raises(UserError, match=r"loss\.weights: .*'separability_lst'"):
        make_task(recipe, build_source(recipe))
    recipe = tiny_recipe(tmp_path, "loss.weights={separability_lst: 2}", text=SHARPEN)
    with pytest.raises(UserError, match=r"loss\.weights: .*did you mean 'separability_last'"):
        make_task(recipe, build_source(recipe))


def test_a_task_that_does_not_name_its_losses_is_checked_at_the_first_step(brightness, tmp_path, monkeypatch):
    monkeypatch.setattr(brightness.BrightnessTask, "loss_names", Task.loss_names)
    for change, message in (
        ("loss.weights={sqares: 2}", "did you mean 'squares'"),
        ("loss.weights={squares: 0, shrinkage: 0}", "every loss has weight 0"),
    ):
        with pytest.raises(UserError, match=message):
            fit(tiny_recipe(tmp_path, change, text=OWN), tmp_path / change, progress=False)


# Metrics --------------------------------------------------------------------------------------------------------------


def test_of_an_error_the_least_is_best(own):
    out, result = own
    errors = [row["val/brightness_error"] for row in RunFolder(out).epochs()]
    assert max(errors) > 2 * min(errors)
    assert result["best_epoch"] == errors.index(min(errors))
    assert torch.load(out / "best.ckpt", weights_only=True)["epoch"] == result["best_epoch"]
    assert result["infos"]["brightness_error"] == {
        "title": "Error of brightness",
        "unit": "grey levels",
        "better": "lower",
        "about": "Lower is better.",
    }


def test_patience_waits_for_a_lower_error(brightness, tmp_path):
    changes = ["optim.lr=0", "train.patience=2", "train.epochs=20"]
    assert fit(tiny_recipe(tmp_path, *changes, text=OWN), tmp_path / "run", progress=False)["epochs"] == 3


def test_the_unit_is_in_the_report(own, tmp_path):
    out, result = own
    page = read(foveal.see.report(out, tmp_path / "report.html").read_text())
    assert "Error of brightness, grey levels" in page.text
    assert "Error of brightness in validation" in page.text
    assert "%" not in page.text
    assert f"{result['metrics']['brightness_error']:.1f} paper 3.5" in " ".join(page.row("narrow"))


# A task's own ---------------------------------------------------------------------------------------------------------


def test_a_section_of_the_recipe_is_the_tasks(brightness, tmp_path):
    assert tiny_recipe(tmp_path, "loss.huber=0.5", text=OWN).loss.huber == 0.5
    with pytest.raises(UserError, match="huber"):
        tiny_recipe(tmp_path, "loss.hubris=0.5", text=OWN)


def test_options_of_predict_are_the_tasks(own, tmp_path):
    from PIL import Image

    Image.new("L", (20, 20), 128).save(tmp_path / "grey.png")
    plain, scaled = (predict(own[0], tmp_path / "grey.png", **options) for options in ({}, {"scale": 510}))
    assert plain.data["lines"]["narrow"] != scaled.data["lines"]["narrow"]
    with pytest.raises(UserError, match="did you mean 'scale'"):
        predict(own[0], tmp_path / "grey.png", scael=3)


def test_a_model_of_ones_own_is_loaded(own):
    model, about = load_model(own[0])
    assert about == {"side": 8}
    stored = load_file(own[0] / "weights.safetensors")
    assert all(torch.equal(value, stored[name]) for name, value in model.state_dict().items())


def test_what_a_task_leaves_out_has_a_default(brightness, own, monkeypatch):
    monkeypatch.setattr(brightness.BrightnessTask, "predict", classmethod(Task.predict.__func__))
    with pytest.raises(UserError, match="brightness cannot predict"):
        predict(own[0], "photo.png")
    recipe = RunFolder(own[0]).recipe()
    assert complete(recipe) is recipe
    task = make_task(recipe, build_source(recipe))
    assert task.masks("train") is task.masks("test") is False
    assert task.batch_size({"n": 3, "image": torch.zeros(5, 1)}) == task.batch_size([torch.zeros(5)]) == 5
    with pytest.raises(UserError, match="use on: records"):
        task.class_maps({}, "layer", "channel")


def test_tasks_by_name():
    assert {"classify", "document", "refer"} <= set(registry.tasks.names())
    for name in registry.tasks.names():
        assert find_task(name).name == name
        assert find_task(name).summary
    with pytest.raises(UserError, match="did you mean 'classify'"):
        find_task("clasify")
