"""Branch and convolution in few launches equal the modules called one after the other, in value, gradient and state."""

import copy

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.utils.flop_counter import FlopCounterMode

import foveal
from foveal.attention import AWConv2d, aw
from foveal.kernels import tape, tune
from foveal.kernels.aw import branch, branch_launch, fused, launch, site, weight_grad
from foveal.kernels.aw.plain import differentiable_twice
from foveal.kernels.aw.tiles import Launch

device = "cuda" if torch.cuda.is_available() else "cpu"
slow = pytest.mark.slow


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch):
    """Several tiles for small tensors, and no search."""
    tile = [Launch((1, 4, 8), 32, 16, 4, 1)]
    monkeypatch.setattr(tune, "_chosen", {})
    monkeypatch.setattr(tape, "_tapes", {})
    monkeypatch.setattr(launch, "launches_within", lambda *shape: tile)
    monkeypatch.setattr(launch, "launches_across", lambda *shape: [])
    monkeypatch.setattr(weight_grad, "WITHIN_TILES", ((32, 16, 32, 4, 1),))
    monkeypatch.setattr(weight_grad.WeightGradients, "forms", lambda self: ["within"])
    monkeypatch.setattr(branch_launch, "POSITIONS", 16)
    monkeypatch.setattr(branch_launch, "ROWS", 32)
    monkeypatch.setattr(branch_launch, "FEW_ROWS", 32)
    monkeypatch.setattr(branch_launch, "LARGE", 12)  # some of the maps
    monkeypatch.setattr(branch_launch, "EVAL_COLUMNS", 16)
    tile_caches = branch_launch.tiles, branch_launch.pooling
    for cached in tile_caches:
        cached.cache_clear()
    yield
    for cached in tile_caches:
        cached.cache_clear()


@pytest.fixture
def launched(monkeypatch):
    """The fused forms are allowed on every device; returns the names of those that ran."""
    names = []
    for module in (branch, fused):
        monkeypatch.setattr(module, "fused_available", lambda device: True)
    for module, name in ((site, "attended_conv"), (branch, "branch_multiplier")):
        run = getattr(module, name)
        monkeypatch.setattr(aw, name, lambda *arguments, name=name, run=run: names.append(name) or run(*arguments))
    return names


def make(kernel_size=3, channels=(8, 24), reduction=4, **options):
    """A layer in which every number matters."""
    torch.manual_seed(0)
    layer = AWConv2d(*channels, kernel_size, **options, reduction=reduction)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    for norm in (layer.attention.norm1, layer.attention.norm2):
        nn.init.normal_(norm.running_mean, std=0.1)
        nn.init.uniform_(norm.running_var, 0.5, 2.0)
        nn.init.uniform_(norm.weight, 0.5, 1.5)
    return layer.to(device)


def images(n=3, channels=8, size=(5, 4), dtype=torch.float32):
    torch.manual_seed(1)
    return torch.randn(n, channels, *size, device=device).to(dtype)


def steps(layer, x, count=1, autocast=None):
    """Output, gradients of the input and of every parameter, and state after ``count`` steps."""
    layer = copy.deepcopy(layer)
    optimiser = torch.optim.SGD(layer.parameters(), 0.01)
    for _ in range(count):
        x = x.detach().requires_grad_()
        optimiser.zero_grad()
        with torch.autocast(device, autocast or torch.bfloat16, enabled=autocast is not None):
            out = layer(x)
        torch.manual_seed(2)
        (out.float() * torch.randn(out.shape).to(out.device)).sum().backward()
        optimiser.step()
    gradients = {name: parameter.grad for name, parameter in layer.named_parameters()}
    return {"out": out.detach(), "x": x.grad, **gradients} | {f"state {k}": v for k, v in layer.state_dict().items()}


CASES = {
    "training": {},
    "identity": {"start": "identity"},
    "no residual": {"residual": False},
    "identity without residual": {"start": "identity", "residual": False},
    "no bias": {"bias": False},
    "stride": {"stride": 2, "padding": 1},
    "dilation": {"dilation": 2, "padding": 2},
    "wide": {"kernel_size": (1, 3), "padding": (0, 1)},
    "valid": {"padding": "valid"},
    "groups": {"groups": 2, "padding": 1},
    "depthwise": {"channels": (8, 8), "groups": 8, "padding": 1},
}
FAST = ("training", "identity without residual", "stride")


def without(layer, x, **options):
    """The same as :func:`steps` by the modules and the plain definition."""
    layer = copy.deepcopy(layer)
    layer.attention.path = "loop"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(branch, "fused_available", lambda device: False)
        return steps(layer, x, **options)


def assert_same(actual, expected, rtol=1e-4, atol=2e-4):
    assert actual.keys() == expected.keys()
    for name, part in expected.items():
        torch.testing.assert_close(actual[name], part, rtol=rtol, atol=atol, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("strides", ["steps", "none"])
def test_a_bias_that_is_not_contiguous(strides, launched):
    layer, x = make(), images()
    bias = torch.randn(48, device=device)[::2] if strides == "steps" else torch.randn(1, device=device).expand(24)
    layer.bias = nn.Parameter(bias)
    assert not layer.bias.is_contiguous()
    with torch.no_grad():
        actual = layer(x)
        layer.bias = nn.Parameter(bias.contiguous())
        torch.testing.assert_close(actual, layer(x))
    assert launched == ["attended_conv"] * 2


@pytest.mark.parametrize(
    ("case", "mode"),
    [(case, "train") if case in FAST else pytest.param(case, "train", marks=slow) for case in CASES]
    + [pytest.param(case, mode, marks=slow) for case in FAST for mode in ("eval", "mixed")],
)
def test_equals_the_modules(case, mode, launched):
    """After two steps, so that the running statistics and the first update count."""
    layer, x = make(**CASES[case]), images()
    layer.train(mode != "eval")
    layer.attention.norm2.train(mode == "train")
    actual = steps(layer, x, count=2)
    assert launched == ["attended_conv"] * 2
    expected = without(layer, x, count=2)
    assert len(launched) == 2
    assert all(part.abs().sum() > 0 for name, part in expected.items() if not name.endswith("batches_tracked"))
    assert_same(actual, expected)


@pytest.mark.parametrize("stride", [1, pytest.param(2, marks=slow)])
def test_tiles_across_samples(stride, launched, monkeypatch):
    """What goes back through the pooled cells is added there, too, at every position and for every sample."""
    monkeypatch.setattr(launch, "launches_within", lambda *shape: [])
    monkeypatch.setattr(launch, "launches_across", lambda *shape: [Launch((4, 1, 1), 32, 16, 4, 1)])
    layer, x = make(padding=1, stride=stride), images(6)
    assert_same(steps(layer, x), without(layer, x))
    assert launched


@slow
@pytest.mark.parametrize(("n", "size"), [(1, (3, 3)), (2, (1, 1)), (3, (2, 9)), (2, (9, 3)), (1, (11, 2))])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_odd_shapes(n, size, layout, launched):
    layer = make(channels=(16, 40), padding=1).to(memory_format=layout)
    x = images(n, 16, size).to(memory_format=layout)
    assert_same(steps(layer, x), without(layer, x))
    assert launched


@pytest.mark.parametrize(
    "options", [{"kernel_size": 1}, pytest.param({"groups": 2, "padding": 1}, marks=slow)], ids=str
)
def test_the_branch_of_other_convolutions(options, launched, monkeypatch):
    monkeypatch.setattr(fused, "fused_available", lambda device: False)
    layer, x = make(**options), images(4)
    assert_same(steps(layer, x), without(layer, x))
    assert launched == ["branch_multiplier"]


@slow
@pytest.mark.parametrize("x_dtype", [torch.float32, torch.float16])
def test_autocast(x_dtype, launched):
    """In float16, which NumPy and so the interpreter has; the branch stays in float32."""
    layer, x = make(padding=1), images(dtype=x_dtype)
    actual, exact = steps(layer, x, autocast=torch.float16), without(layer, x.float())
    assert launched
    assert actual["out"].dtype == torch.float16
    assert actual["x"].dtype == x_dtype
    for name, part in exact.items():
        assert actual[name].dtype in (part.dtype, torch.float16)
        assert float((actual[name].float() - part.float()).norm() / part.float().norm()) < 0.02, name


@pytest.mark.parametrize("kind", ["first", "second"])
def test_second_derivatives(kind, launched):
    layer, x = make(padding=1, start="identity"), images(2, size=(3, 2)).requires_grad_()
    actual = []
    for available in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(branch, "fused_available", lambda device, available=available: available)
            layer.attention.path = "auto" if available else "loop"
            leaves = [x, *layer.parameters()]
            first = torch.autograd.grad(layer(x).square().sum(), leaves, create_graph=True)
            norm = sum(part.square().sum() for part in first)
            actual.append(first if kind == "first" else torch.autograd.grad(norm, leaves, allow_unused=True))
    assert len(launched) == 1
    torch.testing.assert_close(*actual, rtol=1e-3, atol=1e-3)


@slow
def test_batched_gradients(launched):
    layer, x = make(padding=1), images(2, size=(3, 2)).requires_grad_()
    out = layer(x)
    g = torch.randn(2, *out.shape, device=out.device)
    (actual,) = torch.autograd.grad(out, x, g, is_grads_batched=True, retain_graph=True)
    expected = torch.stack([torch.autograd.grad(out, x, item, retain_graph=True)[0] for item in g])
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    assert launched


def test_only_what_is_needed_has_a_gradient(launched):
    layer, x = make(padding=1), images(2, size=(3, 2))
    for wanted in ("weight", "bias", "attention.norm2.weight"):
        layer.zero_grad()
        for name, parameter in layer.named_parameters():
            parameter.requires_grad_(name == wanted)
        layer(x).square().sum().backward()
        assert [name for name, parameter in layer.named_parameters() if parameter.grad is not None] == [wanted]
    assert len(launched) == 3


def test_a_map_with_a_nan_is_not_hidden(launched):
    layer, x = make(padding=1), images()
    x[0, 0, 0, 0] = torch.nan
    assert layer(x)[0].isnan().all()
    assert launched


def hook(layer):
    layer.attention.norm1.register_forward_hook(lambda module, inputs, out: None)


def watched(layer):
    layer.attention.watchers = 1


def momentum(layer):
    layer.attention.norm2.momentum = None


def sync(layer):
    layer.attention.norm2 = nn.SyncBatchNorm.convert_sync_batchnorm(layer.attention.norm2).eval()


def double(layer):
    layer.attention.norm1.bias = nn.Parameter(layer.attention.norm1.bias.double())


def parametrised(layer):
    nn.utils.parametrizations.weight_norm(layer.attention.excite)


def frozen(layer):
    layer.attention.squeeze.forward = layer.attention.squeeze.forward


def no_statistics(layer):
    layer.attention.norm1 = nn.BatchNorm2d(6, track_running_stats=False).to(device)


@pytest.mark.parametrize("change", [hook, watched, momentum, sync, double, parametrised, frozen, no_statistics])
def test_whatever_the_kernels_do_not_know_is_left_to_the_modules(change):
    layer, x = make(), images()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(branch, "fused_available", lambda device: True)
        assert layer.attention._branch(x, x.dtype) is not None
        change(layer)
        assert layer.attention._branch(x, x.dtype) is None


@pytest.mark.parametrize("mode", [lambda: FlopCounterMode(display=False), differentiable_twice, forward_ad.dual_level])
def test_modes_are_left_to_the_modules(mode, launched):
    layer, x = make(), images()
    with mode():
        assert layer.attention._branch(x, x.dtype) is None
    assert layer.attention._branch(x, x.dtype) is not None


def test_one_value_cannot_be_normalised(launched):
    with pytest.raises(foveal.errors.UserError, match="train with a batch of at least two"):
        make(1)(images(1))


def test_what_is_recorded_belongs_to_one_layout_of_the_weight():
    layer, x = make(), images()
    modules = [getattr(layer.attention, name) for name in ("squeeze", "norm1", "excite", "norm2")]
    conv = site.Convolution((1, 1), (1, 1), (1, 1), 1)
    norms = [branch.norm_of(module) for module in modules[1::2]]
    parameters = branch.Parameters(
        modules[0].weight,
        modules[1].weight,
        modules[1].bias,
        modules[2].weight,
        modules[3].weight,
        modules[3].bias,
        None,
    )
    of = branch.Branch((3, 3), True, *norms, torch.float32)
    weight = layer.weight.detach()
    layouts = (
        weight,
        weight.to(memory_format=torch.channels_last),
        weight.transpose(2, 3),
        torch.cat([weight] * 2, 1)[:, :8],
    )
    assert len({site._key("", x, layout, parameters, of, conv) for layout in layouts}) == 4


@pytest.mark.skipif(device == "cpu", reason="real sizes take too long in the interpreter")
@pytest.mark.parametrize(("n", "channels", "side"), [(32, 64, 56), (64, 128, 28), (128, 512, 7), (16, 1024, 9)])
@pytest.mark.parametrize("training", [True, False])
def test_real_sizes(n, channels, side, training, monkeypatch):
    """The tiles that are used, against float64."""
    monkeypatch.undo()
    torch.manual_seed(0)
    layer = make(channels=(channels, channels), padding=1, reduction=16, start="identity").train(training)
    x = torch.randn(n, channels, side, side, device=device).to(memory_format=torch.channels_last).relu()
    parameters, of = layer.attention._branch(x, x.dtype)
    leaves = [x, *parameters]
    g = torch.randn(n, channels, 3, 3, device=device)
    results = []
    for kind, function in ((torch.float32, branch.branch_multiplier), (torch.float64, branch.plain_multiplier)):
        inputs = [leaf.detach().to(kind).requires_grad_() for leaf in leaves]
        norms = [norm._replace(mean=norm.mean.to(kind), var=norm.var.to(kind)) for norm in (of.norm1, of.norm2)]
        out = function(inputs[0], branch.Parameters(*inputs[1:]), branch.Branch(of.size, of.residual, *norms, kind))
        results.append([out, *torch.autograd.grad(out, inputs, g.to(kind))])
    for actual, expected in zip(*results, strict=True):
        assert float((actual - expected).norm() / expected.norm()) < 1e-4
