"""Deformable convolutions that the tests of this folder compute."""

import torch
from torchvision.ops import deform_conv2d

from foveal.kernels.deform.plain import Geometry

CASES = {
    "same": ((5, 4), Geometry((3, 3), (1, 1), (1, 1), (1, 1), 1)),
    "stride": ((6, 5), Geometry((3, 3), (2, 2), (1, 1), (1, 1), 1)),
    "dilation": ((5, 4), Geometry((3, 3), (1, 1), (2, 1), (2, 1), 1)),
    "groups": ((4, 3), Geometry((1, 3), (1, 2), (0, 1), (1, 1), 2)),
    "all groups": ((5, 4), Geometry((3, 3), (1, 1), (0, 1), (1, 1), 2, 4)),
}


def inputs(case, *, modulated, dtype=torch.float32, spread=2.0, n=2, device="cpu"):
    """x, offset, modulation and weight, and the geometry; some points are outside of the map."""
    size, g = CASES[case]
    torch.manual_seed(0)
    result, taps = g.size(*size), g.kernel[0] * g.kernel[1]
    x, offset = torch.randn(n, 32, *size), spread * torch.randn(n, g.deform_groups * taps * 2, *result)
    modulation = torch.rand(n, g.deform_groups * taps, *result) if modulated else None
    tensors = x, offset, modulation, torch.randn(24, 32 // g.groups, *g.kernel) / 10
    return [None if t is None else t.to(device, dtype).requires_grad_() for t in tensors], g


def operator(x, offset, modulation, weight, bias, g):
    """The same by torchvision."""
    return deform_conv2d(x, offset, weight, bias, g.stride, g.padding, g.dilation, modulation)
