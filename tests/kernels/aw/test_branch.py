"""Branch and convolution in few launches equal the modules called one after the other, in value, gradient and state."""

import copy

import pytest
import torch
from torch import nn

import foveal
from foveal.attention import AWConv2d
from foveal.kernels.aw import branch, branch_launch, fused, launch
from foveal.kernels.aw.tiles import Launch

device = "cuda" if torch.cuda.is_available() else "cpu"
slow = pytest.mark.slow


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch):
    """Several tiles for small tensors, and no search."""
    tile = [Launch((1, 4, 4), 16, 16, 4, 1)]
    monkeypatch.setattr(launch, "launches_within", lambda *shape: tile)
    monkeypatch.setattr(launch, "launches_across", lambda *shape: [])
    monkeypatch.setattr(launch, "WITHIN_TILES", ((16, 16, 16, 4, 1),))
    monkeypatch.setattr(launch._Gradients, "forms", lambda self: ["within"])
    monkeypatch.setattr(branch_launch, "POSITIONS", 16)
    monkeypatch.setattr(branch_launch, "ROWS", 64)
    branch_launch.tiles.cache_clear()


@pytest.fixture
def launched(monkeypatch):
    """The fused forms are allowed on every device; returns the names of those that ran."""
    names = []
    for module in (branch, fused):
        monkeypatch.setattr(module, "fused_available", lambda device: True)
    for name in ("attended_conv", "branch_multiplier"):
        from foveal.attention import aw

        def spy(*arguments, name=name, run=getattr(branch, name)):
            names.append(name)
            return run(*arguments)

        monkeypatch.setattr(aw, name, spy)
    return names


def make(kernel_size=3, channels=(8, 24), **options):
    """A layer in which every number matters."""
    torch.manual_seed(0)
    layer = AWConv2d(*channels, kernel_size, **options, reduction=options.pop("reduction", 4))
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
}
FAST = ("training", "identity without residual", "stride")


@pytest.mark.parametrize("case", [case if case in FAST else pytest.param(case, marks=slow) for case in CASES])
@pytest.mark.parametrize("mode", ["train", pytest.param("eval", marks=slow), pytest.param("mixed", marks=slow)])
def test_equals_the_modules(case, mode, launched):
    layer, x = make(**CASES[case]), images()
    layer.train(mode != "eval")
    layer.attention.norm2.train(mode == "train")
    fast = steps(layer, x, 2)
    assert launched == ["attended_conv"] * 2
    launched.clear()
    layer.attention.path = "loop"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(branch, "fused_available", lambda device: False)
        expected = steps(layer, x, 2)
    assert not launched
    assert all(part.abs().sum() > 0 for part in expected.values())
    for name, part in expected.items():
        torch.testing.assert_close(fast[name], part, rtol=1e-4, atol=2e-4, msg=lambda m, name=name: f"{name}: {m}")
