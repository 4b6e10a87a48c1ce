"""Fused gates equal the plain ones in value and gradient, and leave the plain form where somebody looks inside."""

import copy

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import foveal
from foveal.attention import CBAM, SqueezeExcite
from foveal.kernels import prepared, tape
from foveal.kernels.gates import convolution, fused, launch, plan

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
slow = pytest.mark.slow
GATES = {
    "se": (SqueezeExcite, {}),
    "cbam": (CBAM, {}),
    "cbam, no spatial gate": (CBAM, {"spatial": False}),
    "cbam, mean": (CBAM, {"pools": "avg"}),
    "cbam, maximum": (CBAM, {"pools": ("max",)}),
    "cbam, maximum, no spatial gate": (CBAM, {"pools": "max", "spatial": False}),
    "cbam, maximum first": (CBAM, {"pools": ("max", "avg"), "spatial": False}),
}


@pytest.fixture(autouse=True)
def available(monkeypatch):
    monkeypatch.setattr(fused, "fused_available", lambda device: True)


@pytest.fixture
def small_tiles(monkeypatch):
    """Small maps need several tiles, parts and programs."""
    monkeypatch.setattr(plan, "ELEMENTS", 64)
    monkeypatch.setattr(plan, "BUSY", 2)
    monkeypatch.setattr(convolution, "PROGRAMS", 4)
    monkeypatch.setattr(convolution, "COLUMNS", 16)
    monkeypatch.setattr(convolution, "POINTS", 4)
    monkeypatch.setattr(convolution, "MOMENTS", 2)
    monkeypatch.setattr(plan, "HIDDEN", (2, 4))
    monkeypatch.setattr(launch, "ROWS", 2)
    monkeypatch.setattr(launch, "WEIGHTS", (16, 16, 16, 4, 8))
    plan.plan_of.cache_clear()
    yield
    plan.plan_of.cache_clear()


def make(name, channels=6, **options):
    """A gate in which every number matters."""
    torch.manual_seed(0)
    cls, variant = GATES[name]
    gate = cls(channels, **({"reduction": 2, "start": "identity"} | variant | options))
    for parameter in gate.parameters():
        nn.init.normal_(parameter)
    if getattr(gate, "spatial", None) is not None:
        nn.init.normal_(gate.spatial.norm.running_mean)
        nn.init.uniform_(gate.spatial.norm.running_var, 0.5, 2.0)
    return gate.to(DEVICE)


def features(shape=(2, 6, 3, 4), layout=torch.channels_last, dtype=torch.float32):
    torch.manual_seed(1)
    return torch.randn(shape, device=DEVICE).to(dtype, memory_format=layout).requires_grad_()


def is_fused(out):
    return "_Gates" in out.grad_fn.name()


def results(gate, x, *, fuse, g=None):
    """Output, all gradients and buffers of a copy of ``gate``, by the fused or the plain form."""
    gate, x = copy.deepcopy(gate), x.detach().clone().requires_grad_()
    handle = None if fuse else gate.blend.register_forward_hook(lambda *call: None)
    out = gate(x)
    assert is_fused(out) == fuse
    if handle is not None:
        handle.remove()
    out.backward(torch.randn(x.shape, generator=torch.Generator().manual_seed(2)).to(x) if g is None else g)
    gradients = {name: parameter.grad for name, parameter in gate.named_parameters()}
    return {"out": out.detach(), "x": x.grad, **gradients, **dict(gate.named_buffers())}


def assert_same(gate, x, rtol=1e-4, atol=1e-5):
    ours, theirs = results(gate, x, fuse=True), results(gate, x, fuse=False)
    for name, value in theirs.items():
        scale = max(1.0, float(value.float().abs().max()))
        torch.testing.assert_close(
            ours[name], value, rtol=rtol, atol=atol * scale, msg=lambda message, name=name: f"{name}: {message}"
        )
    if 1 not in x.shape:
        assert ours["out"].stride() == ours["x"].stride() == x.stride()


@pytest.mark.parametrize("name", [pytest.param(name, marks=slow if name == "cbam, mean" else ()) for name in GATES])
def test_equals_the_plain_form(name):
    assert_same(make(name), features())


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("shape", [(3, 5, 4, 3), pytest.param((2, 21, 5, 7), marks=slow)])
@pytest.mark.parametrize("name", ["se", pytest.param("cbam", marks=slow)])
def test_several_tiles(name, shape, layout, training, small_tiles):
    assert_same(make(name, shape[1]).train(training), features(shape, layout))


@pytest.mark.parametrize("start", ["paper", pytest.param("identity", marks=slow)])
@pytest.mark.parametrize("name", ["se", "cbam", *(pytest.param(name, marks=slow) for name in list(GATES)[2:])])
@pytest.mark.parametrize(
    "shape", [(1, 3, 2, 5), *(pytest.param(s, marks=slow) for s in [(2, 130, 1, 1), (1, 1, 2, 1)])]
)
def test_odd_shapes(name, shape, start):
    assert_same(make(name, shape[1], start=start), features(shape), atol=1e-4)


def test_a_channels_last_model():
    """Its 7×7 weight is channels-last too."""
    gate = make("cbam").to(memory_format=torch.channels_last)
    assert not gate.spatial.conv.weight.is_contiguous()
    ours, theirs = (results(gate, features(), fuse=fuse)["spatial.conv.weight"] for fuse in (True, False))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    assert ours.stride() == gate.spatial.conv.weight.stride()


def test_a_map_that_is_not_dense():
    gate, x = make("se"), features((2, 6, 3, 8), torch.contiguous_format)
    out = gate(x[..., ::2])
    assert is_fused(out)
    torch.testing.assert_close(out.detach(), results(gate, x[..., ::2].contiguous(), fuse=False)["out"])
    out.square().sum().backward()
    assert x.grad[..., ::2].abs().min() > 0
    assert x.grad[..., 1::2].abs().max() == 0


# The interpreter computes in NumPy, which has no bfloat16.
@pytest.mark.parametrize("dtype", [torch.float16, *([torch.bfloat16] if DEVICE == "cuda" else [])])
@pytest.mark.parametrize(
    ("name", "mixed"),
    [("se", False), ("cbam", True), *(pytest.param(*case, marks=slow) for case in (("se", True), ("cbam", False)))],
)
def test_half_precision(name, dtype, mixed):
    """All in half precision, or the map alone as under autocast; either is as close as rounding allows."""
    gate, x = make(name), features()
    exact = results(gate, x, fuse=False)
    with torch.autocast(DEVICE, torch.bfloat16, enabled=mixed):
        actual = results(gate if mixed else gate.to(dtype), x.to(dtype), fuse=True)
    for key in exact:
        half = key in ("out", "x") or not (mixed or key.endswith("tracked"))
        assert actual[key].dtype == (dtype if half else exact[key].dtype), key
        error = (actual[key].float() - exact[key].float()).norm() / exact[key].float().norm()
        assert float(error) < (0.02 if dtype == torch.float16 else 0.1), key


@pytest.mark.parametrize(("name", "dtype"), [("se", torch.float32), ("cbam", torch.float16)])
def test_the_start_is_exactly_the_identity(name, dtype):
    gate, x = make(name).to(dtype), features(dtype=dtype)
    nn.init.zeros_(gate.blend.amount)
    out = gate(x)
    assert is_fused(out)
    assert torch.equal(out, x)
    out.square().sum().backward()
    assert gate.blend.amount.grad.abs() > 0


@pytest.mark.parametrize("name", ["cbam", "cbam, maximum, no spatial gate"])
def test_ties_go_to_the_first_as_in_pytorch(name):
    """Equal values in equal channels: both maxima have ties."""
    gate = make(name, 4)
    with torch.no_grad():
        for layer in (gate.channel.squeeze, gate.channel.excite):
            layer.weight.fill_(0.25)
            layer.bias.fill_(0.5)
    x = features((2, 4, 3, 3))
    with torch.no_grad():
        x.copy_(torch.randint(0, 2, (2, 1, 3, 3)).expand(2, 4, 3, 3))
    assert_same(gate, x)


@pytest.mark.parametrize("training", [True, pytest.param(False, marks=slow)])
@pytest.mark.parametrize("name", ["se", "cbam"])
def test_second_derivatives(name, training):
    actual = []
    for fuse in (True, False):
        gate, x = make(name).train(training), features()
        if not fuse:
            gate.blend.register_forward_hook(lambda *call: None)
        inputs = [x, *gate.parameters()]
        out = gate(x)
        assert is_fused(out) == fuse
        first = torch.autograd.grad(out.square().sum(), inputs, create_graph=True)
        actual.append(torch.autograd.grad(sum(part.square().sum() for part in first), inputs))
    for ours, theirs in zip(*actual, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3 * float(theirs.abs().max()))


def test_batched_gradients():
    gate, x = make("se"), features()
    g = torch.randn(2, *x.shape, device=DEVICE)
    (actual,) = torch.autograd.grad(gate(x), x, g, is_grads_batched=True)
    torch.testing.assert_close(actual, torch.stack([torch.autograd.grad(gate(x), x, item)[0] for item in g]))


def hooked(gate, x):
    gate.squeeze.register_forward_hook(lambda *call: None)
    return gate(x)


def replaced(gate, x):
    gate.squeeze = nn.Sequential(gate.squeeze)
    return gate(x)


def own_forward(gate, x):
    gate.squeeze.forward = gate.squeeze.forward
    return gate(x)


def watched(gate, x):
    with foveal.watch(gate) as seen:
        out = gate(x)
    (record,) = seen.values()
    torch.testing.assert_close(out, x * (1 + gate.blend.amount * (record.values[:, :, None, None] - 1)))
    assert torch.autograd.grad(record.values.sum(), gate.excite.bias, retain_graph=True)[0].abs().max() > 0
    return out


def counted(gate, x):
    with FlopCounterMode(display=False) as count:
        out = gate(x)
    assert count.get_total_flops() == 2 * 2 * 2 * 6 * 3
    return out


def saved_by_hooks(gate, x):
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        return gate(x)


@pytest.mark.parametrize("form", [hooked, replaced, own_forward, watched, counted, saved_by_hooks])
def test_the_plain_form_where_somebody_looks_inside(form):
    gate, x = make("se"), features()
    expected = gate(x)
    assert is_fused(expected)
    out = form(gate, x)
    assert not is_fused(out)
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize(
    "change",
    [
        lambda gate: setattr(gate.spatial.norm, "momentum", None),
        lambda gate: setattr(gate.spatial, "norm", nn.SyncBatchNorm(1).eval()),
        lambda gate: setattr(gate.spatial, "conv", nn.Conv2d(2, 1, 7, padding=6, dilation=2, bias=False)),
        lambda gate: setattr(gate.spatial, "conv", nn.Conv2d(2, 1, 7, padding=3)),
        lambda gate: setattr(gate.channel, "pools", ("avg", "avg")),
        lambda gate: setattr(gate.channel, "excite", nn.Linear(3, 6, bias=False)),
        lambda gate: gate.spatial.register_forward_hook(lambda *call: None),
        lambda gate: gate.double(),
    ],
)
def test_gates_of_another_make(change):
    gate = make("cbam").eval()
    change(gate.to(DEVICE))
    x = features().to(gate.channel.squeeze.weight.dtype)
    assert not is_fused(gate.to(DEVICE)(x))


def test_transforms_and_forward_mode():
    gate, x = make("se"), features().detach()
    (expected,) = torch.autograd.grad(gate(x.requires_grad_()).sum(), x)
    torch.testing.assert_close(torch.func.grad(lambda x: gate(x).sum())(x.detach()), expected)
    with forward_ad.dual_level():
        out = forward_ad.unpack_dual(gate(forward_ad.make_dual(x.detach(), torch.ones_like(x)))).tangent
    assert out.shape == x.shape


def test_activation_checkpointing():
    gate, x = make("cbam"), features()
    expected = torch.autograd.grad(gate(x).square().sum(), x)
    actual = torch.autograd.grad(checkpoint(gate, x, use_reentrant=False).square().sum(), x)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("first", ["channels last", "transposed"])
def test_what_is_known_of_a_weight_belongs_to_its_layout(first, monkeypatch):
    """The kernels read a convolution's weight in two layouts; a third one has the plain form."""
    monkeypatch.setattr(tape, "_tapes", {})
    monkeypatch.setattr(fused, "_fits", {})
    gates = {"channels last": make("cbam").to(memory_format=torch.channels_last), "transposed": make("cbam")}
    conv = gates["transposed"].spatial.conv
    conv.weight = nn.Parameter(conv.weight.detach().transpose(2, 3).contiguous().transpose(2, 3))
    for name in (first, *(gates.keys() - {first})):
        twin = copy.deepcopy(gates[name])
        twin.spatial.conv.weight = nn.Parameter(twin.spatial.conv.weight.detach().contiguous())
        for _ in range(3):
            torch.testing.assert_close(gates[name](features()), twin(features()), rtol=1e-5, atol=1e-5)


@pytest.fixture
def launches(monkeypatch):
    """Names of kernels that are launched, and their grids."""
    seen = []

    def note(kernel, grid, *rest, **options):
        seen.append((kernel.fn.__name__, grid))
        prepared.launch(kernel, grid, *rest, **options)

    for module in (launch, convolution):
        monkeypatch.setattr(module, "launch", note)
    monkeypatch.setattr(tape, "_tapes", {})
    return seen


@pytest.mark.parametrize(("name", "count"), [("se", 5), ("cbam", 10), ("cbam, no spatial gate", 5)])
def test_few_launches(name, count, launches):
    make(name)(features()).sum().backward()
    assert len(launches) == count


def test_frozen_parameters_cost_nothing(launches):
    programs = []
    for needed in (True, False):
        gate, x = make("cbam").requires_grad_(needed), features()
        launches.clear()
        gate(x).sum().backward()
        assert x.grad.abs().max() > 0
        programs.append(dict(launches))
    assert programs[0]["convolution_grad"] > programs[1]["convolution_grad"]
    assert programs[0].keys() - programs[1].keys() == {"parameter_grad"}


def test_no_gradient_at_all():
    gate, x = make("cbam").eval(), features()
    expected = gate(x)
    with torch.no_grad():
        assert torch.equal(gate(x), expected)


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("n", [1, 128])
@pytest.mark.parametrize("c", [1, 24, 64, 2048])
@pytest.mark.parametrize("size", [1, 49, 3136, 250_000])
def test_every_value_is_in_one_tile(n, c, size, last):
    tiles = plan.plan_of(n, c, size, max(1, c // 16), last)
    for (samples, blocks, parts), steps in (tiles.pool, tiles.gate, tiles.write):
        assert samples == n
        assert (blocks - 1) * tiles.tile[1] < c <= blocks * tiles.tile[1]
        assert (parts - 1) * steps * tiles.tile[0] < size <= parts * steps * tiles.tile[0]  # no part is empty
    (samples, parts), steps = tiles.positions
    assert (parts - 1) * steps * tiles.across[0] < size <= parts * steps * tiles.across[0]
    assert tiles.tile[0] * tiles.tile[1] <= plan.ELEMENTS
    assert tiles.row[0] >= c
