from __future__ import annotations

import copy
import functools
import gc
import itertools
import warnings
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import BaseTorchFunctionMode

import foveal
from foveal.errors import UserError
from foveal.kernels.class_maps import choice as class_map_choice
from foveal.kernels.class_maps import losses as class_map_losses
from foveal.supervise import Sharpen, center_mass_loss, consistency, separability

LAYERS = ("inner", "last")


class Net(nn.Module):
    """Two stages with batch norm and in-place ReLU, pooling and a linear head, in the manner of a ResNet."""

    def __init__(self, classes: int = 5) -> None:
        super().__init__()
        self.inner = self.stage(3, 8)
        self.last = self.stage(8, 12, stride=2)
        self.head = nn.Linear(12, classes)

    @staticmethod
    def stage(channels: int, out: int, stride: int = 1) -> nn.Sequential:
        conv = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        return nn.Sequential(conv, nn.BatchNorm2d(out), nn.ReLU(inplace=True))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.last(self.inner(x)).mean((2, 3)))


def net(seed: int = 0, **options) -> Net:
    torch.manual_seed(seed)
    return Net(**options)


def batch(n: int = 4, classes: int = 5, seed: int = 1) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(n, 3, 8, 10, generator=draw), torch.randint(0, classes, (n,), generator=draw)


def straightforward(model: Net, x: Tensor, y: Tensor, kind: str, order: int) -> dict[str, Tensor]:
    """Two backward passes from the logits, maps from their definition, losses from the functions."""
    inner = model.inner(x)
    last = model.last(inner.clone())
    logits = model.head(last.mean((2, 3)))
    best = logits.topk(2).indices
    confuser = torch.where(best[:, 0] == y, best[:, 1], best[:, 0])
    maps = {}
    for name, classes in (("true", y), ("confuser", confuser)):
        score = sum(logits[i, c] for i, c in enumerate(classes))
        gradients = torch.autograd.grad(score, [inner, last], create_graph=order == 2, retain_graph=True)
        for layer, features, gradient in zip(LAYERS, (inner, last), gradients, strict=True):
            alpha = (gradient.relu() if kind == "channel" else gradient).mean((2, 3), keepdim=True)
            maps[name, layer] = (alpha * features).sum(1).relu()
    return {
        "separability_inner": separability(maps["true", "inner"], maps["confuser", "inner"]),
        "separability_last": separability(maps["true", "last"], maps["confuser", "last"]),
        "consistency_inner": consistency(maps["true", "inner"], maps["true", "last"]),
        "classification": F.cross_entropy(logits, y),
    }


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("kind", "order"), list(itertools.product(("channel", "gradcam"), (1, 2))))
def test_a_step_equals_the_straightforward_one(kind: str, order: int, training: bool) -> None:
    one, (x, y) = net().train(training), batch()
    other = copy.deepcopy(one)
    weights = {"separability_inner": 0.5, "separability_last": 2.0, "consistency_inner": 3.0}
    expected = straightforward(one, x, y, kind, order)
    classification = expected.pop("classification")
    (classification + sum(weights[k] * v for k, v in expected.items())).backward()
    sharpen = Sharpen(other, LAYERS, kind=kind, order=order, weights=weights)
    logits, losses = sharpen(x, y)
    (F.cross_entropy(logits, y) + sharpen.total(losses)).backward()
    assert list(losses) == list(weights)
    for name, loss in losses.items():
        torch.testing.assert_close(loss, expected[name])
    assert expected["separability_inner"] > 0.01
    for (name, a), b in zip(other.named_parameters(), one.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, msg=lambda m, name=name: f"{name}: {m}")
    for a, b in zip(other.buffers(), one.buffers(), strict=True):
        torch.testing.assert_close(a, b)  # running statistics moved once


def test_three_lines_and_a_step_of_your_own_are_the_same() -> None:
    model, (x, y) = net(), batch()
    _, expected = Sharpen(model, LAYERS)(x, y)
    sharpen = Sharpen(model, LAYERS)
    with sharpen:
        logits = model(x)
    losses = sharpen.losses(y)
    torch.testing.assert_close(losses, expected)
    torch.testing.assert_close(sharpen.total(losses), sum(losses.values()))
    assert logits.shape == (4, 5)
    assert {name: tuple(m.shape) for name, m in sharpen.maps.items()} == {"inner": (4, 2, 8, 10), "last": (4, 2, 4, 5)}
    assert not any(m.requires_grad for m in sharpen.maps.values())


def test_without_weights_it_is_the_plain_step() -> None:
    one, (x, y) = net(), batch()
    other = copy.deepcopy(one)
    F.cross_entropy(one(x), y).backward()
    sharpen = Sharpen(
        other, LAYERS, weights=dict.fromkeys(("separability_inner", "separability_last"), 0) | {"consistency_inner": 0}
    )
    logits, losses = sharpen(x, y)
    (F.cross_entropy(logits, y) + sharpen.total(losses)).backward()
    assert losses == {}
    for a, b in zip(other.parameters(), one.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad)


def test_no_parameter_gradient_is_touched_before_backward() -> None:
    model, (x, y) = net(), batch()
    for p in model.parameters():
        p.grad = torch.full_like(p, 2.0)
    for order in (1, 2):
        Sharpen(model, LAYERS, order=order)(x, y)
    assert all(torch.equal(p.grad, torch.full_like(p, 2.0)) for p in model.parameters())
    assert not any(m._forward_hooks for m in model.modules())


@pytest.mark.parametrize(
    ("weights", "tapped", "passes"),
    [
        ({"separability_inner": 0, "consistency_inner": 0}, ["last"], 2),
        ({"separability_inner": 0, "separability_last": 0}, ["inner", "last"], 1),
        ({"separability_last": 0, "consistency_inner": 0}, ["inner"], 2),
    ],
)
def test_what_is_not_asked_for_is_not_computed(weights, tapped, passes, monkeypatch: pytest.MonkeyPatch) -> None:
    model, (x, y) = net(), batch()
    expected = Sharpen(model, LAYERS)(x, y)[1]
    calls, grad = [], torch.autograd.grad
    monkeypatch.setattr(
        torch.autograd,
        "grad",
        lambda out, inputs, *more, **kw: calls.append(len(inputs)) or grad(out, inputs, *more, **kw),
    )
    losses = Sharpen(model, LAYERS, weights=weights)(x, y)[1]
    assert calls == [len(tapped)] * passes
    assert losses.keys() == expected.keys() - weights.keys()
    for name, loss in losses.items():
        torch.testing.assert_close(loss, expected[name])


def test_one_layer_alone() -> None:
    model, (x, y) = net(), batch()
    losses = Sharpen(model, "last")(x, y)[1]
    torch.testing.assert_close(losses, {"separability_last": Sharpen(model, LAYERS)(x, y)[1]["separability_last"]})


@pytest.mark.parametrize(
    "options",
    [
        {"mask": "inner"},
        {"hinge": True},
        {"theta": 0.5},
        {"sigma": 0.25},
        {"omega": 10.0},
        {"normalise": True},
        {"batch_norm": "frozen"},
        {"kind": "gradcam"},
    ],
)
def test_every_option_changes_some_loss(options: dict) -> None:
    model, (x, y) = net(), batch()
    plain, changed = (Sharpen(model, LAYERS, **{"theta": 0.2, **o})(x, y)[1] for o in ({}, options))
    assert any(not torch.allclose(plain[name], changed[name]) for name in plain)


@pytest.mark.parametrize(
    "options", [{"mask_gradient": True}, {"order": 2}, {"true_gradient": False}, {"sum_gradient": False}]
)
def test_options_that_change_gradients_only(options: dict) -> None:
    model, (x, y) = net(), batch()
    actual = []
    for o in ({}, options):
        sharpen = Sharpen(model, LAYERS, omega=10.0, **o)
        total = sharpen.total(sharpen(x, y)[1])
        actual.append((total.detach(), torch.autograd.grad(total, model.inner[0].weight)[0]))
    torch.testing.assert_close(actual[0][0], actual[1][0])
    assert not torch.allclose(actual[0][1], actual[1][1], rtol=1e-3)


def one_by_one(model: Net, x: Tensor, labels: Tensor, logits: Tensor) -> dict[str, float]:
    """Several labels, an image and a class at a time; the model in eval mode."""
    sums: dict[str, list[float]] = {"separability_inner": [], "separability_last": [], "consistency_inner": []}
    for i in range(len(x)):
        true = [c for c in range(labels.shape[1]) if labels[i, c]]
        others = [c for c in range(labels.shape[1]) if not labels[i, c]]
        if not true:
            continue
        confuser = max(others, key=lambda c, i=i: logits[i, c].item())
        entry: dict[str, list[float]] = {name: [] for name in sums}
        for c in true:
            t, f = (foveal.cam(model, x[i : i + 1], k, LAYERS) for k in (c, confuser))
            for layer in LAYERS:
                entry[f"separability_{layer}"].append(separability(t[layer], f[layer]).item())
            entry["consistency_inner"].append(consistency(t["inner"], t["last"]).item())
        for name, values in entry.items():
            sums[name].append(sum(values) / len(values))
    return {name: sum(values) / len(values) for name, values in sums.items()}


def test_several_labels_equal_one_at_a_time() -> None:
    model, (x, _) = net().eval(), batch(5)
    labels = torch.tensor([[1, 0, 0, 1, 0], [0, 1, 0, 0, 0], [1, 1, 0, 0, 1], [0, 0, 0, 0, 0], [0, 0, 1, 0, 1]]).float()
    _, losses = Sharpen(model, LAYERS)(x, labels)
    expected = one_by_one(model, x, labels, model(x))
    for name, loss in losses.items():
        assert loss.item() == pytest.approx(expected[name], rel=1e-4)
    bools = Sharpen(model, LAYERS)(x, labels.bool())[1]
    torch.testing.assert_close(bools, losses)


def test_several_labels_share_one_confuser_and_are_capped(monkeypatch: pytest.MonkeyPatch) -> None:
    model, (x, _) = net(classes=8).eval(), batch(3)
    labels = torch.zeros(3, 8)
    labels[:, :6] = 1
    calls, grad = [], torch.autograd.grad
    monkeypatch.setattr(torch.autograd, "grad", lambda *a, **kw: calls.append(1) or grad(*a, **kw))
    sharpen = Sharpen(model, LAYERS, positives=3)
    torch.manual_seed(0)
    first = sharpen(x, labels)[1]
    assert len(calls) == 4
    second = sharpen(x, labels)[1]
    assert any(not torch.allclose(first[name], second[name]) for name in first)  # others are drawn
    torch.manual_seed(0)
    torch.testing.assert_close(sharpen(x, labels)[1], first)
    calls.clear()
    labels[:, 2:] = 0
    sharpen(x, labels)
    assert len(calls) == 3


def test_one_pair_takes_the_best_true_class() -> None:
    model, (x, _) = net().eval(), batch(3)
    labels = torch.tensor([[1, 1, 0, 0, 0], [0, 1, 1, 1, 0], [0, 0, 0, 1, 1]]).float()
    best = model(x).masked_fill(labels == 0, -1e9).argmax(1)
    only = F.one_hot(best, 5)
    valid = ~(labels.bool() & ~only.bool())  # hide the other true classes
    expected = Sharpen(model, LAYERS)(x, only, valid)[1]
    torch.testing.assert_close(Sharpen(model, LAYERS, pairs="one")(x, labels)[1], expected)


def finite(model: nn.Module) -> bool:
    return all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("fill", [0.0, 1.0])
def test_labels_all_negative_or_all_positive(fill: float) -> None:
    model, (x, _) = net(), batch()
    sharpen = Sharpen(model, LAYERS)
    logits, losses = sharpen(x, torch.full((4, 5), fill))
    assert losses["separability_inner"] == losses["separability_last"] == 0
    assert (losses["consistency_inner"] == 0) == (fill == 0)
    (sharpen.total(losses) + logits.sum()).backward()
    assert finite(model)


def test_samples_without_a_label_are_left_out() -> None:
    model, (x, y) = net().eval(), batch()
    expected = Sharpen(model, LAYERS)(x[1:], y[1:])[1]
    torch.testing.assert_close(Sharpen(model, LAYERS)(x, y.index_fill(0, torch.tensor([0]), -100))[1], expected)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("kind", ["channel", "gradcam"])
def test_maps_that_vanish_give_no_loss_and_no_nan(kind: str, order: int) -> None:
    model, (x, y) = net(), batch()
    with torch.no_grad():
        model.head.weight.zero_()
    sharpen = Sharpen(model, LAYERS, kind=kind, order=order)
    logits, losses = sharpen(x, y)
    assert all(loss == 0 for loss in losses.values())
    (F.cross_entropy(logits, y) + sharpen.total(losses)).backward()
    assert finite(model)


def test_a_frozen_backbone() -> None:
    model, (x, y) = net(), batch()
    model.inner.requires_grad_(False)
    sharpen = Sharpen(model, LAYERS)
    with pytest.warns(UserWarning, match="separability_inner and consistency_inner change no parameter; unfreeze"):
        sharpen.total(sharpen(x, y)[1]).backward()  # the last stage still learns
    assert model.last[0].weight.grad.abs().sum() > 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sharpen(x, y)  # says it once
        Sharpen(model, LAYERS, weights={"separability_inner": 0, "consistency_inner": 0})(x, y)
        Sharpen(model, LAYERS, weights={"separability_inner": 0}, mask_gradient=True)(x, y)
    model.last.requires_grad_(False)
    with pytest.raises(UserError, match=r"nothing up to last is trained.*unfreeze a layer before it, or use order=2"):
        Sharpen(model, LAYERS)(x, y)
    sharpen = Sharpen(model, LAYERS, order=2)
    sharpen.total(sharpen(x, y)[1]).backward()
    assert model.head.weight.grad.abs().sum() > 0


def test_warmup_and_evaluation_leave_maps_out() -> None:
    model, (x, y) = net(), batch()
    sharpen = Sharpen(model, LAYERS, warmup=2)
    with torch.no_grad():
        assert sharpen(x, y)[1] == {}
    assert sharpen.steps == 0
    assert [len(sharpen(x, y)[1]) for _ in range(4)] == [0, 0, 3, 3]
    assert sharpen.steps == 4
    model.eval()
    with torch.no_grad():
        logits, losses = sharpen(x, y)
    assert losses == {}
    assert sharpen.total(losses) == 0
    torch.testing.assert_close(logits, model(x))


def test_training_on_separability_alone_separates() -> None:
    model, (x, y) = net(2), batch(8)
    options = {"weights": {"consistency_inner": 0}, "kind": "gradcam"}
    sharpen = Sharpen(model, LAYERS, **options)
    optimiser = torch.optim.SGD(model.parameters(), 0.5, momentum=0.9)
    actual = []
    for _ in range(40):
        optimiser.zero_grad()
        losses = sharpen(x, y)[1]
        sharpen.total(losses).backward()
        optimiser.step()
        actual.append({name: loss.item() for name, loss in losses.items()})
    for name in actual[0]:
        assert actual[-1][name] < 0.5 * actual[0][name]


def test_training_on_consistency_alone_gathers() -> None:
    model, (x, y) = net(2), batch(8)
    sharpen = Sharpen(model, LAYERS, weights={"separability_inner": 0, "separability_last": 0}, order=2)
    optimiser = torch.optim.SGD(model.parameters(), 0.2, momentum=0.9)
    actual = []
    for _ in range(30):
        optimiser.zero_grad()
        loss = sharpen(x, y)[1]["consistency_inner"]
        loss.backward()
        optimiser.step()
        actual.append(loss.item())
    assert actual[-1] < actual[0] - 0.1


@pytest.mark.parametrize("mechanism", ["aw", "se", "cbam"])
def test_inserted_mechanisms_learn_too(mechanism: str) -> None:
    model, (x, y) = net(), batch()
    done = foveal.insert(model, mechanism, at="last.0")
    sharpen = Sharpen(model, LAYERS, order=2)
    sharpen.total(sharpen(x, y)[1]).backward()
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in done.parameters())


def test_together_with_center_mass() -> None:
    class Related(Net):
        def __init__(self) -> None:
            super().__init__()
            self.key = nn.Linear(12, 6)

        def forward(self, x: Tensor) -> Tensor:
            features = self.last(self.inner(x))
            keys = self.key(features.flatten(2).transpose(1, 2))
            self.affinity = keys @ keys.mT
            return self.head(features.mean((2, 3)))

    torch.manual_seed(0)
    model, (x, y) = Related(), batch()
    pairs = torch.rand(4, 20, 20, generator=torch.Generator().manual_seed(0)) < 0.2
    parameters = list(model.parameters())
    sharpen = Sharpen(model, LAYERS)

    def gradient(mass: float, sharp: float) -> list[Tensor]:
        total = sharp * sharpen.total(sharpen(x, y)[1]) + mass * center_mass_loss(model.affinity, pairs)
        return torch.autograd.grad(total, parameters, allow_unused=True, materialize_grads=True)

    for both, a, b in zip(gradient(1, 1), gradient(1, 0), gradient(0, 1), strict=True):
        torch.testing.assert_close(both, a + b)


def test_autocast_and_compile() -> None:
    (x, y), actual = batch(), {}
    for name in ("plain", "autocast", "compiled"):
        torch.compiler.reset()
        model = net()
        sharpen = Sharpen(torch.compile(model, backend="aot_eager") if name == "compiled" else model, LAYERS)
        with torch.autocast("cpu", torch.bfloat16, enabled=name == "autocast"):
            logits, losses = sharpen(x, y)
            loss = F.cross_entropy(logits, y) + sharpen.total(losses)
        loss.backward()
        actual[name] = ({k: v.detach() for k, v in losses.items()}, model.inner[0].weight.grad)
    torch.testing.assert_close(actual["compiled"], actual["plain"])
    for name, loss in actual["autocast"][0].items():
        assert loss.dtype == torch.float32
        assert abs(loss - actual["plain"][0][name]) < 0.1
    assert actual["autocast"][1].isfinite().all()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("order", [1, 2])
def test_cuda_computes_what_the_cpu_does(order: int) -> None:
    (x, y), actual = batch(), []
    for device in ("cpu", "cuda"):
        model = net().to(device)
        sharpen = Sharpen(model, LAYERS, order=order)
        losses = sharpen(x.to(device), y.to(device))[1]
        sharpen.total(losses).backward()
        actual.append([*losses.values(), model.inner[0].weight.grad])
    for a, b in zip(*actual, strict=True):
        torch.testing.assert_close(a.detach().cpu(), b.detach().cpu(), rtol=1e-2, atol=1e-4)


@pytest.mark.slow
def test_steps_leak_nothing() -> None:
    model, (x, y) = net(), batch()
    sharpens = [Sharpen(model, LAYERS, order=order) for order in (1, 2)]

    def steps(n: int) -> int:
        for i in range(n):
            model.zero_grad()
            sharpen = sharpens[i % 2]
            sharpen.total(sharpen(x, y)[1]).backward()
        gc.collect()
        return sum(issubclass(type(o), Tensor) for o in gc.get_objects())

    few = steps(4)
    assert steps(200) <= few  # fewer if an earlier test left some


BAD = [
    ({"at": ("a", "b", "c")}, "expected the inner and the last layer, or the last alone, got 3 names"),
    ({"at": ("layer3", "last")}, "unknown layer 'layer3'"),
    ({"kind": "cam"}, "unknown kind 'cam'"),
    ({"order": 3}, "order=3: expected 1"),
    ({"mask": "both"}, "unknown mask 'both'"),
    ({"pairs": "two"}, "unknown pairs 'two'"),
    ({"batch_norm": "off"}, "unknown batch_norm 'off'"),
    ({"positives": 0}, "positives of at least 1"),
    ({"sigma": 55}, "sigma=55: expected a fraction"),
    ({"weights": {"separability": 1.0}}, "unknown term 'separability'; did you mean 'separability_last'"),
    ({"at": "last", "weights": {"consistency_inner": 1.0}}, "unknown term .*needs an inner and a last layer"),
    ({"weights": {"separability_last": -1.0}}, "must not be negative"),
    ({"weights": {"separability_last": "much"}}, "the weight of separability_last must be a number, got 'much'"),
    ({"weights": {"separability_last": None}}, "must be a number, got None"),
]


@pytest.mark.parametrize(("options", "message"), BAD)
def test_bad_options_say_what_to_do(options: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Sharpen(net(), **{"at": LAYERS, **options})


def test_bad_targets_say_what_to_do() -> None:
    model, (x, y) = net(), batch()
    sharpen = Sharpen(model, LAYERS)
    for target, message in (
        (y[:2], r"target must hold class numbers \(4,\) or 0 and 1 \(4, 5\), got shape \(2,\)"),
        (y.float(), "class numbers .integers., got torch.float32"),
        (torch.full((4, 5), 0.2), "mixed or smoothed labels have no true class"),
    ):
        with pytest.raises(UserError, match=message):
            sharpen(x, target)
    with pytest.raises(UserError, match=r"single class, which cannot be confused.*two outputs"):
        Sharpen(net(classes=1), LAYERS)(x, torch.zeros(4, dtype=torch.long))
    with pytest.raises(UserError, match=r"layer head returns .4, 5., which is not a feature map"):
        Sharpen(model, ("last", "head"))(x, y)
    with pytest.raises(UserError, match=r"inside `with sharpen:`, then call losses.. once"):
        sharpen.losses(y)
    with sharpen:
        model(x)
    sharpen.losses(y)
    with pytest.raises(UserError, match=r"inside `with sharpen:`, then call losses.. once"):
        sharpen.losses(y)
    with pytest.raises(UserError, match=r"last runs after inner; name the inner layer first: at=.'inner', 'last'"):
        Sharpen(model, LAYERS[::-1])(x, y)


@pytest.mark.slow
def test_compiled_arithmetic_is_the_same():
    torch.manual_seed(0)
    model, (x, _) = net(), batch()
    y = torch.tensor([0, 1, 2, -1])
    actual = []
    for compile in (False, True):
        sharpen = Sharpen(model, LAYERS, compile=compile)
        _, losses = sharpen(x, y)
        actual.append((losses, torch.autograd.grad(sharpen.total(losses), list(model.parameters()), allow_unused=True)))
    torch.testing.assert_close(*actual)


@pytest.mark.slow
def test_each_has_a_compiled_form_of_its_own(monkeypatch):
    """PyTorch keeps eight forms of a function, and leaves it uncompiled from the ninth on."""
    compiled = []

    def backend(graph: Callable[..., Any], _: Any) -> Callable[..., Any]:
        compiled.append(graph)
        return graph

    torch.compiler.reset()
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))
    model, (x, y) = net(), batch()
    with torch._dynamo.config.patch(recompile_limit=1):
        for count, kind in enumerate(("channel", "gradcam", "channel"), 1):
            sharpen = Sharpen(model, LAYERS, kind=kind, compile=True)
            for _ in range(2):
                sharpen(x, y)
                assert len(compiled) == count


def test_layers_that_no_term_needs_are_checked_all_the_same() -> None:
    weights = {"separability_inner": 0.0, "consistency_inner": 0.0}
    with pytest.raises(UserError, match="unknown layer 'nowhere'"):
        Sharpen(net(), ("nowhere", LAYERS[1]), weights=weights)


def test_warmup_and_no_grad_in_a_step_of_ones_own() -> None:
    model, (x, y) = net(), batch()
    sharpen = Sharpen(model, LAYERS, warmup=1)
    for expected in (0, 3):
        with sharpen:
            model(x)
        assert len(sharpen.losses(y)) == expected
    with torch.no_grad():
        with sharpen:
            model(x)
        assert sharpen.losses(y) == {}
    assert sharpen.steps == 2


@pytest.mark.parametrize(
    ("target", "valid", "hint"),
    [
        ([0, 1, 2, 3], None, "target must be a tensor"),
        (torch.tensor([0, 1, 2, 99]), None, "number of classes, got 99"),
        (torch.full((4, 5), -1), None, "target must be 0 and 1"),
        (torch.randint(0, 2, (4, 5)) * 4 + 3, None, "target must be 0 and 1"),
        (None, torch.ones(4, 5), "valid must be bool"),
        (None, [[True] * 5] * 4, "valid must be a bool tensor .4, 5., got list"),
        (None, torch.ones(4, dtype=torch.bool), "valid must be bool"),
    ],
)
def test_targets_that_make_no_sense(target, valid, hint) -> None:
    x, y = batch()
    target = y if target is None else target
    with pytest.raises(UserError, match=hint):
        Sharpen(net(), LAYERS)(x, target, valid)


def test_labels_that_are_not_known_may_be_anything() -> None:
    (x, _), target = batch(), torch.tensor([[1, 0, 0, 0, 0]] * 4)
    valid = torch.ones(4, 5, dtype=torch.bool)
    valid[:, 4] = False
    _, expected = Sharpen(net(), LAYERS)(x, target, valid)
    _, actual = Sharpen(net(), LAYERS)(x, target.masked_fill(~valid, -1), valid)
    torch.testing.assert_close(actual, expected)


def test_weights_are_numbers_and_zero_asks_for_nothing() -> None:
    weights = {"separability_last": "0.5", "separability_inner": 0, "consistency_inner": 0.0}
    assert Sharpen(net(), "last", weights=weights).weights == {"separability_last": 0.5}


@pytest.mark.slow
def test_second_order_of_a_model_that_is_compiled_later():
    """What was found out about the model in earlier steps holds no more."""
    torch.compiler.reset()
    model, images = timm.create_model("resnet18", num_classes=5), torch.rand(2, 3, 64, 64)
    sharpen = Sharpen(model, ("layer3", "layer4"), order=2)
    sharpen.total(sharpen(images, torch.tensor([1, 2]))[1]).backward()
    assert model.fc.weight.grad is not None  # which only the second order reaches
    model.zero_grad()
    model.compile(backend="aot_eager")
    with pytest.warns(UserWarning, match="order=2 is not possible here: CompiledFunction"):
        losses = sharpen(images, torch.tensor([1, 2]))[1]
    sharpen.total(losses).backward()
    assert model.fc.weight.grad is None
    assert model.conv1.weight.grad is not None


def forms(output: Tensor) -> list[str]:
    """Convolutions and batch norms of the graph, as they stand in it."""
    nodes, names = [output.grad_fn], list[str]()
    while nodes:
        node = nodes.pop()
        names += [node.name()] * ("onv" in node.name() or "Norm" in node.name())
        nodes += [entry for entry, _ in node.next_functions if entry is not None]
    return names


def modes() -> int:
    return torch._C._len_torch_function_stack()


def test_second_order_begins_after_the_inner_layer_and_leaves_nothing_behind() -> None:
    model, (x, y) = net(), batch()
    logits, _ = Sharpen(model, LAYERS, order=2)(x, y)
    assert forms(logits) == ["_BatchNormBackward", "_ConvolutionBackward", *forms(model.inner(x))]
    assert modes() == 0
    sharpen, model.head = Sharpen(model, LAYERS, order=2), nn.Linear(7, 5)
    with pytest.raises(RuntimeError, match="mat1"):
        sharpen(x, y)
    assert modes() == 0


def test_second_order_in_several_steps_of_one_block() -> None:
    model, (x, y) = net(), batch()
    sharpen = Sharpen(model, LAYERS, order=2)
    with sharpen:
        for _ in range(3):
            model(x)
            sharpen.total(sharpen.losses(y)).backward()
            assert modes() == 1
    assert modes() == 0


def test_second_order_in_another_thread() -> None:
    model, (x, y) = net(), batch()
    expected = Sharpen(model, LAYERS, order=2)(x, y)[1]
    sharpen = Sharpen(model, LAYERS, order=2)
    with ThreadPoolExecutor(1) as pool:
        with sharpen:
            pool.submit(model, x).result()
        assert pool.submit(modes).result() == modes() == 0
    torch.testing.assert_close(sharpen.losses(y), expected)


@pytest.mark.parametrize("mode", [BaseTorchFunctionMode, lambda: torch.device("cpu")], ids=["any", "device"])
def test_a_mode_that_ends_between_the_layers(mode: Callable[[], Any]) -> None:
    class Mixed(Net):
        def forward(self, x: Tensor) -> Tensor:
            with mode():
                inner = self.inner(x)
            assert modes() == 0
            return self.head(self.last(inner).mean((2, 3)))

    (x, y), losses = batch(), []
    for kind in (Mixed, Net):
        torch.manual_seed(0)
        model = kind()
        losses.append(Sharpen(model, LAYERS, order=2)(x, y)[1])
        assert modes() == 0
    torch.testing.assert_close(*losses)


DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Switches the kernels of NVIDIA GPUs on and off; on a CPU they run in Triton's interpreter. They are on."""
    pytest.importorskip("triton", reason="Triton is not installed")

    def switch(on: bool) -> None:
        for module in (class_map_choice, class_map_losses):
            monkeypatch.setattr(module, "fused_available", lambda device: on)

    switch(True)
    return switch


def on_device(model: Net, *tensors: Tensor) -> tuple[Any, ...]:
    return model.to(DEVICE), *(tensor.to(DEVICE) for tensor in tensors)


SEVERAL = torch.tensor([[1, 0, 0, 1, 0], [0, 1, 0, 0, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]])
UNKNOWN = torch.tensor([1, -100, 3, 0])
ONLY_LAST = {"separability_inner": 0, "consistency_inner": 0}


@pytest.mark.parametrize(
    ("options", "target"),
    [
        ({}, None),
        ({"kind": "gradcam", "hinge": True, "theta": 0.3}, UNKNOWN),
        ({"pairs": "one"}, SEVERAL),
        ({"positives": 5}, SEVERAL),
        ({"mask": "inner", "weights": {"separability_last": 0}}, None),
        ({"weights": ONLY_LAST}, SEVERAL),
        ({"weights": {"separability_inner": 0, "separability_last": 0}}, None),
        ({"at": "last"}, UNKNOWN),
        ({"at": ("last", "last")}, None),
    ],
)
def test_kernels_and_operators_are_the_same(
    options: dict, target: Tensor | None, kernels: Callable[[bool], None]
) -> None:
    (x, y), steps = batch(), []
    for fused in (False, True):
        kernels(fused)
        model, images, labels = on_device(net(), x, y if target is None else target)
        sharpen = Sharpen(model, **{"at": LAYERS, **options})
        logits, losses = sharpen(images, labels)
        assert all(("_Losses" in loss.grad_fn.name()) == fused for loss in losses.values())
        (logits.square().mean() + sharpen.total(losses)).backward()
        gradients = {name: p.grad for name, p in model.named_parameters()}
        steps.append({"maps": sharpen.maps, "losses": {k: v.detach() for k, v in losses.items()}, "grads": gradients})
    torch.testing.assert_close(*steps, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [{"order": 2}, {"normalise": True}, {"mask_gradient": True}, {"true_gradient": False}, {"sum_gradient": False}],
)
@pytest.mark.usefixtures("kernels")
def test_what_the_kernels_cannot_do_is_left_to_operators(options: dict) -> None:
    model, x, y = on_device(net(), *batch())
    _, losses = Sharpen(model, LAYERS, **options)(x, y)
    assert not any("_Losses" in loss.grad_fn.name() for loss in losses.values())


def test_kernels_replace_hundreds_of_operators(kernels: Callable[[bool], None], monkeypatch: Any) -> None:
    launch = pytest.importorskip("foveal.kernels.class_maps.launch")
    monkeypatch.setattr(launch, "launch", lambda *args, **options: None)
    (x, y), counts = batch(), []
    classes = torch.stack([y, (y + 1) % 5], 1), (y >= 0)[:, None], y >= 0
    monkeypatch.setattr(Sharpen, "_choose", lambda *args: classes)
    for fused in (False, True):
        kernels(fused)
        model = net()
        sharpen = Sharpen(model, LAYERS)
        with sharpen:
            model(x)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            sharpen.losses(y)
        counts.append(sum(event.name.startswith("aten::") for event in profiler.events()))
    assert counts[1] < counts[0] - 500


def test_second_order_is_never_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **options: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(torch, "compile", refuse)
    assert len(Sharpen(net(), LAYERS, order=2, compile=True)(*batch())[1]) == 3
    with pytest.raises(AssertionError):
        Sharpen(net(), LAYERS, compile=True)(*batch())


@pytest.mark.usefixtures("kernels")
def test_kernels_come_before_compiled_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", None)
    model, x, y = on_device(net(), *batch())
    _, losses = Sharpen(model, LAYERS, compile=True)(x, y)
    assert "_Losses" in losses["separability_last"].grad_fn.name()


def test_tokens_are_looked_at_in_the_first_step_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """To look at a gradient is to wait for the GPU."""

    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.block, self.head = nn.Conv2d(3, 8, 2, 2), nn.Linear(8, 8), nn.Linear(8, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.block(self.stem(x).flatten(2).mT).relu().mean(1))

    looked: list[str] = []
    monkeypatch.setattr("foveal.attention.class_maps.cam._check_tokens", lambda name, *more: looked.append(name))
    sharpen = Sharpen(Tokens(), "block")
    for _ in range(3):
        assert sharpen(*batch())[1].keys() == {"separability_last"}
    assert looked == ["block"]
    assert sharpen.maps["block"].shape == (4, 2, 4, 5)


# Layers without an activation ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("activation", "warns"), [("linear", True), ("relu", False), ("gelu", False), ("silu", False)])
def test_features_of_both_signs_give_one_warning(activation: str, warns: bool) -> None:
    """As at the end of an inverted residual block, which is linear."""
    torch.manual_seed(0)
    act = {"linear": nn.Identity(), "relu": nn.ReLU(), "gelu": nn.GELU(), "silu": nn.SiLU()}[activation]
    last = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
    parts = {"inner": nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), act), "last": last}
    model = nn.Sequential(OrderedDict(parts, pool=nn.AdaptiveAvgPool2d(1), flat=nn.Flatten(), fc=nn.Linear(8, 5)))
    sharpen = Sharpen(model, ("inner", "last"))
    x, y = torch.randn(4, 3, 12, 12), torch.tensor([0, 1, 2, 3])
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        sharpen(x, y)
        sharpen(x, y)
    assert [str(entry.message).startswith("the features at inner are below zero") for entry in seen] == [True] * warns


def test_the_inner_layer_of_shipped_recipes_has_an_activation() -> None:
    """Half of the values of EfficientNet-Lite0's blocks.4 are negative; blocks.5.0.bn1 has the same size."""
    import timm

    from foveal.attention.class_maps.taps import Taps
    from foveal.recipe import available, load

    layers = {
        name: load(name).measure.class_attention.layers
        for name in available()
        if name.startswith("icasc/") and load(name).model["name"] == "tf_efficientnet_lite0"
    }
    assert layers
    model = timm.create_model("tf_efficientnet_lite0", num_classes=5).train()
    with Taps(model, sorted({layer for pair in layers.values() for layer in pair} | {"blocks.4"})) as taps:
        model(torch.rand(2, 3, 64, 64))
    sizes = {name: tapped.values.shape[2:] for name, tapped in taps.outputs.items()}
    assert all(taps.outputs[layer].values.min() >= 0 for pair in layers.values() for layer in pair)
    assert layers["icasc/voc2012-lite/ach"] == ["blocks.5.0.bn1", "bn2"]
    assert sizes["blocks.5.0.bn1"] == sizes["blocks.4"]
