"""Small ResNets: sizes, shortcuts, and attention in every block."""

import pytest
import timm
import torch
from torch.nn import functional as F

import foveal
from foveal.errors import UserError
from foveal.models.cifar import Block

PREFIXES = ("", "aw_", "se_", "cbam_", "aw_se_", "aw_cbam_")


def count(model):
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("name", "options", "parameters"),
    [
        ("cifar_resnet20", {}, 269_722),
        ("cifar_resnet56", {}, 853_018),
        ("cifar_resnet110", {}, 1_727_962),
        ("cifar_resnet20", {"num_classes": 100}, 269_722 + 90 * 65),
        ("cifar_resnet20", {"shortcut": "projection"}, 269_722 + 16 * 32 + 2 * 32 + 32 * 64 + 2 * 64),
    ],
)
def test_published_parameter_counts(name, options, parameters):
    with torch.device("meta"):
        assert count(foveal.create_model(name, **options)) == parameters


@pytest.mark.parametrize("depth", [20, 56, pytest.param(110, marks=pytest.mark.slow)])
def test_parameters_of_the_mechanisms(depth):
    """From the formulas of each mechanism, with a bottleneck of a quarter of the channels."""
    blocks = (depth - 2) // 6
    widths = {16: 16, 32: 16, 64: 32}  # channels of each stage, and of the input of its first convolution
    linear = sum(blocks * (c * c // 4 + c // 4 + c // 4 * c + c) for c in widths)
    kernel = 0
    for out, before in widths.items():
        first, others = before, [out] * (2 * blocks - 1)
        kernel += sum(into * out // 4 + out // 4 * out + 2 * out // 4 + 2 * out for into in (first, *others))
    spatial = 3 * blocks * (2 * 7 * 7 + 2)
    plain = count(foveal.create_model(f"cifar_resnet{depth}"))
    extra = {"aw_": kernel, "se_": linear, "cbam_": linear + spatial, "aw_se_": kernel + linear}
    extra["aw_cbam_"] = kernel + linear + spatial
    for prefix, more in extra.items():
        with torch.device("meta"):
            assert count(foveal.create_model(f"{prefix}cifar_resnet{depth}")) == plain + more, prefix


def test_every_name_is_known_to_foveal_and_timm():
    for depth in (20, 56, 110):
        for prefix in PREFIXES:
            name = f"{prefix}cifar_resnet{depth}"
            assert name in foveal.list_models()
            assert name in timm.list_models()
    assert timm.create_model("se_cifar_resnet20", num_classes=7).fc.out_features == 7


@pytest.mark.parametrize("prefix", PREFIXES)
def test_forward_and_gradient(prefix):
    model = foveal.create_model(f"{prefix}cifar_resnet20", depth=8, num_classes=5)
    model(torch.rand(3, 3, 17, 22)).logsumexp(1).sum().backward()
    assert model(torch.rand(3, 3, 17, 22)).shape == (3, 5)
    silent = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    # CBAM's spatial gate starts with a weight of zero, as in the authors' code; the convolution before it learns later.
    assert all(name.endswith("spatial.conv.weight") for name in silent)


def test_the_narrowest_bottleneck_has_four_units():
    model = foveal.create_model("aw_se_cifar_resnet20")
    assert model.layer1[0].bn2.attached["se"].squeeze.out_features == 4
    assert model.layer1[0].conv1.attached["aw"].squeeze.out_channels == 4


def test_where_the_mechanisms_go():
    model = foveal.create_model("aw_cbam_cifar_resnet20")
    sites = [name for name, _ in model.named_modules() if name.endswith(("attached.aw", "attached.cbam"))]
    layers = {name.partition(".attached")[0] for name in sites}
    blocks = [f"layer{stage}.{n}" for stage in (1, 2, 3) for n in range(3)]
    assert layers == {f"{block}.{layer}" for block in blocks for layer in ("conv1", "conv2", "bn2")}


def test_identity_start_is_the_plain_network():
    plain = foveal.create_model("cifar_resnet20", num_classes=7).eval()
    attended = foveal.create_model("aw_cbam_cifar_resnet20", num_classes=7, start="identity").eval()
    missing, unexpected = attended.load_state_dict(plain.state_dict(), strict=False)
    assert not unexpected
    assert all(".attached." in key for key in missing)
    images = torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(attended(images), plain(images), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [(8, 8), (9, 7)])
def test_a_shortcut_without_parameters(size):
    """Every other position, new channels zero, half of them before the old ones."""
    block = Block(4, 8, stride=2).eval()
    torch.nn.init.zeros_(block.bn2.weight)
    x = torch.rand(2, 4, *size)
    expected = torch.zeros(2, 8, (size[0] + 1) // 2, (size[1] + 1) // 2)
    expected[:, 2:6] = x[:, :, ::2, ::2]
    torch.testing.assert_close(block(x), expected)


def test_a_projected_shortcut():
    block = Block(4, 8, stride=2, shortcut="projection").eval()
    torch.nn.init.zeros_(block.bn2.weight)
    x = torch.rand(2, 4, 8, 8)
    torch.testing.assert_close(block(x), F.relu(block.downsample(x)))
    assert Block(8, 8, shortcut="projection").downsample is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"depth": 21}, r"depth=21: expected 6n \+ 2 layers, for example 20"),
        ({"shortcut": "option A"}, "shortcut: expected one of pad, projection"),
        ({"reductoin": 2}, "did you mean 'reduction'"),
    ],
)
def test_mistakes(options, message):
    with pytest.raises(UserError, match=message):
        foveal.create_model("cifar_resnet20", **options)
