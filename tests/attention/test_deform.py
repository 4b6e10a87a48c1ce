"""Deformable convolution against a loop over taps and positions."""

import itertools
import math

import pytest
import timm
import torch
import torchvision
from torch import nn

import foveal
from foveal.attention import DeformConv2d
from foveal.errors import UserError
from foveal.kernels.aw.plain import differentiable_twice

GEOMETRIES = {
    "padded": {"kernel_size": 3, "padding": 1},
    "strided": {"kernel_size": 3, "padding": 1, "stride": 2},
    "dilated": {"kernel_size": 3, "padding": 2, "dilation": 2},
    "same": {"kernel_size": (1, 3), "padding": "same"},
    "grouped": {"kernel_size": 3, "padding": 1, "groups": 2},
    "depthwise": {"kernel_size": 3, "padding": 1, "groups": 4},
}


def make(geometry="padded", *, dtype=torch.float64, stir=0.3, **options):
    torch.manual_seed(0)
    conv = DeformConv2d(4, 4, **GEOMETRIES[geometry], **options).to(dtype)
    for parameter in conv.deform.parameters():
        nn.init.normal_(parameter, std=stir)
    return conv


def maps(n=2, size=(5, 6), dtype=torch.float64):
    return torch.randn(n, 4, *size, generator=torch.Generator().manual_seed(1), dtype=dtype)


def bilinear(plane, y, x):
    """Σ over pixels of Π_axes max(0, 1 − |a − b|), zero outside."""
    total = 0.0
    for i, j in itertools.product(range(plane.shape[0]), range(plane.shape[1])):
        total += max(0.0, 1 - abs(i - y)) * max(0.0, 1 - abs(j - x)) * plane[i, j].item()
    return total


@torch.no_grad()
def slow(conv, x):
    deform = conv.deform
    predicted = deform.offset(x)
    groups, (h, w) = deform.geometry.deform_groups, conv.kernel_size
    count = groups * h * w
    out = torch.zeros(len(x), 4, *predicted.shape[2:], dtype=x.dtype)
    per_group = 4 // conv.groups
    for n, c2, i, j in itertools.product(range(len(x)), range(4), *map(range, out.shape[2:])):
        for c, tap in itertools.product(range(conv.weight.shape[1]), range(h * w)):
            c1 = (c2 // per_group) * conv.weight.shape[1] + c
            k = (c1 // (4 // groups)) * h * w + tap
            dy, dx = predicted[n, 2 * k : 2 * k + 2, i, j].tolist()
            y = i * conv.stride[0] - deform.geometry.padding[0] + tap // w * conv.dilation[0] + dy
            z = j * conv.stride[1] - deform.geometry.padding[1] + tap % w * conv.dilation[1] + dx
            m = 1.0
            if deform.modulated:
                m = deform.most / (1 + math.exp(-predicted[n, 2 * count + k, i, j].item()))
            out[n, c2, i, j] += conv.weight[c2, c, tap // w, tap % w] * m * bilinear(x[n, c1], y, z)
    return out + (0 if conv.bias is None else conv.bias[:, None, None])


@pytest.mark.parametrize("options", [{}, {"modulated": True}, {"modulated": True, "deform_groups": 2}])
@pytest.mark.parametrize("geometry", ["padded", "strided"])
def test_equals_a_loop_over_taps(geometry, options):
    conv, x = make(geometry, **options), maps(1, (4, 3))
    torch.testing.assert_close(conv(x), slow(conv, x))


@pytest.mark.parametrize("options", [{}, {"modulated": True, "deform_groups": 2, "start": "identity"}])
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_the_plain_form_is_the_operator_in_value_and_gradient(geometry, options):
    conv, x = make(geometry, **options), maps().requires_grad_()
    results = []
    for _ in range(2):
        out = conv(x)
        results.append([out, *torch.autograd.grad(out.square().sum(), [x, *conv.parameters()])])
        if len(results) == 1:
            twice = differentiable_twice()
            twice.__enter__()
    twice.__exit__(None, None, None)
    torch.testing.assert_close(results[1], results[0])


@pytest.mark.parametrize("modulated", [False, True])
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_zero_offsets_are_the_plain_convolution(geometry, modulated):
    torch.manual_seed(0)
    conv, x = DeformConv2d(4, 4, **GEOMETRIES[geometry], modulated=modulated, start="identity").double(), maps()
    torch.testing.assert_close(conv(x), nn.Conv2d.forward(conv, x))


def test_the_papers_modulation_starts_at_a_half():
    conv, x = DeformConv2d(4, 4, 3, bias=False, modulated=True).double(), maps()
    torch.testing.assert_close(conv(x), nn.Conv2d.forward(conv, x) / 2)


def test_a_traced_layer_has_maps_of_any_size():
    conv = make("strided", dtype=torch.float32, modulated=True).eval()
    traced = torch.jit.trace(conv, maps(size=(9, 7), dtype=torch.float32))
    for size in ((6, 14), (12, 5)):
        x = maps(3, size, dtype=torch.float32)
        torch.testing.assert_close(traced(x), conv(x))


def test_gradients():
    conv, x = make(modulated=True), maps(1, (3, 3)).requires_grad_()
    assert torch.autograd.gradcheck(conv, (x,))


def test_second_derivatives():
    conv, x = make(modulated=True), maps(1, (3, 2)).requires_grad_()
    with differentiable_twice():
        assert torch.autograd.gradgradcheck(conv, (x,))


def test_records_of_sampling_points():
    conv, x = make("strided", modulated=True, deform_groups=2), maps()
    with foveal.watch(conv) as seen:
        conv(x)
    record = seen["deform"]
    assert (record.kind, tuple(record.shape)) == ("points", (2, 2, 9, 3, 3, 2))
    offsets = conv.deform.offset(x)[:, :36].unflatten(1, (2, 9, 2))
    torch.testing.assert_close(record.values[:, :, 4, 1, 2, 0], 4 + offsets[:, :, 4, 1, 1, 2])  # x of the middle tap
    torch.testing.assert_close(record.values[:, :, 4, 1, 2, 1], 2 + offsets[:, :, 4, 0, 1, 2])
    assert record.parts["modulation"].kind == "weight"
    modulation = record.parts["modulation"].values
    torch.testing.assert_close(modulation, conv.deform.offset(x)[:, 36:].sigmoid().unflatten(1, (2, 9)))
    with pytest.raises(UserError, match=r"use \.values"):
        record.rows([0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    conv, x = make(dtype=torch.float32, modulated=True), maps(dtype=torch.float32)
    exact = conv(x)
    with torch.autocast("cpu", dtype):
        out = conv(x)
    assert out.dtype == dtype
    torch.testing.assert_close(out.float(), exact, atol=0.05, rtol=0.05)
    out.float().sum().backward()
    assert all(p.grad.isfinite().all() and p.grad.dtype == torch.float32 for p in conv.parameters())
    assert conv.to(dtype)(x.to(dtype)).dtype == dtype


@pytest.mark.parametrize("source", ["torchvision", "timm"])
def test_parameters_and_places_of_a_resnet50(source):
    with torch.device("meta"):
        model = timm.create_model("resnet50") if source == "timm" else torchvision.models.resnet50()
        done = foveal.insert(model, "deform")
    assert sum(p.numel() for p in done.parameters()) == 580_842
    assert done.sites == [f"layer{i}.{j}.conv2" for i, count in ((2, 4), (3, 6), (4, 3)) for j in range(count)]


def test_a_plain_checkpoint_loads():
    torch.manual_seed(0)
    plain = nn.Conv2d(4, 6, 3, padding=1)
    conv = DeformConv2d(4, 6, 3, padding=1, start="identity")
    missing = conv.load_state_dict(plain.state_dict(), strict=False).missing_keys
    assert missing == ["deform.offset.weight", "deform.offset.bias"]
    x = torch.rand(2, 4, 5, 7)
    torch.testing.assert_close(conv(x), plain(x))


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (nn.Conv2d(8, 8, 1), "no taps to move"),
        (nn.Conv2d(8, 8, 3, padding=1, padding_mode="reflect"), "only zeros"),
        (nn.Conv2d(8, 8, 2, padding="same"), "differs between the sides"),
        (nn.ReLU(), "it is no 2-d convolution"),
    ],
)
def test_layers_that_cannot_have_it(layer, message):
    with pytest.raises(UserError, match=message):
        foveal.insert(nn.Sequential(nn.Conv2d(3, 8, 3), layer), "deform", at="1")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"deform_groups": 3}, "does not divide 4 input channels"),
        ({"deform_groups": 2.0}, "deform_groups=2.0: expected a whole number"),
        ({"padding_mode": "reflect"}, "only zeros"),
        ({"in_channels": 0}, "in_channels=0: expected a whole number of at least 1"),
        ({"kernel_size": 2.5}, "kernel_size=2.5: expected a whole number"),
        ({"kernel_size": (3, 0)}, "kernel_size=0: expected a whole number of at least 1"),
        ({"kernel_size": (3, 3, 3)}, "expected one number, or two for height and width"),
        ({"stride": 0}, "stride=0: expected"),
        ({"dilation": 0}, "dilation=0: expected"),
        ({"padding": -1}, "padding=-1: expected a whole number of at least 0"),
        ({"kernel_size": 2, "padding": "same"}, "kernel_size=2: expected odd numbers with padding='same'"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(UserError, match=message):
        DeformConv2d(**{"in_channels": 4, "out_channels": 4, "kernel_size": 3, **options})


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.rand(2, 3, 5, 5), r"expected maps \(N, 4, H, W\), got \(2, 3, 5, 5\)"),
        (torch.rand(4, 5, 5), r"expected maps \(N, 4, H, W\), got \(4, 5, 5\)"),
        (torch.rand(2, 4, 0, 5), r"\(2, 4, 0, 5\) have no positions"),
        (torch.ones(2, 4, 5, 5, dtype=torch.int64), "expected floating-point numbers"),
    ],
)
def test_bad_maps(x, message):
    with pytest.raises(UserError, match=message):
        DeformConv2d(4, 4, 3, padding=1)(x)
