"""Convolution with derivatives of its own equals PyTorch's, also where that takes too long."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from foveal.kernels.second_order.mode import SecondOrder

CASES = {
    "plain": {},
    "stride and padding": {"stride": 2, "padding": (1, 0)},
    "dilation": {"dilation": (2, 1), "padding": 1},
    "all of them": {"stride": (3, 2), "dilation": (1, 2), "padding": (2, 1)},
    "groups": {"groups": 2, "padding": 1},
    "depthwise": {"groups": 4, "stride": 2, "padding": 1},
}


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_derivatives(options, bias):
    torch.manual_seed(0)
    make = {"dtype": torch.float64, "requires_grad": True}
    x, weight = torch.randn(2, 4, 5, 6, **make), torch.randn(4, 4 // options.get("groups", 1), 3, 3, **make)
    arguments = (x, weight, torch.randn(4, **make)) if bias else (x, weight)

    def conv(*arguments):
        with SecondOrder():
            return F.conv2d(*arguments, **options)

    torch.testing.assert_close(conv(*arguments), F.conv2d(*arguments, **options))
    assert torch.autograd.gradcheck(conv, arguments)
    assert torch.autograd.gradgradcheck(conv, arguments)


@pytest.mark.parametrize("groups", [1, 2])
def test_a_third_derivative(groups):
    torch.manual_seed(0)
    x = torch.randn(1, 2, 4, 4, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(2, 2 // groups, 3, 3, dtype=torch.float64, requires_grad=True)

    def slope(x, weight):
        with SecondOrder():
            out = F.conv2d(x, weight, groups=groups, padding=1)
        return torch.autograd.grad(out.pow(3).sum(), (x, weight), create_graph=True)

    assert torch.autograd.gradgradcheck(slope, (x, weight))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("half", [False, True], ids=["float32", "autocast"])
@pytest.mark.parametrize("groups", [1, 8])
def test_equals_that_of_pytorch(layout, half, groups):
    def both(mode):
        torch.manual_seed(0)
        layer = nn.Conv2d(8, 8, 3, padding=1, groups=groups).to(memory_format=layout)
        x = torch.randn(4, 8, 6, 5).to(memory_format=layout).requires_grad_()
        with mode, torch.autocast("cpu", torch.bfloat16, enabled=half):
            out = layer(x)
        weights = torch.randn(2, 4, 8, 6, 5)
        (first,) = torch.autograd.grad((out.float() ** 2 * weights[0]).sum(), x, create_graph=True)
        second = torch.autograd.grad((first * weights[1]).sum(), (x, layer.weight, layer.bias))
        return [t.detach() for t in (out, first, *second)]

    for ours, theirs in zip(both(SecondOrder()), both(torch.enable_grad()), strict=True):
        assert ours.dtype == theirs.dtype
        if half:
            assert float((ours - theirs).float().norm() / theirs.float().norm()) < 0.02
        else:
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_only_what_is_needed():
    x, weight = torch.randn(1, 2, 4, 4, requires_grad=True), torch.randn(2, 2, 3, 3)
    with SecondOrder():
        out = F.conv2d(x, weight)
        assert "_Convolution" in out.grad_fn.name()
        assert "_Convolution" not in F.conv2d(x, weight, padding="same").grad_fn.name()
        with torch.no_grad():
            assert not F.conv2d(x, weight).requires_grad
    (first,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
    first.sum().backward()
    assert x.grad is not None
    assert weight.grad is None


def test_no_gradient_of_the_kernel_on_the_way_to_features():
    class Masks(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func is torch.ops.aten.convolution_backward.default:
                masks.append(args[-1])
            if func is torch.ops.aten.convolution.default and args[6]:  # transposed, which is the gradient of the input
                masks.append([True, False, False])
            return func(*args, **(kwargs or {}))

    masks: list[list[bool]] = []
    layer, x = nn.Conv2d(4, 4, 3, bias=False), torch.randn(2, 4, 7, 7, requires_grad=True)
    features = x * 2
    with SecondOrder():
        loss = layer(features).square().sum()
    for inputs, expected in (
        (features, [True, False]),
        (x, [True, False]),
        (layer.weight, [False, True]),
        ((features, layer.weight), [True, True]),
    ):
        for again in (False, True):
            masks.clear()
            with Masks():
                torch.autograd.grad(loss, inputs, create_graph=again, retain_graph=True)
            assert [any(of) for of in zip(*masks, strict=True)] == [*expected, False]


def test_the_number_of_groups_does_not_matter():
    """PyTorch's own second derivative goes group by group."""

    class Count(TorchDispatchMode):
        operations = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.operations += 1
            return func(*args, **(kwargs or {}))

    def operations(mode):
        layer, x = nn.Conv2d(64, 64, 3, padding=1, groups=64), torch.randn(2, 64, 7, 7, requires_grad=True)
        with mode:
            out = layer(x)
        (first,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
        with Count() as count:
            first.square().sum().backward()
        return count.operations

    assert operations(SecondOrder()) < 64 < operations(torch.enable_grad())


def test_arguments_by_keyword():
    x, weight = torch.randn(2, 3, 5, 5), torch.randn(4, 3, 3, 3, requires_grad=True)
    with SecondOrder():
        actual = F.conv2d(input=x, weight=weight, padding=1)
        normed = F.batch_norm(input=actual, running_mean=None, running_var=None, training=True)
    torch.testing.assert_close(actual, F.conv2d(x, weight, padding=1))
    torch.testing.assert_close(normed, F.batch_norm(actual, None, None, training=True))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_average_of_a_channel(layout):
    torch.manual_seed(0)
    x = torch.randn(2, 3, 4, 5, dtype=torch.float64).to(memory_format=layout).requires_grad_()

    def pool(x, size=1):
        with SecondOrder():
            return F.adaptive_avg_pool2d(x, size)

    for size in (1, (1, 1), [1, 1], (2, 1), (None, 1)):
        torch.testing.assert_close(pool(x, size), F.adaptive_avg_pool2d(x, size))
    torch.testing.assert_close(pool(x[0]), F.adaptive_avg_pool2d(x[0], 1))
    assert torch.autograd.gradgradcheck(lambda x: pool(x).pow(3), x)


def test_hard_sigmoid():
    torch.manual_seed(0)
    x = (torch.randn(40, dtype=torch.float64) * 4).requires_grad_()

    def sigmoid(x, inplace=False):
        with SecondOrder():
            return F.hardsigmoid(x * 1.0, inplace)

    for inplace in (False, True):
        torch.testing.assert_close(sigmoid(x, inplace), F.hardsigmoid(x))
    (actual,), (expected,) = (torch.autograd.grad(f(x).sum(), x) for f in (sigmoid, F.hardsigmoid))
    torch.testing.assert_close(actual, expected)
    assert torch.autograd.gradgradcheck(sigmoid, x)
