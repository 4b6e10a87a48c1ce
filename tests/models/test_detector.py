"""Detectors on all kinds of backbones, and the weights that they start from."""

from __future__ import annotations

import copy

import pytest
import torch
import torchvision
from torch import nn
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.backbone_utils import resnet_fpn_backbone

import foveal
from foveal.errors import UnknownNameError, UserError
from foveal.models import create_model
from foveal.models.detector import Detector, exact_boxes

SMALL = {"num_classes": 4, "width": 16, "hidden": 32, "min_size": 64, "max_size": 128, "candidates": 60}
SMALL |= {"proposals_train": 20, "proposals_test": 12, "regions": 16}


def small(backbone="resnet18", **options):
    return create_model("detector", backbone=backbone, **{**SMALL, **options})


def images(*sizes):
    draw = torch.Generator().manual_seed(0)
    return [torch.rand(3, *size, generator=draw) for size in sizes or ((48, 70), (66, 40))]


def targets(count=2):
    boxes = torch.tensor([[5.0, 6, 30, 35], [10, 8, 39, 30]])
    return [{"boxes": boxes, "labels": torch.tensor([1, 3])} for _ in range(count)]


@pytest.fixture(scope="module")
def of_torchvision():
    torch.manual_seed(0)
    backbone = resnet_fpn_backbone(backbone_name="resnet18", weights=None, norm_layer=nn.BatchNorm2d)
    return FasterRCNN(backbone, num_classes=4, min_size=64, max_size=128).eval()


def assert_same(first, second):
    for one, other in zip(first, second, strict=True):
        assert one.keys() == other.keys()
        for key in one:
            assert torch.equal(one[key], other[key]), key


# As torchvision's -------------------------------------------------------------------


def test_weights_of_torchvision_fit(of_torchvision):
    """A detector of torchvision and ours have the same parameters and, with the same weights, find the same."""
    ours = Detector("resnet18", num_classes=4, min_size=64, max_size=128, checkpoint=of_torchvision.state_dict()).eval()
    assert ours.state_dict().keys() == of_torchvision.state_dict().keys()
    assert_same(ours(images()), of_torchvision(images()))


def test_names_of_the_usual_detector():
    with torch.device("meta"):
        theirs = torchvision.models.get_model("fasterrcnn_resnet50_fpn", weights=None, weights_backbone=None)
        ours = Detector("resnet50")
    assert {n: v.shape for n, v in ours.state_dict().items()} == {n: v.shape for n, v in theirs.state_dict().items()}
    assert ours.rpn.anchor_generator.sizes == theirs.rpn.anchor_generator.sizes


def test_a_detector_of_other_classes(of_torchvision):
    """All but the last two layers are taken over."""
    torch.manual_seed(1)
    ours = Detector("resnet18", num_classes=9, min_size=64, max_size=128)
    before = {name: value.clone() for name, value in ours.state_dict().items()}
    ours.load(of_torchvision.state_dict())
    kept = {name for name, value in ours.state_dict().items() if torch.equal(value, before[name])}
    changed = before.keys() - kept
    assert not any("box_predictor" in name for name in changed)
    assert {"rpn.head.cls_logits.weight", "roi_heads.box_head.fc6.weight"} <= changed


@pytest.mark.parametrize("fpn", [True, False])
def test_weights_of_a_classifier(fpn, tmp_path):
    classifier = torchvision.models.resnet18(num_classes=5)
    torch.save(classifier.state_dict(), tmp_path / "w.pth")
    model = small(fpn=fpn, checkpoint=str(tmp_path / "w.pth"))
    assert torch.equal(model.backbone.body.layer2[0].conv1.weight, classifier.layer2[0].conv1.weight)
    with pytest.raises(UserError, match=r"does not hold weights of resnet34.*missing: layer1\.2"):
        small("resnet34", checkpoint=classifier.state_dict())


# Backbones --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "fpn"),
    [
        ("resnet18", True),
        ("resnet18", False),
        ("resnet10t", True),  # timm
        ("mobilenetv3_small_050", False),  # timm
        ("mobilenet_v3_small", True),  # torchvision
        ("regnet_y_400mf", False),  # torchvision
    ],
)
def test_backbones(name, fpn):
    model = small(name, fpn=fpn)
    losses = model(images(), targets())
    assert set(losses) == {"loss_classifier", "loss_box_reg", "loss_objectness", "loss_rpn_box_reg"}
    sum(losses.values()).backward()
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in model.backbone.body.parameters())
    for found, image in zip(model.eval()(images()), images(), strict=True):
        assert found["boxes"].shape == (len(found["scores"]), 4)
        assert (found["boxes"] <= torch.tensor([image.shape[2], image.shape[1]] * 2)).all()


def test_a_single_map_of_stride_16():
    """The last stage of a ResNet with bottlenecks is dilated; the blocks of smaller ones cannot be."""
    for name in ("resnet50", "resnet18"):
        with torch.device("meta"):
            backbone = Detector(name, fpn=False).backbone
            assert backbone(torch.zeros(1, 3, 64, 96))["0"].shape == (1, 256, 4, 6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"features": [2, 1]}, r"resnet18 has maps 0 to 3, of strides \[4, 8, 16, 32\]"),
        ({"features": [4]}, "maps 0 to 3"),
        ({"features": [1, 2], "fpn": False}, "without a pyramid"),
        ({"anchors": [[16], [32]]}, "for each of the 5 maps"),
        ({"frozen": 9}, "has 5 parts that can be frozen"),
        ({"min_size": 900}, "no more than max_size"),
        ({"caffe": True}, "bottleneck blocks"),
        ({"proposals_test": 0, "regions": 0}, "proposals_test=0, regions=0: expected at least 1"),
        ({"backbone": "squeezenet1_0"}, "cannot return feature maps"),
        ({"backbone": "vit_b_16"}, "cannot return feature maps"),
    ],
)
def test_what_cannot_be_built(options, message):
    with pytest.raises(UserError, match=message):
        small(**options)


def test_an_unknown_backbone():
    with pytest.raises(UnknownNameError, match="resnet50"):
        small("resnet5O")


# What is trained --------------------------------------------------------------------


@pytest.mark.parametrize("name", ["resnet18", "resnet10t", "mobilenetv3_small_050"])
def test_frozen_norms(name):
    """They keep weights and statistics in training; norms of attention on the same layers do not."""
    model = small(name, norm="frozen")
    foveal.insert(model, "cbam", at="backbone.body.*.bn2" if "resnet" in name else "backbone.body.blocks.1.*.bn2")
    norms = {n: m for n, m in model.backbone.body.named_modules() if isinstance(m, nn.BatchNorm2d)}
    own = {n: m for n, m in norms.items() if "attached" not in n}
    assert len(own) < len(norms)
    assert not any(m.training for m in own.values())  # as it is built
    for steps in (1, 2):
        model.eval().train()  # as after validation
        sum(model(images(), targets()).values()).backward()
        for n, m in norms.items():
            assert int(m.num_batches_tracked) == (0 if n in own else steps), n
            assert (m.weight.grad is None) == (n in own), n


@pytest.mark.parametrize("name", ["resnet18", "resnet10t"])
def test_frozen_parts(name):
    model = small(name, frozen=2)
    trained = {n.split(".")[0] for n, p in model.backbone.body.named_parameters() if p.requires_grad}
    assert trained == {"layer2", "layer3", "layer4"}


def test_losses_are_those_of_torchvision(of_torchvision):
    """The same proposals are drawn from the same random numbers, also for images that are resized."""
    few = {"num_classes": 4, "min_size": 64, "max_size": 128}
    ours = Detector("resnet18", **few, checkpoint=of_torchvision.state_dict()).train()
    theirs = copy.deepcopy(of_torchvision).train()
    losses = []
    for model in (ours, theirs):
        torch.manual_seed(3)
        losses.append(model(images(), targets()))
    for name, loss in losses[0].items():
        torch.testing.assert_close(loss, losses[1][name], msg=name)


@pytest.mark.parametrize("source", ["foveal", "torchvision"])
def test_boxes_are_exact_under_autocast(source, of_torchvision):
    """bfloat16 is one pixel coarse from 128 on: proposals, true boxes and detections are not rounded to it."""
    model = small(max_size=400) if source == "foveal" else exact_boxes(copy.deepcopy(of_torchvision))
    regions = []
    model.roi_heads.box_roi_pool.register_forward_pre_hook(lambda module, inputs: regions.append(torch.cat(inputs[1])))
    true = [{"boxes": torch.tensor([[150.3, 5.1, 201.7, 50.9]]), "labels": torch.tensor([1])}]
    with torch.autocast("cpu", torch.bfloat16):
        losses = model.train()(images((64, 256)), true)
        with torch.no_grad():
            (found,) = model.eval()(images((64, 256)))
    sum(losses.values()).backward()
    sampled, proposed = regions
    scale = model.transform.max_size / 256 if source == "torchvision" else 1
    assert (sampled == true[0]["boxes"] * scale).all(1).any()  # torchvision adds the true boxes to the proposals
    for boxes in (sampled, proposed, found["boxes"]):
        assert boxes.dtype == torch.float32
        assert (boxes != boxes.bfloat16()).any()
    assert found["scores"].dtype == torch.float32


def test_images_without_objects():
    empty = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64)}
    for batch in ([empty, empty], [empty, targets()[0]]):
        losses = small()(images(), batch)
        assert all(loss.isfinite() for loss in losses.values())


def test_several_sizes_in_training():
    model = small(min_size=[32, 48, 64], norm="frozen")
    seen = set()
    model.backbone.register_forward_pre_hook(lambda module, inputs: seen.add(tuple(inputs[0].shape[2:])))
    for _ in range(12):
        model(images((40, 40)), targets(1))
    assert seen == {(32, 32), (64, 64)}  # sides are padded to multiples of 32
    seen.clear()
    model.eval()(images((40, 40)))
    assert seen == {(64, 64)}


@pytest.mark.parametrize("size", [(2, 700), (700, 2)])
def test_a_strip_of_which_less_than_a_pixel_would_be_left(size):
    """Its short side is one pixel, and detections are in its own pixels."""
    model = small(score=0.0).eval()
    boxes = torch.tensor([[0.0, 0, *reversed(size)]])
    (image,) = images(size)
    resized, target = model.transform([image], [{"boxes": boxes, "labels": torch.tensor([1])}])
    assert sorted(resized.image_sizes[0]) == [1, SMALL["max_size"]]
    assert target[0]["boxes"].tolist() == [[0, 0, *reversed(resized.image_sizes[0])]]
    with torch.no_grad():
        (found,) = model([image])
    assert len(found["boxes"])
    assert (found["boxes"] >= 0).all()
    assert (found["boxes"] <= boxes[:, 2:].repeat(1, 2) + 1e-3).all()
