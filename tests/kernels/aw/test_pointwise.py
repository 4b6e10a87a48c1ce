"""A 1×1 AW-convolution as a scaled convolution equals the modules: value, gradients, running statistics."""

import copy

import pytest
import torch
from torch import nn

import foveal
from foveal.attention import AWConv2d, aw
from foveal.kernels import tape
from foveal.kernels.aw import branch, pointwise

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch):
    """Several tiles and parts of a sum for small maps."""
    monkeypatch.setattr(tape, "_tapes", {})
    monkeypatch.setattr(pointwise, "ELEMENTS", 256)
    monkeypatch.setattr(pointwise, "PROGRAMS", 6)
    pointwise._tile.cache_clear()
    yield
    pointwise._tile.cache_clear()


@pytest.fixture
def launched(monkeypatch):
    """The fused branch is allowed on every device; a list that grows with every call of the form."""
    calls = []
    monkeypatch.setattr(branch, "fused_available", lambda device: True)
    run = pointwise.pointwise_conv
    monkeypatch.setattr(aw, "pointwise_conv", lambda *arguments: calls.append(1) or run(*arguments))
    return calls


def make(channels=(8, 24), **options):
    torch.manual_seed(0)
    layer = AWConv2d(*channels, 1, reduction=4, **options)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    for norm in (layer.attention.norm1, layer.attention.norm2):
        nn.init.normal_(norm.running_mean, std=0.1)
        nn.init.uniform_(norm.weight, 0.5, 1.5)
    return layer.to(DEVICE)


def images(n=6, channels=8, size=(7, 6)):
    torch.manual_seed(1)
    return torch.randn(n, channels, *size, device=DEVICE).to(memory_format=torch.channels_last)


def step(layer, x, autocast=False):
    x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    with torch.autocast(DEVICE, torch.float16, enabled=autocast):
        out = layer(x)
    torch.manual_seed(2)
    (out.float() * torch.randn(out.shape).to(out.device)).sum().backward()
    gradients = {name: parameter.grad for name, parameter in layer.named_parameters()}
    return {"out": out.detach(), "x": x.grad, **gradients, **dict(layer.named_buffers())}


CASES = {
    "training": {},
    "identity": {"start": "identity"},
    "no residual": {"residual": False},
    "no bias": {"bias": False},
    "stride": {"stride": 2},
    "padding": {"padding": 1},
    "same": {"padding": "same"},
    "groups": {"groups": 2},
    "eval": {},
}


@pytest.mark.parametrize("case", CASES)
def test_equals_the_modules(case, launched):
    layer = make(**CASES[case]).train(case != "eval")
    plain = copy.deepcopy(layer)
    plain.attention.path = "taps"  # which somebody has asked for
    for _ in range(2):  # running statistics count
        actual = step(layer, images())
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(branch, "fused_available", lambda device: False)
            expected = step(plain, images())
    assert len(launched) == 2
    for name, part in expected.items():
        torch.testing.assert_close(actual[name], part, rtol=1e-4, atol=2e-4, msg=lambda m, name=name: f"{name}: {m}")


def test_many_channels_and_odd_maps(launched):
    layer, x = make(channels=(40, 200)), images(2, 40, (5, 9))
    plain = copy.deepcopy(layer)
    plain.attention.path = "taps"
    actual, expected = step(layer, x), step(plain, x)
    for name, part in expected.items():
        torch.testing.assert_close(actual[name], part, rtol=1e-4, atol=1e-3, msg=lambda m, name=name: f"{name}: {m}")
    assert len(launched) == 1


def test_autocast(launched):
    """In float16, which NumPy and so the interpreter has."""
    layer, x = make(), images()
    plain = copy.deepcopy(layer)
    actual, expected = step(layer, x, autocast=True), step(plain, x)
    assert launched
    assert actual["out"].dtype == torch.float16
    for name in ("out", "x", "weight", "bias", "attention.squeeze.weight"):
        error = (actual[name].float() - expected[name]).norm() / expected[name].norm()
        assert error < 0.02, name
        assert actual[name].dtype == (torch.float16 if name == "out" else torch.float32)


def test_second_derivatives(launched):
    layer, x = make(bias=False), images().requires_grad_()
    plain = copy.deepcopy(layer)
    plain.attention.path = "taps"
    results = []
    for network in (layer, plain):
        (first,) = torch.autograd.grad(network(x).square().sum(), x, create_graph=True)
        results.append(torch.autograd.grad(first.square().sum(), [x, network.weight]))
    assert len(launched) == 1
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


def test_only_what_is_needed_has_a_gradient(launched):
    layer, x = make(), images()
    layer.weight.requires_grad_(False)
    layer(x).sum().backward()
    assert layer.weight.grad is None
    assert layer.attention.squeeze.weight.grad.abs().sum() > 0
    layer.requires_grad_(False)
    x.requires_grad_()
    layer(x).sum().backward()
    assert x.grad.abs().sum() > 0
    with torch.no_grad():
        assert not layer(x).requires_grad


def test_transforms_and_maps_of_one_position(launched):
    layer = make().eval()
    x = torch.randn(3, 8, 1, 1, device=DEVICE)
    assert layer(x).stride() == (24, 1, 1, 1)  # as of a model that is not channels last
    together = torch.func.vmap(layer)(images()[:, None])
    assert not launched
    torch.testing.assert_close(together[:, 0], layer(images()), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("reason", ["contiguous", "watched", "asked for taps", "larger kernel"])
def test_other_forms_where_it_does_not_fit(reason, launched):
    layer, x = make(), images()
    match reason:
        case "contiguous":
            x = x.contiguous()
        case "asked for taps":
            layer.attention.path = "taps"
        case "larger kernel":
            layer = AWConv2d(8, 24, 3, padding=1).to(DEVICE)
    if reason == "watched":
        with foveal.watch(layer) as seen:
            layer(x)
        assert seen
    else:
        layer(x)
    assert not launched


@pytest.mark.parametrize(("n", "size", "c"), [(1, 1, 16), (64, 12544, 96), (128, 49, 320), (3, 50, 1000)])
def test_every_value_is_in_one_tile(n, size, c):
    (samples, blocks, parts), turns, positions, channels = pointwise._tile(n, size, c)
    assert samples == n
    assert (blocks - 1) * channels < c <= blocks * channels
    assert (parts - 1) * turns * positions < size <= parts * turns * positions
