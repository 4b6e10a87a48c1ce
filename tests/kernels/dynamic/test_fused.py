"""The fused dynamic convolution is the sum over taps, in value and gradient."""

import pytest
import torch

from foveal.attention import DynamicConv1d, DynamicConv2d
from foveal.kernels.dynamic import fused, taps

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CASES = {  # size, kernel, padding (left, right, top, bottom), groups
    "window": ((4, 3), (3, 3), (1, 1, 1, 1), 2),
    "wider than the map": ((2, 3), (5, 5), (2, 2, 2, 2), 1),
    "causal sequence": ((1, 7), (1, 4), (3, 0, 0, 0), 3),
}


def inputs(case, dtype=torch.float32):
    size, kernel, padding, groups = CASES[case]
    torch.manual_seed(0)
    x, weights = torch.randn(2, 6, *size), torch.rand(2, groups, kernel[0] * kernel[1], *size)
    return [t.to(DEVICE, dtype).requires_grad_() for t in (x, weights)], kernel, padding


@pytest.mark.parametrize(
    ("case", "form"), [*((case, fused._Direct.apply) for case in CASES), ("causal sequence", fused.dynamic_conv2d)]
)
def test_equals_the_sum(case, form, monkeypatch):
    monkeypatch.setattr(fused, "TILE", 128)  # several tiles in a small map
    fused._prepared.cache_clear()
    tensors, kernel, padding = inputs(case)
    out, expected = form(*tensors, kernel, (padding[2], padding[0])), taps._sum(*tensors, kernel, padding)
    torch.testing.assert_close(out, expected)
    assert out.is_contiguous(memory_format=torch.channels_last)
    gradient = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, tensors, gradient)
    torch.testing.assert_close(torch.autograd.grad(out, tensors, gradient), wanted)


def test_second_derivatives():
    tensors, kernel, padding = inputs("causal sequence")
    results = []
    for out in (fused._Direct.apply(*tensors, kernel, (0, 3)), taps._sum(*tensors, kernel, padding)):
        (dx,) = torch.autograd.grad(out.square().sum(), tensors[:1], create_graph=True)
        results.append(torch.autograd.grad(dx.square().sum(), tensors))
    torch.testing.assert_close(*results)


def test_half_precision():
    tensors, kernel, padding = inputs("window", torch.bfloat16)
    out = fused.fused_dynamic_conv(*tensors, kernel, (1, 1))
    exact = taps._sum(*(t.float() for t in tensors), kernel, padding)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), exact, rtol=0.01, atol=0.01)
    wanted = torch.autograd.grad(exact.sum(), tensors)
    for gradient, expected in zip(torch.autograd.grad(out.sum(), tensors), wanted, strict=True):
        torch.testing.assert_close(gradient, expected, rtol=0.02, atol=0.02)


def test_the_operator_for_compilers():
    tensors, kernel, _ = inputs("window")
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(fused.dynamic_conv2d, (*tensors, list(kernel), [1, 1]), test_utils=tests)


@pytest.mark.parametrize("module", [DynamicConv2d(8, kernel=3), DynamicConv1d(8, kernel=3, groups=2, causal=True)])
def test_the_modules_use_it(module, monkeypatch):
    if hasattr(module, "gamma"):
        torch.nn.init.constant_(module.gamma, 0.7)
    module = module.to(DEVICE)
    x = (torch.randn(2, 8, 4, 5) if isinstance(module, DynamicConv2d) else torch.randn(2, 5, 8)).to(DEVICE)
    monkeypatch.setattr(fused, "fused_available", lambda device: False)
    plain = module(x)
    monkeypatch.setattr(fused, "fused_available", lambda device: True)
    calls = []
    monkeypatch.setattr(taps, "fused_dynamic_conv", lambda *a: calls.append(1) or fused.fused_dynamic_conv(*a))
    torch.testing.assert_close(module(x), plain)
    assert calls
