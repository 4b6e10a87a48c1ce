from __future__ import annotations

import gc
import itertools
import warnings

import numpy as np
import pytest
import timm
import torch
import torch.utils.checkpoint
import torchvision
from small_net import SmallNet, images, randomise, tree
from torch import Tensor, nn
from torch.nn import functional as F

import foveal
from foveal.attention.class_maps.cam import class_attention
from foveal.attention.class_maps.choose import last_map
from foveal.attention.class_maps.layout import layout
from foveal.attention.class_maps.taps import Taps
from foveal.errors import UserError


def slow(model: nn.Module, x: Tensor, target: list[int], layer: nn.Module, kind: str) -> Tensor:
    """One sample, one channel and one position at a time, from the equation."""
    maps = []
    for image, c in zip(x, target, strict=True):
        kept = []
        handle = layer.register_forward_hook(lambda m, i, o, kept=kept: kept.append(o))
        score = model(image[None])[0, c]
        handle.remove()
        (features,) = kept
        (gradient,) = torch.autograd.grad(score, features)
        _, channels, h, w = features.shape
        total = torch.zeros(h, w, dtype=features.dtype)
        for k in range(channels):
            alpha = 0.0
            for i, j in itertools.product(range(h), range(w)):
                slope = gradient[0, k, i, j].item()
                alpha += (max(slope, 0.0) if kind == "channel" else slope) / (h * w)
            total += alpha * features[0, k].detach()
        maps.append(total.clamp_min(0))
    return torch.stack(maps)


def net(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return randomise(SmallNet()).eval()


class Smooth(nn.Module):
    """Differentiable as often as one likes; ends in global average pooling and one linear layer."""

    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        self.a = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.Softplus())
        self.b = nn.Sequential(nn.Conv2d(3, 5, 3), nn.Softplus())
        self.head = nn.Linear(5, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.b(self.a(x)).mean((2, 3)))


@pytest.mark.parametrize("kind", ["channel", "gradcam"])
@pytest.mark.parametrize("layer", ["pointwise", "norm4", "last"])
def test_equals_the_equation(layer: str, kind: str) -> None:
    model, x, target = net().double(), images(3, dtype=torch.float64), [0, 4, 2]
    actual = foveal.cam(model, x, torch.tensor(target), layer, kind)
    expected = slow(model, x, target, model.get_submodule(layer), kind)
    torch.testing.assert_close(actual, expected)
    assert expected.max() > 0


ARCHITECTURES = {
    "resnet18": "layer4",
    "densenet121": "features.denseblock4",
    "mobilenetv3_small_050": "blocks.5",
    "convnext_atto": "stages.3",
    "efficientnet_lite0": "conv_head",
    "regnetx_002": "s3",
    "vit_tiny_patch16_224": "blocks.11.norm1",
    "swin_tiny_patch4_window7_224": "layers.2",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_equals_pytorch_grad_cam(name: str) -> None:
    theirs = pytest.importorskip("pytorch_grad_cam")
    torch.manual_seed(0)
    size = {"img_size": 64} if name.startswith(("vit", "swin")) else {}
    model = randomise(timm.create_model(name, num_classes=6, **size)).eval()
    x, target = images(2, (64, 64)), [1, 5]
    reshape = None
    if name.startswith("vit"):
        reshape = lambda t: t[:, 1:].reshape(len(t), 4, 4, -1).permute(0, 3, 1, 2)  # noqa: E731
    if name.startswith("swin"):
        reshape = lambda t: t.permute(0, 3, 1, 2)  # noqa: E731
    layer = model.get_submodule(ARCHITECTURES[name])
    classes = [theirs.utils.model_targets.ClassifierOutputTarget(c) for c in target]
    with theirs.GradCAM(model, [layer], reshape_transform=reshape) as other:
        other(x, classes)
        kept = other.activations_and_grads
        arrays = [values[0].numpy() for values in (kept.activations, kept.gradients)]
        expected = torch.from_numpy(other.get_cam_image(x, layer, classes, *arrays, False)).clamp_min(0)
    actual = foveal.cam(model, x, torch.tensor(target), ARCHITECTURES[name], "gradcam")
    assert expected.amax() > 0
    torch.testing.assert_close(actual / expected.max(), expected / expected.max(), rtol=1e-4, atol=1e-5)


def test_channel_is_gradcam_where_gradients_are_positive() -> None:
    draw = torch.Generator().manual_seed(0)
    features, gradient = (torch.rand(2, 3, 4, 5, generator=draw) for _ in range(2))
    torch.testing.assert_close(class_attention(features, gradient), class_attention(features, gradient, "gradcam"))
    assert not torch.allclose(
        class_attention(features, gradient - 0.5), class_attention(features, gradient - 0.5, "gradcam")
    )


def test_classes_and_layers_at_once_equal_each_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = net(), images(3)
    target = torch.tensor([[0, 4], [1, 1], [3, 2]])
    layers = ["pointwise", "last"]
    alone = {(n, k): foveal.cam(model, x, target[:, k], n) for n in layers for k in range(2)}
    calls, grad = [], torch.autograd.grad
    monkeypatch.setattr(torch.autograd, "grad", lambda *a, **kw: calls.append(1) or grad(*a, **kw))
    together = foveal.cam(model, x, target, layers)
    assert len(calls) == 2  # one backward pass a class, however many layers
    assert list(together) == layers
    for (name, k), maps in alone.items():
        torch.testing.assert_close(together[name][:, k], maps)
    torch.testing.assert_close(foveal.cam(model, x, 3, "last"), foveal.cam(model, x, torch.full((3,), 3), "last"))


def test_a_sample_has_the_same_map_alone_and_in_a_batch() -> None:
    model, x, target = net(), images(4), torch.tensor([0, 1, 2, 3])
    together = foveal.cam(model, x, target, "pointwise")
    alone = torch.cat([foveal.cam(model, x[i : i + 1], target[i : i + 1], "pointwise") for i in range(4)])
    torch.testing.assert_close(together, alone)


@pytest.mark.parametrize("kind", ["channel", "gradcam"])
def test_last_layer_before_pooling_and_linear_head(kind: str) -> None:
    """There α is the classifier's row (its positive part) over HW, which is an oracle for both orders."""
    torch.manual_seed(0)
    model, x, target = Smooth(), torch.randn(3, 2, 6, 7), torch.tensor([3, 0, 1])
    features = model.b(model.a(x))
    rows = model.head.weight[target] / (4 * 5)
    rows = rows.relu() if kind == "channel" else rows
    expected = torch.einsum("nc,nchw->nhw", rows, features).relu()
    upstream = torch.randn(expected.shape)
    wanted = torch.autograd.grad((expected * upstream).sum(), list(model.parameters()), allow_unused=True)
    actual = foveal.cam(model, x, target, "b", kind, order=2)
    torch.testing.assert_close(actual, expected)
    inputs = torch.autograd.grad((actual * upstream).sum(), list(model.parameters()), allow_unused=True)
    for a, b in zip(inputs, wanted, strict=True):
        torch.testing.assert_close(a, b)
    expected = torch.einsum("nc,nchw->nhw", rows.detach(), model.b(model.a(x))).relu()
    wanted = torch.autograd.grad((expected * upstream).sum(), list(model.parameters()), allow_unused=True)
    actual = foveal.cam(model, x, target, "b", kind, order=1)
    inputs = torch.autograd.grad((actual * upstream).sum(), list(model.parameters()), allow_unused=True)
    assert inputs[-2] is None  # first order does not reach the classifier
    for a, b in zip(inputs, wanted, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("kind", ["channel", pytest.param("gradcam", marks=pytest.mark.slow)])
def test_second_order_gradient_is_that_of_finite_differences(kind: str) -> None:
    torch.manual_seed(1)
    model, target = Smooth().double(), torch.tensor([[0, 2], [1, 3]])
    names = [name for name, _ in model.named_parameters()]

    def maps(x: Tensor, *parameters: Tensor) -> Tensor:
        with torch.no_grad():
            values = dict(zip(names, parameters, strict=True))

        class Run(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = model

            def forward(self, x: Tensor) -> Tensor:
                return torch.func.functional_call(self.inner, values, (x,))

        return foveal.cam(Run(), x, target, "inner.a", kind, order=2)

    x = torch.randn(2, 2, 4, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(maps, (x, *(p.detach().requires_grad_() for p in model.parameters())))


def test_orders_differ_in_what_they_train() -> None:
    model, x, target = Smooth(), torch.randn(2, 2, 6, 6), torch.tensor([1, 2])
    for order, trained in ((1, False), (2, True)):
        model.zero_grad()
        foveal.cam(model, x, target, "a", order=order).square().sum().backward()
        assert (model.head.weight.grad is not None) is trained
        assert model.a[0].weight.grad is not None


def state(model: nn.Module) -> tuple:
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
    flags = [p.requires_grad for p in model.parameters()]
    return tree(model), hooks, flags, [m.training for m in model.modules()]


@pytest.mark.parametrize("order", [1, 2])
def test_the_model_is_left_as_it_was(order: int) -> None:
    model, x = net(), images(2)
    model.norm2.train()  # neither train nor eval throughout
    model.stem.weight.requires_grad_(False)
    for p in model.parameters():
        p.grad = torch.full_like(p, 3.0)
    before, weights = state(model), {n: p.clone() for n, p in model.named_parameters()}
    foveal.cam(model, x, torch.tensor([1, 2]), ["pointwise", "last"], order=order)
    assert state(model) == before
    for n, p in model.named_parameters():
        assert torch.equal(p, weights[n])
        assert torch.equal(p.grad, torch.full_like(p, 3.0))


def test_the_model_is_left_as_it_was_after_an_error() -> None:
    model = net()
    before = state(model)
    with pytest.raises(UserError, match="takes images of 3 channels"):
        foveal.cam(model, torch.zeros(2, 4, 13, 10), torch.tensor([1, 2]), "last")
    assert state(model) == before


def test_running_statistics_move_as_in_one_plain_forward() -> None:
    one, other, x = net().train(), net().train(), images(4)
    one(x)
    foveal.cam(other, x, torch.tensor([1, 2, 3, 4]), "last", order=2)
    for a, b in zip(one.buffers(), other.buffers(), strict=True):
        assert torch.equal(a, b)


def live() -> int:
    gc.collect()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # looking at every object touches deprecated ones
        return sum(issubclass(type(o), Tensor) for o in gc.get_objects())


@pytest.mark.slow
def test_a_thousand_calls_leak_nothing() -> None:
    model, x, target = Smooth(), torch.randn(2, 2, 6, 6), torch.tensor([1, 2])

    def calls(n: int) -> None:
        for i in range(n):
            foveal.cam(model, x, target, ["a", "b"], order=1 + i % 2)

    calls(5)
    before, objects = live(), len(gc.get_objects())
    calls(1000)
    assert live() == before
    assert len(gc.get_objects()) - objects < 500  # caches of the interpreter, not one object a call
    assert not any(m._forward_hooks for m in model.modules())


def test_without_gradients_maps_come_without_a_graph() -> None:
    model, x, target = net(), images(2), torch.tensor([1, 2])
    expected = foveal.cam(model, x, target, "last")
    assert expected.requires_grad
    with torch.no_grad():
        actual = foveal.cam(model, x, target, "last")
    assert not actual.requires_grad
    torch.testing.assert_close(actual, expected.detach())
    with torch.inference_mode():
        actual = foveal.cam(model, x * 1.0, target, "last", order=2)
    torch.testing.assert_close(actual, expected.detach())


class Plain(nn.Module):
    """Features, then whatever ``rest`` does with them, then a linear head on their mean."""

    def __init__(self, rest: nn.Module) -> None:
        super().__init__()
        self.features = nn.Conv2d(3, 4, 3)
        self.rest = rest
        self.head = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rest(self.features(x)).mean((2, 3)))


def test_an_in_place_relu_does_not_touch_what_was_tapped() -> None:
    torch.manual_seed(0)
    one, other = Plain(nn.ReLU()), Plain(nn.ReLU(inplace=True))
    other.load_state_dict(one.state_dict())
    x, target = images(2), torch.tensor([1, 2])
    actual = []
    for model in (one, other):
        model.zero_grad()
        maps = foveal.cam(model, x, target, "features", "gradcam")
        maps.square().sum().backward()
        actual.append((maps.detach(), model.features.weight.grad))
    torch.testing.assert_close(actual[0], actual[1])
    assert (one.features(x) < 0).any()  # the two would differ


def test_a_frozen_backbone_has_maps_too() -> None:
    model, x, target = net(), images(2), torch.tensor([1, 2])
    expected = foveal.cam(model, x, target, ["pointwise", "last"])
    model.requires_grad_(False)
    actual = foveal.cam(model, x, target, ["pointwise", "last"])
    for name in actual:
        torch.testing.assert_close(actual[name], expected[name])
    model.head.requires_grad_(True)
    foveal.cam(model, x, target, "last", order=2).sum().backward()
    assert model.head.weight.grad.abs().sum() > 0


class Deformable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4, 3, 3))

    def forward(self, x: Tensor) -> Tensor:
        offset = x.new_zeros(len(x), 18, *x.shape[2:])
        return torchvision.ops.deform_conv2d(x, offset, self.weight, padding=1)


class Once(nn.Module):
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, g):
            return 2 * g * ctx.saved_tensors[0]

    def forward(self, x: Tensor) -> Tensor:
        return self.Square.apply(x)


class Pooled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        boxes = [x.new_tensor([[0, 0, 3, 3]])] * len(x)
        return torchvision.ops.roi_align(x, boxes, 2)


class Unlisted(nn.Module):
    """An operation with one derivative, of which nothing but the graph of the gradient says so."""

    def forward(self, x: Tensor) -> Tensor:
        return torch._C._nn.hardsigmoid(x)


@pytest.mark.parametrize(
    ("rest", "name"),
    [(Deformable, "(?i:deform_?conv2d)"), (Once, "Square"), (Pooled, "(?i:roi_?align)"), (Unlisted, "hardsigmoid")],
)
def test_second_order_falls_back_where_it_is_impossible_and_says_so(rest: type, name: str) -> None:
    torch.manual_seed(0)
    model, x, target = Plain(rest()), images(2), torch.tensor([1, 2])
    with pytest.warns(UserWarning, match=f"order=2 is not possible here: .*{name}.* order=1 is used"):
        actual = foveal.cam(model, x, target, "features", order=2)
    torch.testing.assert_close(actual, foveal.cam(model, x, target, "features", order=1))
    actual.sum().backward()  # does not raise later either
    with pytest.warns(UserWarning, match="order=2 is not possible here"):
        foveal.cam(model, x, target, ["features", "rest"], order=2)
    before_it = foveal.cam(model, x, target, "rest", order=2)  # what lies before the layer does not matter
    before_it.sum().backward()
    assert model.head.weight.grad is not None


class Fused(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(2).transpose(1, 2)[:, None]
        mixed = F.scaled_dot_product_attention(tokens, tokens, tokens)
        return x + mixed[:, 0].transpose(1, 2).unflatten(2, x.shape[2:])


def test_second_order_through_fused_attention() -> None:
    torch.manual_seed(0)
    model, x, target = Plain(Fused()), images(2), torch.tensor([1, 2])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        second = foveal.cam(model, x, target, "features", order=2)
    torch.testing.assert_close(second, foveal.cam(model, x, target, "features"), rtol=1e-4, atol=1e-6)
    second.sum().backward()
    assert model.head.weight.grad.abs().sum() > 0


def test_frozen_batch_norm_makes_maps_of_each_sample_alone() -> None:
    """Oracle: the same network with its batch norms replaced by constants, the statistics of this batch."""
    model, x, target = net().double().train(), images(4, dtype=torch.float64), torch.tensor([0, 1, 2, 3])
    fixed = net().double()
    for name in ("norm2", "norm3"):
        kept = []
        handle = model.get_submodule(name).register_forward_pre_hook(lambda m, i, kept=kept: kept.append(i[0].detach()))
        model(x)
        handle.remove()
        fixed.get_submodule(name).running_mean.copy_(kept[0].mean((0, 2, 3)))
        fixed.get_submodule(name).running_var.copy_(kept[0].var((0, 2, 3), unbiased=False))
    expected = foveal.cam(fixed, x, target, "depthwise", order=2)
    actual = foveal.cam(model, x, target, "depthwise", order=2, batch_norm="frozen")
    torch.testing.assert_close(actual, expected)
    both = foveal.cam(model, x, target, ["depthwise", "last"], batch_norm="frozen")
    torch.testing.assert_close(both["depthwise"], expected)
    (a,) = torch.autograd.grad(actual.square().sum(), model.norm3.weight, retain_graph=True)
    assert a.abs().sum() > 0
    coupled = foveal.cam(model, x, target, "depthwise", order=2)
    assert not torch.allclose(coupled, expected, rtol=1e-3)


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "vit_tiny_r_s16_p8_224"])
def test_tokens_become_a_grid_of_the_image(name: str) -> None:
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=4, img_size=(64, 96)).eval()
    assert foveal.cam(model, images(2, (64, 96)), 1, "blocks.11.norm1").shape[1:] in {(4, 6), (2, 3)}


def test_registers_and_torchvision_transformers() -> None:
    torch.manual_seed(0)
    model = timm.create_model("vit_small_patch14_reg4_dinov2", num_classes=4, img_size=56, depth=2).eval()
    assert foveal.cam(model, images(2, (56, 56)), 1, "blocks.1.norm1").shape == (2, 4, 4)
    vit = torchvision.models.VisionTransformer(32, 8, 2, 2, 16, 32, num_classes=4)
    nn.init.normal_(vit.heads.head.weight)
    maps = foveal.cam(vit, images(2, (32, 32)), 1, "encoder.layers.encoder_layer_1.ln_1", order=2)
    assert maps.shape == (2, 4, 4)
    assert maps.amax() > 0
    swin = torchvision.models.SwinTransformer([4, 4], 16, [1, 1], [2, 2], [4, 4], num_classes=4)
    assert foveal.cam(swin, images(2, (32, 48)), 1, "features.1").shape == (2, 8, 12)
    assert foveal.cam(swin, images(2, (16, 32)), 1, "features.1").shape == (2, 4, 8)  # with 16 channels, 8 × 16 fit too
    square = images(2, (64, 64))  # with 16 channels, 16 × 16 × 16, which only the layer's kind can tell
    taps = Taps(swin, ["features.0.0", "features.1"])
    with taps:
        swin(square)
    for name, axis in (("features.0.0", 1), ("features.1", 3)):
        values = taps.outputs[name].values
        torch.testing.assert_close(taps.to_maps(name)(values), values.movedim(axis, 1))


def test_only_the_class_token_is_read_after_the_last_block() -> None:
    model = timm.create_model("vit_tiny_patch16_224", num_classes=4, img_size=32, depth=1).eval()
    with pytest.warns(UserWarning, match=r"no gradient reaches the patches at blocks.0.*norm1"):
        maps = foveal.cam(model, images(2, (32, 32)), 1, "blocks.0")
    assert not maps.any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype: torch.dtype) -> None:
    model, x, target = net(), images(3), torch.tensor([1, 2, 4])
    expected = foveal.cam(model, x, target, ["pointwise", "last"])
    for order in (1, 2):
        with torch.autocast("cpu", dtype):
            actual = foveal.cam(model, x, target, ["pointwise", "last"], order=order)
        for name, maps in actual.items():
            assert maps.dtype == torch.float32
            assert (maps - expected[name]).norm() < 0.05 * expected[name].norm()
            maps.sum().backward(retain_graph=True)


def test_small_gradients_survive_float16() -> None:
    model, x = net(), images(2)
    with torch.no_grad():
        model.head.weight.mul_(1e-5)  # over HW this is below what float16 can hold
    expected = foveal.cam(model, x, 1, "last")
    with torch.autocast("cpu", torch.float16):
        actual = foveal.cam(model, x, 1, "last")
    assert expected.max() > 0
    assert (actual - expected).norm() < 0.05 * expected.norm()


def test_channels_last() -> None:
    model, x = net(), images(3)
    expected = foveal.cam(model, x, 2, "pointwise")
    model = model.to(memory_format=torch.channels_last)
    torch.testing.assert_close(
        foveal.cam(model, x.contiguous(memory_format=torch.channels_last), 2, "pointwise"), expected
    )


def test_inserted_attention() -> None:
    model, x = net(), images(2)
    expected = foveal.cam(model, x, 2, "last", order=2)
    for mechanism in ("aw", "se", "cbam"):
        foveal.insert(model, mechanism)
    actual = foveal.cam(model, x, 2, "last", order=2)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-6)
    actual = foveal.cam(model, x, 2, "pointwise", order=2)
    actual.square().sum().backward()
    assert all(p.grad is not None for n, p in model.named_parameters() if n.startswith("grouped.attached"))


class Returns(nn.Module):
    def __init__(self, wrap_scores) -> None:
        super().__init__()
        self.inner, self.wrap_scores = SmallNet(), wrap_scores

    def forward(self, x: Tensor):
        return self.wrap_scores(self.inner(x))


@pytest.mark.parametrize("wrap_scores", [lambda y: (y, None), lambda y: {"logits": y}, lambda y: [y, y]])
def test_other_ways_to_return_scores(wrap_scores) -> None:
    model = Returns(wrap_scores)
    x = images(2)
    torch.testing.assert_close(foveal.cam(model, x, 1, "inner.last"), foveal.cam(model.inner, x, 1, "last"))


class Tuples(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, str]:
        return self.conv(x), "more"


def test_a_layer_that_returns_more_than_its_features() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block, self.head = Tuples(), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            features, more = self.block(x)
            assert more == "more"
            return self.head(features.mean((2, 3)))

    model, x = Model(), images(2)
    torch.testing.assert_close(foveal.cam(model, x, 1, "block"), foveal.cam(model, x, 1, "block.conv"))


def assert_refused(model: nn.Module, message: str, target: object = 1, at: object = "last", **options) -> None:
    before = state(model)
    with pytest.raises(UserError, match=message):
        foveal.cam(model, images(2), target, at, **options)
    assert state(model) == before


def test_bad_input_says_what_to_do() -> None:
    model = net()
    assert_refused(
        model, r"layer head returns \(2, 5\), which is not a .*choose one before pooling, such as last", at="head"
    )
    assert_refused(model, "unknown layer 'pointwize'; did you mean 'pointwise'", at="pointwize")
    assert_refused(model, "the list is empty", at=[])
    assert_refused(model, r"target must be between 0 and 4, got 5 to 5", target=5)
    assert_refused(
        model, r"target must be \(2,\) or \(2, K\) for this batch, got \(3,\)", target=torch.tensor([1, 2, 3])
    )
    assert_refused(model, "target must hold class numbers", target=torch.tensor([0.5, 1.0]))
    assert_refused(model, "unknown kind 'gradcamm'; did you mean 'gradcam'", kind="gradcamm")
    assert_refused(model, "order=3: expected 1", order=3)
    assert_refused(model, "unknown batch_norm 'thawed'", batch_norm="thawed")
    assert_refused(model, r"reshape must give \(N, C, H, W\)", at="head", reshape=lambda t: t)
    assert_refused(
        Returns(lambda y: y[:, :, None]), r"must return class scores \(N, classes\), got shape", at="inner.last"
    )
    assert_refused(Returns(lambda y: "no"), r"must return class scores \(N, classes\), got str", at="inner.last")
    assert_refused(Returns(lambda y: y.detach()), "have no graph", at="inner.last")


def test_layers_that_the_scores_do_not_come_from() -> None:
    class Aside(SmallNet):
        def __init__(self) -> None:
            super().__init__()
            self.unused, self.aside = nn.Conv2d(3, 3, 3), nn.Conv2d(3, 3, 3)

        def forward(self, x: Tensor) -> Tensor:
            self.aside(x)
            return super().forward(x)

    assert_refused(Aside(), "layer unused did not run", at="unused")
    assert_refused(Aside(), "scores do not depend on layer aside", at="aside")


def test_a_single_position_is_no_map() -> None:
    model = timm.create_model("resnet18", num_classes=3).eval()
    with pytest.raises(UserError, match=r"layer4 returns \(2, 512, 1, 1\), which is not a .*or use larger images"):
        foveal.cam(model, images(2, (32, 32)), 1, "layer4")


def test_second_order_is_possible_with_kernel_shaped_attention():
    """On small maps AW-convolution has a form whose second derivative is slow; it is not used then."""
    model = foveal.create_model("aw_cifar_resnet20", num_classes=4).train()
    x, y = torch.rand(4, 3, 16, 16), torch.tensor([0, 1, 2, 3])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        maps = [foveal.cam(model, x, y, at="layer2", order=order).square().sum() for order in (1, 2)]
    first, second = (torch.autograd.grad(entry, model.conv1.weight)[0] for entry in maps)
    assert not torch.allclose(first, second)


def test_a_head_that_starts_at_zero_is_not_taken_for_a_class_token() -> None:
    vit = torchvision.models.vit_b_16(num_classes=3, image_size=32).eval()  # its head starts at zero
    with pytest.warns(UserWarning, match="do not depend on it"):
        maps = foveal.cam(vit, images(1, (32, 32)), 1, "encoder.layers.encoder_layer_11.ln_1")
    assert not maps.any()


def test_classes_found_in_inference_mode() -> None:
    model, x = net(), images(2)
    expected = foveal.cam(model, x, model(x).argmax(1), "last")
    with torch.inference_mode():
        actual = foveal.cam(model, x, model(x).argmax(1), "last")
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("inplace", [False, True])
def test_hard_sigmoids_have_a_second_order(inplace: bool) -> None:
    torch.manual_seed(0)
    model, x, target = Plain(nn.Hardsigmoid(inplace)).double(), images(2, dtype=torch.float64) * 4, torch.tensor([1, 2])
    expected = foveal.cam(model, x, target, "features")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        actual = foveal.cam(model, x, target, "features", order=2)
    torch.testing.assert_close(actual, expected)
    actual.sum().backward()
    assert model.head.weight.grad.abs().sum() > 0


def test_second_order_of_a_network_with_hard_sigmoids() -> None:
    model = torchvision.models.mobilenet_v3_small(num_classes=4).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        foveal.cam(model, images(2, (64, 64)), 1, "features.10", order=2).square().sum().backward()
    assert model.classifier[3].weight.grad is not None


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool | None) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3)
        self.second = nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.Softplus(), nn.Conv2d(4, 4, 1))
        self.head, self.reentrant = nn.Linear(4, 5), reentrant

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self.reentrant is None:
            x = self.second(x)
        else:
            x = torch.utils.checkpoint.checkpoint(self.second, x, use_reentrant=self.reentrant)
        return self.head(x.mean((2, 3)))


@pytest.mark.parametrize("order", [1, 2])
def test_activation_checkpointing(order: int) -> None:
    x, target, actual = images(3, dtype=torch.float64), torch.tensor([1, 2, 0]), []
    for reentrant in (None, False):
        torch.manual_seed(0)
        model = Checkpointed(reentrant).double()
        maps = foveal.cam(model, x, target, ["first", "second.2"], order=order)
        sum(entry.square().sum() for entry in maps.values()).backward()
        actual.append([*maps.values(), *(p.grad for p in model.parameters() if p.grad is not None)])
    torch.testing.assert_close(actual[1], actual[0])
    for layer in ("first", "second.2"):
        with pytest.raises(UserError, match="checkpoint with use_reentrant=False"):
            foveal.cam(Checkpointed(True).double(), x, target, layer, order=order)


def test_activation_checkpointing_that_cannot_be_run_again() -> None:
    model = timm.create_model("vit_tiny_patch16_224", num_classes=4, img_size=32, depth=2)
    model.set_grad_checkpointing()
    with pytest.raises(UserError, match=r"activation checkpointing cannot run .* use order=1"):
        foveal.cam(model, images(2, (32, 32)), 1, "blocks.0.norm1", order=2)
    assert foveal.cam(model, images(2, (32, 32)), 1, "blocks.0.norm1").shape == (2, 2, 2)


def test_channels_first_is_believed_where_it_fits() -> None:
    def grid(shape: tuple[int, ...], size: tuple[int, int], **layout_options) -> tuple[int, ...]:
        actual = layout(shape, 2, size, **layout_options)
        assert actual is not None
        return tuple(actual(torch.zeros(shape)).shape[2:])

    assert grid((2, 24, 32, 42), (250, 333)) == (32, 42)  # 24×32 has the better proportions
    assert grid((2, 24, 32, 42), (250, 333), nhwc=True) == (24, 32)
    assert grid((2, 8, 12, 96), (256, 384)) == (8, 12)
    assert grid((2, 7, 7, 768), (224, 224)) == (7, 7)


def test_frozen_batch_norm_leaves_instance_norm_alone() -> None:
    torch.manual_seed(0)
    for samples in (1, 3):
        model, x = Plain(nn.Sequential(nn.InstanceNorm2d(4, affine=True), nn.Softplus())), images(samples)
        expected = foveal.cam(model, x, 1, "features", "gradcam")
        torch.testing.assert_close(foveal.cam(model, x, 1, "features", "gradcam", batch_norm="frozen"), expected)
        assert expected.max() > 0


def test_a_layer_that_does_nothing_is_not_what_goes_around_it() -> None:
    class Around(nn.Module):
        def __init__(self, layer: nn.Module) -> None:
            super().__init__()
            self.before, self.layer, self.after = nn.Conv2d(3, 4, 3), layer, nn.Conv2d(4, 4, 1)
            self.head = nn.Linear(4, 5)

        def forward(self, x: Tensor) -> Tensor:
            x = self.before(x)
            return self.head((x + self.after(self.layer(x))).mean((2, 3)))

    class Copies(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.clone()

    actual = []
    for layer in (Copies(), nn.Dropout(0.5), nn.Identity()):
        torch.manual_seed(0)
        actual.append(foveal.cam(Around(layer).eval(), images(2), 1, "layer", "gradcam"))
    torch.testing.assert_close(actual[1], actual[0])
    torch.testing.assert_close(actual[2], actual[0])
    assert actual[0].max() > 0


def test_patches_before_the_class_token_is_added() -> None:
    model = timm.create_model("vit_tiny_patch16_224", num_classes=4, img_size=(32, 48), depth=1).eval()
    assert foveal.cam(model, images(2, (32, 48)), 1, "patch_embed").shape == (2, 2, 3)


def test_tokens_in_another_order_are_put_back() -> None:
    torch.manual_seed(0)
    model = timm.create_model("hiera_tiny_224", num_classes=4, img_size=64, stages=(1, 1, 1, 1)).eval()
    nn.init.normal_(model.head.fc.weight)
    x = images(1, (64, 64))
    expected = model.forward_intermediates(x, indices=[0], intermediates_only=True)[0]
    taps = Taps(model, "blocks.0")
    with taps:
        model(x)
    torch.testing.assert_close(taps.to_maps("blocks.0")(taps.outputs["blocks.0"].values), expected)
    assert foveal.cam(model, x, 1, "blocks.0").max() > 0
    with pytest.raises(UserError, match=r"not in the order of the image; name a whole block"):
        foveal.cam(model, x, 1, "blocks.1.norm1")


def test_hints_fit_the_model() -> None:
    vit = torchvision.models.VisionTransformer(32, 16, 2, 2, 16, 32, num_classes=4)
    nn.init.normal_(vit.heads.head.weight)
    with pytest.warns(UserWarning, match=r"the last block, encoder\.layers\.encoder_layer_1\.ln_1$"):
        foveal.cam(vit, images(2, (32, 32)), 1, "encoder.layers.encoder_layer_1")
    with pytest.raises(UserError, match=r"unknown layer 'layer4'; .* features\.10, features\.11, features\.12$"):
        foveal.cam(torchvision.models.mobilenet_v3_small(num_classes=4), images(2), 1, "layer4")


def test_a_class_number_of_numpy() -> None:
    model, x = net(), images(2)
    torch.testing.assert_close(foveal.cam(model, x, np.int64(1), "last"), foveal.cam(model, x, 1, "last"))


class Flattened(nn.Module):
    """A batch norm whose input was given another shape."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.flatten(2)[..., None]).view_as(x)


def test_frozen_batch_norm_of_one_sample_in_another_shape() -> None:
    torch.manual_seed(0)
    flat, plain = (Plain(nn.Sequential(norm, nn.Softplus())) for norm in (Flattened(), nn.BatchNorm2d(4)))
    plain.load_state_dict(dict(zip(plain.state_dict(), flat.state_dict().values(), strict=True)))
    x = images(1)
    expected = foveal.cam(plain, x, 1, "features", "gradcam", batch_norm="frozen")
    torch.testing.assert_close(foveal.cam(flat, x, 1, "features", "gradcam", batch_norm="frozen"), expected)
    assert expected.max() > 0


@pytest.mark.parametrize(
    ("x", "advice"),
    [
        (torch.zeros(1, 3, 8, 8, dtype=torch.uint8), r"\(x / 255 - mean\) / std"),
        (torch.zeros(0, 3, 8, 8), "empty batch"),
        (torch.full((1, 3, 8, 8), float("nan")), "nan or inf"),
    ],
)
def test_input_that_can_only_be_a_mistake(x, advice):
    with pytest.raises(UserError, match=advice):
        foveal.cam(torch.nn.Sequential(torch.nn.Conv2d(3, 2, 3), torch.nn.Flatten()), x, 0, at="0")


@pytest.mark.parametrize(
    ("name", "layer"),
    [("resnet10t", "layer4"), ("mobilenetv3_small_050", "blocks"), ("vit_tiny_patch16_224", "blocks.11.norm1")],
)
def test_the_last_map_is_found(name, layer):
    size = {"img_size": 64} if name.startswith("vit") else {}
    model, x = timm.create_model(name, num_classes=3, **size), images(2, (64, 64))
    model.train()
    model.get_submodule("norm" if size else "bn1").eval()
    modes = [module.training for module in model.modules()]
    statistics = {key: value.clone() for key, value in model.named_buffers()}
    assert last_map(model, (x,)) == layer
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, statistics[key]) for key, value in model.named_buffers())
    model.eval()
    torch.testing.assert_close(foveal.cam(model, x, 1), foveal.cam(model, x, 1, at=layer))


def test_no_map_at_all():
    with pytest.raises(UserError, match="name one with at="):
        foveal.cam(nn.Sequential(nn.Flatten(), nn.Linear(12, 2)), torch.rand(1, 3, 2, 2), 0)


def test_scores_of_a_model_that_returns_something_else():
    class Segmenter(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 2, 1)

        def forward(self, x):
            return {"out": self.head(self.body(x).relu())}

    model, x = Segmenter(), images(2, (16, 16))
    with pytest.raises(UserError, match="score="):
        foveal.cam(model, x, 1, at="body")
    maps = foveal.cam(model, x, 1, at="body", score=lambda out: out["out"].mean((2, 3)))
    plain = nn.Sequential(model.body, nn.ReLU(), model.head, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    torch.testing.assert_close(maps, foveal.cam(plain, x, 1, at="0"))
    with pytest.raises(UserError, match=r"score must make class scores \(N, classes\).*it made shape"):
        foveal.cam(model, x, 1, at="body", score=lambda out: out["out"])
