"""Losses on attention that a recipe names: registered ones and functions of one's own, on records and on class maps."""

import pytest
import torch
from small_voc import write_voc
from tiny import DIGITS, RECIPE, tiny_recipe

import foveal
from foveal import registry
from foveal.errors import UserError
from foveal.runs import RunFolder
from foveal.supervise.mask import mask_loss
from foveal.supervise.registry import register_attention_loss
from foveal.tasks import fit
from foveal.tasks.base import make_task
from foveal.tasks.train import Feed, build_source

CONFUSION = DIGITS.replace("name: digits, size: 8", "name: confusion, size: 24").replace("aw_cbam_", "")
OWN_LOSSES = """
limit = 3

def sharp(record, batch, power: float = 1.0):
    return record.values.float().pow(power).mean()

def of_labels(record, batch, **options):
    return record.values.float().mean() * len(batch["label"]) * options["factor"]
"""
CPU = torch.device("cpu")


@pytest.fixture
def own_losses(tmp_path, monkeypatch):
    """A module of the user's in the current folder."""
    (tmp_path / "my_losses.py").write_text(OWN_LOSSES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "my_losses", raising=False)
    monkeypatch.syspath_prepend(tmp_path)


def attention(**losses: str) -> list[str]:
    return [f"loss.attention.{name}={text}" for name, text in losses.items()]


def task_and_batch(folder, *changes, text=RECIPE, data=None):
    recipe = tiny_recipe(folder, *changes, text=text)
    torch.manual_seed(0)
    task = make_task(recipe, build_source(recipe, data)).eval()
    masks = {"masks": True} if task.attention_losses.need_masks else {}
    return task, next(iter(task.source.loader("train", 8, device=CPU, **masks)))


def test_what_has_no_weight_is_not_computed(tmp_path, monkeypatch):
    maps = attention(look="{loss: mask, on: class_maps, at: layer3}")
    task, batch = task_and_batch(tmp_path, *maps, "loss.weights.look=0", text=CONFUSION)
    monkeypatch.setattr(type(task), "class_maps", lambda *_: pytest.fail("maps were computed"))
    assert list(task.weighed(batch)[1]) == ["classification"]
    with pytest.raises(UserError, match="did you mean 'look'"):
        task_and_batch(tmp_path, *maps, "loss.weights.lok=0", text=CONFUSION)


# Records --------------------------------------------------------------------------------------------------------------


def test_a_run_with_attention_on_masks(tmp_path):
    changes = [*attention(look="{loss: mask, at: gates.*}"), "loss.weights.look=0.5"]
    fit(tiny_recipe(tmp_path, *changes), tmp_path / "run", progress=False)
    rows = RunFolder(tmp_path / "run").epochs()
    for row in rows:
        assert row["train/loss"] == pytest.approx(row["train/answer"] + 0.5 * row["train/look"], abs=1e-5)
    assert rows[-1]["train/look"] < rows[0]["train/look"]
    assert RunFolder(tmp_path / "run").recipe().loss.attention["look"].at == "gates.*"


@pytest.mark.slow
def test_attention_that_is_trained_is_where_it_should_be(tmp_path):
    """Against the same run without the loss."""
    changes = ["train.epochs=12", "train.select=last", "model.dropout=0"]
    plain = fit(tiny_recipe(tmp_path, *changes), tmp_path / "plain", progress=False)
    trained = tiny_recipe(tmp_path, *changes, *attention(look="{loss: mask}"), "loss.weights.look=3")
    result = fit(trained, tmp_path / "trained", progress=False)
    strength = "true_positive_strength"
    assert result["metrics"][strength] > 1.2 * plain["metrics"][strength]


def test_the_loss_is_the_mean_over_the_sites(tmp_path):
    task, batch = task_and_batch(tmp_path, *attention(all="{loss: mask}", last="{loss: mask, at: gates.1}"))
    _, losses = task.weighed(batch)
    with foveal.watch(task.model) as seen:
        task.model(batch["image"] / 255, batch["query"])
    each = [mask_loss(record, batch["mask"]) for record in seen.values()]
    assert len(each) == 2
    torch.testing.assert_close(losses["all"], sum(each).detach() / 2)
    torch.testing.assert_close(losses["last"], seen["gates.1"].values.new_tensor(each[1].item()))


def test_the_gradient_reaches_the_attention(tmp_path):
    task, batch = task_and_batch(tmp_path, *attention(look="{loss: mask, at: gates.1}"), "loss.weights.answer=0")
    total, losses = task.weighed(batch)
    total.backward()
    torch.testing.assert_close(total.detach(), losses["look"])
    assert task.model.gates["1"].features.weight.grad.abs().sum() > 0
    assert task.model.head[0].weight.grad is None


def test_a_function_of_ones_own(tmp_path, own_losses):
    changes = attention(
        sharp="{loss: 'my_losses:sharp', at: [gates.0, gates.1], options: {power: 2}}",
        labels="{loss: 'my_losses:of_labels', options: {factor: 3}}",
    )
    task, batch = task_and_batch(tmp_path, *changes)
    _, losses = task.weighed(batch)
    with foveal.watch(task.model) as seen:
        task.model(batch["image"] / 255, batch["query"])
    squares = torch.stack([record.values.square().mean() for record in seen.values()]).mean()
    torch.testing.assert_close(losses["sharp"], squares.detach())
    means = torch.stack([record.values.mean() for record in seen.values()]).mean()
    torch.testing.assert_close(losses["labels"], 24 * means.detach())


def test_a_function_of_ones_own_in_a_run_without_masks(tmp_path, own_losses):
    """The dataset has none, and the loss does not ask for them."""
    changes = [*attention(sharp="{loss: 'my_losses:sharp', at: '*cbam.spatial'}"), "train.epochs=1"]
    fit(tiny_recipe(tmp_path, *changes, text=DIGITS), tmp_path / "run", progress=False)
    (row,) = RunFolder(tmp_path / "run").epochs()
    assert 0 < row["train/sharp"] < 1
    assert row["train/loss"] == pytest.approx(row["train/classification"] + row["train/sharp"], abs=1e-5)


def test_a_registered_loss_of_ones_own(tmp_path, monkeypatch):
    registry.attention_losses.names()
    monkeypatch.setattr(registry.attention_losses, "_things", dict(registry.attention_losses._things))
    register_attention_loss("spread")(lambda record, batch: record.values.float().std())
    task, batch = task_and_batch(tmp_path, *attention(even="{loss: spread}"))
    assert task.weighed(batch)[1]["even"] > 0
    assert not task.attention_losses.need_masks


def test_masks_are_loaded_only_for_losses_on_attention(tmp_path):
    plain, _ = task_and_batch(tmp_path)
    looking, _ = task_and_batch(tmp_path, *attention(look="{loss: mask}"))
    assert not plain.masks("train")
    assert plain.masks("test")
    assert looking.masks("train")
    assert looking.attention_losses.names == ["look"]
    assert Feed(looking).task is looking


def test_a_compiled_step_compiles_the_model_alone(tmp_path, monkeypatch):
    """Losses on attention look at the model from outside."""
    compiled = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self, **options: compiled.append(self))
    monkeypatch.setattr(torch, "compile", None)
    task, _ = task_and_batch(tmp_path, *attention(look="{loss: mask}"), "train.compile=true")
    task.on_fit_start()
    assert compiled == [task.model]


def test_half_precision(tmp_path):
    changes = [*attention(look="{loss: mask}"), "train.precision=bf16", "train.epochs=1"]
    fit(tiny_recipe(tmp_path, *changes), tmp_path / "run", progress=False)
    (row,) = RunFolder(tmp_path / "run").epochs()
    assert 0 < row["train/look"] < 16


# Class maps -----------------------------------------------------------------------------------------------------------

ON_MAPS = "{loss: mask, on: class_maps, at: layer3, kind: gradcam}"


def test_a_run_with_class_maps_on_masks(tmp_path, small_confusion):
    changes = ["train.epochs=1", *attention(look=ON_MAPS), "measure.class_attention={layers: [layer3], kind: gradcam}"]
    result = fit(tiny_recipe(tmp_path, *changes, text=CONFUSION), tmp_path / "run", progress=False)
    (row,) = RunFolder(tmp_path / "run").epochs()
    assert 0 < row["train/look"] < 16
    assert row["train/loss"] == pytest.approx(row["train/classification"] + row["train/look"], abs=1e-4)
    assert {"pointing_game", "energy_in_box", "overlap_last"} <= result["metrics"].keys()


@pytest.mark.parametrize("kind", ["channel", "gradcam"])
def test_the_maps_are_those_of_the_true_class(tmp_path, small_confusion, kind):
    option = f"{{loss: mask, on: class_maps, at: layer3, kind: {kind}}}"
    task, batch = task_and_batch(tmp_path, *attention(look=option), text=CONFUSION)
    total, losses = task.weighed(batch)
    maps = foveal.cam(task.model, task.inputs(batch), batch["label"], "layer3", kind)
    torch.testing.assert_close(losses["look"], mask_loss(maps, batch["mask"]).detach(), rtol=1e-4, atol=1e-5)
    total.backward()
    assert task.model.layer3[0].conv1.weight.grad.abs().sum() > 0


def test_of_several_true_classes_the_best_scoring_one(tmp_path, own_losses):
    changes = ["data={name: voc2012, size: 16, workers: 0}"]
    changes += attention(sharp="{loss: 'my_losses:sharp', on: class_maps, at: layer3}")
    root = write_voc(tmp_path / "data")
    task, batch = task_and_batch(tmp_path, *changes, text=CONFUSION, data=root)
    _, losses = task.weighed(batch)
    x = task.inputs(batch)
    best = task.model(x).masked_fill(batch["label"] <= 0, -torch.inf).argmax(1)
    maps = foveal.cam(task.model, x, best, "layer3")
    torch.testing.assert_close(losses["sharp"], maps.mean().detach(), rtol=1e-4, atol=1e-6)


# Mistakes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("{loss: masc}", "did you mean 'mask'"),
        ("{loss: mask, at: gate.0}", r"loss\.attention\.look: .*did you mean 'gates\.0'"),
        ("{loss: mask, at: [gates.0, gates.9]}", r"loss\.attention\.look: .*'gates\.9'"),
        ("{loss: mask, on: record}", r"loss\.attention\.look\.on: expected one of records, class_maps"),
        ("{loss: mask, options: {power: 3}}", r"loss\.attention\.look\.options: .*'power'"),
        ("{loss: 'my_losses:sharp', options: {powr: 3}}", r"loss\.attention\.look\.options: .*did you mean 'power'"),
        ("{loss: 'my_losses:sharper'}", r"loss\.attention\.look\.loss=my_losses:sharper .*use module:function"),
        ("{loss: 'no_module:sharp'}", r"loss\.attention\.look\.loss=no_module:sharp .*use module:function"),
        ("{loss: ':sharp'}", "use module:function"),
        ("{loss: 'my_losses:limit'}", "is not a function but int"),
        ("{loss: mask, on: class_maps, at: layer3}", "use on: records"),
        ("mask", r"loss\.attention\.look: expected a section"),
    ],
)
def test_mistakes_stop_before_training(tmp_path, own_losses, option, message):
    with pytest.raises(UserError, match=message) as caught:
        fit(tiny_recipe(tmp_path, *attention(look=option)), tmp_path / "run", progress=False)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("{loss: mask, on: class_maps, at: layer33}", r"loss\.attention\.look: .*did you mean 'layer3'"),
        ("{loss: mask, on: class_maps, at: fc}", r"loss\.attention\.look: .*such as layer3"),
        ("{loss: mask, on: class_maps}", r"loss\.attention\.look\.at: expected the name of the layer"),
        ("{loss: mask, on: class_maps, at: [layer3]}", r"loss\.attention\.look\.at: expected the name of the layer"),
        ("{loss: mask, on: class_maps, at: layer3, kind: cam}", "expected one of channel, gradcam"),
    ],
)
def test_mistakes_of_class_maps_stop_before_training(tmp_path, small_confusion, option, message):
    with pytest.raises(UserError, match=message):
        fit(tiny_recipe(tmp_path, *attention(look=option), text=CONFUSION), tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_a_dataset_without_masks_is_named(tmp_path):
    recipe = tiny_recipe(tmp_path, *attention(look=ON_MAPS), text=DIGITS)
    with pytest.raises(UserError, match=r"data\.name=digits has no masks"):
        fit(recipe, tmp_path / "run", progress=False)


def test_a_loss_may_not_take_the_name_of_another(tmp_path):
    with pytest.raises(UserError, match=r"loss\.attention\.answer: .*choose another name"):
        fit(tiny_recipe(tmp_path, *attention(answer="{loss: mask}")), tmp_path / "run", progress=False)
