from __future__ import annotations

import pytest
import timm
import torch
from safetensors.torch import save_file

from foveal.errors import UserError
from foveal.models import create_model
from foveal.models.build import build_model
from foveal.models.segmenter import Segmenter

SMALL = {"layers": (1, 1, 1, 1), "channels": (8, 8, 16, 16), "stem_type": "deep", "stem_width": 4}


def small(backbone="resnet18", **options):
    torch.manual_seed(0)
    return Segmenter(backbone, **{"num_classes": 5, "width": 8, "options": SMALL, **options})


@pytest.mark.parametrize("size", [(64, 64), (33, 65), (7, 50)])
def test_logits_of_every_pixel(size):
    model = small()
    x = torch.randn(2, 3, *size)
    logits = model(x)
    assert {name: tuple(values.shape) for name, values in logits.items()} == dict.fromkeys(
        ("out", "aux"), (2, 5, *size)
    )
    assert list(model.eval()(x)) == ["out"]
    assert list(small(auxiliary=False)(x)) == ["out"]


def test_a_backbone_with_channels_last():
    options = {"depths": (1, 1), "embed_dim": 8, "num_heads": (1, 1), "strict_img_size": False}
    model = small("swin_tiny_patch4_window7_224", options=options)
    logits = model(torch.randn(2, 3, 64, 96))
    assert {name: tuple(values.shape) for name, values in logits.items()} == dict.fromkeys(
        ("out", "aux"), (2, 5, 64, 96)
    )


def test_the_stages_are_dilated():
    model = small()
    assert model.backbone.feature_info.reduction() == [8, 8]
    assert {conv.dilation for conv in (model.backbone.layer3[0].conv2, model.backbone.layer4[0].conv2)} == {
        (2, 2),
        (4, 4),
    }
    assert small(output_stride=16).backbone.feature_info.reduction() == [16, 16]
    assert small(features=(1, 2)).backbone.feature_info.module_name() == ["layer1", "layer2"]


def test_it_is_a_dilated_resnet50():
    """The parameters of torchvision's dilated ResNet-50 without its classifier, and two heads of width 512."""
    from torchvision.models import resnet50

    with torch.device("meta"):
        plain = resnet50(replace_stride_with_dilation=(False, True, True))
    model = create_model("segmenter", num_classes=19)
    ours, theirs = ({n: tuple(p.shape) for n, p in m.named_parameters()} for m in (model.backbone, plain))
    assert ours == {name: shape for name, shape in theirs.items() if not name.startswith("fc.")}
    heads = sum(p.numel() for head in (model.head, model.auxiliary) for p in head.parameters())
    assert heads == (2048 + 1024) * 9 * 512 + 2 * (2 * 512 + 512 * 19 + 19)


def test_a_backbone_that_cannot_be_dilated():
    assert small("ghostnet_050", options={}).backbone.feature_info.reduction() == [16, 32]
    with pytest.raises(UserError, match="ghostnet_050 cannot be dilated; leave it out"):
        small("ghostnet_050", options={}, output_stride=8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backbone": "resnet19"}, "did you mean 'resnet18'"),
        ({"options": {"no_such_option": 1}}, "no_such_option"),
        ({"caffe": True}, "such as resnet50, not for resnet18"),
        ({"features": (3, 9)}, "cannot return feature maps"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(UserError, match=message):
        small(**options)


def test_the_stride_of_caffe():
    model = small("resnet50", caffe=True)
    strides = {(b.conv1.stride, b.conv2.stride) for b in (model.backbone.layer2[0], model.backbone.layer3[0])}
    assert strides == {((2, 2), (1, 1)), ((1, 1), (1, 1))}
    assert model.eval()(torch.zeros(1, 3, 40, 40))["out"].shape == (1, 5, 40, 40)


# Weights ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["resnet18", "convnext_atto"])
def test_weights_of_a_classifier(name, tmp_path):
    """timm joins the names of some layers where it takes features; a plain checkpoint fits all the same."""
    options = SMALL if name == "resnet18" else {"depths": (1, 1, 1, 1), "dims": (8, 8, 8, 8)}
    plain = timm.create_model(name, **options)
    save_file({key: value.half() for key, value in plain.state_dict().items()}, tmp_path / "weights.safetensors")
    model = small(name, options=options, checkpoint=tmp_path / "weights.safetensors").eval()
    x = torch.randn(1, 3, 64, 64)
    expected = timm.create_model(name, features_only=True, output_stride=8, out_indices=(-1,), **options).eval()
    shapes = dict(zip(expected.state_dict(), plain.state_dict().values(), strict=False))
    expected.load_state_dict({key: value.half().float() for key, value in shapes.items()}, strict=False)
    torch.testing.assert_close(model.backbone(x)[-1], expected(x)[-1])


def test_weights_of_another_segmenter():
    first, second = small(), small(num_classes=3)
    with torch.no_grad():
        first.backbone.conv1[0].weight.fill_(0.5)
    second.load_backbone(first.state_dict())
    assert (second.backbone.conv1[0].weight == 0.5).all()


def test_weights_of_another_network():
    plain = timm.create_model("resnet18", **{**SMALL, "channels": (8, 8, 16, 24)})
    with pytest.raises(UserError, match=r"weights of timm's resnet18: of another shape: layer4"):
        small(checkpoint=plain.state_dict())
    with pytest.raises(UserError, match="missing: conv1"):
        small(checkpoint={"other.weight": torch.zeros(1)})


# Recipes ----------------------------------------------------------------------------


def test_attention_goes_into_the_backbone():
    section = {"name": "segmenter", "backbone": "resnet18", "options": SMALL, "width": 8}
    plain = build_model(section, {"num_classes": 4})
    model = build_model({**section, "insert": "se"}, {"num_classes": 4})
    sites = {name.partition(".attached")[0] for name, _ in model.named_modules() if ".attached." in name}
    assert sites == {f"backbone.layer{n}.0.bn2" for n in range(1, 5)}
    one = build_model({**section, "insert": {"mechanism": "cbam", "at": "head.1"}}, {"num_classes": 4})
    assert any(name.startswith("head.1.attached.cbam") for name, _ in one.named_modules())
    model.load_state_dict(plain.state_dict(), strict=False)
    x = torch.randn(1, 3, 40, 48)
    torch.testing.assert_close(model.eval()(x)["out"], plain.eval()(x)["out"])  # the identity at the start


def test_weights_and_attention_together(tmp_path):
    weights = timm.create_model("resnet18", **SMALL).state_dict()
    save_file(weights, tmp_path / "weights.safetensors")
    section = {"name": "segmenter", "backbone": "resnet18", "options": SMALL, "width": 8, "insert": "se"}
    model = build_model({**section, "checkpoint": "weights.safetensors"}, {"num_classes": 4}, root=tmp_path)
    assert torch.equal(model.backbone.layer1[0].conv1.weight, weights["layer1.0.conv1.weight"])
