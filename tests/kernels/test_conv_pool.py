"""The fused first layer equals convolution and pooling, in value and gradient."""

import pytest
import torch
import torch.nn.functional as F

from foveal.kernels.conv_pool import conv_pool

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("shape", [(3, 3, 21, 18), (2, 4, 9, 8), (1, 1, 4, 5)])
def test_equals_convolution_then_pooling(shape):
    torch.manual_seed(0)
    x = torch.randn(shape, device=DEVICE, requires_grad=True)
    weight = torch.randn(16, shape[1], 3, 3, device=DEVICE, requires_grad=True)
    plain, fused = F.max_pool2d(F.conv2d(x, weight), 2), conv_pool(x, weight)
    torch.testing.assert_close(fused, plain, rtol=1e-5, atol=1e-5)
    g = torch.randn_like(plain)
    for ours, theirs in zip(
        torch.autograd.grad(fused, (x, weight), g), torch.autograd.grad(plain, (x, weight), g), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_ties_go_to_the_first_as_in_max_pooling():
    x = torch.ones(1, 1, 6, 6, device=DEVICE, requires_grad=True)
    weight = torch.ones(16, 1, 3, 3, device=DEVICE)
    (ours,) = torch.autograd.grad(conv_pool(x, weight).sum(), x)
    (theirs,) = torch.autograd.grad(F.max_pool2d(F.conv2d(x, weight), 2).sum(), x)
    assert torch.equal(ours, theirs)
