"""Branch and convolution as one operator equal the modules: value, gradients and running statistics."""

import copy

import pytest
import torch
from torch import nn

from foveal.attention.aw import KernelAttention
from foveal.kernels.aw.branch import multiplier_of
from foveal.kernels.aw.compiled import compiled_multiplier, compiled_site

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def site(start="paper", residual=True, bias=True):
    torch.manual_seed(0)
    conv = nn.Conv2d(8, 16, 3, stride=2, padding=1, bias=bias)
    attention = KernelAttention(8, 16, (3, 3), start=start, residual=residual, reduction=4, path="taps")
    for norm in (attention.norm1, attention.norm2):
        nn.init.uniform_(norm.weight, 0.5, 1.5)
        nn.init.normal_(norm.bias)
        norm.running_mean.normal_()
    if attention.amount is not None:
        nn.init.constant_(attention.amount, 0.3)
    return nn.ModuleList([conv, attention]).to(DEVICE)


def assert_same_after_backward(ours, plain):
    """Output, input and module of each: gradients of input and parameters, and buffers."""
    (out, x, module), (expected, y, twin) = ours, plain
    g = torch.randn_like(expected)
    out.backward(g)
    expected.backward(g)
    torch.testing.assert_close(x.grad, y.grad, rtol=1e-3, atol=1e-3)
    for (name, one), other in zip(module.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-3, msg=lambda m, name=name: f"{name}: {m}")
    for (name, one), other in zip(module.named_buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5, msg=lambda m, name=name: f"{name}: {m}")


def fused(conv, attention, x):
    modules = attention.squeeze, attention.norm1, attention.excite, attention.norm2
    options = attention.amount, attention.pooled, attention.residual
    return compiled_site(
        x, conv.weight, conv.bias, modules, *options, conv.stride, conv.padding, conv.dilation, conv.groups
    )


@pytest.mark.parametrize(
    ("training", "start", "residual"), [(True, "identity", True), (True, "paper", False), (False, "paper", True)]
)
def test_equals_the_modules(training, start, residual):
    ours = site(start, residual).train(training)
    plain = copy.deepcopy(ours)
    for _ in range(3 if DEVICE == "cuda" else 1):  # the third is repeated from a tape
        images = torch.randn(3, 8, 7, 5, device=DEVICE).to(memory_format=torch.channels_last)
        x, y = (images.clone().requires_grad_() for _ in range(2))
        actual, expected = fused(*ours, x), plain[1].convolve(plain[0], y)
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
        ours.zero_grad(), plain.zero_grad()
        assert_same_after_backward((actual, x, ours), (expected, y, plain))


def test_a_second_derivative_is_refused():
    x = torch.randn(3, 8, 7, 5, device=DEVICE, requires_grad=True)
    (first,) = torch.autograd.grad(fused(*site(), x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.square().sum().backward()


def test_frozen_input_and_no_bias():
    ours = site(bias=False)
    plain = copy.deepcopy(ours)
    x = torch.randn(3, 8, 7, 5, device=DEVICE)
    fused(*ours, x).sum().backward()
    plain[1].convolve(plain[0], x).sum().backward()
    torch.testing.assert_close(ours[0].weight.grad, plain[0].weight.grad, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize(
    ("training", "start", "residual"), [(True, "identity", True), (True, "paper", False), (False, "paper", True)]
)
def test_the_branch_alone_equals_the_modules(training, start, residual, size):
    """What it is given is pooled already."""
    torch.manual_seed(0)
    attention = KernelAttention(8, 16, (size, size), start=start, residual=residual, reduction=4).to(DEVICE)
    for norm in (attention.norm1, attention.norm2):
        nn.init.uniform_(norm.weight, 0.5, 1.5)
        norm.running_mean.normal_()
    if attention.amount is not None:
        nn.init.constant_(attention.amount, 0.3)
    attention.train(training)
    plain, cells = copy.deepcopy(attention), torch.randn(5, 8, size, size, device=DEVICE)
    x, y = (cells.clone().requires_grad_() for _ in range(2))
    modules = attention.squeeze, attention.norm1, attention.excite, attention.norm2
    actual = compiled_multiplier(x, modules, attention.amount, residual)
    expected = multiplier_of(plain.attend(y), residual, plain.amount).squeeze(2)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    assert_same_after_backward((actual, x, attention), (expected, y, plain))


@pytest.mark.parametrize("change", ["a norm without statistics", "another norm", "half precision", "strides"])
def test_other_modules_are_left_to_the_compiler(change):
    conv, attention = site()
    match change:
        case "a norm without statistics":
            attention.norm1 = nn.BatchNorm2d(4, track_running_stats=False).to(DEVICE)
        case "another norm":
            attention.norm2 = nn.SyncBatchNorm(16).to(DEVICE)
        case "half precision":
            attention.half()
        case "strides":
            attention.excite.weight = nn.Parameter(torch.randn(4, 16, 1, 1, device=DEVICE).transpose(0, 1))
    assert fused(conv, attention, torch.randn(3, 8, 7, 5, device=DEVICE)) is None
    modules = attention.squeeze, attention.norm1, attention.excite, attention.norm2
    assert compiled_multiplier(torch.randn(3, 8, 3, 3, device=DEVICE), modules, None, True) is None
