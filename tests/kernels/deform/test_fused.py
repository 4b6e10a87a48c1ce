"""The fused deformable convolution is torchvision's operator, in value and gradient."""

import pytest
import torch
from deform_cases import inputs, operator
from torch.utils.flop_counter import FlopCounterMode

from foveal.attention import DeformConv2d
from foveal.attention import deform as mechanism
from foveal.kernels.deform import fused, launch
from foveal.kernels.deform.plain import Geometry

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize(
    ("case", "modulated", "direct"),
    [
        ("same", False, True),
        ("same", True, False),
        ("stride", True, True),
        ("dilation", False, True),
        ("groups", True, True),
    ],
)
def test_equals_the_operator(case, modulated, direct, monkeypatch):
    monkeypatch.setattr(launch, "TILE", 512)  # several tiles in a small map
    launch._prepared.cache_clear()
    tensors, g = inputs(case, modulated=modulated, device=DEVICE)
    form = fused._Direct.apply if direct else fused.deform_conv2d
    out = form(*tensors, g.stride, g.padding, g.dilation, g.deform_groups)
    expected = operator(*tensors, None, g)
    torch.testing.assert_close(out, expected)
    assert out.is_contiguous(memory_format=torch.channels_last)
    leaves = [t for t in tensors if t is not None]
    gradient = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, leaves, gradient)
    torch.testing.assert_close(torch.autograd.grad(out, leaves, gradient), wanted, rtol=1e-4, atol=1e-5)


def test_half_precision():
    tensors, g = inputs("same", modulated=True, dtype=torch.bfloat16, device=DEVICE)
    out = fused.fused_deform_conv(*tensors, None, g)
    exact = operator(*(t.float() for t in tensors), None, g)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), exact, rtol=0.02, atol=0.02)
    wanted = torch.autograd.grad(exact.sum(), tensors)
    for gradient, expected in zip(torch.autograd.grad(out.sum(), tensors), wanted, strict=True):
        assert gradient.dtype == torch.bfloat16
        torch.testing.assert_close(gradient.float(), expected.float(), rtol=0.05, atol=0.05)


@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")  # of the interpreter
def test_points_far_away_are_zero():
    tensors, g = inputs("same", modulated=False, spread=1e12, device=DEVICE)
    with torch.no_grad():
        assert not fused.fused_deform_conv(*tensors, None, g).any()


def test_the_operator_for_compilers():
    tensors, g = inputs("same", modulated=True, device=DEVICE)
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(fused.deform_conv2d, (*tensors, *map(list, g[1:4]), 1), test_utils=tests)


def test_flops_are_those_of_a_convolution():
    tensors, g = inputs("same", modulated=False, device=DEVICE)
    with FlopCounterMode(display=False) as counter:
        fused.fused_deform_conv(*tensors, None, g).sum().backward()
    assert counter.get_total_flops() == 3 * 2 * 2 * 24 * 32 * 9 * 5 * 4


@pytest.mark.parametrize("modulated", [False, True])
def test_the_module_uses_it(modulated, monkeypatch):
    torch.manual_seed(0)
    conv = DeformConv2d(16, 8, 3, padding=1, modulated=modulated).to(DEVICE)
    torch.nn.init.normal_(conv.deform.offset.weight, std=0.1)
    x = torch.randn(1, 16, 4, 5).to(DEVICE)
    monkeypatch.setattr(fused, "fused_available", lambda device: False)
    plain = conv(x)
    monkeypatch.setattr(fused, "fused_available", lambda device: True)
    calls = []
    monkeypatch.setattr(
        mechanism, "fused_deform_conv", lambda *a: calls.append(a[0].dtype) or fused.fused_deform_conv(*a)
    )
    torch.testing.assert_close(conv(x), plain)
    with torch.autocast(DEVICE, torch.bfloat16):
        assert conv(x).dtype == torch.bfloat16
    assert calls == [torch.float32, torch.bfloat16]


@pytest.mark.parametrize(
    ("channels", "dtype", "deform_groups", "groups"),
    [(32, torch.float32, 1, 2), (32, torch.float32, 4, 1), (24, torch.float32, 1, 1), (32, torch.float64, 1, 1)],
)
def test_what_is_left_to_others(channels, dtype, deform_groups, groups, monkeypatch):
    monkeypatch.setattr(fused, "fused_available", lambda device: True)
    sizes = (3, 3), (1, 1), (1, 1), (1, 1)
    assert fused.fusable(torch.zeros(1, 32, 4, 4), torch.float32, Geometry(*sizes, 1))
    assert not fused.fusable(torch.zeros(1, channels, 4, 4), dtype, Geometry(*sizes, deform_groups, groups))
