"""Attention in every part of a detector: weights still fit, and an identity finds what was found before."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torchvision.models.detection import FasterRCNN, maskrcnn_resnet50_fpn
from torchvision.models.detection.backbone_utils import resnet_fpn_backbone
from torchvision.ops import FrozenBatchNorm2d

import foveal
from foveal.attention.insertion.insert import find
from foveal.models import create_model

INNER, OUTPUT = "backbone.fpn.inner_blocks.*.0", "backbone.fpn.layer_blocks.*.0"
SIZES = {"min_size": 64, "max_size": 128, "candidates": 60, "proposals_train": 20}
PARTS = {
    "se": (None, [INNER, OUTPUT], "backbone.body.layer4.*.bn2", "rpn.head.conv.0.0"),
    "cbam": (None, [INNER, OUTPUT], "rpn.head.conv.0.0"),
    "aw": (None, [INNER, OUTPUT], OUTPUT, "rpn.head.conv.0.0"),
    "spatial": (None, OUTPUT, "backbone.body.layer2.*.bn2"),
    "dynamic": (None, OUTPUT, "backbone.body.layer2.*.bn2"),
    "deform": (None, OUTPUT, "rpn.head.conv.0.0"),
}


@pytest.fixture(scope="module")
def detector():
    torch.manual_seed(0)
    backbone = resnet_fpn_backbone(backbone_name="resnet18", weights=None, norm_layer=nn.BatchNorm2d)
    few = {"rpn_pre_nms_top_n_test": 60, "rpn_post_nms_top_n_test": 30, "box_detections_per_img": 20}
    return FasterRCNN(backbone, num_classes=4, min_size=64, max_size=128, **few).eval()


@pytest.fixture(scope="module")
def images():
    draw = torch.Generator().manual_seed(0)
    return [torch.rand(3, *size, generator=draw) for size in ((50, 64), (64, 40))]


@pytest.fixture(scope="module")
def before(detector, images):
    with torch.no_grad():
        found = detector(images)
    assert all(len(one["boxes"]) > 5 for one in found)
    return found


@pytest.mark.parametrize(("mechanism", "at"), [(name, at) for name, places in PARTS.items() for at in places])
def test_an_identity_finds_the_same(detector, images, before, mechanism, at):
    model = copy.deepcopy(detector)
    done = foveal.insert(model, mechanism, at)
    with torch.no_grad():
        model.rpn.head.cls_logits.weight.zero_()  # what is loaded next must matter
    report = model.load_state_dict(detector.state_dict(), strict=False)
    assert not report.unexpected_keys
    assert report.missing_keys
    assert all(f".attached.{mechanism}." in name for name in report.missing_keys)
    with torch.no_grad():
        after = model(images)
    for found, expected in zip(after, before, strict=True):
        assert torch.equal(found["labels"], expected["labels"])
        torch.testing.assert_close(found["boxes"], expected["boxes"], atol=1e-3, rtol=1e-4)
        torch.testing.assert_close(found["scores"], expected["scores"], atol=1e-5, rtol=1e-4)
    done.eject()
    assert model.state_dict().keys() == detector.state_dict().keys()


@pytest.mark.parametrize("mechanism", ["aw", "cbam", "se"])
def test_released_weights_lack_only_what_is_new(detector, mechanism):
    """The norms of released detectors are frozen and count no batches; those of attention supply their own count."""
    backbone = resnet_fpn_backbone(backbone_name="resnet18", weights=None, norm_layer=FrozenBatchNorm2d)
    released = FasterRCNN(backbone, num_classes=4).state_dict()
    assert len(released) < len(detector.state_dict())
    model = copy.deepcopy(detector)
    foveal.insert(model, mechanism)
    new = model.state_dict().keys() - detector.state_dict().keys()
    report = model.load_state_dict(released, strict=False)
    assert not report.unexpected_keys
    assert set(report.missing_keys) == {name for name in new if not name.endswith("num_batches_tracked")}


@pytest.mark.parametrize("mechanism", ["se", "cbam"])
def test_gates_before_the_convolutions_of_the_pyramid(detector, images, mechanism):
    """As in the table of AW-convolution: a gate reads what a lateral convolution reads."""
    model = copy.deepcopy(detector)
    done = foveal.insert(model, mechanism, [INNER, OUTPUT], before=True, start="paper")
    assert len(done.sites) == 8
    gates = [model.get_submodule(f"{site}.attached.{mechanism}") for site in done.sites]
    assert all(gate.before for gate in gates)
    changed, plain = model(images), detector(images)
    assert not torch.equal(changed[0]["scores"][:5], plain[0]["scores"][:5])


def test_attention_learns_in_a_detector(images):
    """Everything that is inserted gets a gradient from the four losses."""
    torch.manual_seed(0)
    model = create_model("detector", backbone="resnet18", num_classes=3, width=16, hidden=32, **SIZES)
    parameters = [
        parameter
        for mechanism, at in (("se", "backbone.body.layer4.*.bn2"), ("aw", [INNER, OUTPUT]), ("deform", None))
        for parameter in foveal.insert(model, mechanism, at, start="paper").parameters()
    ]
    targets = [{"boxes": torch.tensor([[4.0, 5, 30, 33]]), "labels": torch.tensor([1])}] * 2
    sum(model(images, targets).values()).backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in parameters)
    assert sum(float(parameter.grad.abs().sum()) > 0 for parameter in parameters) > 0.8 * len(parameters)


SITES = {
    "se": (16, "layer1.0.bn3", "layer4.2.bn3"),
    "cbam": (16, "layer1.0.bn3", "layer4.2.bn3"),
    "aw": (16, "layer1.0.conv2", "layer4.2.conv2"),
    "spatial": (9, "layer3.0.conv3", "layer4.2.conv3"),
    "dynamic": (9, "layer3.0.conv3", "layer4.2.conv3"),
    "deform": (13, "layer2.0.conv2", "layer4.2.conv2"),
}


@pytest.mark.parametrize("mechanism", SITES)
def test_usual_sites_are_those_of_the_body(mechanism):
    """Of whatever detector: with a pyramid or without, and with other heads."""
    with torch.device("meta"):
        models = [
            create_model("detector", backbone="resnet50"),
            create_model("detector", backbone="resnet50", fpn=False),
            maskrcnn_resnet50_fpn(weights=None, weights_backbone=None),
        ]
    count, first, last = SITES[mechanism]
    for model in models:
        names = list(find(model, mechanism))
        expected = (count, f"backbone.body.{first}", f"backbone.body.{last}")
        assert (len(names), names[0], names[-1]) == expected


def test_a_dry_run_of_a_detector(detector):
    rows = foveal.sites(detector, "aw", at=[INNER, OUTPUT])
    assert [row.name for row in rows][:2] == ["backbone.fpn.inner_blocks.0.0", "backbone.fpn.inner_blocks.1.0"]
    assert all(row.shape is not None for row in rows)


def test_parameters_of_the_table_of_aw():
    """80,000 in the lateral convolutions and 34,944 in the output ones of ResNet-101 with a pyramid."""
    with torch.device("meta"):
        model = create_model("detector", backbone="resnet101")
        counts = [
            sum(p.numel() for p in foveal.insert(model, "aw", at, start="paper").parameters()) for at in (INNER, OUTPUT)
        ]
    assert counts == [80_000, 34_944]
