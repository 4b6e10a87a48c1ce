"""Plain forms against the definition, one convolution a sample."""

import pytest
import torch
import torch.nn.functional as F

from foveal.kernels.aw.loop import conv_one_by_one
from foveal.kernels.aw.plain import conv_by_products

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


def definition(x, weight, scale, bias, **options):
    return torch.cat([F.conv2d(x[i : i + 1], weight * scale[i, :, None], bias, **options) for i in range(len(x))])


def one_by_one(x, weight, scale, bias, **options):
    return conv_one_by_one(x, weight, scale[:, :, None], bias, **options)


@pytest.mark.parametrize("form", [conv_by_products, one_by_one])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["first", "last"])
@pytest.mark.parametrize("case", CASES)
def test_equals_one_convolution_a_sample(case, layout, form):
    size, kernel, *place = CASES[case]
    options = dict(zip(("stride", "padding", "dilation"), place, strict=True), groups=1)
    leaves = inputs(size, kernel, layout)
    expected = definition(*leaves, **options)
    actual = form(*leaves, **options)
    torch.testing.assert_close(actual, expected)
    g = torch.randn_like(expected)
    for one, other in zip(*(torch.autograd.grad(out, leaves, g) for out in (actual, expected)), strict=True):
        torch.testing.assert_close(one, other)
    with torch.no_grad():
        torch.testing.assert_close(form(*leaves, **options), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("form", [conv_by_products, one_by_one])
def test_other_dtypes(form, dtype):
    options = {"stride": (2, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}
    exact = inputs((5, 7), (3, 3))
    leaves = [leaf.detach().to(dtype).requires_grad_() for leaf in exact]
    actual, expected = form(*leaves, **options), definition(*exact, **options)
    g = torch.randn_like(expected)
    gradients = torch.autograd.grad(actual, leaves, g.to(dtype)), torch.autograd.grad(expected, exact, g)
    for one, other in zip([actual, *gradients[0]], [expected, *gradients[1]], strict=True):
        assert one.dtype == dtype
        assert (one - other).norm() < 2 * torch.finfo(dtype).eps * other.norm()


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


@pytest.mark.parametrize("needed", [("x",), ("weight",), ("scale",), ("x", "weight", "scale", "bias")])
@pytest.mark.parametrize("groups", [1, 2])
def test_derivatives_of_one_kernel_after_the_other(groups, needed):
    """First and second ones, also of several outputs at once."""
    options = {"stride": (2, 1), "padding": (1, 0), "dilation": (1, 2), "groups": groups}
    leaves = dict(zip(("x", "weight", "scale", "bias"), inputs((4, 6), (3, 2)), strict=True))
    leaves["weight"] = leaves["weight"].detach()[:, : 4 // groups].requires_grad_()
    for name, leaf in leaves.items():
        leaf.requires_grad_(name in needed)
    chosen, actual = [leaves[name] for name in needed], []
    for form in (definition, one_by_one):
        out = form(*leaves.values(), **options)
        many = torch.stack([out.detach(), torch.ones_like(out)])
        batched = torch.autograd.grad(out, chosen, many, is_grads_batched=True, retain_graph=True)
        first = torch.autograd.grad(out.pow(3).sum(), chosen, create_graph=True)
        actual.append([*batched, *torch.autograd.grad(sum(part.square().sum() for part in first), chosen)])
    torch.testing.assert_close(actual[1], actual[0])


def test_one_kernel_after_the_other_keeps_none_of_them():
    x, weight, scale, _ = inputs((5, 5), (3, 3))
    options, kept = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}, []
    with torch.autograd.graph.saved_tensors_hooks(kept.append, lambda kept: kept):
        one_by_one(x, weight, scale, None, **options)
    assert [part.numel() for part in kept] == [x.numel(), weight.numel(), scale.numel()]
