"""Where mechanisms go that belong inside the blocks of the deeper stages."""

import copy

import pytest
import timm
import torch
import torchvision
from small_net import images, randomise
from torch import nn
from torchvision.ops import FrozenBatchNorm2d

import foveal
from foveal.attention import SpatialAttention
from foveal.attention.insertion.stages import block_convolutions, inside_blocks
from foveal.errors import UserError
from foveal.models.build import build_model


def build(name):
    source, _, model = name.rpartition("/")
    if source == "torchvision":
        return torchvision.models.get_model(model, weights=None)
    return timm.create_model(model)


@pytest.mark.parametrize(
    ("name", "deformed", "first", "count", "place", "before"),
    [
        ("resnet18", 6, "layer2.0.conv1", 4, "layer4.1.conv2", True),
        ("resnet50", 13, "layer2.0.conv2", 9, "layer4.2.conv3", True),
        ("torchvision/resnet50", 13, "layer2.0.conv2", 9, "layer4.2.conv3", True),
        ("resnetv2_50", 13, "stages.1.blocks.0.conv2", 9, "stages.3.blocks.2.conv3", True),
        ("resnest14d", 3, "layer2.0.conv2.conv", 2, "layer4.0.conv3", True),
        ("regnety_002", 12, "s2.b1.conv2.conv", 11, "s4.b7.conv3.conv", True),
        ("convnext_atto", 10, "stages.1.blocks.0.conv_dw", 8, "stages.3.blocks.1.mlp.fc1", True),
        ("torchvision/convnext_tiny", 15, "features.3.0.block.0", 12, "features.7.2.block.0", False),
        ("efficientnet_b0", 8, "blocks.4.0.conv_dw", 5, "blocks.6.0.conv_pwl", True),
        ("torchvision/efficientnet_b0", 8, "features.5.0.block.1.0", 5, "features.7.0.block.3.0", True),
        ("torchvision/mobilenet_v2", 14, "features.4.conv.1.0", 11, "features.17.conv.2", True),
        (
            "densenet121",
            52,
            "features.denseblock2.denselayer1.conv2",
            40,
            "features.denseblock4.denselayer16.conv2",
            False,
        ),
        ("vgg11_bn", 6, "features.8", 4, "features.25", False),
    ],
)
def test_places(name, deformed, first, count, place, before):
    with torch.device("meta"):
        model = build(name)
    convolutions, places = block_convolutions(model, 3), inside_blocks(model, 2)
    assert (len(convolutions), convolutions[0]) == (deformed, first)
    assert (len(places), list(places.items())[-1]) == (count, (place, before))


def test_a_head_beside_the_network_is_no_stage():
    with torch.device("meta"):
        backbone = timm.create_model("resnet18", features_only=True)
        head = nn.Sequential(nn.Conv2d(512, 64, 3), nn.Conv2d(64, 5, 1))
    places = inside_blocks(nn.ModuleDict({"backbone": backbone, "head": head}), 2)
    assert list(places) == [f"backbone.layer{i}.{j}.conv2" for i in (3, 4) for j in (0, 1)]


@pytest.mark.parametrize("mechanism", ["spatial", "dynamic", "deform"])
def test_a_transformer_has_no_usual_place(mechanism):
    with torch.device("meta"):
        model = timm.create_model("vit_tiny_patch16_224")
    with pytest.raises(UserError, match=f"works on tokens, and '{mechanism}' serves 2-D .* at= chooses layers"):
        foveal.insert(model, mechanism)


def small_resnet(**options):
    torch.manual_seed(0)
    model = torchvision.models.ResNet(torchvision.models.resnet.Bottleneck, [1, 1, 2, 1], num_classes=5, **options)
    return randomise(model).double().eval()


@pytest.mark.parametrize("mechanism", ["spatial", "dynamic"])
def test_it_is_after_the_norm_and_the_activation_of_the_spatial_convolution(mechanism):
    """As in the authors' configuration, though torchvision's blocks share one activation module."""
    model, x = small_resnet(norm_layer=FrozenBatchNorm2d), images(2, (33, 49), torch.float64)
    done = foveal.insert(model, mechanism)
    assert done.sites == ["layer3.0.conv3", "layer3.1.conv3", "layer4.0.conv3"]
    block = model.layer3[1]
    gate = block.conv3.attached[mechanism]
    nn.init.constant_(gate.gamma, 0.5)
    maps = torch.randn(2, 1024, 5, 4, dtype=torch.float64)
    inner = block.relu(block.bn2(block.conv2(block.relu(block.bn1(block.conv1(maps))))))
    expected = block.relu(block.bn3(nn.functional.conv2d(gate(inner), block.conv3.weight)) + maps)
    torch.testing.assert_close(block(maps), expected)
    assert gate.channels == 256
    assert model(x).isfinite().all()


def test_before_and_after_any_convolution():
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 1)).double()
    x = torch.randn(2, 3, 5, 6, dtype=torch.float64)
    foveal.insert(model, "se", at="1", before=True, start="paper", reduction=2)
    expected = nn.functional.conv2d(model[1].attached["se"](model[0](x)), model[1].weight, model[1].bias)
    torch.testing.assert_close(model(x), expected)
    foveal.insert(model, "cbam", at="1", start="paper", reduction=2)
    torch.testing.assert_close(model.eval()(x), model[1].attached["cbam"](expected))
    (row,) = foveal.sites(nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 16, 1)), "se", at="1", before=True)
    assert row.shape == (8, 222, 222)


@pytest.mark.parametrize(
    ("mechanism", "at", "message"),
    [("se", "1", "before=True is for convolutions"), ("deform", "0", "leave before out")],
)
def test_before_needs_a_gate_and_a_convolution(mechanism, at, message):
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
    with pytest.raises(UserError, match=message):
        foveal.insert(model, mechanism, at=at, before=True)


def test_deformable_and_saliency_together():
    plain, x = small_resnet(), images(1, (65, 65), torch.float64)
    model = copy.deepcopy(plain)
    deform, spatial = foveal.insert(model, "deform"), foveal.insert(model, "spatial", terms="0010")
    assert (len(deform.sites), len(spatial.sites)) == (4, 3)
    torch.testing.assert_close(model(x), plain(x))
    learning = [*deform.parameters(), *spatial.parameters()]
    optimiser = torch.optim.SGD(learning, 1e-4)
    before = [p.clone() for p in learning]
    for _ in range(2):
        optimiser.zero_grad()
        model(x).square().sum().backward()
        optimiser.step()
    assert all((p != old).any() for p, old in zip(learning, before, strict=True))
    assert not torch.allclose(model(x), plain(x))
    deform.eject()
    spatial.eject()
    torch.testing.assert_close(model(x), plain(x), rtol=0, atol=0)


def test_both_in_a_recipe():
    wanted = ["deform", {"mechanism": "spatial", "terms": "0010", "heads": 4}]
    model = build_model({"name": "resnet18", "insert": wanted}, {"num_classes": 5})
    assert repr(model.layer4[0].conv2).startswith("Conv2d+spatial")
    assert repr(model.layer4[0].conv1).startswith("Conv2d+deform")
    gates = [module for module in model.modules() if isinstance(module, SpatialAttention)]
    assert {(gate.terms, gate.heads, gate.before) for gate in gates} == {("0010", 4, True)}
    with pytest.raises(UserError, match=r"model\.insert\[0\]: .*terms=10.*in YAML with quotes"):
        build_model({"name": "resnet18", "insert": [{"mechanism": "spatial", "terms": 10}]}, {"num_classes": 5})


def test_parameters_of_a_resnet50():
    with torch.device("meta"):
        done = foveal.insert(timm.create_model("resnet50"), "spatial", terms="0110")
    assert sum(p.numel() for p in done.parameters()) == 5_904_393
