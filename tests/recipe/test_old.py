"""Recipes of format version 1, as old run folders and users' files hold them, are read as they were meant."""

from __future__ import annotations

import pytest

from foveal.errors import RenamedWarning, UserError
from foveal.recipe import Cell, load
from foveal.recipe.optim import SGD, AdamW, RMSprop
from foveal.recipe.schedules import Constant, Cosine, OneCycle, Stairs
from foveal.tasks.classify.options import ClassAttention, Sharpening
from foveal.tasks.document.options import Relation

REFER = "version: 1\ndata: {name: mref}\nmodel: {name: soft}\n"
CLASSIFY = "version: 1\ntask: classify\ndata: {name: digits}\nmodel: {name: cifar_resnet20}\n"
OLD_RUN = """
version: 1
name: icasc/confusion-last-ach
title: sharpened, A_ch
task: classify
seed: 3
data: {name: confusion, size: 32, augment: none}
model: {name: cifar_resnet20, depth: 8, width: 16}
loss:
  label_smoothing: 0.0
  floor: 0.0
  sharpen:
    inner: layer2
    last: layer3
    weight_dict: {separability_inner: 0.0, consistency_inner: 0.0}
    kind: channel
    order: 2
    theta: 0.8
    sigma: 0.55
    omega: 100.0
    mask: last
    mask_gradient: false
    normalise: true
    hinge: false
    batch_norm: coupled
    pairs: every
    positives: 3
    warmup: 0
optim:
  name: adamw
  lr: 0.01
  weight_decay: 0.05
  decay: weights
  momentum: 0.9
  nesterov: false
  alpha: 0.9
  eps: 1.0e-08
  schedule: onecycle
  after: 30
  every: 11
  factor: 1.5
train: {epochs: 12, batch: 50, eval_batch: 250, select: last, precision: '32', compile: false, accelerator: cpu,
  devices: 1, nodes: 1, strategy: auto, sync_batchnorm: false, tensorboard: false}
published: {table: icasc/confusion-ablation, row: 'sharpened, A_ch', column: two objects}
"""


@pytest.fixture
def write(tmp_path):
    """Write a recipe file and return its path."""

    def write(text, name="mine.yaml"):
        (tmp_path / name).write_text(text, encoding="utf-8")
        return tmp_path / name

    return write


def test_the_recipe_of_an_old_run_is_the_cell_of_today(write):
    """All keys of version 1 are here, as its dump wrote them."""
    old, new = load(write(OLD_RUN)), load("icasc/confusion-ablation/last-ach", ["seed=3"])
    assert old.name == "icasc/confusion-last-ach"
    assert (old.cell.table, old.cell.row, old.cell.column) == (new.cell.table, new.cell.row, new.cell.column)
    for part in ("version", "title", "task", "seed", "data", "model", "optim", "train", "published"):
        assert getattr(old, part) == getattr(new, part), part
    assert old.loss.weights == new.loss.weights
    assert old.measure.class_attention == ClassAttention(["layer2", "layer3"], "channel")
    assert old.loss.sharpen == Sharpening(["layer2", "layer3"], "channel", order=2, normalise=True)


def test_what_was_upgraded_is_dumped_in_the_format_of_today(write):
    recipe = load(write(OLD_RUN))
    assert "version: 2\n" in recipe.dump()
    assert load(write(recipe.dump(), "again.yaml")) == recipe


def test_the_task_of_a_recipe_that_named_none(write):
    assert load(write(REFER)).task == "refer"


@pytest.mark.parametrize(
    ("section", "cell", "numbers"),
    [
        (
            "{table: hattnet/table1, row: SOFT, column: MREF, accuracy: 0.8, top5_accuracy: null}",
            Cell("hattnet/table1", "SOFT", "MREF"),
            {"accuracy": 0.8},
        ),
        ("{table: '', row: '', column: '', mean_average_precision: 0.5}", None, {"label_map": 0.5}),
        ("{row: SOFT}", None, {}),
        ("null", None, {}),
    ],
)
def test_published(section, cell, numbers, write):
    recipe = load(write(REFER + f"published: {section}\n"))
    assert recipe.cell == cell
    assert recipe.published == numbers


@pytest.mark.parametrize(
    ("section", "optim"),
    [
        (
            "{schedule: stairs, after: 29, every: 30, factor: 10}",
            AdamW(schedule=Stairs(after=29, every=30, factor=10.0)),
        ),
        ("{schedule: stairs}", AdamW(schedule=Stairs())),
        ("{schedule: cosine, after: 29, every: 30}", AdamW(schedule=Cosine())),
        ("{after: 29}", AdamW(schedule=Constant())),
        ("{name: adamw, momentum: 0.9, nesterov: false, alpha: 0.9, eps: 1.0e-6}", AdamW(eps=1e-6)),
        ("{momentum: 0.9}", AdamW()),
        ("{name: rmsprop, alpha: 0.8, momentum: 0.9}", RMSprop(alpha=0.8, momentum=0.0)),
        ("{name: sgd, momentum: 0.5, nesterov: true, eps: 1.0e-6, alpha: 0.9}", SGD(momentum=0.5, nesterov=True)),
        ("null", AdamW()),
    ],
)
def test_optim(section, optim, write):
    assert load(write(REFER + f"optim: {section}\n")).optim == optim


def test_the_weight_of_the_loss_on_relations(write):
    text = "version: 1\ntask: document\ndata: {name: docstrings}\nmodel: {name: fan_hatt_sup}\n"
    loss = load(write(text + "loss: {relation: {weight: 0.3, shape: l2}}\n")).loss
    assert loss.weights == {"relation": 0.3}
    assert loss.relation == Relation(shape="l2")
    assert load(write(text + "loss: {relation: {shape: l2}}\n")).loss.weights == {}


@pytest.mark.parametrize(
    ("section", "sharpen", "weights", "measured"),
    [
        ("{}", Sharpening(["layer3", "layer4"]), {}, ClassAttention(["layer3", "layer4"])),
        ("{inner: null, last: bn2}", Sharpening(["bn2"]), {}, ClassAttention(["bn2"])),
        (
            "{inner: a, last: b, kind: gradcam, sigma: 0.4, omega: 5, theta: 0.7, weight_dict: {consistency_inner: 0}}",
            Sharpening(["a", "b"], "gradcam", theta=0.7, sigma=0.4, omega=5.0),
            {"consistency_inner": 0.0},
            ClassAttention(["a", "b"], "gradcam", 0.4, 5.0),
        ),
        (
            "{kind: gradcam, weight_dict: {separability_inner: 0, separability_last: 0, consistency_inner: 0}}",
            None,
            {},
            ClassAttention(["layer3", "layer4"], "gradcam"),
        ),
        ("{inner: null, weight_dict: {separability_last: 0, classification: 2}}", None, {"classification": 2.0}, ...),
        ("null", None, {}, None),
    ],
)
def test_sharpening_becomes_a_loss_and_a_measure(section, sharpen, weights, measured, write):
    recipe = load(write(CLASSIFY + f"loss: {{floor: 1.0e-5, sharpen: {section}}}\n"))
    assert recipe.loss.floor == 1e-5
    assert recipe.loss.sharpen == sharpen
    assert recipe.loss.weights == weights
    assert recipe.measure.class_attention == (ClassAttention(["layer4"]) if measured is ... else measured)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("loss: {sharpen: 3}", r"loss\.sharpen: expected a section with keys, got 3"),
        ("loss: {sharpen: {ordr: 3}}", "loss.sharpen: unknown key 'ordr'; did you mean 'order'"),
        ("optim: {name: lion, momentum: 3}", r"optim\.name: unknown optimiser .*rmsprop"),
        ("optim: 3", "optim: expected a section with keys, got 3"),
        ("published: 3", "published: expected a section with keys, got 3"),
        ("published: {accuracy: high}", r"published\.accuracy: expected a number, got 'high'"),
    ],
)
def test_mistakes_are_named(text, message, write):
    with pytest.raises(UserError, match=message):
        load(write(CLASSIFY + text))


def test_overrides_have_the_keys_of_today(write):
    path = write(REFER + "optim: {schedule: stairs, after: 29}\n")
    assert load(path, ["optim.schedule.after=3"]).optim.schedule == Stairs(after=3)
    with pytest.raises(UserError, match=r"write optim\.schedule\.after"):
        load(path, ["optim.after=3"])


# Extending --------------------------------------------------------------------------------------------------


def test_a_chain_of_old_files(write):
    """Only the first one names the version, the optimiser and the schedule."""
    write(REFER + "optim: {name: rmsprop, alpha: 0.8, schedule: stairs, after: 29}\ntitle: base\n", "a.yaml")
    write("extends: a.yaml\noptim: {every: 5, momentum: 0.9}\n", "b.yaml")
    recipe = load(write("extends: b.yaml\noptim: {name: adamw, factor: 3}\npublished: {table: t, row: r}\n", "c.yaml"))
    assert recipe.optim == AdamW(schedule=Stairs(after=29, every=5, factor=3.0))
    assert (recipe.task, recipe.title, recipe.cell) == ("refer", "base", Cell("t", "r"))


def test_an_old_baseline_of_an_old_file(write):
    write(CLASSIFY + "loss: {sharpen: {inner: a, last: b, weight_dict: {consistency_inner: 0}}}\n", "base.yaml")
    zero = "{separability_inner: 0, separability_last: 0}"
    recipe = load(write(f"extends: base.yaml\nloss: {{sharpen: {{weight_dict: {zero}}}}}\n"))
    assert recipe.loss.sharpen is None
    assert recipe.loss.weights == {}
    assert recipe.measure.class_attention == ClassAttention(["a", "b"])


def test_an_old_file_extends_a_recipe_by_its_former_name(write):
    path = write("version: 1\nextends: hattnet/mref-hattnet-ctx\noptim: {after: 3}\nmodel: {channels: 64}\n")
    with pytest.warns(RenamedWarning, match="hattnet/table1/mref-hattnet-ctx"):
        recipe = load(path)
    now = load("hattnet/table1/mref-hattnet-ctx")
    assert recipe.optim == RMSprop(lr=0.003, eps=1e-3, clip=5.0, schedule=Stairs(after=3))
    assert (recipe.task, recipe.data, recipe.model["channels"]) == ("refer", now.data, 64)


def test_an_old_file_keeps_the_task_that_it_inherits(write):
    recipe = load(write("version: 1\nextends: demo/classify\noptim: {after: 3}\n"))
    assert recipe.task == "classify"
    assert recipe.optim == load("demo/classify").optim  # whose schedule has no such key


def test_an_old_file_chooses_another_optimiser(write):
    text = "version: 1\nextends: hattnet/table1/mref-soft\noptim: {name: sgd, momentum: 0.5, schedule: onecycle}\n"
    assert load(write(text)).optim == SGD(lr=0.003, momentum=0.5, clip=5.0, schedule=OneCycle())


ACH = "icasc/voc2012-lite/ach"  # sharpens blocks.5.0.bn1 and bn2 with the channel maps that it measures


@pytest.mark.parametrize(
    ("section", "layers", "trained"),
    [
        ("{theta: 0.7}", ["blocks.5.0.bn1", "bn2"], True),
        ("{inner: blocks.3}", ["blocks.3", "bn2"], True),
        ("{inner: null}", ["bn2"], True),
        (
            "{weight_dict: {separability_inner: 0, separability_last: 0, consistency_inner: 0}}",
            ["blocks.5.0.bn1", "bn2"],
            False,
        ),
    ],
)
def test_an_old_file_changes_sharpening_that_it_inherits(section, layers, trained, write):
    recipe = load(write(f"version: 1\nextends: {ACH}\nloss: {{sharpen: {section}}}\n"))
    assert recipe.measure.class_attention.layers == layers
    assert (recipe.loss.sharpen is not None) == trained
    if trained:
        assert recipe.loss.sharpen.layers == layers


def test_an_old_file_trains_without_the_sharpening_that_it_inherits(write):
    base = "icasc/confusion-ablation/separability"
    assert load(base).loss.weights == {"consistency_inner": 0.0}
    recipe = load(write(f"version: 1\nextends: {base}\nloss: {{sharpen: null}}\n"))
    assert recipe.loss.sharpen is None
    assert recipe.loss.weights == {}
    assert recipe.measure.class_attention is None


def test_a_file_of_today_extends_an_old_one(write):
    write(REFER + "optim: {name: sgd, schedule: stairs, after: 29}\npublished: {table: t, accuracy: 0.5}\n", "old.yaml")
    recipe = load(write("version: 2\nextends: old.yaml\noptim: {schedule: {every: 4}}\n"))
    assert recipe.optim == SGD(schedule=Stairs(after=29, every=4))
    assert (recipe.task, recipe.cell, recipe.published) == ("refer", None, {})
