"""Separability and consistency through whole runs, and the recipes of the paper."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from foveal.see.class_maps import read_top_classes
from foveal.tasks.criterion import ClassAttention, Criterion
from foveal.tasks.predict import predict
from foveal.tasks.reproduce import tables
from foveal.tasks.run import build_source, load_model
from PIL import Image
from torch import nn

import foveal
from foveal.attention.class_maps.taps import Taps
from foveal.cli import _show_result
from foveal.data.formats.voc import VOC_CLASSES
from foveal.errors import UserError
from foveal.measure import (
    attention_map,
    attention_overlap,
    average_precision,
    energy_in_box,
    inner_in_last,
    pointing_game,
)
from foveal.models.registry import any_model
from foveal.recipe import Sharpening, available, load
from foveal.see import report
from foveal.supervise import Sharpen, confusing_class
from foveal.tasks import Classify, evaluate, fit
from foveal.tasks.callbacks import read_journal
from foveal.tasks.classify import normalised

RECIPE = """
version: 1
task: classify
title: tiny
data: {name: digits, size: 12}
model: {name: cifar_resnet20, depth: 8, width: 4}
loss: {sharpen: {inner: layer2, last: layer3}}
optim: {name: sgd, lr: 0.1, schedule: onecycle}
train: {epochs: 1, batch: 63, eval_batch: 200, accelerator: cpu}
"""
ZERO = "loss.sharpen.weight_dict={separability_inner: 0, separability_last: 0, consistency_inner: 0}"
TERMS = ("separability_inner", "separability_last", "consistency_inner")


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "tiny.yaml"
    path.write_text(RECIPE)
    return partial(load, path)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sharpened")
    (folder / "tiny.yaml").write_text(RECIPE)
    chosen = load(folder / "tiny.yaml")
    return folder / "run", chosen, fit(chosen, folder / "run", progress=False)


def weights(out) -> dict[str, torch.Tensor]:
    return load_model(out)[0].state_dict()


def test_every_loss_is_in_the_journal(run) -> None:
    out, _, _ = run
    (row,) = read_journal(out / "metrics.jsonl")
    losses = [row[f"train/{name}"] for name in ("classification", *TERMS)]
    assert sum(losses) == pytest.approx(row["train/loss"], abs=1e-3)
    assert losses[0] > 0
    assert losses[1] > 0


def test_attention_is_measured_by_right_and_wrong_answers(run) -> None:
    out, chosen, result = run
    model, source = load_model(out)[0], build_source(chosen)
    mean, std = (torch.tensor(value).view(3, 1, 1) for value in (source.mean, source.std))
    batches = list(source.loader("test", 1000, device=torch.device("cpu")))
    assert len(batches) == 1
    x, label = (batches[0]["image"] / 255 - mean) / std, batches[0]["label"]
    with torch.no_grad():
        logits = model(x)
    classes = torch.stack([label, confusing_class(logits, label)[0]], 1)
    maps = foveal.cam(model, x, classes, ["layer2", "layer3"])
    right = logits.argmax(1) == label
    expected = {
        "overlap_inner": attention_overlap(maps["layer2"][:, 0], maps["layer2"][:, 1], right),
        "overlap_last": attention_overlap(maps["layer3"][:, 0], maps["layer3"][:, 1], right),
        "inner_in_last": inner_in_last(maps["layer2"][:, 0], maps["layer3"][:, 0], right),
    }
    assert 0 < right.float().mean() < 1
    for name, values in expected.items():
        assert result["metrics"][name] == pytest.approx(float(values.all), abs=1e-4)
        for part in ("right", "wrong"):
            found = result["class_attention"][name][part]
            assert found == pytest.approx(float(getattr(values, part)), abs=1e-4)


def test_the_split_is_printed(run, capsys: pytest.CaptureFixture[str]) -> None:
    _, _, result = run
    _show_result(result)
    parts = result["class_attention"]["overlap_last"]
    assert f"(right {parts['right']:.2%}, wrong {parts['wrong']:.2%})" in capsys.readouterr().out


def test_testing_again_says_the_same(run) -> None:
    out, _, result = run
    again = evaluate(out)
    assert again["metrics"] == pytest.approx(result["metrics"])


def test_top_classes_are_kept_shown_and_predicted(run, tmp_path) -> None:
    out, _, _ = run
    top = read_top_classes(out / "samples.safetensors")
    assert top is not None
    assert top.maps.shape == (12, 5, 3, 3)
    page = report(out, tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Where it looks for each class" in page
    Image.new("RGB", (20, 20), (90, 20, 200)).save(tmp_path / "photo.png")
    said = predict(out, tmp_path / "photo.png")
    assert len(said.answers) == 10
    assert said.picture is not None
    assert said.picture.width > 5 * 180


def test_without_weights_training_is_plain(recipe, tmp_path) -> None:
    plain = fit(recipe(["loss.sharpen=null"]), tmp_path / "plain", progress=False)
    zero = fit(recipe([ZERO]), tmp_path / "zero", progress=False)
    assert zero["metrics"]["accuracy"] == plain["metrics"]["accuracy"]
    assert "overlap_last" in zero["metrics"]
    assert "pointing_game" not in zero["metrics"]  # without boxes
    assert "overlap_last" not in plain["metrics"]
    assert read_top_classes(tmp_path / "plain" / "samples.safetensors") is None
    other = weights(tmp_path / "zero")
    for name, value in weights(tmp_path / "plain").items():
        assert torch.equal(value, other[name])


def test_warmup_is_in_epochs(recipe, tmp_path) -> None:
    fit(recipe(["train.epochs=2", "loss.sharpen.warmup=1"]), tmp_path / "run", progress=False)
    first, second = read_journal(tmp_path / "run" / "metrics.jsonl")
    assert [f"train/{name}" in first for name in TERMS] == [False] * 3
    assert [f"train/{name}" in second for name in TERMS] == [True] * 3


def test_weights_reach_the_total() -> None:
    model = any_model("cifar_resnet20", depth=8, width=4, num_classes=4)
    given = {"classification": 2.0, "separability_last": 0.5, "consistency_inner": 0.0}
    criterion = Criterion(model, Sharpening("layer2", "layer3", given))
    assert criterion.weight_dict == {"separability_inner": 1.0, **given}
    x, y = torch.randn(3, 3, 12, 12), torch.tensor([0, 1, 2])
    losses = criterion(x, lambda logits: logits.logsumexp(1).mean(), y, None, attend=True)
    assert set(losses) == {"classification", "separability_inner", "separability_last"}
    total = 2 * losses["classification"] + losses["separability_inner"] + 0.5 * losses["separability_last"]
    torch.testing.assert_close(criterion.total(losses), total)
    assert set(criterion(x, lambda logits: logits.mean(), y, None, attend=False)) == {"classification"}


def test_the_last_layer_alone_and_the_second_order(recipe, tmp_path) -> None:
    changes = ["loss.sharpen.inner=null", "loss.sharpen.order=2", "loss.sharpen.kind=gradcam"]
    result = fit(recipe(changes), tmp_path / "run", progress=False)
    assert "overlap_last" in result["metrics"]
    assert "overlap_inner" not in result["metrics"]
    assert "inner_in_last" not in result["metrics"]
    (row,) = read_journal(tmp_path / "run" / "metrics.jsonl")
    assert "train/separability_last" in row
    assert "train/separability_inner" not in row


def test_compiled_training_is_the_same(recipe, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model: compiled(model, backend="aot_eager"))
    torch.compiler.reset()
    chosen = recipe(["train.compile=true"])
    source = build_source(chosen)
    batch = next(iter(source.loader("train", 8, device=torch.device("cpu"))))
    found = []
    for wanted in (False, True):
        torch.manual_seed(0)
        task = Classify(recipe([f"train.compile={wanted}".lower()]), source)
        task.on_fit_start()
        loss = task.loss(batch)
        loss.backward()
        found.append((loss.detach(), task.model.conv1.weight.grad))
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("loss.sharpen.last=layer5", "loss.sharpen: unknown layer 'layer5'; did you mean 'layer"),
        ("loss.sharpen.kind=cam", "loss.sharpen.kind: expected one of channel, gradcam, got 'cam'"),
        ("loss.sharpen.order=3", "loss.sharpen: order=3"),
        ("loss.sharpen.weight_dict={separation: 1}", "loss.sharpen.weight_dict: unknown key 'separation'"),
        ("loss.sharpen.weight_dict={consistency_inner: much}", "weight_dict.consistency_inner: expected a number"),
        ("loss.sharpen.sigma=55", "loss.sharpen: sigma=55"),
        ("loss.sharpen.warmup=-1", "loss.sharpen.warmup: expected at least 0"),
        ("loss.sharpen.omega=-1", "loss.sharpen.omega: expected a number above 0, got -1"),
        ("loss.sharpen.weight_dict={classification: -1}", "weight_dict.classification: expected at least 0, got -1"),
        ("loss.sharpen.inner=layer3", "loss.sharpen: inner and last are both layer3"),
        ("task=refer", "loss.sharpen is for task classify; leave it out with task refer"),
    ],
)
def test_mistakes_stop_before_training(recipe, tmp_path, change: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        fit(recipe([change]), tmp_path / "run", progress=False)


@pytest.mark.parametrize("change", ["loss.sharpen.theta=0.8", ZERO, "loss.sharpen.warmup=1"])
def test_layers_without_maps_stop_before_training(recipe, tmp_path, change: str) -> None:
    with pytest.raises(UserError, match=r"^loss.sharpen: layer fc puts out \(2, 10\), .* such as layer3.0.conv2$"):
        fit(recipe(["loss.sharpen.last=fc", change]), tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_layers_in_the_wrong_order_stop_before_training(recipe) -> None:
    chosen = recipe(["loss.sharpen.inner=layer3", "loss.sharpen.last=layer2"])
    with pytest.raises(UserError, match=r"^loss.sharpen: layer3 runs after layer2; name the inner layer first$"):
        Classify(chosen, build_source(chosen))


def test_trying_the_maps_changes_nothing(recipe) -> None:
    chosen = recipe(["loss.sharpen.order=2"])
    source, model = build_source(chosen), any_model("cifar_resnet20", depth=8, width=4, num_classes=10)
    before, state = {k: v.clone() for k, v in model.state_dict().items()}, torch.get_rng_state()
    Classify(chosen, source, model)
    assert model.training
    assert all(p.grad is None for p in model.parameters())
    assert torch.equal(torch.get_rng_state(), state)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_no_inner_layer_with_inner_weights_of_zero(recipe) -> None:
    changes = ["loss.sharpen.inner=null", "loss.sharpen.weight_dict={separability_inner: 0, consistency_inner: 0}"]
    chosen = recipe(changes)
    task = Classify(chosen, build_source(chosen))
    assert task.criterion is not None
    assert task.criterion.weight_dict == {"classification": 1.0, "separability_last": 1.0}


def test_what_is_compiled_is_differentiated_once(recipe) -> None:
    chosen = recipe(["train.compile=true", "loss.sharpen.order=2"])
    with pytest.raises(UserError, match=r"order=2 differentiates twice.*use order=1"):
        Classify(chosen, build_source(chosen)).on_fit_start()


# Boxes ----------------------------------------------------------------------------------------------------------------


def test_attention_is_measured_against_boxes(recipe, tmp_path) -> None:
    changes = ["data={name: confusion, size: 24}", "train.batch=300", "train.eval_batch=1000"]
    chosen = recipe([*changes, "loss.sharpen.kind=gradcam"])
    result = fit(chosen, tmp_path / "run", progress=False)
    model, source = load_model(tmp_path / "run")[0], build_source(chosen)
    task = Classify(chosen, source, model)
    (batch,) = source.loader("test", 1000, device=torch.device("cpu"))
    x, label = normalised(batch["image"], task.mean, task.std), batch["label"]  # to the bit, for peaks may tie
    maps = attention_map([foveal.cam(model, x, label, "layer3", "gradcam")], (24, 24))
    boxes = source.boxes()
    assert boxes is not None
    assert torch.equal(boxes[:, 0, 0], label.float())
    right, maps = model(x).argmax(1) == label, maps.detach()
    for name, function in (("pointing_game", pointing_game), ("energy_in_box", energy_in_box)):
        expected = function(maps, list(boxes[..., 1:]), right)
        assert result["metrics"][name] == pytest.approx(float(expected.all), abs=1e-4)
        for part in ("right", "wrong"):
            assert result["class_attention"][name][part] == pytest.approx(float(getattr(expected, part)), abs=1e-4)


def test_boxes_of_the_true_class_that_scores_best(recipe) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
    boxes = torch.tensor([[[2.0, 0, 0, 4, 8], [0, 4, 0, 8, 8], [0, 0, 0, 1, 1]], [[-1.0, -1, -1, -1, -1]] * 3])
    measured = ClassAttention(Sharpening(None, "0", kind="gradcam"), boxes)
    x, logits = torch.rand(2, 3, 8, 8), torch.tensor([[2.0, 9.0, 1.0]]).repeat(2, 1)
    label = torch.tensor([[1, 0, 1], [1, 0, 0]])
    measured.update(model, x, logits, {"label": label, "index": torch.tensor([0, 1])})
    maps = attention_map([foveal.cam(model, x[:1], 0, "0", "gradcam")], (8, 8))
    expected = energy_in_box(maps, [boxes[0, 1:, 1:]]).all  # the second image has no box
    torch.testing.assert_close(measured.measures["energy_in_box"].compute().all, expected)


# Several labels -------------------------------------------------------------------------------------------------------


def test_several_labels(recipe, tmp_path) -> None:
    main, pictures = tmp_path / "VOCdevkit/VOC2012/ImageSets/Main", tmp_path / "VOCdevkit/VOC2012/JPEGImages"
    main.mkdir(parents=True)
    pictures.mkdir()
    draw = torch.Generator().manual_seed(0)
    for split, count in (("train", 16), ("val", 10)):
        names = [f"{split}{n}" for n in range(count)]
        marks = torch.randint(0, 5, (count, len(VOC_CLASSES)), generator=draw)  # 0: difficult, 1: there, others: not
        marks[0] = 2  # an image without any class
        for name in names:
            noise = torch.randint(0, 256, (20, 20, 3), generator=draw)
            Image.fromarray(noise.byte().numpy()).save(pictures / f"{name}.jpg")
        (main / f"{split}.txt").write_text("".join(f"{name}\n" for name in names))
        for k, label in enumerate(VOC_CLASSES):
            rows = (f"{n} {int(m) if m < 2 else -1}\n" for n, m in zip(names, marks[:, k], strict=True))
            (main / f"{label}_{split}.txt").write_text("".join(rows))
    changes = ["data.name=voc2012", "data.workers=0", "data.val_fraction=0", "train.batch=8", "train.eval_batch=4"]
    chosen = recipe([*changes, "data.augment=crop"])
    out = tmp_path / "run"
    result = fit(chosen, out, data=tmp_path, progress=False)
    assert {"label_map", "overlap_last", "inner_in_last"} <= set(result["metrics"])
    source, model = build_source(chosen, tmp_path), load_model(out)[0]
    task = Classify(chosen, source, model)
    with torch.no_grad():
        parts = [(task.logits(b), b["label"], b["valid"]) for b in source.loader("test", 3, device=torch.device("cpu"))]
    logits, label, valid = (torch.cat(values) for values in zip(*parts, strict=True))
    for k, name in enumerate(VOC_CLASSES):
        kept = valid[:, k]
        expected = average_precision(logits[kept, k : k + 1], label[kept, k : k + 1])
        found = result["average_precision"][name]
        assert (found is None) == bool(expected.isnan())
        if found is not None:
            assert found == pytest.approx(float(expected), abs=1e-4)


# The recipes ----------------------------------------------------------------------------------------------------------

ICASC = [name for name in available() if name.startswith("icasc/")]


def test_every_dataset_has_its_three_rows() -> None:
    found = tables()
    networks = {"cifar100": 1, "caltech256": 2, "imagenet": 1, "cub200": 2, "voc2012": 1}
    for dataset, count in networks.items():
        names = found[f"icasc/{dataset}"]
        assert len(names) == 3 * count
        kinds = [load(name).loss.sharpen for name in names]
        assert sum(not any(s.weight_dict.get(term, 1) for term in TERMS) for s in kinds) == count
        assert sum(s.kind == "gradcam" for s in kinds) == count
    assert len(found["icasc/ablation"]) >= 12
    published = [load(f"icasc/voc2012-{row}").published for row in ("baseline", "gradcam", "ach")]
    assert [p.label_map for p in published] == [0.7744, 0.8212, 0.8317]


def test_the_supplements_settings() -> None:
    settings = {  # batch, weight decay, rate, epochs, size
        "cifar100-ach": (128, 5e-4, 0.1, 160, None),
        "caltech256-vgg19-ach": (16, 1e-3, 0.01, 20, 299),
        "imagenet-ach": (256, 1e-4, 0.1, 90, 224),
        "cub200-resnet50-ach": (10, 1e-4, 1e-3, 90, 448),
        "voc2012-ach": (16, 1e-3, 0.01, 20, 299),
    }
    for name, expected in settings.items():
        r = load(f"icasc/{name}")
        found = (r.train.batch, r.optim.weight_decay, r.optim.lr, r.train.epochs, r.data.get("size"))
        assert found == expected
        assert (r.optim.name, r.optim.momentum, r.optim.decay, r.train.select) == ("sgd", 0.9, "all", "last")


def test_rows_of_a_dataset_differ_in_the_losses_alone() -> None:
    for name in ICASC:
        if not name.endswith("-baseline"):
            continue
        rows = [load(name.replace("baseline", row)) for row in ("baseline", "gradcam", "ach")]
        for row in rows:
            row.loss, row.title, row.name, row.published = rows[0].loss, "", "", None
        assert rows[0] == rows[1] == rows[2]


SIZES = {  # of the inner and the last map, as in the paper's tables
    "icasc/imagenet-ach": ((14, 256), (7, 512)),
    "icasc/voc2012-ach": ((19, 256), (10, 512)),
    "icasc/cub200-resnet50-ach": ((28, 1024), (14, 2048)),
    "icasc/cub200-resnet101-ach": ((28, 1024), (14, 2048)),
    "icasc/caltech256-vgg19-ach": ((37, 512), (18, 512)),
    "icasc/cifar100-ach": ((16, 32), (8, 64)),
    "icasc/voc2012-lite-ach": ((12, 112), (6, 1280)),
}


@pytest.mark.parametrize("name", SIZES)
def test_maps_of_the_recipes_have_the_papers_sizes(name: str) -> None:
    recipe = load(name)
    options, size = recipe.loss.sharpen, recipe.data.get("size") or 32
    assert options is not None
    with torch.device("meta"):
        model: nn.Module = any_model(recipe.model["name"], num_classes=20)
        x = torch.empty(1, 3, size, size)
    taps = Taps(model.eval(), [options.inner, options.last])
    with taps:
        model(x)
    found = [taps.to_maps(n)(each.values).shape for n, each in taps.tapped().items()]
    assert [(shape[2], shape[1]) for shape in found] == list(SIZES[name])


@pytest.mark.parametrize("name", sorted({load(n).model["name"] for n in ICASC}))
def test_layers_of_every_recipe_exist(name: str) -> None:
    with torch.device("meta"):
        model = any_model(name, num_classes=20)
    for recipe in (load(n) for n in ICASC):
        if recipe.model["name"] == name and recipe.loss.sharpen is not None:
            assert isinstance(Criterion(model, recipe.loss.sharpen).sharpen, Sharpen)
