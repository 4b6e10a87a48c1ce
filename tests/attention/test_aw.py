import math

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

import foveal
from foveal.attention import AWConv2d, KernelAttention
from foveal.attention.aw import expand
from foveal.errors import UserError
from foveal.kernels.aw.forms import form_for
from foveal.kernels.aw.plain import conv_per_sample, differentiable_twice

CONVS = {
    "3x3": {"kernel_size": 3, "padding": 1},
    "stride": {"kernel_size": 3, "stride": 2, "padding": 1, "bias": False},
    "two strides": {"kernel_size": 3, "stride": (1, 2), "padding": (2, 1)},
    "dilation": {"kernel_size": 3, "dilation": 2, "padding": 2},
    "no padding": {"kernel_size": 3, "dilation": (1, 2), "bias": False},
    "same": {"kernel_size": 3, "padding": "same"},
    "lopsided same": {"kernel_size": (2, 4), "padding": "same", "dilation": (2, 1)},
    "valid": {"kernel_size": 3, "padding": "valid"},
    "groups": {"kernel_size": 3, "padding": 1, "groups": 2},
    "depthwise": {"kernel_size": 3, "padding": 1, "groups": 4, "bias": False},
    "depthwise stride": {"kernel_size": 3, "stride": 2, "padding": 1, "groups": 4, "out_channels": 8},
    "1x1": {"kernel_size": 1},
    "1x1 stride": {"kernel_size": 1, "stride": 2, "bias": False},
    "1x1 padding": {"kernel_size": 1, "padding": 1},
    "wide": {"kernel_size": (1, 3), "padding": (0, 1)},
    "tall": {"kernel_size": (3, 2), "padding": (1, 0), "bias": False},
}
SHARED = {
    "none shared": {"share_in": 1},
    "pairs of inputs": {"share_in": 2},
    "pairs of outputs": {"share_out": 2},
    "pairs of both": {"share_in": 2, "share_out": 2},
    "all inputs": {"share_in": 4},
    "whole kernel": {"share_kernel": 3},
    "no residual": {"residual": False},
    "no residual, none shared": {"residual": False, "share_in": 1},
    "identity": {"start": "identity"},
}


def make(*, in_channels=4, out_channels=6, reduction=2, seed=0, dtype=torch.float64, **options):
    """An AW-convolution in eval mode in which every number matters."""
    torch.manual_seed(seed)
    if options.get("groups") == 4:
        out_channels = 4
    options = {"out_channels": out_channels} | options
    layer = AWConv2d(in_channels, reduction=reduction, **options).to(dtype).eval()
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    nn.init.normal_(layer.attention.norm1.bias, 1.5)  # not all below the ReLU
    for norm in (layer.attention.norm1, layer.attention.norm2):
        nn.init.normal_(norm.running_mean)
        nn.init.uniform_(norm.running_var, 0.5, 2.0)
    return layer


def image(n=2, channels=4, size=(6, 7), dtype=torch.float64, seed=1):
    torch.manual_seed(seed)
    return torch.randn(n, channels, *size, dtype=dtype)


def slow_norm(norm, x):
    scale = norm.weight / (norm.running_var + norm.eps).sqrt()
    return (x - norm.running_mean) * scale + norm.bias


def slow_attention(layer, x):
    """A[l, p, o, j, k] of the equations, one value at a time, as a dictionary."""
    a, (h, w) = layer.attention, layer.kernel_size
    down, across = a.share_kernel
    rows, columns = h // down, w // across
    height, width = x.shape[2:]
    into = layer.in_channels // layer.groups
    actual = {}
    for j in range(rows):
        for k in range(columns):
            top, bottom = j * height // rows, math.ceil((j + 1) * height / rows)
            left, right = k * width // columns, math.ceil((k + 1) * width / columns)
            a0 = x[:, :, top:bottom, left:right].mean((2, 3))
            a1 = slow_norm(a.norm1, a0 @ a.squeeze.weight[:, :, 0, 0].T).clamp(min=0)
            a2 = 1 / (1 + (-slow_norm(a.norm2, a1 @ a.excite.weight[:, :, 0, 0].T)).exp())
            for p in range(layer.out_channels):
                for o in range(into):
                    channel = (p // a.share_out) * (into // a.share_in) + o // a.share_in
                    for jj in range(j * down, (j + 1) * down):
                        for kk in range(k * across, (k + 1) * across):
                            actual[p, o, jj, kk] = a2[:, channel]
    return actual


def slow(layer, x):
    """The equation, one sample, output channel, input channel and tap at a time."""
    a, (h, w) = layer.attention, layer.kernel_size
    (sy, sx), (dy, dx) = layer.stride, layer.dilation
    if layer.padding == "same":
        total = [dy * (h - 1), dx * (w - 1)]
        (top, left), (bottom, right) = [t // 2 for t in total], [t - t // 2 for t in total]
    else:
        top, left = bottom, right = (0, 0) if layer.padding == "valid" else layer.padding
    padded = F.pad(x, (left, right, top, bottom))
    height = (padded.shape[2] - dy * (h - 1) - 1) // sy + 1
    width = (padded.shape[3] - dx * (w - 1) - 1) // sx + 1
    attention = slow_attention(layer, x)
    each_in, each_out = layer.in_channels // layer.groups, layer.out_channels // layer.groups
    samples = []
    for n in range(len(x)):
        maps = []
        for p in range(layer.out_channels):
            total = torch.zeros(height, width, dtype=x.dtype)
            for o in range(each_in):
                channel = (p // each_out) * each_in + o
                for j in range(h):
                    for k in range(w):
                        rows = slice(j * dy, j * dy + sy * (height - 1) + 1, sy)
                        columns = slice(k * dx, k * dx + sx * (width - 1) + 1, sx)
                        value = attention[p, o, j, k][n]
                        full = 1 + value if a.residual else value
                        if a.amount is not None:
                            full = 1 + a.amount * (full - 1)
                        total = total + padded[n, channel, rows, columns] * full * layer.weight[p, o, j, k]
            maps.append(total if layer.bias is None else total + layer.bias[p])
        samples.append(torch.stack(maps))
    return torch.stack(samples)


def value_and_gradients(layer, x, call):
    x = x.clone().requires_grad_()
    layer.zero_grad()
    out = call(x)
    torch.manual_seed(5)
    (out * torch.randn_like(out)).sum().backward()
    return [out.detach(), x.grad, *(p.grad.clone() for p in layer.parameters())]


def paths(layer):
    more = ["taps"] * layer.attention.constant_in + ["products"] * (layer.attention.constant_in and layer.groups == 1)
    return ["auto", "loop", "grouped", *more]


def assert_all_paths_follow_the_equation(layer, x):
    expected = value_and_gradients(layer, x, lambda x: slow(layer, x))
    assert all(part.abs().sum() > 0 for part in expected)
    for path in paths(layer):
        layer.attention.path = path
        torch.testing.assert_close(value_and_gradients(layer, x, layer), expected, msg=lambda m, p=path: f"{p}: {m}")


@pytest.mark.parametrize("conv", CONVS)
def test_every_path_follows_the_equation(conv):
    assert_all_paths_follow_the_equation(make(**CONVS[conv]), image())


@pytest.mark.parametrize("shared", SHARED)
@pytest.mark.parametrize("conv", ["3x3", "groups", "same", "stride"])
def test_every_sharing_follows_the_equation(conv, shared):
    assert_all_paths_follow_the_equation(make(**CONVS[conv], **SHARED[shared]), image())


@pytest.mark.parametrize("mode", ["channel", "local", "output"])
@pytest.mark.parametrize("conv", ["wide", "tall"])
def test_modes_follow_the_equation_where_kernels_are_no_squares(conv, mode):
    assert_all_paths_follow_the_equation(make(**CONVS[conv], mode=mode), image())


@pytest.mark.parametrize("conv", ["3x3", "groups", "stride", "no padding", "tall", "1x1"])
def test_unfolded_images_equal_one_convolution_of_many_groups(conv):
    layer, x = make(**CONVS[conv]), image()
    conv_options = {name: getattr(layer, name) for name in ("stride", "padding", "dilation", "groups")}
    kernels = torch.randn(2, *layer.weight.shape, dtype=x.dtype)
    expected = conv_per_sample(x, kernels, layer.bias, "grouped", **conv_options)
    torch.testing.assert_close(conv_per_sample(x, kernels, layer.bias, "unfold", **conv_options), expected)


@pytest.mark.parametrize("size", [(3, 2), (3, 1)], ids=["kernel for each sample", "products"])
def test_transforms(size):
    """Gradients of each sample, and in the direction of a tangent, whatever form the shape would have."""
    layer, x = make(kernel_size=3, padding=1), image(3, size=size)
    names = dict(layer.named_parameters())

    def loss(parameters, sample):
        return functional_call(layer, parameters, (sample[None],)).square().sum()

    entry = torch.func.vmap(torch.func.grad(loss), (None, 0))(names, x)
    for i, sample in enumerate(x):
        alone = torch.autograd.grad(loss(names, sample), list(names.values()))
        torch.testing.assert_close([part[i] for part in entry.values()], list(alone))
    _, slope = torch.func.jvp(layer, (x,), (torch.ones_like(x),))
    step = 1e-6
    torch.testing.assert_close(slope, (layer(x + step) - layer(x - step)) / (2 * step), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("path", ["loop", "grouped", "taps", "products"])
def test_gradients_of_what_comes_before_in_a_batch_of_one(path):
    """PyTorch's batch norm trips over the layout of a gradient then."""
    layer, norm, x = make(kernel_size=3, padding=1), nn.BatchNorm2d(4).double(), image(1, size=(3, 2))

    def gradient(path):
        layer.attention.path = path
        return torch.autograd.grad(layer(norm(x)).square().sum(), [*norm.parameters(), *layer.parameters()])

    with differentiable_twice():
        expected = gradient("loop")
    torch.testing.assert_close(gradient(path), expected)


@pytest.mark.parametrize("conv", CONVS)
def test_paths_agree_in_training_mode(conv):
    layer, x = make(**CONVS[conv]).train(), image(5)
    actual = {}
    for path in paths(layer):
        layer.attention.path = path
        actual[path] = value_and_gradients(layer, x, layer)
    for path, parts in actual.items():
        torch.testing.assert_close(parts, actual["loop"], msg=lambda m, p=path: f"{p}: {m}")


@pytest.mark.parametrize("path", ["loop", "grouped", "taps", "products"])
@pytest.mark.parametrize("conv", ["3x3", "stride", "dilation", "same", "groups", "1x1"])
def test_gradients(conv, path):
    if path == "products" and conv == "groups":
        pytest.skip("for one group")
    layer = make(in_channels=2, out_channels=2, reduction=1, path=path, **CONVS[conv])
    x = image(2, channels=2, size=(4, 3))
    names = [name for name, _ in layer.named_parameters()]

    def run(x, *values):
        return functional_call(layer, dict(zip(names, values, strict=True)), (x,))

    values = [p.detach().requires_grad_() for p in layer.parameters()]
    assert torch.autograd.gradcheck(run, (x.requires_grad_(), *values))


@pytest.mark.parametrize("size", [(1, 1), (2, 5), (7, 7), (3, 11)])
def test_odd_sizes(size):
    """Adaptive windows overlap where the map is no multiple of the kernel, and repeat where it is smaller."""
    layer, x = make(**CONVS["3x3"]), image(size=size)
    torch.testing.assert_close(layer(x), slow(layer, x))


def test_runs_of_consecutive_channels_share_a_value():
    values = torch.arange(2 * 3.0).view(1, 2, 3, 1, 1)
    wide = expand(values, out=3, into=2, plane=(2, 2))
    assert wide.shape == (1, 6, 6, 2, 2)
    for p in range(6):
        for o in range(6):
            assert (wide[0, p, o] == values[0, p // 3, o // 2, 0, 0]).all()


def test_input_channel_o_uses_group_o_over_share_in():
    layer = make(in_channels=6, kernel_size=1, share_in=2, residual=False, bias=False)
    attention = layer.attention.attend(image(channels=6))
    assert attention.shape == (2, 6, 3, 1, 1)
    x = image(channels=6)
    expected = torch.zeros(2, 6, 6, 7, dtype=torch.float64)
    for o in range(6):
        kernel = attention[:, :, o // 2, 0] * layer.weight[None, :, o, 0]
        expected += kernel[..., None] * x[:, o : o + 1]
    torch.testing.assert_close(layer(x), expected)


def test_the_residual_is_a_convolution_beside_the_attended_one():
    layer, x = make(**CONVS["3x3"], share_in=1), image()
    layer.attention.residual = False
    attended = layer(x)
    layer.attention.residual = True
    plain = F.conv2d(x, layer.weight, None, padding=1)  # the bias is in both forms, but once in their sum
    torch.testing.assert_close(layer(x), plain + attended)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("path", ["products", "grouped", "loop"])
def test_the_layout_stays(path, layout):
    layer, x = make(kernel_size=3, path=path), image().to(memory_format=layout)
    assert layer(x).is_contiguous(memory_format=layout)


@pytest.mark.parametrize(
    ("options", "shape", "path"),
    [
        ({}, (2, 4, 2, 2), "products"),
        ({}, (1, 4, 2, 2), "grouped"),  # one sample: its kernel is built
        ({}, (2, 4, 3, 2), "grouped"),
        ({"groups": 2}, (2, 4, 2, 2), "grouped"),
        ({"share_in": 1}, (2, 4, 2, 2), "grouped"),
        ({"stride": 2}, (2, 4, 4, 4), "products"),
        ({}, (2, 4, 200, 200), "loop"),
        ({"share_in": 1}, (2, 4, 200, 200), "loop"),
        ({"stride": 2}, (2, 4, 200, 200), "grouped"),
    ],
)
def test_the_form_follows_the_shape(options, shape, path):
    layer, x = make(kernel_size=3, padding=1, **options), torch.zeros(shape)
    rest = layer, layer.weight, layer.attention.constant_in
    assert form_for("auto", x, *rest) == path
    last = x.to(memory_format=torch.channels_last)
    assert form_for("auto", last, *rest) == ("products" if path == "products" else "loop")
    with differentiable_twice():
        assert form_for("auto", x, *rest) == "grouped"


def test_products_are_for_one_group():
    with pytest.raises(UserError, match="one group"):
        make(kernel_size=3, groups=2, path="products")(image())


@pytest.mark.parametrize("path", ["loop", "grouped", "taps"])
def test_a_1x1_kernel_collapses_to_an_output_gate(path):
    layer, x = make(kernel_size=1, path=path), image()
    gate = 1 + layer.attention.attend(x).view(2, 6, 1, 1)
    expected = gate * F.conv2d(x, layer.weight) + layer.bias[:, None, None]
    torch.testing.assert_close(layer(x), expected)


FORMULAS = {  # shape of the attention for C1 = 4, C2 = 6 and 3×3, and the sum over input channels o and taps t
    "channel": ((2, 1, 4, 1, 1), "notl,no,pot->npl", (2, 4)),
    "local": ((2, 1, 4, 3, 3), "notl,not,pot->npl", (2, 4, 9)),
    "output": ((2, 6, 4, 1, 1), "notl,npo,pot->npl", (2, 6, 4)),
    "kernel": ((2, 6, 4, 3, 3), "notl,npot,pot->npl", (2, 6, 4, 9)),
}


@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("mode", FORMULAS)
def test_modes_are_the_stepping_stones(mode, residual):
    options = {"share_in": 1} if mode == "kernel" else {}
    layer = make(kernel_size=3, padding=1, mode=mode, residual=residual, bias=False, **options)
    x, (shape, formula, flat) = image(), FORMULAS[mode]
    attention = layer.attention.attend(x)
    assert attention.shape == shape
    patches = F.unfold(x, 3, padding=1).view(2, 4, 9, 42)
    expected = torch.einsum(formula, patches, attention.reshape(flat), layer.weight.flatten(2)).view(2, 6, 6, 7)
    if mode == "channel":
        torch.testing.assert_close(
            expected, F.conv2d(x * attention.view(2, 4, 1, 1), layer.weight, padding=1), msg="reference"
        )
    if residual:
        expected = expected + F.conv2d(x, layer.weight, padding=1)
    torch.testing.assert_close(layer(x), expected)


def test_channel_mode_of_a_grouped_convolution_scales_every_input_channel():
    layer, x = make(kernel_size=3, padding=1, groups=2, mode="channel", residual=False, bias=False), image()
    attention = layer.attention.attend(x).reshape(2, 4, 1, 1)
    assert attention[0].unique().numel() == 4
    torch.testing.assert_close(layer(x), F.conv2d(x * attention, layer.weight, padding=1, groups=2))


@pytest.mark.parametrize("options", [{}, {"path": "loop"}, {"path": "grouped"}, {"share_in": 1}])
def test_eval_mode_knows_no_batch(options):
    layer, x = make(**CONVS["3x3"], **options), image(5)
    together = layer(x)
    order = torch.tensor([3, 0, 4, 1, 2])
    torch.testing.assert_close(layer(x[order]), together[order])
    torch.testing.assert_close(torch.cat([layer(x[i : i + 1]) for i in range(5)]), together)
    with pytest.raises(AssertionError):  # in training mode it does, so that the lines above say something
        torch.testing.assert_close(layer.train()(x[:2]), layer.train()(x)[:2])


def test_one_sample_with_a_1x1_map_cannot_be_normalised():
    layer = make(kernel_size=1).train()
    with pytest.raises(UserError, match=r"one sample .* batch of at least two"):
        layer(image(1))
    assert layer(image(2)).isfinite().all()
    assert layer.eval()(image(1)).isfinite().all()
    assert make(kernel_size=3).train()(image(1)).isfinite().all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"share_in": 3}, "share_in=3 does not divide 4"),
        ({"share_out": 4}, "share_out=4 does not divide 6"),
        ({"share_kernel": 2}, "share_kernel=2 does not divide 3"),
        ({"share_out": 0}, "share_out=0 does not divide 6"),
        ({"groups": 2, "share_in": 3}, "share_in=3 does not divide 2"),
        ({"padding_mode": "reflect"}, "padding_mode='reflect' is not supported"),
        ({"mode": "chanel"}, "unknown mode 'chanel'; did you mean 'channel'"),
        ({"path": "tap"}, "unknown path 'tap'; did you mean 'taps'"),
        ({"start": "papre"}, "unknown start 'papre'; did you mean 'paper'"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(UserError, match=message):
        AWConv2d(4, 6, **({"kernel_size": 3} | options))


def test_the_tap_path_needs_attention_constant_along_inputs():
    with pytest.raises(UserError, match="path='taps' needs attention that is constant"):
        make(kernel_size=3, share_in=1, path="taps")(image())


@pytest.mark.parametrize("conv", ["3x3", "stride", "1x1", "groups", "same"])
@pytest.mark.parametrize("options", [{}, {"path": "loop"}, {"path": "grouped"}, {"start": "identity"}])
def test_bfloat16_autocast(conv, options):
    layer, x = make(**CONVS[conv], **options, dtype=torch.float32), image(dtype=torch.float32)
    exact = layer(x)
    with torch.autocast("cpu", torch.bfloat16), foveal.watch(layer) as seen:
        mixed = layer(x)
        plain = nn.Conv2d.forward(layer, x)
        assert layer(x.bfloat16()).dtype == torch.bfloat16
    assert mixed.dtype == plain.dtype == torch.bfloat16
    assert seen["attention"].values.dtype == torch.float32
    torch.testing.assert_close(mixed.float(), exact, atol=0.15, rtol=0.05)
    mixed.float().sum().backward()
    assert all(p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in layer.parameters())


def test_the_branch_ignores_autocast():
    layer, x = make(**CONVS["3x3"], dtype=torch.float32), image(dtype=torch.float32)
    exact = layer.attention.attend(x)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(layer.attention.attend(x), exact, rtol=0, atol=0)


@pytest.mark.parametrize("start", ["identity", "paper"])
def test_gradient_reaches_the_kernel_and_both_pointwise_layers(start):
    torch.manual_seed(0)
    layer = AWConv2d(16, 32, 3, padding=1, start=start)
    optimiser = torch.optim.SGD(layer.parameters(), 0.01)
    for _ in range(2):
        optimiser.zero_grad()
        layer(image(4, channels=16, dtype=torch.float32)).square().sum().backward()
        optimiser.step()
    for name in ("weight", "bias", "attention.squeeze.weight", "attention.excite.weight", "attention.norm2.bias"):
        assert layer.get_parameter(name).grad.abs().max() > 0, name


def test_the_identity_is_the_plain_convolution():
    torch.manual_seed(0)
    layer = AWConv2d(16, 32, 3, padding=1, stride=2, start="identity", dtype=torch.float64)
    x = image(channels=16)
    torch.testing.assert_close(layer(x), nn.Conv2d.forward(layer, x))
    assert (AWConv2d(16, 32, 3, dtype=torch.float64)(x) - nn.Conv2d(16, 32, 3, dtype=torch.float64)(x)).abs().max() > 0


def test_the_paper_starts_at_one_and_a_half_times_the_kernel():
    torch.manual_seed(0)
    values = AWConv2d(64, 64, 3).attention.attend(image(64, channels=64, dtype=torch.float32))
    assert abs(values.mean() - 0.5) < 0.02
    assert ((values > 0) & (values < 1)).all()


@pytest.mark.parametrize(("c1", "c2"), [(64, 64), (32, 64), (128, 32), (16, 8)])
def test_extra_parameters_of_a_layer(c1, c2):
    c = max(1, c2 // 16)
    attention = KernelAttention(c1, c2, (3, 3))
    assert sum(p.numel() for p in attention.parameters()) == c1 * c + c * c2 + 2 * c + 2 * c2
    assert KernelAttention(c1, c2, (3, 3), start="identity").amount.item() == 0


def parameters(model):
    return sum(p.numel() for p in model.parameters())


def built(name, *insertions):
    """Parameters of a timm model with attention; on the meta device, since only numbers are wanted."""
    with torch.device("meta"):
        model = timm.create_model(name)
        for mechanism, options in insertions:
            foveal.insert(model, mechanism, start="paper", **options)
    return parameters(model)


AW, SE = ("aw", {}), ("se", {})
MAX_POOL = ("cbam", {"pools": ("avg", "max"), "spatial": False})
SPATIAL = ("cbam", {"pools": ("avg",), "spatial": True})


@pytest.mark.parametrize(
    ("name", "insertions", "total"),
    [
        ("resnet50", [AW], 25_557_032 + 165_208),
        ("resnet50", [SE], 28_088_024),
        ("resnet50", [AW, SE], 28_253_232),
        ("resnet50", [SE, AW], 28_253_232),
        ("resnet50", [AW, MAX_POOL], 28_253_232),
        ("resnet50", [AW, SPATIAL], 28_254_832),
        ("resnet101", [AW], 44_549_160 + 313_720),
        ("resnet101", [SE], 49_326_872),
        ("resnet101", [AW, SE], 49_640_592),
        ("resnet101", [AW, SPATIAL], 49_643_892),
        ("mobilenetv1_100", [AW], 4_231_976 + 448_744),
        ("mobilenetv1_100", [SE], 5_072_114),
        ("mobilenetv1_100", [AW, SE], 5_520_858),
        ("mobilenetv1_100", [SPATIAL, AW], 5_520_858 + 26 * 100),
    ],
)
def test_published_parameter_counts(name, insertions, total):
    assert built(name, *insertions) == total


def test_state_dict_keys_are_those_of_a_convolution_and_the_branch():
    keys = set(make(kernel_size=3).state_dict())
    assert {"weight", "bias"} < keys
    assert all(key.startswith("attention.") for key in keys - {"weight", "bias"})


def test_channels_last():
    layer, x = make(**CONVS["3x3"], dtype=torch.float32), image(dtype=torch.float32)
    expected = layer(x)
    layer = layer.to(memory_format=torch.channels_last)
    torch.testing.assert_close(layer(x.contiguous(memory_format=torch.channels_last)), expected)


@pytest.mark.parametrize("options", [{}, {"path": "grouped"}, {"share_in": 1}])
def test_compiled_equals_eager(options):
    torch.compiler.reset()
    layer, x = make(**CONVS["stride"], **options), image(3)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(value_and_gradients(layer, x, compiled), value_and_gradients(layer, x, layer))


FREE = [{"path": "grouped"}, {"share_in": 2}, {"mode": "local"}, {"groups": 2, "share_in": 1}, CONVS["1x1"]]


@pytest.mark.parametrize("options", [{}, *(pytest.param(o, marks=pytest.mark.slow) for o in FREE)], ids=str)
def test_export_with_free_sizes(options):
    layer, x = make(**CONVS["3x3"] | options), image(3, size=(9, 12))
    n, h, w = (torch.export.Dim(name, min=2, max=64) for name in "nhw")
    exported = torch.export.export(layer, (x,), dynamic_shapes={"input": {0: n, 2: h, 3: w}}).module()
    torch.testing.assert_close(exported(x), layer(x))
    other = image(5, size=(15, 6), seed=7)
    torch.testing.assert_close(exported(other), layer(other))


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"share_in": 2}], ids=str)
def test_onnx_with_free_sizes(options, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    layer, x = make(**CONVS["3x3"], **options, dtype=torch.float32), image(3, size=(9, 12), dtype=torch.float32)
    free = ({0: "n", 2: "h", 3: "w"},)
    torch.onnx.export(layer, (x,), tmp_path / "layer.onnx", dynamo=True, dynamic_shapes=free)
    session = onnxruntime.InferenceSession(str(tmp_path / "layer.onnx"), providers=["CPUExecutionProvider"])
    for other in (x, image(5, size=(16, 7), dtype=torch.float32)):
        (actual,) = session.run(None, {session.get_inputs()[0].name: other.numpy()})
        torch.testing.assert_close(torch.from_numpy(actual), layer(other).detach(), rtol=1e-4, atol=1e-4)
