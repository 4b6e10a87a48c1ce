"""Deformable convolution on a CPU is torchvision's operator, in value and gradient."""

import pytest
import torch
from deform_cases import CASES, inputs, operator
from torch.utils.flop_counter import FlopCounterMode

from foveal.attention import DeformConv2d
from foveal.kernels.deform import rows
from foveal.kernels.deform.rows import deform_conv_by_rows


@pytest.mark.parametrize("images", [1, 2, 8])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("modulated", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_equals_the_operator(case, modulated, layout, images, monkeypatch):
    tensors, g = inputs(case, modulated=modulated, dtype=torch.float64, n=5)
    positions = tensors[1].shape[2] * tensors[1].shape[3]
    monkeypatch.setattr(rows, "CHUNK", images * positions * g.kernel[0] * g.kernel[1] * 32)
    bias = torch.randn(24, dtype=torch.float64, requires_grad=True)
    leaves = [t for t in (*tensors, bias) if t is not None]
    x = tensors[0].contiguous(memory_format=layout)
    convolved = []
    monkeypatch.setattr(rows, "_convolve", lambda *a, real=rows._convolve: convolved.append(len(a[0])) or real(*a))
    out = deform_conv_by_rows(x, *tensors[1:], bias, g)
    assert convolved == {1: [1] * 5, 2: [2, 2, 1], 8: [5]}[images]
    assert out.is_contiguous(memory_format=layout)
    expected = operator(*tensors, bias, g)
    torch.testing.assert_close(out, expected)
    gradient = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, leaves, gradient)
    torch.testing.assert_close(torch.autograd.grad(out, leaves, gradient), wanted)


def test_samples_are_not_kept():
    tensors, g = inputs("same", modulated=True, n=4)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        deform_conv_by_rows(*tensors, None, g)
    assert max(kept, default=0) < 4 * 9 * 5 * 4 * 32


def test_points_far_away_are_zero():
    tensors, g = inputs("same", modulated=False, spread=1e30)
    assert not deform_conv_by_rows(*tensors, None, g).any()


@pytest.mark.parametrize("modulated", [False, True])
def test_no_images(modulated):
    tensors, g = inputs("same", modulated=modulated, n=0)
    out = deform_conv_by_rows(*tensors, None, g)
    assert out.shape == (0, 24, 5, 4)
    assert not torch.autograd.grad(out.sum(), tensors[3])[0].any()


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled(dynamic):
    tensors, g = inputs("stride", modulated=True, n=3)
    compiled = torch.compile(deform_conv_by_rows, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    out, expected = compiled(*tensors, None, g), deform_conv_by_rows(*tensors, None, g)
    torch.testing.assert_close(out, expected)
    wanted = torch.autograd.grad(expected.sum(), tensors)
    torch.testing.assert_close(torch.autograd.grad(out.sum(), tensors), wanted)


def test_flops_are_those_of_a_convolution():
    tensors, g = inputs("same", modulated=False)
    with FlopCounterMode(display=False) as counter:
        deform_conv_by_rows(*tensors, None, g).sum().backward()
    assert counter.get_total_flops() == 3 * 2 * 2 * 24 * 32 * 9 * 5 * 4


def test_transforms():
    """Unlike torchvision's operator it can be under ``torch.func.grad``."""
    tensors, g = inputs("same", modulated=True)
    x, offset, modulation, weight = (t.detach() for t in tensors)

    def total(kernel):
        return deform_conv_by_rows(x, offset, modulation, kernel, None, g).square().sum()

    leaf = weight.clone().requires_grad_()
    expected = torch.autograd.grad(total(leaf), leaf)[0]
    actual = torch.vmap(torch.func.grad(total))(torch.stack([weight, 2 * weight]))
    torch.testing.assert_close(actual, torch.stack([expected, 2 * expected]))


def test_the_module_uses_it(monkeypatch):
    torch.manual_seed(0)
    conv, x = DeformConv2d(4, 6, 3, padding=1), torch.randn(1, 4, 5, 4)
    called = []
    monkeypatch.setattr(
        "foveal.attention.deform.deform_conv_by_rows", lambda *a: called.append(a) or rows._convolve(*a)
    )
    expected = torch.nn.Conv2d.forward(conv, x)
    torch.testing.assert_close(conv(x), expected)
    assert len(called) == 1
