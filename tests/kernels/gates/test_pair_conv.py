"""The operator for the convolution of two maps to one equals PyTorch's convolution."""

import pytest
import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from foveal.kernels.gates.pair_conv import pair_conv2d

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def inputs(shape, kernel, layout=torch.contiguous_format):
    torch.manual_seed(0)
    maps = torch.randn(shape), torch.randn(1, 2, kernel, kernel)
    return [t.to(DEVICE, memory_format=layout).requires_grad_() for t in maps]


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(("shape", "kernel"), [((2, 2, 5, 4), 7), ((1, 2, 1, 1), 7), ((3, 2, 12, 13), 3)])
def test_equals_the_convolution(shape, kernel, layout):
    pair, weight = inputs(shape, kernel, layout)
    ours, theirs = pair_conv2d(pair, weight), F.conv2d(pair, weight, padding=kernel // 2)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    g = torch.randn_like(theirs)
    for a, b in zip(
        torch.autograd.grad(ours, (pair, weight), g), torch.autograd.grad(theirs, (pair, weight), g), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_the_operator_is_registered_properly():
    pair, weight = (tensor.detach() for tensor in inputs((1, 2, 2, 3), 3))
    checks, operators = ("test_schema", "test_faketensor"), torch.ops.foveal
    for operator, arguments in (
        (operators.pair_conv2d_forward.default, (pair, weight)),
        (operators.pair_conv2d_backward.default, (torch.randn_like(pair[:, :1]), pair, weight)),
    ):
        actual = torch.library.opcheck(operator, arguments, test_utils=checks)
        assert actual == dict.fromkeys(checks, "SUCCESS")


def test_it_counts_as_many_operations_as_the_convolution():
    pair, weight = inputs((1, 2, 2, 3), 3)
    with FlopCounterMode(display=False) as ours:
        pair_conv2d(pair, weight).sum().backward()
    with FlopCounterMode(display=False) as theirs:
        F.conv2d(pair, weight, padding=1).sum().backward()
    assert ours.get_total_flops() == theirs.get_total_flops() > 0
