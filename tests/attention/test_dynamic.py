"""Dynamic convolution against a loop over positions and taps."""

import itertools

import pytest
import torch
from torch import nn
from torch.func import functional_call

import foveal
from foveal.attention import DynamicConv1d, DynamicConv2d
from foveal.errors import UserError
from foveal.kernels.aw.plain import differentiable_twice
from foveal.kernels.dynamic.taps import _sum, dynamic_conv


def make(channels=4, *, dtype=torch.float64, gamma=0.7, **options):
    torch.manual_seed(0)
    module = DynamicConv2d(channels, **({"kernel": 3, "groups": 2} | options)).to(dtype)
    nn.init.normal_(module.proj.bias)
    nn.init.constant_(module.gamma, gamma)
    return module


def sequences(channels=4, *, dtype=torch.float64, **options):
    torch.manual_seed(0)
    return DynamicConv1d(channels, **({"kernel": 3, "groups": 2} | options)).to(dtype)


def maps(n=2, channels=4, size=(5, 4), dtype=torch.float64):
    return torch.randn(n, channels, *size, generator=torch.Generator().manual_seed(1), dtype=dtype)


@torch.no_grad()
def slow(module, x):
    n, c, height, width = x.shape
    k, per_group = module.kernel, c // module.groups
    values = torch.einsum("oc,nchw->nohw", module.value.weight[:, :, 0, 0], x)
    out = torch.zeros_like(x)
    for b, channel, i, j in itertools.product(range(n), range(c), range(height), range(width)):
        first = channel // per_group * k * k
        logits = module.weights.weight[first : first + k * k, :, 0, 0] @ x[b, :, i, j]
        for tap, weight in enumerate(logits.softmax(0)):
            y, z = i + tap // k - k // 2, j + tap % k - k // 2
            if 0 <= y < height and 0 <= z < width:
                out[b, channel, i, j] += weight * values[b, channel, y, z]
    out = torch.einsum("oc,nchw->nohw", module.proj.weight[:, :, 0, 0], out) + module.proj.bias[:, None, None]
    return x + module.gamma * out


@torch.no_grad()
def slow_sequence(module, x, mask):
    n, length, c = x.shape
    k, per_group = module.kernel, c // module.groups
    left = k - 1 if module.causal else k // 2
    values = nn.functional.glu(module.value(x), -1) * mask[..., None]
    out = torch.zeros_like(x)
    for b, t, channel in itertools.product(range(n), range(length), range(c)):
        first = channel // per_group * k
        weights = (module.weights.weight[first : first + k] @ values[b, t]).softmax(0)
        for tap in range(k):
            if 0 <= t + tap - left < length:
                out[b, t, channel] += weights[tap] * values[b, t + tap - left, channel]
    return module.proj(out) * mask[..., None]


@pytest.mark.parametrize("size", [(5, 4), (1, 1), (2, 7)])
@pytest.mark.parametrize("options", [{}, {"kernel": 5, "groups": 1}, {"kernel": 1, "groups": 4}])
def test_equals_a_loop_over_taps(size, options):
    module, x = make(**options), maps(size=size)
    torch.testing.assert_close(module(x), slow(module, x))


@pytest.mark.parametrize("options", [{}, {"causal": True, "kernel": 4}, {"kernel": 5}])
def test_sequences_equal_a_loop(options):
    module, x = sequences(**options), torch.randn(2, 6, 4, dtype=torch.float64)
    mask = torch.ones(2, 6, dtype=torch.bool)
    torch.testing.assert_close(module(x), slow_sequence(module, x, mask))
    mask[1, 3:] = False
    torch.testing.assert_close(module(x, mask), slow_sequence(module, x, mask))
    longer = torch.cat([x, torch.randn(2, 3, 4, dtype=torch.float64)], 1)
    more = torch.cat([mask, torch.zeros(2, 3, dtype=torch.bool)], 1)
    torch.testing.assert_close(module(longer, more)[:, :6], module(x, mask))  # padding changes nothing


def test_a_causal_sequence_knows_no_future():
    module, x = sequences(causal=True, kernel=3), torch.randn(1, 7, 4, dtype=torch.float64)
    changed = x.clone()
    changed[:, 4:] = 9
    torch.testing.assert_close(module(changed)[:, :4], module(x)[:, :4], rtol=0, atol=0)
    assert not torch.allclose(module(changed)[:, 4:], module(x)[:, 4:])


def test_constant_logits_are_an_average_filter():
    module, x = make(kernel=3), maps()
    nn.init.zeros_(module.weights.weight)
    mean = nn.functional.avg_pool2d(module.value(x), 3, 1, 1)
    torch.testing.assert_close(module(x), x + module.gamma * module.proj(mean))


@pytest.mark.parametrize("last", [False, True])
def test_shifts_in_place_equal_the_sum_in_value_and_gradient(last):
    layout = torch.channels_last if last else torch.contiguous_format
    x = maps(channels=6).contiguous(memory_format=layout).requires_grad_()
    weights = torch.randn(2, 3, 15, 5, 4, dtype=torch.float64, requires_grad=True)
    results = []
    for run in (_sum, dynamic_conv):
        out = run(x, weights, (3, 5), (2, 2, 1, 1))
        results.append([out, *torch.autograd.grad(out.square().sum(), (x, weights))])
    assert results[1][0].grad_fn.name() != results[0][0].grad_fn.name()
    torch.testing.assert_close(results[1], results[0])


def test_no_more_than_map_and_weights_are_kept():
    x, weights = maps(channels=6).requires_grad_(), torch.rand(2, 3, 25, 5, 4, dtype=torch.float64, requires_grad=True)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()), lambda t: t):
        dynamic_conv(x, weights, (5, 5), (2, 2, 2, 2))
    assert sum(kept) == x.numel() + weights.numel()


@pytest.mark.parametrize("module", [make(kernel=3), sequences(causal=True)])
def test_gradients(module):
    x = maps(1, size=(2, 3)) if isinstance(module, DynamicConv2d) else torch.randn(1, 4, 4, dtype=torch.float64)
    names = [name for name, _ in module.named_parameters()]

    def run(x, *values):
        return functional_call(module, dict(zip(names, values, strict=True)), (x,))

    values = [p.detach().clone().requires_grad_() for p in module.parameters()]
    assert torch.autograd.gradcheck(run, (x.requires_grad_(), *values))


@pytest.mark.parametrize("announced", [True, False])
def test_second_derivatives(announced):
    module, x = make(), maps(1, size=(2, 2)).requires_grad_()
    if not announced:
        assert torch.autograd.gradgradcheck(module, (x,))
        return
    with differentiable_twice():
        assert torch.autograd.gradgradcheck(module, (x,))


def test_starts_as_the_identity():
    module, x = make(gamma=0.0), maps()
    torch.testing.assert_close(module(x), x, rtol=0, atol=0)
    module(x).sum().backward()
    assert module.gamma.grad.abs() > 0


def test_the_layout_stays():
    module, x = make(), maps()
    expected = module(x)
    assert expected.is_contiguous()
    out = module(x.contiguous(memory_format=torch.channels_last))
    assert out.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype):
    module, x = make(dtype=torch.float32), maps(dtype=torch.float32)
    exact = module(x)
    with torch.autocast("cpu", dtype):
        out = module(x)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out, exact, atol=0.05, rtol=0.05)
    out.sum().backward()
    assert all(p.grad.isfinite().all() and p.grad.dtype == torch.float32 for p in module.parameters())


def test_parameters_and_keys():
    assert list(DynamicConv2d(32).state_dict()) == [
        "gamma",
        "value.weight",
        "weights.weight",
        "proj.weight",
        "proj.bias",
    ]
    assert sum(p.numel() for p in DynamicConv2d(256).parameters()) == 2 * 256**2 + 256 * 16 * 25 + 256 + 1
    assert DynamicConv2d(56).groups == 8


def test_records_of_kernels():
    module, x = make(kernel=5), maps()
    line, y = sequences(), torch.randn(2, 6, 4, dtype=torch.float64)
    with foveal.watch(module) as seen, foveal.watch(line) as heard:
        module(x)
        line(y)
    assert (seen[""].kind, tuple(seen[""].shape)) == ("weight", (2, 2, 5, 5, 5, 4))
    torch.testing.assert_close(seen[""].values.sum((2, 3)), torch.ones(2, 2, 5, 4, dtype=torch.float64))
    assert tuple(heard[""].shape) == (2, 2, 3, 6)


def test_dropped_weights():
    module, x = sequences(drop=0.5), torch.randn(1, 40, 4, dtype=torch.float64)
    torch.manual_seed(0)
    assert not torch.allclose(module(x), module(x))
    module.eval()
    torch.testing.assert_close(module(x), module(x))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: DynamicConv2d(8, kernel=4), "expected an odd number"),
        (lambda: DynamicConv2d(8, groups=3), "groups=3 does not divide 8 channels"),
        (lambda: DynamicConv1d(8, kernel=4), "expected an odd number"),
        (lambda: DynamicConv1d(8, kernel=0, causal=True), "kernel=0: expected a whole number of at least 1"),
        (lambda: DynamicConv1d(8, kernel=3.0), "kernel=3.0: expected a whole number"),
        (lambda: DynamicConv1d(8, groups="2"), "groups='2': expected a whole number"),
        (lambda: DynamicConv1d(8, drop=1.0), "expected a probability"),
        (lambda: DynamicConv1d(8, drop="a"), "drop='a': expected a probability"),
        (lambda: DynamicConv2d(8.0), "channels=8.0: expected a whole number"),
        (lambda: DynamicConv2d(8, kernel=2.5), "kernel=2.5: expected a whole number"),
        (lambda: DynamicConv2d(8, groups=2.0), "groups=2.0: expected a whole number"),
        (lambda: DynamicConv2d(8)(torch.rand(2, 8, 3, 0)), r"\(2, 8, 3, 0\) have no positions"),
        (lambda: DynamicConv2d(8)(torch.ones(2, 8, 3, 3, dtype=torch.uint8)), "expected floating-point numbers"),
        (lambda: DynamicConv2d(8, start="papr"), "did you mean 'paper'"),
        (lambda: DynamicConv2d(8)(torch.rand(2, 4, 3, 3)), r"expected maps \(N, 8, H, W\)"),
        (lambda: DynamicConv1d(8)(torch.rand(2, 4, 3)), r"expected sequences \(N, T, 8\)"),
        (lambda: DynamicConv1d(8)(torch.rand(2, 4, 8), torch.ones(2, 4)), r"mask must be bool \(2, 4\)"),
    ],
)
def test_bad_input(build, message):
    with pytest.raises(UserError, match=message):
        build()


@pytest.mark.parametrize("kernel", [1, 3, 4])
def test_one_position_after_the_other(kernel):
    module, x = sequences(kernel=kernel, causal=True), maps(size=(1, 6))[:, :, 0].mT
    cache = torch.zeros(1, 2, 8, 4, dtype=torch.float64)
    with torch.no_grad():
        steps = [module.step(x[:, t], torch.tensor([t]), cache) for t in range(6)]
        torch.testing.assert_close(torch.stack(steps, 1), module(x))
