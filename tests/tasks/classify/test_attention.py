"""What attention a classifier shows: maps of inserted mechanisms, and measures of class attention."""

import pytest
import torch
from tiny import SHARPEN, tiny_recipe
from torch import nn

import foveal
from foveal.measure import attention_map, attention_overlap, energy_in_box, inner_in_last, pointing_game
from foveal.recipe import load
from foveal.runs import RunFolder
from foveal.see import TopClasses
from foveal.supervise import confusing_class
from foveal.tasks import fit, load_model
from foveal.tasks.answers import normalised
from foveal.tasks.classify import Classify, attention
from foveal.tasks.classify.attention import ClassAttentionMetrics, looking, spatial_maps
from foveal.tasks.classify.options import ClassAttention
from foveal.tasks.train import build_source

CPU = torch.device("cpu")
MEASURED = ["loss={}", "measure.class_attention={layers: [layer2, layer3]}"]

# Where it looks -------------------------------------------------------------------------------------------------------


def test_only_spatial_attention_is_looked_at():
    model = foveal.create_model("aw_cbam_cifar_resnet20", depth=8).eval()
    with looking(model) as seen:
        model(torch.rand(2, 3, 16, 16))
    assert {record.kind for record in seen.values()} == {"spatial"}
    shown, combined = spatial_maps(seen, (16, 16))
    assert list(shown) == [f"layer{stage}.0.bn2 cbam.spatial" for stage in (1, 2, 3)]
    assert combined.shape == (2, 16, 16)
    for name in ("aw_se_cifar_resnet20", "cifar_resnet20"):
        with looking(foveal.create_model(name, depth=8)) as seen:
            assert spatial_maps(seen, (16, 16)) == ({}, None)


def test_of_many_gates_some_are_shown():
    model = foveal.create_model("cbam_cifar_resnet20", depth=32, width=4).eval()
    with looking(model) as seen:
        model(torch.rand(1, 3, 8, 8))
    shown, combined = spatial_maps(seen, (8, 8))
    assert len(seen) == 15
    assert list(shown)[-1] == "layer3.4.bn2 cbam.spatial"
    assert 5 <= len(shown) <= 9
    torch.testing.assert_close(combined, attention_map(list(seen.values()), (8, 8)))


# Measured without being trained ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A run that measures class attention and trains on the classes alone."""
    folder = tmp_path_factory.mktemp("measured")
    recipe = tiny_recipe(folder, *MEASURED, text=SHARPEN)
    return folder / "run", recipe, fit(recipe, folder / "run", progress=False)


def test_attention_is_measured_by_right_and_wrong_answers(measured):
    """Against a plain computation over the test set."""
    out, recipe, result = measured
    model, source = load_model(out)[0], build_source(recipe)
    (batch,) = source.loader("test", 1000, device=CPU)
    x, label = normalised(batch["image"], torch.tensor(source.mean), torch.tensor(source.std)), batch["label"]
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
    assert result["parts"].keys() == expected.keys()
    for name, values in expected.items():
        assert result["metrics"][name] == pytest.approx(float(values.all), abs=1e-4)
        for part in ("right", "wrong"):
            assert result["parts"][name][part] == pytest.approx(float(getattr(values, part)), abs=1e-4)


def test_what_is_measured_costs_nothing_in_training(measured, tmp_path, monkeypatch):
    """The same weights as without it, and no map is computed before the test."""
    out, _, result = measured
    plain = fit(tiny_recipe(tmp_path, "loss={}", text=SHARPEN), tmp_path / "plain", progress=False)
    one, other = (load_model(folder)[0].state_dict() for folder in (out, tmp_path / "plain"))
    assert all(torch.equal(value, other[name]) for name, value in one.items())
    assert plain["metrics"]["accuracy"] == result["metrics"]["accuracy"]
    assert "overlap_last" not in plain["metrics"]
    assert "pointing_game" not in result["metrics"]  # without boxes
    stored = RunFolder(tmp_path / "plain").tensors("samples.safetensors")
    assert TopClasses.from_tensors(stored.tensors) is None
    (row,) = RunFolder(out).epochs()
    assert not [key for key in row if "separability" in key or "consistency" in key]


def test_a_step_with_measurements_is_one_forward_pass(tmp_path, monkeypatch):
    recipe = tiny_recipe(tmp_path, *MEASURED, text=SHARPEN)
    task = Classify(recipe, build_source(recipe))
    batch = next(iter(task.source.loader("train", 8, device=CPU)))
    passes = []
    task.model.register_forward_hook(lambda *_: passes.append(1))
    monkeypatch.setattr(attention, "cam", None)
    assert task.losses(batch).keys() == {"classification"}
    assert len(passes) == 1


def test_the_classes_thought_of_first_are_kept(measured):
    stored = RunFolder(measured[0]).tensors("samples.safetensors")
    top = TopClasses.from_tensors(stored.tensors)
    assert top.maps.shape == (12, 5, 3, 3)


# Boxes ----------------------------------------------------------------------------------------------------------------


def test_attention_is_measured_against_boxes(tmp_path, small_confusion):
    changes = ["data={name: confusion, size: 24}", "loss={}"]
    changes += ["measure.class_attention={layers: [layer2, layer3], kind: gradcam}"]
    recipe = tiny_recipe(tmp_path, *changes, text=SHARPEN)
    result = fit(recipe, tmp_path / "run", progress=False)
    model, source = load_model(tmp_path / "run")[0], build_source(recipe)
    task = Classify(recipe, source, model)
    (batch,) = source.loader("test", 1000, device=CPU)
    x, label = normalised(batch["image"], task.mean, task.std), batch["label"]  # to the bit, for peaks may tie
    maps = attention_map([foveal.cam(model, x, label, "layer3", "gradcam")], (24, 24))
    boxes = source.boxes()
    assert torch.equal(boxes[:, 0, 0], label.float())
    right, maps = model(x).argmax(1) == label, maps.detach()
    for name, function in (("pointing_game", pointing_game), ("energy_in_box", energy_in_box)):
        expected = function(maps, list(boxes[..., 1:]), right)
        assert result["metrics"][name] == pytest.approx(float(expected.all), abs=1e-4)
        for part in ("right", "wrong"):
            assert result["parts"][name][part] == pytest.approx(float(getattr(expected, part)), abs=1e-4)


def test_boxes_of_the_true_class_that_scores_best():
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
    boxes = torch.tensor([[[2.0, 0, 0, 4, 8], [0, 4, 0, 8, 8], [0, 0, 0, 1, 1]], [[-1.0, -1, -1, -1, -1]] * 3])
    metrics = ClassAttentionMetrics(ClassAttention(["0"], "gradcam"), boxes)
    x, logits = torch.rand(2, 3, 8, 8), torch.tensor([[2.0, 9.0, 1.0]]).repeat(2, 1)
    label = torch.tensor([[1, 0, 1], [1, 0, 0]])
    metrics.update(model, x, logits, {"label": label, "index": torch.tensor([0, 1])})
    maps = attention_map([foveal.cam(model, x[:1], 0, "0", "gradcam")], (8, 8))
    expected = energy_in_box(maps, [boxes[0, 1:, 1:]]).all  # the second image has no box
    torch.testing.assert_close(metrics.metrics["energy_in_box"].compute().all, expected)


# What either section leaves to the other ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sections", "sharpened", "shown"),
    [
        ({}, None, None),
        ({"sharpen": "{}"}, (["layer3", "layer4"], "channel"), (["layer3", "layer4"], "channel")),
        ({"sharpen": "{layers: [a, b], kind: gradcam}"}, (["a", "b"], "gradcam"), (["a", "b"], "gradcam")),
        ({"measure": "{layers: [b], kind: gradcam}"}, None, (["b"], "gradcam")),
        ({"measure": "{}"}, None, (["layer3", "layer4"], "channel")),
        ({"sharpen": "{}", "measure": "{layers: [b], kind: gradcam}"}, (["b"], "gradcam"), (["b"], "gradcam")),
        ({"sharpen": "{layers: [a, b]}", "measure": "{}"}, (["a", "b"], "channel"), (["a", "b"], "channel")),
        ({"sharpen": "{layers: [a, b]}", "measure": "{layers: [c]}"}, (["a", "b"], "channel"), (["c"], "channel")),
    ],
)
def test_complete(tmp_path, sections, sharpened, shown):
    keys = {"sharpen": "loss.sharpen", "measure": "measure.class_attention"}
    recipe = tiny_recipe(tmp_path, "loss={}", *(f"{keys[k]}={v}" for k, v in sections.items()), text=SHARPEN)
    full = Classify.complete(recipe)
    sharpen, options = full.loss.sharpen, full.measure.class_attention
    assert (None if sharpen is None else (sharpen.layers, sharpen.kind)) == sharpened
    assert (None if options is None else (options.layers, options.kind)) == shown
    assert Classify.complete(full) == full


def test_the_saved_recipe_is_complete(measured, tmp_path):
    out, recipe, _ = measured
    assert load(out / "recipe.yaml") == Classify.complete(recipe)
    sharpen = "loss.sharpen={layers: [layer2, layer3], sigma: 0.4, omega: 50}"
    options = Classify.complete(tiny_recipe(tmp_path, sharpen, text=SHARPEN)).measure.class_attention
    assert (options.sigma, options.omega) == (0.4, 50)
