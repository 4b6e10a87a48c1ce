"""The fused AW-convolution equals the plain one, in value and gradient, for every kind of tile."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from foveal.kernels.aw import launch
from foveal.kernels.aw.fused import aw_conv2d, fused_conv
from foveal.kernels.aw.plain import conv_by_products, conv_by_taps, conv_per_sample
from foveal.kernels.aw.tiles import Launch, box_within_sample

cuda = torch.cuda.is_available()
slow = pytest.mark.slow
CASES = {
    "same": ((5, 4), 1, (1, 1), (1, 1), 3),
    "stride": ((6, 4), 2, (1, 1), (1, 1), 3),
    "stride, odd size": ((5, 3), 2, (1, 1), (1, 1), 3),
    "dilation": ((5, 4), 1, (2, 1), (2, 1), 3),
    "no padding": ((4, 6), 2, (0, 0), (1, 1), 3),
    "much padding": ((2, 3), 1, (3, 2), (1, 1), 3),
}
TILES = {"one sample": (1, 4, 4), "rows of one sample": (1, 4, 4), "one position of many": (16, 1, 1)}


def use(form, monkeypatch):
    """Small tiles, so that small maps need several, of one form."""
    across = form == "one position of many"
    tiles = [Launch(TILES[form], 16, 16, 4, 1)]
    monkeypatch.setattr(launch, "launches_within", lambda *shape: [] if across else tiles)
    monkeypatch.setattr(launch, "launches_across", lambda *shape: tiles if across else [])
    for name in ("WITHIN_TILES", "ACROSS_TILES"):
        monkeypatch.setattr(launch, name, ((16, 16, 16, 4, 1),))
    ways = {"one sample": "within", "rows of one sample": "flat", "one position of many": "across"}
    monkeypatch.setattr(launch._Gradients, "forms", lambda self: [ways[form]])
    monkeypatch.setattr(launch._Gradients, "_splits", lambda self, size: [2])


@pytest.fixture(params=TILES)
def tile(request, monkeypatch):
    """Each form in turn."""
    use(request.param, monkeypatch)


@pytest.fixture
def one_tile(monkeypatch):
    """One of them, where it does not matter which."""
    use("one sample", monkeypatch)


def inputs(size, kernel, dtype=torch.float32):
    torch.manual_seed(0)
    x, weight = torch.randn(3, 8, *size), torch.randn(24, 8, kernel, kernel) / 10
    scale, bias = torch.rand(3, 24, kernel, kernel) + 0.5, torch.randn(24)
    device = "cuda" if cuda else "cpu"
    return [t.to(device, dtype).requires_grad_() for t in (x, weight, scale, bias)]


@pytest.mark.parametrize(
    ("case", "form"),
    [
        pytest.param(case, form, id=f"{case}{suffix}", marks=() if case == "stride, odd size" and not suffix else slow)
        for form, suffix in ((fused_conv, ""), (aw_conv2d, ", as an operator"))
        for case in (CASES if form is fused_conv else ["stride, odd size"])
    ],
)
def test_equals_the_plain_form(case, form, tile):
    size, stride, padding, dilation, kernel = CASES[case]
    leaves = inputs(size, kernel)
    x, weight, scale, bias = leaves
    options = {"stride": (stride, stride), "padding": padding, "dilation": dilation}
    plain = conv_per_sample(x, weight * scale[:, :, None], bias, "loop", **options, groups=1)
    fused = form(x, weight, scale, bias, *options.values())
    torch.testing.assert_close(fused, plain, rtol=1e-4, atol=1e-4)
    g = torch.randn_like(plain)
    for name, ours, theirs in zip(
        ("x", "weight", "scale", "bias"),
        torch.autograd.grad(fused, leaves, g),
        torch.autograd.grad(plain, leaves, g),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=2e-4, msg=lambda m, name=name: f"{name}: {m}")


# The interpreter computes in NumPy, which has no bfloat16.
@slow
@pytest.mark.parametrize("dtype", [torch.float16, *([torch.bfloat16] if cuda else [])])
def test_half_precision(dtype, tile):
    leaves = inputs((4, 3), 3)
    options = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1)}
    plain = conv_by_taps(*leaves, **options, groups=1)
    halves = [t.detach().to(dtype).requires_grad_() for t in leaves]
    fused = aw_conv2d(*halves, *options.values())
    assert fused.dtype == dtype
    g = torch.randn_like(plain)
    got, want = torch.autograd.grad(fused, halves, g.to(dtype)), torch.autograd.grad(plain, leaves, g)
    for ours, theirs in [(fused, plain), *zip(got, want, strict=True)]:
        assert float((ours.detach().float() - theirs.detach()).norm() / theirs.detach().norm()) < 0.02


@pytest.mark.parametrize("needed", ["x", "weight", "scale", "bias"])
@pytest.mark.parametrize(
    "form", [pytest.param(aw_conv2d, id="operator", marks=slow), pytest.param(fused_conv, id="direct")]
)
def test_only_what_is_needed_has_a_gradient(form, needed, one_tile):
    leaves = dict(zip(("x", "weight", "scale", "bias"), inputs((3, 3), 3), strict=True))
    for name, leaf in leaves.items():
        leaf.requires_grad_(name == needed)
    form(*leaves.values(), [1, 1], [1, 1], [1, 1]).sum().backward()
    assert [name for name, leaf in leaves.items() if leaf.grad is not None] == [needed]


def test_who_looks_at_operators_sees_one(one_tile):
    """A counter and a tracer are shown the operator; otherwise the kernels are launched without it."""
    x, weight, scale, _ = (t.detach() for t in inputs((3, 3), 3))

    def run(x):
        return fused_conv(x, weight, scale, None, [1, 1], [1, 1], [1, 1])

    plain = run(x.requires_grad_())
    assert "aw_conv2d" not in plain.grad_fn.name()
    with FlopCounterMode(display=False) as count:
        counted = run(x)
    assert count.get_total_flops() == 2 * 3 * 9 * 24 * 8 * 9
    assert "aw_conv2d" in counted.grad_fn.name()
    assert "foveal.aw_conv2d" in torch.fx.experimental.proxy_tensor.make_fx(run)(x.detach()).code


@pytest.mark.parametrize(
    "needed",
    [pytest.param(("x",), marks=slow), pytest.param(("weight", "scale"), marks=slow), ("x", "weight", "scale", "bias")],
)
@pytest.mark.parametrize("form", ["direct", "products"])
def test_second_derivatives_are_those_of_the_plain_form(form, needed, one_tile):
    """Of a gradient that does not depend on the output, too."""
    options = {"stride": (2, 2), "padding": (1, 1), "dilation": (1, 1)}
    forms = {
        "plain": lambda *arguments: conv_by_taps(*arguments, **options, groups=1),
        "direct": lambda *arguments: fused_conv(*arguments, *options.values()),
        "products": lambda *arguments: conv_by_products(*arguments, **options, groups=1),
    }
    actual = {}
    for name in ("plain", form):
        leaves = dict(zip(("x", "weight", "scale", "bias"), inputs((5, 4), 3), strict=True))
        for leaf in leaves:
            leaves[leaf].requires_grad_(leaf in needed)
        out, chosen = forms[name](*leaves.values()), [leaves[leaf] for leaf in needed]
        first = torch.autograd.grad(out.sum() + out.square().sum(), chosen, create_graph=True)
        actual[name] = torch.autograd.grad(sum(item.square().sum() for item in first), chosen, allow_unused=True)
    torch.testing.assert_close(actual[form], actual["plain"], rtol=1e-3, atol=1e-3)


def test_a_graph_for_the_gradient_of_the_bias_alone(one_tile):
    x, weight, scale, bias = (t.detach() for t in inputs((3, 3), 3))
    out = fused_conv(x, weight, scale, bias.requires_grad_(), [1, 1], [1, 1], [1, 1])
    (first,) = torch.autograd.grad(out.square().sum(), bias, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), bias)
    torch.testing.assert_close(second, torch.full_like(bias, 2 * 3 * 9))  # samples and positions


@slow
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_maps_of_one_position(layout, tile):
    """As in the last stage of a network on small images, where a mean hands on gradients with odd strides."""
    leaves = [t.detach().to(memory_format=layout).requires_grad_() for t in inputs((1, 1), 3)[:3]]
    options = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1)}
    actual = []
    for run in (
        lambda *arguments: fused_conv(*arguments, None, *options.values()),
        lambda *g: conv_by_taps(*g, None, **options, groups=1),
    ):
        actual.append(torch.autograd.grad(run(*leaves).mean((2, 3)).relu().sum(), leaves))
    torch.testing.assert_close(*actual, rtol=1e-4, atol=1e-4)


@slow
def test_batched_gradients_and_transforms(one_tile):
    x, weight, scale, _ = inputs((3, 3), 3)

    def run(x):
        return fused_conv(x, weight, scale, None, [1, 1], [1, 1], [1, 1])

    torch.testing.assert_close(torch.vmap(run)(torch.stack([x, 2 * x])), torch.stack([run(x), run(2 * x)]))
    g = torch.randn(2, *run(x).shape, device=x.device)
    (actual,) = torch.autograd.grad(run(x), x, g, is_grads_batched=True)
    torch.testing.assert_close(actual, torch.stack([torch.autograd.grad(run(x), x, item)[0] for item in g]))


@slow
def test_a_backward_that_is_counted_alone(one_tile):
    x, weight, scale, _ = inputs((3, 3), 3)
    out = fused_conv(x, weight, scale, None, [1, 1], [1, 1], [1, 1]).sum()
    with FlopCounterMode(display=False) as count:
        out.backward()
    assert count.get_total_flops() == 2 * 2 * 3 * 9 * 24 * 8 * 9


@pytest.mark.parametrize(
    ("n", "side", "expected"),
    [(64, 14, ["within", "flat", "across"]), (8, 14, ["within", "flat"]), (64, 56, ["within"])],
)
def test_ways_to_the_weight_gradient(n, side, expected):
    g, x = (torch.zeros(n, 8, side, side) for _ in range(2))
    work = launch._Gradients(g, x, torch.zeros(8, 8, 3, 3), torch.zeros(n, 8, 3, 3), 1, (1, 1), (1, 1))
    assert work.forms() == expected


def test_the_operator_is_registered_properly(one_tile):
    x, weight, scale, bias = inputs((3, 3), 3)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    actual = torch.library.opcheck(aw_conv2d, (x, weight, scale, bias, [1, 1], [1, 1], [1, 1]), test_utils=checks)
    assert actual == dict.fromkeys(checks, "SUCCESS")


def test_the_operator_counts_as_many_operations_as_the_convolution(one_tile):
    x, weight, scale, _ = inputs((3, 3), 3)
    with FlopCounterMode(display=False) as ours:
        aw_conv2d(x, weight, scale, None, [1, 1], [1, 1], [1, 1]).sum().backward()
    weight.grad = x.grad = None
    with FlopCounterMode(display=False) as plain:
        torch.nn.functional.conv2d(x, weight, padding=1).sum().backward()
    assert ours.get_total_flops() == plain.get_total_flops() == 3 * 2 * 3 * 9 * 24 * 8 * 9


def test_a_box_covers_the_map_with_least_waste():
    assert box_within_sample(64, 56, 56) == (1, 8, 8)
    assert box_within_sample(128, 7, 7)[1:] in {(8, 16), (16, 8)}
    assert box_within_sample(128, 28, 28) == (1, 4, 32)


@pytest.mark.parametrize("dtype", [torch.float16, pytest.param(torch.float32, marks=slow)])
def test_multipliers_of_few_channels_lie_where_a_descriptor_can_put_them(dtype, monkeypatch):
    tiles = {}

    def fastest(key, candidates, launch, device, threads=8):
        tiles[key[0]] = candidates()
        return tiles[key[0]][0]

    monkeypatch.setattr(launch, "fastest", fastest)
    x, weight, scale, _ = inputs((3, 3), 3, dtype)
    aw_conv2d(x, weight, scale, None, [1, 1], [1, 1], [1, 1]).sum().backward()
    for name, side in (("aw forward", "columns"), ("aw input grad", "depth")):
        assert all(getattr(tile, side) * x.element_size() >= 128 for tile in tiles[name])


@pytest.mark.parametrize("channels", [8, 24, 96, 640])
@pytest.mark.parametrize("side", [1, 7, 33, 224])
@pytest.mark.parametrize("n", [1, 64, 1000])
def test_every_shape_has_a_tile(n, side, channels):
    within = launch.launches_within(side, side, channels, channels)
    across = [
        launch.launches_across(tiles, n, side, side, channels, channels)
        for tiles in (launch.TILES, launch.PRODUCT_TILES)
    ]
    assert within
    for actual in across:
        assert bool(actual) == (n >= 64 and side < 33)
    assert all(tile.columns <= 2 * max(8, channels) for tiles in (within, *across) for tile in tiles)
