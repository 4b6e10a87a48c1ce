"""Separability and consistency through whole runs."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from PIL import Image
from small_voc import write_voc
from tiny import SHARPEN, write_recipe

from foveal.cli.runs import _show_result
from foveal.data.formats.voc import VOC_CLASSES
from foveal.errors import UserError
from foveal.measure import average_precision
from foveal.models.registry import any_model
from foveal.recipe import load
from foveal.runs import RunFolder
from foveal.see import TopClasses, report
from foveal.tasks import evaluate, fit, load_model, predict
from foveal.tasks.classify import Classify
from foveal.tasks.classify.options import Sharpening
from foveal.tasks.classify.sharpening import SharpenLosses
from foveal.tasks.train import build_source

TERMS = ("separability_inner", "separability_last", "consistency_inner")
ZERO = "loss.weights={separability_inner: 0, separability_last: 0, consistency_inner: 0}"
CPU = torch.device("cpu")


@pytest.fixture
def recipe(tmp_path):
    return partial(load, write_recipe(tmp_path, SHARPEN))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sharpened")
    plan = load(write_recipe(folder, SHARPEN))
    return folder / "run", plan, fit(plan, folder / "run", progress=False)


def test_every_loss_is_in_the_journal(run) -> None:
    out, _, _ = run
    (row,) = RunFolder(out).epochs()
    losses = [row[f"train/{name}"] for name in ("classification", *TERMS)]
    assert sum(losses) == pytest.approx(row["train/loss"], abs=1e-5)
    assert losses[0] > 0
    assert losses[1] > 0


def test_what_is_trained_is_measured(run) -> None:
    """Without being asked for; how it is measured is tested with the measurements."""
    out, _, result = run
    assert {"overlap_inner", "overlap_last", "inner_in_last"} <= result["metrics"].keys()
    options = RunFolder(out).recipe().measure.class_attention
    assert (options.layers, options.kind) == (["layer2", "layer3"], "channel")


def test_the_split_is_printed(run, capsys: pytest.CaptureFixture[str]) -> None:
    _, _, result = run
    _show_result(result)
    parts = {part: f"{100 * value:.2f} %" for part, value in result["parts"]["overlap_last"].items()}
    assert f"(right {parts['right']}, wrong {parts['wrong']})" in capsys.readouterr().out


def test_testing_again_says_the_same(run) -> None:
    out, _, result = run
    again = evaluate(out)
    assert again["metrics"] == pytest.approx(result["metrics"])


def test_top_classes_are_kept_shown_and_predicted(run, tmp_path) -> None:
    out, _, _ = run
    top = TopClasses.from_tensors(RunFolder(out).tensors("samples.safetensors").tensors)
    assert top is not None
    assert top.maps.shape == (12, 5, 3, 3)
    page = report(out, tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Where it looks for each class" in page
    Image.new("RGB", (20, 20), (90, 20, 200)).save(tmp_path / "photo.png")
    prediction = predict(out, tmp_path / "photo.png")
    assert len(prediction.answers) == 10
    assert prediction.picture is not None
    assert prediction.picture.width > 5 * 180


def test_without_weights_training_is_plain(recipe, tmp_path) -> None:
    plain = fit(recipe(["loss.sharpen=null"]), tmp_path / "plain", progress=False)
    zero = fit(recipe([ZERO]), tmp_path / "zero", progress=False)
    assert zero["metrics"]["accuracy"] == plain["metrics"]["accuracy"]
    assert "overlap_last" in zero["metrics"]
    assert "overlap_last" not in plain["metrics"]
    one, other = (load_model(tmp_path / name)[0].state_dict() for name in ("plain", "zero"))
    assert all(torch.equal(value, other[name]) for name, value in one.items())


def test_warmup_is_in_epochs(recipe, tmp_path) -> None:
    fit(recipe(["train.epochs=2", "loss.sharpen.warmup=1"]), tmp_path / "run", progress=False)
    first, second = RunFolder(tmp_path / "run").epochs()
    assert [f"train/{name}" in first for name in TERMS] == [False] * 3
    assert [f"train/{name}" in second for name in TERMS] == [True] * 3


def test_a_loss_of_weight_0_is_not_computed() -> None:
    model = any_model("cifar_resnet20", depth=8, width=4, num_classes=4)
    weights = {"separability_inner": 1.0, "separability_last": 0.5, "consistency_inner": 0.0}
    losses = SharpenLosses(model, Sharpening(["layer2", "layer3"], "channel"), weights)
    x, y = torch.randn(3, 3, 12, 12), torch.tensor([0, 1, 2])
    values = losses(x, lambda logits: logits.logsumexp(1).mean(), y, None, attend=True)
    assert set(values) == {"classification", "separability_inner", "separability_last"}
    assert set(losses(x, lambda logits: logits.mean(), y, None, attend=False)) == {"classification"}


def test_the_last_layer_alone_and_the_second_order(recipe, tmp_path) -> None:
    changes = ["loss.sharpen.layers=[layer3]", "loss.sharpen.order=2", "loss.sharpen.kind=gradcam"]
    result = fit(recipe(changes), tmp_path / "run", progress=False)
    assert "overlap_last" in result["metrics"]
    assert "overlap_inner" not in result["metrics"]
    assert "inner_in_last" not in result["metrics"]
    (row,) = RunFolder(tmp_path / "run").epochs()
    assert "train/separability_last" in row
    assert "train/separability_inner" not in row


@pytest.mark.slow
def test_compiled_training_is_the_same(recipe, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model: compiled(model, backend="aot_eager"))
    torch.compiler.reset()
    source = build_source(recipe())
    batch = next(iter(source.loader("train", 8, device=CPU)))
    results = []
    for wanted in ("false", "true"):
        torch.manual_seed(0)
        task = Classify(recipe([f"train.compile={wanted}"]), source)
        task.on_fit_start()
        loss, _ = task.weighed(batch)
        loss.backward()
        results.append((loss.detach(), task.model.conv1.weight.grad))
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("loss.sharpen.layers=[layer2, layer5]", r"loss\.sharpen: unknown layer 'layer5'; did you mean 'layer"),
        ("loss.sharpen.kind=cam", r"loss\.sharpen\.kind: expected one of channel, gradcam"),
        ("loss.sharpen.order=3", r"loss\.sharpen: order=3"),
        ("loss.weights={separation: 1}", r"loss\.weights: unknown key 'separation'"),
        ("loss.weights={consistency_inner: much}", r"loss\.weights\.consistency_inner: expected a number"),
        ("loss.sharpen.sigma=55", r"loss\.sharpen: sigma=55"),
        ("loss.sharpen.warmup=-1", r"loss\.sharpen\.warmup: expected at least 0"),
        ("loss.sharpen.omega=-1", r"loss\.sharpen\.omega: expected a number above 0"),
        ("loss.weights={classification: -1}", r"loss\.weights\.classification: expected at least 0"),
        ("loss.sharpen.layers=[layer3, layer3]", r"loss\.sharpen\.layers: expected an inner and the last layer"),
        ("loss.sharpen.layers=[]", r"loss\.sharpen\.layers: expected an inner and the last layer"),
        ("loss.sharpen.layers=[a, b, c]", r"loss\.sharpen\.layers: expected an inner and the last layer"),
        ("measure.class_attention.layers=[layer3, layer3]", r"measure\.class_attention\.layers: expected an inner"),
        ("task=refer", r"loss\.sharpen is for task classify; leave it out"),
        ("loss.sharpen.weight_dict={separability_last: 1}", r"loss\.sharpen.*weight_dict"),
    ],
)
def test_mistakes_stop_before_training(recipe, tmp_path, change: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        fit(recipe([change]), tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("change", ["loss.sharpen.theta=0.8", ZERO, "loss.sharpen.warmup=1"])
def test_layers_without_maps_stop_before_training(recipe, tmp_path, change: str) -> None:
    with pytest.raises(UserError, match=r"^loss.sharpen: layer fc returns \(2, 10\), .* such as layer3.0.conv2$"):
        fit(recipe(["loss.sharpen.layers=[layer2, fc]", change]), tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_layers_in_the_wrong_order_stop_before_training(recipe) -> None:
    plan = recipe(["loss.sharpen.layers=[layer3, layer2]"])
    with pytest.raises(UserError, match=r"^loss.sharpen: .*name the inner layer first$"):
        Classify(plan, build_source(plan))


def test_trying_the_maps_changes_nothing(recipe) -> None:
    plan = recipe(["loss.sharpen.order=2"])
    source, model = build_source(plan), any_model("cifar_resnet20", depth=8, width=4, num_classes=10)
    before, state = {k: v.clone() for k, v in model.state_dict().items()}, torch.get_rng_state()
    Classify(plan, source, model)
    assert model.training
    assert all(p.grad is None for p in model.parameters())
    assert torch.equal(torch.get_rng_state(), state)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_the_last_layer_alone_has_one_loss(recipe) -> None:
    plan = recipe(["loss.sharpen.layers=[layer3]"])
    assert Classify(plan, build_source(plan)).loss_names() == ("classification", "separability_last")
    without = recipe(["loss.sharpen.layers=[layer3]", "loss.weights={separability_inner: 0, consistency_inner: 0}"])
    task = Classify(without, build_source(without))
    assert task.recipe == Classify.complete(plan)
    plan = recipe(["loss.sharpen.layers=[layer3]", "loss.weights={separability_inner: 1}"])
    with pytest.raises(UserError, match=r"loss\.weights: unknown key 'separability_inner'"):
        Classify(plan, build_source(plan))


def test_recipes_of_version_1(tmp_path, recipe) -> None:
    """Two layers by name, weights below the section, and a baseline with weights of 0."""
    text = SHARPEN.replace("version: 2", "version: 1")
    plan = Classify.complete(recipe())

    def loaded(options: str):
        path = write_recipe(tmp_path, text.replace("layers: [layer2, layer3]", options))
        return Classify.complete(load(path))

    assert loaded("inner: layer2, last: layer3") == plan
    alone = loaded("inner: null, last: layer3, weight_dict: {separability_inner: 0, consistency_inner: 0}")
    assert (alone.loss.sharpen.layers, alone.loss.weights) == (["layer3"], {})
    weights = loaded("inner: layer2, last: layer3, weight_dict: {classification: 2, separability_last: 0}")
    assert weights.loss.weights == {"classification": 2, "separability_last": 0}
    baseline = loaded("inner: layer2, last: layer3, weight_dict: {" + ", ".join(f"{term}: 0" for term in TERMS) + "}")
    assert baseline.loss.sharpen is None
    assert baseline.measure.class_attention.layers == ["layer2", "layer3"]


def test_what_is_compiled_is_differentiated_once(recipe) -> None:
    plan = recipe(["train.compile=true", "loss.sharpen.order=2"])
    with pytest.raises(UserError, match="use order=1"):
        Classify(plan, build_source(plan)).on_fit_start()


# Several labels -------------------------------------------------------------------------------------------------------


def test_several_labels(recipe, tmp_path) -> None:
    root = write_voc(tmp_path / "data", train=16, val=10, marks=5)
    changes = ["data.name=voc2012", "data.workers=0", "data.val_fraction=0", "train.batch=8", "train.eval_batch=4"]
    plan, out = recipe([*changes, "data.augment=crop"]), tmp_path / "run"
    result = fit(plan, out, data=root, progress=False)
    assert {"label_map", "overlap_last", "inner_in_last"} <= set(result["metrics"])
    source, model = build_source(plan, root), load_model(out)[0]
    task = Classify(plan, source, model)
    with torch.no_grad():
        batches = [(model(task.inputs(b)), b["label"], b["valid"]) for b in source.loader("test", 3, device=CPU)]
    logits, label, valid = (torch.cat(values) for values in zip(*batches, strict=True))
    for k, name in enumerate(VOC_CLASSES):
        kept = valid[:, k]
        expected = average_precision(logits[kept, k : k + 1], label[kept, k : k + 1])
        value = result["parts"]["average_precision"][name]
        assert (value is None) == bool(expected.isnan())
        if value is not None:
            assert value == pytest.approx(float(expected), abs=1e-4)
