"""The fused deformable convolution is torchvision's operator, in value and gradient."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from torchvision.ops import deform_conv2d as operator

from foveal.attention import DeformConv2d
from foveal.attention import deform as mechanism
from foveal.kernels.deform import fused, launch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CASES = {
    "same": ((5, 4), (3, 3), (1, 1), (1, 1), (1, 1), 1),
    "stride": ((6, 5), (3, 3), (2, 2), (1, 1), (1, 1), 1),
    "dilation": ((5, 4), (3, 3), (1, 1), (2, 1), (2, 1), 1),
    "groups": ((4, 3), (1, 3), (1, 2), (0, 1), (1, 1), 2),
}


def inputs(case, *, modulated, dtype=torch.float32, spread=2.0):
    """x, offset, modulation and weight; some points are outside of the map."""
    size, kernel, stride, padding, dilation, groups = CASES[case]
    geometry = launch.Geometry(kernel, stride, padding, dilation, groups)
    torch.manual_seed(0)
    h, w = geometry.size(*size)
    taps = kernel[0] * kernel[1]
    x, offset = torch.randn(2, 32, *size), spread * torch.randn(2, groups * taps * 2, h, w)
    modulation = torch.rand(2, groups * taps, h, w) if modulated else None
    tensors = [x, offset, modulation, torch.randn(24, 32, *kernel) / 10]
    tensors = [None if t is None else t.to(DEVICE, dtype).requires_grad_() for t in tensors]
    return tensors, (stride, padding, dilation)


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
    tensors, (stride, padding, dilation) = inputs(case, modulated=modulated)
    x, offset, modulation, weight = tensors
    form = fused._Direct.apply if direct else fused.deform_conv2d
    out = form(x, offset, modulation, weight, stride, padding, dilation, CASES[case][-1])
    expected = operator(x, offset, weight, None, stride, padding, dilation, modulation)
    torch.testing.assert_close(out, expected)
    assert out.is_contiguous(memory_format=torch.channels_last)
    leaves = [t for t in tensors if t is not None]
    gradient = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, leaves, gradient)
    torch.testing.assert_close(torch.autograd.grad(out, leaves, gradient), wanted, rtol=1e-4, atol=1e-5)


def test_half_precision():
    tensors, options = inputs("same", modulated=True, dtype=torch.bfloat16)
    x, offset, modulation, weight = tensors
    out = fused.fused_deform_conv(x, offset, modulation, weight, *options, 1)
    exact = operator(*(t.float() for t in (x, offset, weight)), None, *options, modulation.float())
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), exact, rtol=0.02, atol=0.02)
    wanted = torch.autograd.grad(exact.sum(), tensors)
    for gradient, expected in zip(torch.autograd.grad(out.sum(), tensors), wanted, strict=True):
        assert gradient.dtype == torch.bfloat16
        torch.testing.assert_close(gradient.float(), expected.float(), rtol=0.05, atol=0.05)


@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")  # of the interpreter
def test_points_far_away_are_zero():
    (x, offset, _, weight), options = inputs("same", modulated=False, spread=1e12)
    with torch.no_grad():
        assert not fused.fused_deform_conv(x, offset, None, weight, *options, 1).any()


def test_the_operator_for_compilers():
    tensors, options = inputs("same", modulated=True)
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(fused.deform_conv2d, (*tensors, *map(list, options), 1), test_utils=tests)


def test_flops_are_those_of_a_convolution():
    tensors, options = inputs("same", modulated=False)
    with FlopCounterMode(display=False) as counter:
        fused.fused_deform_conv(*tensors, *options, 1).sum().backward()
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


@pytest.mark.parametrize(("channels", "groups", "deform_groups", "taps"), [(32, 2, 1, 3), (32, 1, 4, 3), (24, 1, 1, 3)])
def test_what_is_left_to_torchvision(channels, groups, deform_groups, taps, monkeypatch):
    monkeypatch.setattr(fused, "fused_available", lambda device: True)
    x, weight = torch.zeros(1, channels, 4, 4), torch.zeros(8, channels // groups, taps, taps)
    assert fused.fusable(torch.zeros(1, 32, 4, 4), torch.zeros(8, 32, 3, 3), 1, 1)
    assert not fused.fusable(x, weight, groups, deform_groups)
