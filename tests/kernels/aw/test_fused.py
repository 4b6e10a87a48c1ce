"""The fused AW-convolution equals the plain one, in value and gradient, for every kind of tile."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from foveal.kernels import tune
from foveal.kernels.aw import depthwise, fused, geometry, launch, weight_grad
from foveal.kernels.aw.fused import aw_conv2d, fusable, fused_conv
from foveal.kernels.aw.plain import conv_by_products, conv_by_taps, conv_per_sample
from foveal.kernels.aw.tiles import Launch

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
    monkeypatch.setattr(tune, "_chosen", {})
    across = form == "one position of many"
    tiles = [Launch(TILES[form], 16, 16, 4, 1)]
    monkeypatch.setattr(launch, "launches_within", lambda *shape: [] if across else tiles)
    for module in (launch, weight_grad):
        monkeypatch.setattr(module, "launches_across", lambda *shape: tiles if across else [])
    for name in ("WITHIN_TILES", "ACROSS_TILES"):
        monkeypatch.setattr(weight_grad, name, ((16, 16, 16, 4, 1),))
    forms = {"one sample": "within", "rows of one sample": "flat", "one position of many": "across"}
    monkeypatch.setattr(weight_grad.WeightGradients, "forms", lambda self: [forms[form]])
    monkeypatch.setattr(weight_grad.WeightGradients, "_splits", lambda self, size: [2])


@pytest.fixture(params=TILES)
def tile(request, monkeypatch):
    """Each form in turn; returns the sizes of maps, small ones where each position is a tile of its own."""
    use(request.param, monkeypatch)
    most = 3 if request.param == "one position of many" else 100
    return lambda *size: tuple(min(side, most) for side in size)


@pytest.fixture
def one_tile(monkeypatch):
    """One of them, where it does not matter which."""
    use("one sample", monkeypatch)


def inputs(size, kernel, dtype=torch.float32, *, n=3, c1=8, c2=24, groups=1):
    torch.manual_seed(0)
    x, weight = torch.randn(n, c1, *size), torch.randn(c2, c1 // groups, kernel, kernel) / 10
    scale, bias = torch.rand(n, c2, kernel, kernel) + 0.5, torch.randn(c2)
    device = "cuda" if cuda else "cpu"
    return [t.to(device, dtype).requires_grad_() for t in (x, weight, scale, bias)]


def assert_equals_the_plain_form(form, leaves, stride, padding, dilation, groups=1):
    """Value and all gradients."""
    x, weight, scale, bias = leaves
    options = {"stride": (stride, stride), "padding": padding, "dilation": dilation}
    plain = conv_per_sample(x, weight * scale[:, :, None], bias, "grouped", **options, groups=groups)
    ours = form(x, weight, scale, bias, *options.values(), groups)
    torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-4)
    g = torch.randn_like(plain)
    for name, actual, expected in zip(
        ("x", "weight", "scale", "bias"),
        torch.autograd.grad(ours, leaves, g),
        torch.autograd.grad(plain, leaves, g),
        strict=True,
    ):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=2e-4, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("case", [pytest.param(c, marks=() if c == "stride, odd size" else slow) for c in CASES])
def test_equals_the_plain_form(case, tile):
    size, stride, padding, dilation, kernel = CASES[case]
    assert_equals_the_plain_form(fused_conv, inputs(tile(*size), kernel), stride, padding, dilation)


@slow
def test_the_operator_equals_the_plain_form(one_tile):
    size, stride, padding, dilation, kernel = CASES["stride, odd size"]
    assert_equals_the_plain_form(aw_conv2d, inputs(size, kernel), stride, padding, dilation)


# Input and output channels, groups, and the width of super-groups.
GROUPS = {
    "super-groups": (24, 24, 4, 12),
    "incomplete": (36, 36, 6, 24),
    "several outputs of an input": (8, 16, 8, 8),
    "narrow": (12, 4, 2, 64),
    "wide": (40, 40, 2, 8),
}


@pytest.fixture
def super_groups(monkeypatch):
    """Sets the width of super-groups; plans made for another width are forgotten."""

    def use_width(width):
        launch._plan.cache_clear()
        monkeypatch.setattr(geometry, "SUPER_GROUP", width)

    yield use_width
    launch._plan.cache_clear()


@pytest.mark.parametrize("groups", [pytest.param(g, marks=() if g == "super-groups" else slow) for g in GROUPS])
def test_groups_equal_the_plain_form(groups, tile, super_groups):
    c1, c2, many, width = GROUPS[groups]
    super_groups(width)
    leaves = inputs((2, 2), 3, n=2, c1=c1, c2=c2, groups=many)
    assert_equals_the_plain_form(fused_conv, leaves, 1, (1, 1), (1, 1), many)


@slow
def test_groups_with_stride_equal_the_plain_form(tile, super_groups):
    super_groups(12)
    leaves = inputs((5, 3), 3, n=1, c1=24, c2=24, groups=4)
    assert_equals_the_plain_form(fused_conv, leaves, 2, (1, 1), (1, 1), 4)


@pytest.mark.parametrize(
    ("c1", "c2", "groups", "unit", "expected"),
    [
        (128, 128, 32, 8, (64, 64)),  # ResNeXt
        (1024, 1024, 32, 8, (64, 64)),
        (888, 888, 37, 8, (48, 48)),  # RegNetY
        (512, 256, 1, 8, (512, 256)),
        (256, 256, 2, 8, (128, 128)),
        (24, 24, 4, 8, (24, 24)),
        (64, 128, 64, 8, (32, 64)),
        (72, 72, 8, 8, (72, 72)),  # a unit is eight groups of nine
    ],
)
def test_groups_are_joined_into_whole_units(c1, c2, groups, unit, expected):
    together = geometry.groups_together(c1, c2, groups, unit)
    assert (c1 // groups * together, c2 // groups * together) == expected


# Size, kernel, stride, padding and dilation.
DEPTHWISE = {
    "stride, odd size": ((5, 4), 3, 2, (1, 1), (1, 1)),
    "same": ((4, 5), 3, 1, (1, 1), (1, 1)),
    "5×5, stride": ((7, 6), 5, 2, (2, 2), (1, 1)),
    "7×7": ((6, 7), 7, 1, (3, 3), (1, 1)),
    "dilation": ((6, 7), 3, 1, (2, 1), (2, 1)),
    "no padding": ((4, 6), 3, 2, (0, 0), (1, 1)),
    "much padding": ((2, 3), 3, 1, (3, 2), (1, 1)),
}


@pytest.mark.parametrize("channels", [5, pytest.param(20, marks=slow)])
@pytest.mark.parametrize("case", [pytest.param(c, marks=() if c == "stride, odd size" else slow) for c in DEPTHWISE])
def test_depthwise_equals_the_plain_form(case, channels):
    size, kernel, *options = DEPTHWISE[case]
    leaves = inputs(size, kernel, n=2, c1=channels, c2=channels, groups=channels)
    assert_equals_the_plain_form(fused_conv, leaves, *options, channels)


# The interpreter computes in NumPy, which has no bfloat16.
@slow
@pytest.mark.parametrize("dtype", [torch.float16, *([torch.bfloat16] if cuda else [])])
@pytest.mark.parametrize("groups", [1, 4, 24])
def test_half_precision(dtype, groups, tile):
    leaves = inputs(tile(4, 2), 3, c1=24, groups=groups)
    options = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1)}
    plain = conv_by_taps(*leaves, **options, groups=groups)
    halves = [t.detach().to(dtype).requires_grad_() for t in leaves]
    fused = aw_conv2d(*halves, *options.values(), groups)
    assert fused.dtype == dtype
    g = torch.randn_like(plain)
    got, want = torch.autograd.grad(fused, halves, g.to(dtype)), torch.autograd.grad(plain, leaves, g)
    for ours, theirs in [(fused, plain), *zip(got, want, strict=True)]:
        assert float((ours.detach().float() - theirs.detach()).norm() / theirs.detach().norm()) < 0.02


@pytest.mark.skipif(not cuda, reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("n", "c1", "c2", "groups", "side", "kernel", "stride"),
    [
        (2, 64, 128, 1, 30, 3, 1),
        (65, 64, 64, 1, 14, 3, 1),
        (65, 128, 128, 1, 14, 3, 2),
        (2, 128, 128, 32, 30, 3, 1),
        (65, 120, 120, 5, 14, 3, 1),
        (65, 120, 120, 5, 14, 3, 2),
        (3, 96, 96, 96, 28, 7, 1),
        (3, 40, 40, 40, 28, 5, 2),
    ],
)
def test_every_tile_on_a_gpu(n, c1, c2, groups, side, kernel, stride, dtype, monkeypatch):
    """No tile is wrong, in any of several tries: a race would show."""
    leaves = [t.detach() for t in inputs((side, side), kernel, dtype, n=n, c1=c1, c2=c2, groups=groups)]
    options = {"stride": (stride, stride), "padding": (kernel // 2,) * 2, "dilation": (1, 1), "groups": groups}
    exact = [t.double().requires_grad_() for t in leaves]
    plain = conv_by_taps(*exact, **options)
    g = torch.randn_like(plain)
    expected = [plain, *torch.autograd.grad(plain, exact[:3], g)]
    candidates = {}

    def use_only(kernel, option):
        """This candidate of this kernel; without a kernel, all forms of the weight gradient, to see the candidates."""
        form = {"aw kernel grad": "across", "aw scale grad": "across", "aw weight grad flat": "flat"}.get(
            kernel, "within"
        )

        def run(key, options, launch, threads=8):
            options = [option] if key.kernel == kernel else options()
            candidates.setdefault(key.kernel, options)
            if key.kernel == "aw weight grad":
                return [launch(way) for way in options if kernel is None or way in (form, option)][-1]
            return tune._first_run(key, options, launch, 1)

        for module in (launch, weight_grad, depthwise):
            monkeypatch.setattr(module, "run", run)

    def compute():
        sides = stride, options["padding"], (1, 1), groups
        out = launch.forward(*leaves, *sides)
        return [out, *launch.backward(g.to(dtype), *leaves[:3], *sides, [True, True], (dtype, dtype))]

    use_only(None, None)
    compute()
    for kernel_name, option in [(name, option) for name, listed in candidates.items() for option in listed]:
        use_only(kernel_name, option)
        for _ in range(3):
            try:
                results = compute()
            except RuntimeError as error:
                assert "fits" in str(error)  # noqa: PT017
                break
            for actual, value in zip(results, expected, strict=True):
                apart = float((actual.double() - value).norm() / value.norm())
                assert apart < (1e-4 if dtype == torch.float32 else 1e-2), (kernel_name, str(option), apart)


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
@pytest.mark.parametrize(
    ("form", "groups"), [("direct", 1), ("products", 1), pytest.param("direct", 2, marks=slow), ("direct", 8)]
)
def test_second_derivatives_are_those_of_the_plain_form(form, groups, needed, one_tile):
    """Of a gradient that does not depend on the output, too."""
    options = {"stride": (2, 2), "padding": (1, 1), "dilation": (1, 1)}
    forms = {
        "plain": lambda *arguments: conv_by_taps(*arguments, **options, groups=groups),
        "direct": lambda *arguments: fused_conv(*arguments, *options.values(), groups),
        "products": lambda *arguments: conv_by_products(*arguments, **options, groups=1),
    }
    actual, c2 = {}, 8 if groups == 8 else 24
    for name in ("plain", form):
        leaves = dict(zip(("x", "weight", "scale", "bias"), inputs((5, 4), 3, c2=c2, groups=groups), strict=True))
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


@pytest.mark.parametrize("groups", [1, pytest.param(2, marks=slow), pytest.param(8, marks=slow)])
def test_the_operator_is_registered_properly(groups, one_tile):
    x, weight, scale, bias = inputs((3, 3), 3, c2=8 if groups == 8 else 24, groups=groups)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    arguments = (x, weight, scale, bias, [1, 1], [1, 1], [1, 1], groups)
    actual = torch.library.opcheck(aw_conv2d, arguments, test_utils=checks)
    assert actual == dict.fromkeys(checks, "SUCCESS")


def test_the_operator_counts_as_many_operations_as_the_convolution(one_tile):
    x, weight, scale, _ = inputs((3, 3), 3)
    with FlopCounterMode(display=False) as ours:
        aw_conv2d(x, weight, scale, None, [1, 1], [1, 1], [1, 1]).sum().backward()
    weight.grad = x.grad = None
    with FlopCounterMode(display=False) as plain:
        torch.nn.functional.conv2d(x, weight, padding=1).sum().backward()
    assert ours.get_total_flops() == plain.get_total_flops() == 3 * 2 * 3 * 9 * 24 * 8 * 9


@pytest.mark.parametrize("groups", [1, 4, 8])
def test_operations_of_groups(groups):
    x, scale = torch.empty(2, 8, 5, 5, device="meta"), torch.empty(2, 16, 3, 3, device="meta")
    weight = torch.empty(16, 8 // groups, 3, 3, device="meta")
    with FlopCounterMode(display=False) as ours:
        aw_conv2d(x, weight, scale, None, [1, 1], [1, 1], [1, 1], groups)
    with FlopCounterMode(display=False) as plain:
        torch.nn.functional.conv2d(x, weight, padding=1, groups=groups)
    assert ours.get_total_flops() == plain.get_total_flops() > 0


@pytest.mark.parametrize(
    ("c1", "c2", "groups", "kernel", "stride", "dilation", "supported"),
    [
        (64, 64, 1, 3, (1, 1), (1, 1), True),
        (64, 64, 32, 3, (2, 2), (1, 1), True),
        (64, 128, 64, 3, (1, 1), (2, 2), True),
        (60, 64, 1, 3, (1, 1), (1, 1), False),
        (60, 60, 60, 3, (1, 1), (1, 1), True),
        (60, 60, 30, 3, (1, 1), (1, 1), False),
        (64, 64, 1, 1, (1, 1), (1, 1), False),
        (64, 64, 1, 3, (2, 1), (1, 1), False),
        (64, 64, 64, 3, (2, 2), (2, 2), False),
    ],
)
def test_what_is_supported(c1, c2, groups, kernel, stride, dilation, supported, monkeypatch):
    monkeypatch.setattr(fused, "fused_available", lambda device: True)
    x, weight = torch.empty(2, c1, 9, 9).half(), torch.empty(c2, c1 // groups, kernel, kernel)
    assert fusable(x, weight, stride, dilation, groups) == supported


def test_tensors_of_different_dtypes_are_refused():
    x, weight, scale, _ = inputs((3, 3), 3)
    with pytest.raises(TypeError, match="one dtype"):
        fused_conv(x, weight, scale.half(), None, [1, 1], [1, 1], [1, 1])
