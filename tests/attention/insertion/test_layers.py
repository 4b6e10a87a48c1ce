"""Where mechanisms go when nobody says where."""

import pytest
import timm
import torch
import torchvision
from timm.utils.model import freeze_batch_norm_2d, reparameterize_model
from torch import nn
from torchvision.ops import FrozenBatchNorm2d

import foveal
from foveal.attention.insertion.layers import block_ends, channels_of, is_norm, spatial_convolutions


def conv_norm(channels, out, kernel=3, **options):
    return [
        nn.Conv2d(channels, out, kernel, padding=kernel // 2, bias=False, **options),
        nn.BatchNorm2d(out),
        nn.ReLU(),
    ]


def separable(channels, out):
    return nn.Sequential(*conv_norm(channels, channels, groups=channels), *conv_norm(channels, out, 1))


class FlatShortcut(nn.Module):
    """A residual block whose shortcut's layers, registered last, are its own children."""

    def __init__(self, shortcut="{}_sc"):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.add_module(shortcut.format("conv"), nn.Conv2d(8, 8, 1))
        self.add_module(shortcut.format("bn"), nn.BatchNorm2d(8))


class PreActivation(nn.Module):
    """A residual block that normalises before it convolves."""

    def __init__(self):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(4, 8), nn.Conv2d(8, 8, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(4, 8), nn.Conv2d(8, 8, 3, padding=1)
        self.convShortcut = nn.Conv2d(8, 8, 1)


def test_frozen_norms_end_blocks_too():
    model = torchvision.models.resnet50(norm_layer=FrozenBatchNorm2d)
    expected = [f"layer{i}.{j}.bn3" for i, blocks in enumerate((3, 4, 6, 3), 1) for j in range(blocks)]
    assert block_ends(model) == expected
    plain = timm.create_model("resnet18", num_classes=5)
    frozen = freeze_batch_norm_2d(timm.create_model("resnet18", num_classes=5))
    assert block_ends(frozen) == block_ends(plain)
    assert (is_norm(frozen.bn1), channels_of(frozen.bn1)) == (True, 64)
    x = torch.rand(2, 3, 32, 32)
    before = frozen.eval()(x)
    foveal.insert(frozen, "se")
    torch.testing.assert_close(frozen(x), before)


@pytest.mark.parametrize("wrapped", [False, True])
def test_separable_sequences_are_blocks_and_the_stem_is_none(wrapped):
    block = separable
    if wrapped:

        def block(channels, out):
            halves = conv_norm(channels, channels, groups=channels), conv_norm(channels, out, 1)
            return nn.Sequential(*(nn.Sequential(*half) for half in halves))

    model = nn.Sequential(nn.Sequential(nn.Sequential(*conv_norm(3, 8)), block(8, 16), block(16, 16)), nn.Flatten())
    norms, pointwise = (("0.1", "1.1"), "1.0") if wrapped else (("1", "4"), "3")
    assert block_ends(model) == [f"0.{i}.{norm}" for i in (1, 2) for norm in norms]
    assert spatial_convolutions(model) == [f"0.{i}.{pointwise}" for i in (1, 2)]


def test_separable_sequences_in_a_head_are_not_the_blocks_of_a_network():
    model = nn.Sequential(*(nn.Sequential(*conv_norm(8, 8)) for _ in range(5)), separable(8, 8))
    assert block_ends(model) == [f"{i}.1" for i in range(5)] + ["5.1", "5.4"]


@pytest.mark.parametrize(
    ("name", "blocks"), [("resnet18d", 16), ("ecaresnet50d", 16), ("resnetrs50", 16), ("resnet10t", 8)]
)
def test_deep_stems_stay_ordinary(name, blocks):
    with torch.device("meta"):
        model = timm.create_model(name)
    for prefix, network in (("", model), ("backbone.", nn.ModuleDict({"backbone": model}))):
        actual = spatial_convolutions(network)
        assert len(actual) == blocks
        assert all(site.startswith(f"{prefix}layer") for site in actual)


def test_a_network_before_the_first_block_is_no_stem():
    model = nn.Sequential(nn.Sequential(*(nn.Conv2d(8, 8, 3) for _ in range(7))), FlatShortcut())
    assert spatial_convolutions(model) == [*(f"0.{i}" for i in range(1, 7)), "1.conv1", "1.conv2"]


@pytest.mark.parametrize("shortcut", ["{}_sc", "shortcut_{}", "{}Shortcut", "downsample_{}", "skip{}"])
def test_flat_shortcuts_take_no_gate(shortcut):
    assert block_ends(nn.Sequential(nn.Conv2d(3, 8, 3), FlatShortcut(shortcut))) == ["1.bn2"]


def test_pre_activation_blocks_end_in_a_convolution():
    assert block_ends(nn.Sequential(nn.Conv2d(3, 8, 3), PreActivation(), PreActivation())) == ["1.conv2", "2.conv2"]
    with torch.device("meta"):
        actual = block_ends(timm.create_model("resnetv2_50"))
    assert (len(actual), actual[0], actual[-1]) == (16, "stages.0.blocks.0.conv3", "stages.3.blocks.2.conv3")


@pytest.mark.parametrize(
    ("name", "count", "first", "last"),
    [
        ("xception41", 39, "blocks.0.stack.conv1.conv_pw", "blocks.12.stack.conv3.conv_pw"),
        ("mobilenetv4_conv_small", 17, "blocks.0.0.conv", "blocks.3.5.pw_proj.conv"),
        ("mobilenetv1_100", 13, "blocks.0.0.conv_pw", "blocks.4.1.conv_pw"),
    ],
)
def test_kernels_of_separable_networks(name, count, first, last):
    with torch.device("meta"):
        actual = spatial_convolutions(timm.create_model(name))
    assert (len(actual), actual[0], actual[-1]) == (count, first, last)


@pytest.mark.parametrize(("name", "count"), [("rexnet_100", 17), ("resnest14d", 4)])
def test_attention_of_the_model_itself_is_no_block(name, count):
    with torch.device("meta"):
        actual = block_ends(timm.create_model(name))
    assert len(actual) == count
    assert not [site for site in actual if ".se." in site or ".conv2." in site]


def test_fused_blocks_have_one_gate_each():
    model = reparameterize_model(timm.create_model("mobileone_s0"))
    convs = [name for name, module in model.named_modules() if isinstance(module, nn.Conv2d)]
    assert [site.removesuffix(".reparam_conv") for site in block_ends(model)] == [
        name.removesuffix(".reparam_conv") for name in convs if name.endswith("reparam_conv")
    ]


def test_a_model_without_convolutions_has_no_usual_place():
    assert block_ends(nn.Sequential(nn.Linear(3, 3))) == spatial_convolutions(nn.Sequential(nn.Linear(3, 3))) == []
