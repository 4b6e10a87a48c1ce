"""Products of a common kernel, one a kernel position, against one convolution a sample."""

import pytest
import torch

from foveal.kernels.aw.plain import conv_by_products, conv_per_sample

CASES = {  # size of the map, kernel, stride, padding, dilation
    "odd size": ((5, 7), (3, 3), (1, 1), (1, 1), (1, 1)),
    "stride": ((6, 9), (3, 3), (2, 2), (1, 1), (1, 1)),
    "two strides": ((8, 7), (3, 5), (3, 2), (1, 2), (1, 1)),
    "dilation": ((9, 8), (3, 3), (2, 1), (2, 3), (2, 3)),
    "no padding": ((5, 6), (3, 2), (1, 2), (0, 0), (1, 1)),
    "some positions of the kernel never on the map": ((1, 2), (3, 5), (1, 1), (1, 3), (1, 1)),
    "more padding than kernel": ((2, 3), (2, 2), (2, 3), (4, 3), (1, 1)),
    "one value": ((4, 4), (1, 1), (2, 2), (0, 0), (1, 1)),
}


def inputs(size, kernel, layout=torch.contiguous_format):
    torch.manual_seed(0)
    x, weight = torch.randn(3, 4, *size), torch.randn(6, 4, *kernel)
    x, weight = (tensor.double().to(memory_format=layout).requires_grad_() for tensor in (x, weight))
    scale, bias = (torch.rand(*shape, dtype=torch.float64, requires_grad=True) for shape in ((3, 6, *kernel), (6,)))
    return x, weight, scale, bias


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["first", "last"])
@pytest.mark.parametrize("case", CASES)
def test_equals_one_convolution_a_sample(case, layout):
    size, kernel, *place = CASES[case]
    options = dict(zip(("stride", "padding", "dilation"), place, strict=True), groups=1)
    x, weight, scale, bias = leaves = inputs(size, kernel, layout)
    expected = conv_per_sample(x, weight * scale[:, :, None], bias, "loop", **options)
    actual = conv_by_products(x, weight, scale, bias, **options)
    torch.testing.assert_close(actual, expected)
    g = torch.randn_like(expected)
    for one, other in zip(*(torch.autograd.grad(out, leaves, g) for out in (actual, expected)), strict=True):
        torch.testing.assert_close(one, other)
    with torch.no_grad():
        torch.testing.assert_close(conv_by_products(x, weight, scale, bias, **options), expected)


def test_a_kernel_larger_than_the_map_is_an_error():
    x, weight, scale, _ = inputs((2, 2), (5, 5))
    with pytest.raises(ValueError, match="kernel is larger than the padded map"):
        conv_by_products(x, weight, scale, None, stride=(1, 1), padding=(1, 1), dilation=(1, 1))


def test_products_are_kept_for_a_gradient_alone():
    x, weight, scale, _ = inputs((5, 5), (3, 3))
    options = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1)}
    assert conv_by_products(x, weight, scale, None, **options).grad_fn is not None
    constants = (tensor.detach() for tensor in (x, weight, scale))
    assert conv_by_products(*constants, None, **options).grad_fn is None
