"""Batch norm with a second derivative of its own equals PyTorch's."""

from unittest import mock

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from foveal.kernels.second_order import batch_norm, batch_norm_triton
from foveal.kernels.second_order.batch_norm import _second_order
from foveal.kernels.second_order.mode import SecondOrder

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SHAPES = {"maps": (4, 3, 5, 2), "vectors": (7, 3), "sequences": (4, 3, 6)}


def inputs(shape, dtype=torch.float64):
    torch.manual_seed(0)
    result = torch.randn(shape), 1 + torch.rand(3), torch.randn(3)
    return [t.to(dtype).requires_grad_() for t in result]


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_derivatives(shape):
    x, weight, bias = inputs(shape)

    def norm(x, weight, bias):
        with SecondOrder():
            return F.batch_norm(x, None, None, weight, bias, training=True)

    assert torch.autograd.gradcheck(norm, (x, weight, bias))
    assert torch.autograd.gradgradcheck(norm, (x, weight, bias))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
def test_equals_that_of_pytorch(layout, dtype, fused, monkeypatch):
    monkeypatch.setattr(batch_norm, "fused_available", lambda device: fused)
    fuse = mock.Mock(wraps=batch_norm_triton.second_order)
    monkeypatch.setattr(batch_norm_triton, "second_order", fuse)

    def both(mode):
        torch.manual_seed(0)
        layer = nn.BatchNorm2d(3).to(DEVICE)
        nn.init.uniform_(layer.weight)
        x = torch.randn(4, 3, 6, 5, device=DEVICE).to(dtype, memory_format=layout).requires_grad_()
        with mode:
            out = layer(x)
        weights = torch.randn(2, 4, 3, 6, 5, device=DEVICE)
        (first,) = torch.autograd.grad((out.float() ** 2 * weights[0]).sum(), x, create_graph=True)
        second = torch.autograd.grad((first.float() * weights[1]).sum(), (x, layer.weight, layer.bias))
        return [t.detach() for t in (out, first, *second, layer.running_mean, layer.running_var)]

    ours, theirs = both(SecondOrder()), both(torch.enable_grad())
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype == b.dtype
        if dtype == torch.float32:
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
        else:
            assert float((a - b).float().norm() / b.float().norm()) < 0.02
    assert fuse.called == fused


def test_a_transform_is_shown_operators(monkeypatch):
    monkeypatch.setattr(batch_norm, "fused_available", lambda device: True)
    x, weight, bias = (t.detach().to(DEVICE).requires_grad_() for t in inputs((4, 3, 5, 2), torch.float32))
    with SecondOrder():
        out = F.batch_norm(x, None, None, weight, bias, training=True)
    (first,) = torch.autograd.grad(out.pow(3).sum(), x, create_graph=True)
    upstream = torch.randn(2, *x.shape, device=DEVICE)
    (actual,) = torch.autograd.grad(first, x, upstream, is_grads_batched=True, retain_graph=True)
    for ours, item in zip(actual, upstream, strict=True):
        torch.testing.assert_close(
            ours, torch.autograd.grad(first, x, item, retain_graph=True)[0], rtol=1e-4, atol=1e-4
        )


@pytest.mark.parametrize("last", [True, False], ids=["channels last", "channels first"])
@pytest.mark.parametrize("alone", [True, False], ids=["one kernel", "two"])
@pytest.mark.parametrize("shape", [(4, 3, 5, 2), (3, 70, 9, 8), (1, 130, 3, 1), (90, 5, 20), (70, 66)])
def test_triton(shape, alone, last, monkeypatch):
    """Odd sizes, several blocks of channels and parts of the rows."""
    if last and len(shape) == 3:
        pytest.skip("sequences have no such layout")
    monkeypatch.setattr(batch_norm_triton, "FEW", 10**9 if alone else 0)
    torch.manual_seed(0)
    x, v, g = (torch.randn(shape, device=DEVICE) for _ in range(3))
    x = 3 * x + 1
    if last and len(shape) == 4:
        x, v, g = (t.to(memory_format=torch.channels_last) for t in (x, v, g))
    weight = torch.randn(shape[1], 2, device=DEVICE)[:, 0]
    weight[0] = 0
    over = [i for i in range(len(shape)) if i != 1]
    mean, spread = x.mean(over), (x.var(over, correction=0) + 1e-5).rsqrt()
    actual = batch_norm_triton.second_order(x, v, g, weight, mean, spread, last)
    wide = [t.double() for t in (g, x, weight, mean, spread)]
    for ours, theirs in zip(actual, _second_order(v.double(), None, None, *wide), strict=True):
        torch.testing.assert_close(ours, theirs.float(), rtol=1e-4, atol=1e-4)
    assert actual[0].stride() == g.stride()
    assert actual[1].stride() == x.stride()


def test_no_gradient_of_the_weight_on_the_way_to_features():
    class Masks(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func is torch.ops.aten.native_batch_norm_backward.default:
                masks.append(args[-1])
            return func(*args, **(kwargs or {}))

    masks: list[list[bool]] = []
    x, weight, bias = inputs((4, 3, 5, 2))
    with SecondOrder():
        loss = F.batch_norm(x * 2, None, None, weight, bias, training=True).pow(3).sum()
    for asked, expected in (
        (x, [True, False, False]),
        ((x, weight), [True, True, False]),
        (bias, [False, False, True]),
    ):
        for again in (False, True):
            masks.clear()
            with Masks():
                torch.autograd.grad(loss, asked, create_graph=again, retain_graph=True)
            assert masks == [expected]


def test_no_third_derivative():
    """As of PyTorch's own; it must not be wrong instead."""
    x, weight, bias = inputs((4, 3, 5, 2))
    with SecondOrder():
        out = F.batch_norm(x, None, None, weight, bias, training=True)
    (first,) = torch.autograd.grad(out.pow(3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.pow(2).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        second.sum().backward()


def test_what_it_does_not_serve_is_left_alone():
    layer = nn.BatchNorm1d(3).eval()
    x = torch.randn(4, 3, requires_grad=True)
    with SecondOrder():
        assert "Batch" in layer(x).grad_fn.name()
        torch.testing.assert_close(layer(x), F.batch_norm(x, layer.running_mean, layer.running_var, eps=layer.eps))
        with pytest.raises(ValueError, match="more than 1 value per channel"):
            layer.train()(x[:1])
        with torch.no_grad():
            assert not layer(x).requires_grad
        assert nn.BatchNorm1d(3, affine=False)(x).shape == x.shape
