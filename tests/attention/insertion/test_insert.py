import copy
import importlib
import importlib.util
import itertools
import pickle
from pathlib import Path

import pytest
import safetensors.torch
import timm
import torch
import torchvision
from forked import side_by_side
from small_net import MECHANISMS, SmallNet, images, randomise, tree
from torch import nn

import foveal
from foveal.attention import Gate, Insertion
from foveal.attention.insertion import registry as registered
from foveal.errors import UnknownNameError, UserError

MODELS = {
    "own": (SmallNet, (13, 10)),
    "torchvision": (lambda: torchvision.models.resnet18(weights=None, num_classes=5), (32, 41)),
    "timm": (lambda: timm.create_model("resnet18", num_classes=5), (32, 32)),
    "mobilenet": (lambda: timm.create_model("mobilenetv1_100", num_classes=5), (33, 32)),
}
REDUCED = ("aw", "se", "cbam")  # mechanisms with a bottleneck, and with an initialisation of the paper's own
OPTIONS = {"own": {"reduction": 2}, "mobilenet": {"reduction": 4}}  # narrow layers
each_mechanism = pytest.mark.parametrize("mechanism", MECHANISMS)
each_model = pytest.mark.parametrize(  # a quick sweep over others is in test_insert_sweep.py
    "name", ["own", *(pytest.param(name, marks=pytest.mark.slow) for name in ("torchvision", "mobilenet"))]
)


def net(name="own", dtype=torch.float64, seed=0):
    torch.manual_seed(seed)
    return randomise(MODELS[name][0]()).to(dtype)


def batch(name="own", n=6, dtype=torch.float64, seed=1):
    return images(n, MODELS[name][1], dtype, seed)


def put(model, mechanism, name="own", **options):
    narrow = OPTIONS.get(name, {}) if mechanism in REDUCED else {}
    return foveal.insert(model, mechanism, **(narrow | options))


@torch.no_grad()
def stir(model, seed=3):
    """Move every inserted parameter, so that the attention matters."""
    torch.manual_seed(seed)
    for name, parameter in model.named_parameters():
        if ".attached." in name:
            parameter.add_(0.3 * torch.randn_like(parameter) + 0.1)
    return model


def learn(model, x, steps=3):
    """A few steps of SGD; the largest gradient that each parameter saw."""
    optimiser = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.05)
    largest = dict.fromkeys((name for name, _ in model.named_parameters()), 0.0)
    for _ in range(steps):
        optimiser.zero_grad()
        (model(x) - 1).square().mean().backward()
        for name, p in model.named_parameters():
            if p.grad is not None:
                largest[name] = max(largest[name], p.grad.abs().max().item())
        optimiser.step()
    return largest


def inserted(model):
    return [name for name, _ in model.named_parameters() if ".attached." in name]


def assert_untouched(model, plain, x):
    """Same classes, same keys, same numbers."""
    assert tree(model) == tree(plain)
    assert list(model.state_dict()) == list(plain.state_dict())
    torch.testing.assert_close(model.eval()(x), plain.eval()(x), rtol=0, atol=0)


@each_mechanism
@each_model
def test_the_identity(name, mechanism):
    plain = net(name)
    model, x = copy.deepcopy(plain), batch(name)
    done = put(model, mechanism, name)
    assert len(done.sites) > 1
    for training in (False, True):
        before, after = plain.train(training)(x), model.train(training)(x)
        assert before.std() > 1e-3
        torch.testing.assert_close(after, before)
    state = model.state_dict()  # batch norms have seen the same
    torch.testing.assert_close({key: state[key] for key in plain.state_dict()}, dict(plain.state_dict()))


@each_mechanism
@each_model
def test_every_new_parameter_learns(name, mechanism):
    model = net(name)
    put(model, mechanism, name)
    # A single key has no position to be relative to.
    x = images(2, (80, 97), torch.float64) if mechanism == "spatial" else batch(name)
    largest = learn(model.train(), x)
    assert inserted(model)
    assert [n for n in inserted(model) if not largest[n] > 0] == []


@pytest.mark.parametrize("mechanism", REDUCED)
@each_model
def test_the_paper_changes_the_output(name, mechanism):
    plain, x = net(name).eval(), batch(name)
    model = copy.deepcopy(plain)
    put(model, mechanism, name, start="paper")
    assert not torch.allclose(model(x), plain(x), rtol=1e-3)
    assert not any(key.endswith("amount") for key in model.state_dict())


@each_mechanism
@each_model
def test_a_plain_checkpoint_fits(name, mechanism):
    checkpoint = net(name, seed=5).state_dict()
    model = net(name)
    old = list(model.state_dict())
    model.load_state_dict(checkpoint)
    put(model, mechanism, name)
    new = [key for key in model.state_dict() if key not in old]
    assert [key for key in model.state_dict() if key in old] == old
    assert all(".attached." in key for key in new)
    model = net(name, seed=6)
    put(model, mechanism, name)
    fit = model.load_state_dict(checkpoint, strict=False)
    needed = {key for key in new if not key.endswith("num_batches_tracked")}  # torch fills that one in
    assert (set(fit.missing_keys), fit.unexpected_keys) == (needed, [])
    state = model.state_dict()
    assert all(torch.equal(state[key], value) for key, value in checkpoint.items())


@each_mechanism
@each_model
def test_eject(name, mechanism):
    plain, x = net(name), batch(name)
    model = copy.deepcopy(plain)
    done = put(model, mechanism, name)
    learn(model.train(), x)
    trained = {key: value.clone() for key, value in model.state_dict().items() if ".attached." not in key}
    attended = model.eval()(x)
    done.eject()
    plain.load_state_dict(trained)
    assert_untouched(model, plain, x)
    assert not torch.allclose(model(x), attended)
    assert "attached" not in repr(model)
    done.eject()  # nothing left to do
    assert_untouched(model, plain, x)


@each_mechanism
def test_layers_references_hooks_and_optimisers_stay(mechanism):
    model, x = net(), batch()
    layers, parameters = dict(model.named_modules()), dict(model.named_parameters())
    calls = []
    for name in ("grouped", "norm4"):
        layers[name].register_forward_hook(lambda m, args, out, name=name: calls.append((name, "after")))
        layers[name].register_forward_pre_hook(lambda m, args, name=name: calls.append((name, "before")))
    done = put(model, mechanism)
    assert {"grouped", "norm4"} & set(done.sites)
    model(x)
    expected = [(name, when) for name in ("grouped", "norm4") for when in ("before", "after")]
    assert calls == expected
    assert all(model.get_submodule(name) is layer for name, layer in layers.items())
    assert all(model.get_parameter(name) is parameter for name, parameter in parameters.items())
    assert isinstance(model.grouped, nn.Conv2d)
    done.eject()
    assert all(model.get_submodule(name) is layer for name, layer in layers.items())
    model(x)
    assert calls == 2 * expected


@each_mechanism
def test_the_insertion_tells_what_it_did(mechanism):
    model = net()
    done = put(model, mechanism)
    assert isinstance(done, Insertion)
    assert done.mechanism == mechanism
    assert {id(p) for p in done.parameters()} == {id(model.get_parameter(n)) for n in inserted(model)}
    assert repr(done) == f"Insertion('{mechanism}' at {len(done.sites)} sites)"
    assert f"Conv2d+{mechanism}" in repr(model) or f"Norm+{mechanism}" in repr(model)


@pytest.mark.parametrize("method", ["deepcopy", "pickle", "torch"])
@each_mechanism
def test_copies(mechanism, method, tmp_path):
    model, x = net(), batch()
    put(model, mechanism)
    stir(model).eval()
    match method:
        case "deepcopy":
            twin = copy.deepcopy(model)
        case "pickle":
            twin = pickle.loads(pickle.dumps(model))
        case "torch":
            torch.save(model, tmp_path / "model.pt")
            twin = torch.load(tmp_path / "model.pt", weights_only=False)
    assert tree(twin) == tree(model)
    expected = model(x)
    torch.testing.assert_close(twin(x), expected, rtol=0, atol=0)
    stir(twin, seed=8)
    assert not torch.allclose(twin(x), expected)
    torch.testing.assert_close(model(x), expected, rtol=0, atol=0)


@pytest.mark.parametrize("form", ["torch", "safetensors"])
@each_mechanism
def test_weights_survive_a_file(mechanism, form, tmp_path):
    model, x = net(), batch()
    put(model, mechanism)
    stir(model).eval()
    if form == "torch":
        torch.save(model.state_dict(), tmp_path / "weights")
        state = torch.load(tmp_path / "weights", weights_only=True)
    else:
        safetensors.torch.save_file(model.state_dict(), tmp_path / "weights")
        state = safetensors.torch.load_file(tmp_path / "weights")
    other = net(seed=9).eval()
    put(other, mechanism)
    assert not torch.allclose(other(x), model(x))
    other.load_state_dict(state)
    torch.testing.assert_close(other(x), model(x), rtol=0, atol=0)


def value_and_gradients(model, call, x):
    model.zero_grad()
    out = call(x)
    out.square().sum().backward()
    return [out.detach(), *(p.grad.clone() for p in model.parameters())]


@pytest.mark.parametrize("mechanism", ["aw", *(pytest.param(m, marks=pytest.mark.slow) for m in MECHANISMS[1:])])
def test_compiled_equals_eager(mechanism):
    torch.compiler.reset()
    model, x = net(), batch()
    put(model, mechanism)
    stir(model).eval()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(value_and_gradients(model, compiled, x), value_and_gradients(model, model, x))


@pytest.mark.parametrize(
    "mechanism", [pytest.param(m, marks=pytest.mark.slow) if m in ("dynamic", "spatial") else m for m in MECHANISMS]
)
def test_exported_equals_eager(mechanism):
    model, x = net(), batch()
    put(model, mechanism)
    stir(model).eval()
    shapes = {"x": {0: torch.export.Dim("n", min=2, max=64)}}
    exported = torch.export.export(model, (x,), dynamic_shapes=shapes).module()
    for inputs in (x, batch(n=3, seed=4)):
        torch.testing.assert_close(exported(inputs), model(inputs))


@pytest.mark.slow
@each_mechanism
def test_onnx_equals_eager(mechanism, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")

    model, x = net(dtype=torch.float32), batch(dtype=torch.float32)
    put(model, mechanism)
    stir(model).eval()
    torch.onnx.export(model, (x,), tmp_path / "model.onnx", dynamo=True)
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    (actual,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(actual), model(x).detach(), atol=1e-4, rtol=1e-4)


@each_mechanism
def test_channels_last(mechanism):
    model, x = net("timm"), batch("timm")
    put(model, mechanism)
    stir(model).eval()
    expected = model(x)
    model = model.to(memory_format=torch.channels_last)
    x = x.contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(model(x), expected)
    maps = []
    model.layer4[1].bn2.register_forward_hook(lambda m, args, out: maps.append(out))
    model(x)
    assert maps[0].is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@each_mechanism
def test_autocast(mechanism, dtype):
    model, x = net(dtype=torch.float32), batch(dtype=torch.float32)
    plain = copy.deepcopy(model)
    put(model, mechanism)
    with torch.autocast("cpu", dtype):
        out, before = model(x), plain(x)
    assert out.dtype == before.dtype
    torch.testing.assert_close(out, before, atol=0.05, rtol=0.05)
    stir(model)
    with torch.autocast("cpu", dtype):
        loss = model(x).float().square().sum()
    loss.backward()
    assert all(p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in model.parameters())


@each_mechanism
def test_half_precision_and_training_mode_are_the_layers(mechanism):
    model = net(dtype=torch.bfloat16).eval()
    model.grouped.train()
    model.norm4.train()
    done = put(model, mechanism)
    for site in done.sites:
        attached = model.get_submodule(f"{site}.attached.{mechanism}")
        assert {p.dtype for p in attached.parameters()} == {torch.bfloat16}
        assert attached.training is model.get_submodule(site).training
    assert {model.get_submodule(site).training for site in done.sites} == {True, False}
    assert model(batch(dtype=torch.bfloat16)).dtype == torch.bfloat16


@each_mechanism
def test_frozen_layers_stay_frozen(mechanism):
    model, x = net(), batch()
    model.requires_grad_(False)
    old = {name: p.clone() for name, p in model.named_parameters()}
    put(model, mechanism)
    trainable = [name for name, p in model.named_parameters() if p.requires_grad]
    assert trainable == inserted(model)
    largest = learn(model.train(), x)
    assert min(largest[name] for name in trainable) > 0
    assert all(torch.equal(model.get_parameter(name), value) for name, value in old.items())


@pytest.mark.slow
def test_two_processes_need_every_parameter(tmp_path: Path):
    worker = importlib.import_module("insert_worker")
    side_by_side(worker.work, str(tmp_path))
    one, other = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    start = dict(worker.attended().named_parameters())
    assert one.keys() == other.keys() == start.keys()
    torch.testing.assert_close(one, other, rtol=0, atol=0)
    new = [name for name in start if name.endswith("amount")]
    assert len(new) > 10
    assert all((one[name] != start[name]).all() for name in new)


@each_mechanism
def test_every_inserted_mechanism_can_be_watched(mechanism):
    model, x = net().eval(), batch()
    done = put(model, mechanism, start="paper")
    stir(model)  # away from zeros of the papers' initialisations, which have no gradient
    with foveal.watch(model) as seen:
        loss = model(x).square().sum()
    parts = {"cbam": [".channel", ".spatial"]}.get(mechanism, [""])
    assert list(seen) == [f"{site}.attached.{mechanism}{part}" for site in done.sites for part in parts]
    for record in seen.values():
        assert len(record.values) == len(x)
        assert record.kind == "points" or ((record.values > 0) & (record.values < 1)).all()
    if mechanism not in ("spatial", "deform"):  # theirs are computed when somebody asks, beside the forward pass
        gradients = torch.autograd.grad(loss, [record.values for record in seen.values()], retain_graph=True)
        assert all(g.abs().max() > 0 for g in gradients)
    after = ("value.", "proj.", "gamma")  # what the attention weights do not depend on
    for site, record in seen.items():
        model.zero_grad()
        record.values.square().sum().backward(retain_graph=True)
        names = [name for name in dict(model.named_parameters()) if name.startswith(f"{site}.")]
        own = [name for name in names if not name.removeprefix(f"{site}.").startswith(after)]
        assert own
        assert all(model.get_parameter(name).grad.abs().max() > 0 for name in own), site
    done.eject()
    with pytest.warns(UserWarning, match="nothing to watch"), foveal.watch(model) as seen:
        model(x)
    assert not seen


@each_mechanism
def test_twice_is_an_error_that_says_so(mechanism):
    model, x = net(), batch()
    done = put(model, mechanism)
    twin = copy.deepcopy(model)
    with pytest.raises(UserError, match=rf"{done.sites[0]} has '{mechanism}' already; eject it first"):
        put(model, mechanism)
    assert_untouched(model, twin, x)
    done.eject()
    put(model, mechanism)
    assert tree(model) == tree(twin)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("mechanism", ["se", "cbam", "spatial"])
def test_stacking(mechanism, order):
    plain, x = net().eval(), batch()
    model = copy.deepcopy(plain)
    dones = [put(model, mechanism), put(model, mechanism, stack=True)]
    site = dones[0].sites[0]
    assert list(model.get_submodule(site).attached) == [mechanism, f"{mechanism}-2"]
    torch.testing.assert_close(model(x), plain(x))
    stir(model)
    both = model(x)
    dones[order[0]].eject()
    assert list(model.get_submodule(site).attached) == [(mechanism, f"{mechanism}-2")[order[1]]]
    assert not torch.allclose(model(x), both)
    dones[order[1]].eject()
    assert_untouched(model, plain, x)


def test_stacking_after_ejecting_the_first_replaces_nothing():
    model = net()
    first, second = put(model, "se"), put(model, "se", stack=True)
    kept = second.parameters()
    first.eject()
    third = put(model, "se", stack=True)
    assert {id(p) for p in second.parameters()} == {id(p) for p in kept}
    assert len(list(model.get_submodule(third.sites[0]).attached)) == 2
    with pytest.raises(UserError, match="already"):
        put(model, "se")
    for done in (third, second):
        done.eject()
    assert tree(model) == tree(net())


def test_two_kernel_mechanisms_do_not_fit_on_one_convolution():
    model, x = net(), batch()
    put(model, "aw")
    twin = copy.deepcopy(model)
    with pytest.raises(UserError, match=r"kernel mechanism already \(aw\)"):
        put(model, "aw", stack=True)
    assert_untouched(model, twin, x)


TOGETHER = (("aw", "se", "cbam"), ("deform", "dynamic", "spatial"))  # one kernel mechanism each


@each_model
def test_mechanisms_go_to_the_same_places_in_any_order(name):
    plain, x = net(name).eval(), batch(name, 2)
    places = {m: foveal.attention.insertion.insert.find(plain, m).keys() for m in MECHANISMS}
    for order in itertools.chain(*map(itertools.permutations, TOGETHER)):
        model = copy.deepcopy(plain)
        dones = {mechanism: put(model, mechanism, name) for mechanism in order}
        assert {m: done.sites for m, done in dones.items()} == {m: list(places[m]) for m in order}
    torch.testing.assert_close(model(x), plain(x))
    stir(model)
    assert not torch.allclose(model(x), plain(x))
    for done in dones.values():
        done.eject()
    assert_untouched(model, plain, x)


def test_kernel_and_gate_on_one_layer():
    model, x = net().eval(), batch()
    put(model, "aw", at="grouped", start="paper")
    with_kernel = model.grouped(torch.ones(2, 16, 5, 5, dtype=torch.float64))
    put(model, "se", at="grouped", start="paper")
    gated = model.grouped(torch.ones(2, 16, 5, 5, dtype=torch.float64))
    torch.testing.assert_close(gated, model.grouped.attached["se"](with_kernel))
    assert model(x).isfinite().all()


CHOICES = {
    "glob": ("layer*.0.conv2", [f"layer{i}.0.conv2" for i in range(1, 5)]),
    "name": ("layer2.1.conv1", ["layer2.1.conv1"]),
    "list": (["layer4.*.conv1", "conv1", "layer4.1.*1"], ["layer4.0.conv1", "layer4.1.conv1", "conv1"]),
    "predicate": (lambda name, module: getattr(module, "stride", 0) == (2, 2) and "conv" in name, None),
}


@pytest.mark.parametrize("choice", ["glob", "name", "predicate"])
@each_mechanism
def test_at(mechanism, choice):
    at, expected = CHOICES[choice]
    model = timm.create_model("resnet18")
    if expected is None:
        expected = ["conv1", "layer2.0.conv1", "layer3.0.conv1", "layer4.0.conv1"]
    done = put(model, mechanism, at=at)
    assert done.sites == expected
    assert {n.split(".attached.")[0] for n in inserted(model)} == set(expected)


def test_at_a_list_of_globs_takes_every_layer_once():
    at, expected = CHOICES["list"]
    done = put(timm.create_model("resnet18"), "se", at=[*at[:2], "layer4.1.conv1"])
    assert done.sites == expected


@pytest.mark.parametrize(
    ("at", "message"),
    [
        ("layer2.0.convv1", "unknown layer 'layer2.0.convv1'; did you mean .*'layer2.0.conv1'"),
        (["layer1.0.conv1", "layer9.0.conv1"], "unknown layer 'layer9.0.conv1'; did you mean 'layer4.0.conv1'"),
        ("features.*", r"unknown layer 'features.\*'; did you mean '[^,]+' or '[^,]+' or '[^,]+'\?$"),
        ("layer*.*.cnv2", r"unknown layer 'layer\*.\*.cnv2'; did you mean 'layer\*.\*.conv2' or"),
        ("zzz", r"unknown layer 'zzz'; did you mean '[^,]+' or '[^,]+' or '[^,]+'\?$"),
        (lambda name, module: False, "the predicate chose none of the .* layers of ResNet"),
        ([], "the list is empty"),
    ],
)
@each_mechanism
def test_at_that_matches_nothing(mechanism, at, message):
    model = timm.create_model("resnet18")
    before = tree(model)
    with pytest.raises(UserError, match=message):
        foveal.insert(model, mechanism, at)
    assert tree(model) == before


def test_a_model_without_a_usual_place():
    with pytest.raises(UserError, match=r"Sequential has no default site for 'aw': .*; choose layers with at="):
        foveal.insert(nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU()), "aw")
    with pytest.raises(UserError, match="Sequential has no layer with 2-D feature maps"):
        foveal.insert(nn.Sequential(nn.Linear(3, 4), nn.ReLU()), "se")


class OwnConv(nn.Conv2d):
    def forward(self, x):
        return super().forward(x) + 1


class Occupied(nn.Conv2d):
    attached = "something else"


def odd(layer):
    """A model whose last layer is ``layer``."""
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), layer)


@pytest.mark.parametrize(
    ("mechanism", "layer", "message"),
    [
        ("aw", nn.ReLU(), r"'aw' cannot be put on 2 \(ReLU\): it is no 2-d convolution"),
        ("aw", OwnConv(8, 8, 3), r"2 \(OwnConv\): OwnConv has a convolution of its own"),
        ("aw", nn.Conv2d(8, 8, 3, padding=1, padding_mode="reflect"), "2 .*padding_mode='reflect' is not supported"),
        ("aw", nn.Conv2d(8, 8, 1, groups=8), "2 .*a depthwise 1×1 convolution has nothing to attend to"),
        ("aw", foveal.attention.AWConv2d(8, 8, 3), "2 .*it is an AW-convolution already"),
        ("se", nn.ReLU(), r"'se' cannot be put on 2 \(ReLU\): its number of output channels is not known"),
        ("cbam", nn.MaxPool2d(2), r"'cbam' cannot be put on 2 \(MaxPool2d\)"),
        ("aw", Occupied(8, 8, 3), "2: Occupied has an attribute 'attached' of its own"),
        ("se", Occupied(8, 8, 3), "2: Occupied has an attribute 'attached' of its own"),
    ],
)
def test_a_layer_that_cannot_be_served_leaves_the_model_alone(mechanism, layer, message):
    model = odd(layer)
    plain = copy.deepcopy(model)
    with pytest.raises(UserError, match=message):
        foveal.insert(model, mechanism, at=["0", "2"])
    assert_untouched(model, plain, images(2))


@pytest.mark.parametrize(
    ("mechanism", "options", "message"),
    [
        ("aw", {"share_out": 8}, "^last: share_out=8 does not divide 12"),
        ("aw", {"share_kernel": 3, "at": ["stem", "last"]}, "^last: share_kernel=3 does not divide 1"),
        ("aw", {"ratio": 3}, "^mechanism 'aw': unknown key 'ratio'"),
        ("se", {"start": "papr"}, "^norm1: unknown start 'papr'; did you mean 'paper'"),
        ("cbam", {"pools": ("sum",)}, "^norm1: unknown pooling 'sum'"),
    ],
)
def test_an_option_that_does_not_fit_leaves_the_model_alone(mechanism, options, message):
    model, x = net(), batch()
    plain = copy.deepcopy(model)
    with pytest.raises(UserError, match=message):
        foveal.insert(model, mechanism, **options)
    assert_untouched(model, plain, x)


def test_a_mechanism_that_breaks_half_way_leaves_the_model_alone(monkeypatch):
    monkeypatch.setattr(registered, "_MECHANISMS", dict(registered._MECHANISMS))
    result = []

    @foveal.register_mechanism("brittle")
    class Brittle(Gate):
        def __init__(self, channels, *, start):
            super().__init__()
            result.append(self)

        def to(self, *args, **kwargs):
            if self is result[-1]:
                raise RuntimeError("no room left")
            return super().to(*args, **kwargs)

        def forward(self, x):
            return 2 * x

    model, x = net(), batch()
    put(model, "se")
    twin = copy.deepcopy(model)
    with pytest.raises(RuntimeError, match="no room left"):
        foveal.insert(model, "brittle")
    assert len(result) > 2
    assert_untouched(model, twin, x)


@each_mechanism
def test_parametrised_weights(mechanism):
    """A layer with a reparametrised weight keeps it."""
    model, x = net(), batch()
    nn.utils.parametrizations.weight_norm(model.grouped)
    plain = copy.deepcopy(model)
    done = put(model, mechanism, at="grouped")
    torch.testing.assert_close(model.eval()(x), plain.eval()(x))
    done.eject()
    assert list(model.state_dict()) == list(plain.state_dict())
    assert type(model.grouped).__name__ == "ParametrizedConv2d"


def test_an_unknown_mechanism():
    with pytest.raises(UnknownNameError, match="unknown mechanism 'cbm'; did you mean 'cbam'"):
        foveal.insert(net(), "cbm")
