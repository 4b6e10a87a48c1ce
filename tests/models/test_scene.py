"""The scene network: two branches on a trained detector."""

from __future__ import annotations

import copy

import pytest
import torch
from small_detector import WIDTH, small_detector

import foveal
from foveal.errors import UserError
from foveal.models.scene import SceneNet, pooled_regions

SMALL = {"num_classes": 5, "channels": 12, "hidden": 8}


def images(count: int = 3) -> torch.Tensor:
    return torch.rand(count, 3, 48, 64, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def detector():
    network = small_detector()
    foveal.insert(network, "focused", key_channels=8)
    return network


@pytest.mark.parametrize("regions", ["none", "features", "focused"])
@pytest.mark.parametrize("fpn", [False, True])
def test_shapes_and_what_is_trained(regions, fpn):
    network = small_detector(fpn)
    foveal.insert(network, "focused", key_channels=8)
    before = copy.deepcopy(network.state_dict())
    model = SceneNet(network, regions=regions, **SMALL)
    width = 12 + (WIDTH if regions != "none" else 0)
    assert model.classifier[0].weight.shape == (8, width)
    assert {name.split(".")[0] for name, p in model.named_parameters() if p.requires_grad} == {"scene", "classifier"}
    optimiser = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1)
    logits = model.train()(images())
    assert logits.shape == (3, 5)
    logits.square().mean().backward()
    optimiser.step()
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())  # norms as well
    assert not network.training
    listed = model.eval()([*images(2), torch.rand(3, 70, 40)])  # of different sizes
    assert listed.shape == (3, 5)
    assert listed.dtype == torch.float32


@pytest.mark.parametrize("pool", ["max", "mean"])
def test_regions_are_those_of_the_detector(detector, pool):
    """The vector of regions, from the detector's own proposals and the equations."""
    model = SceneNet(detector, regions="focused", pool=pool, proposals=20, **SMALL).eval()
    heads, focused = detector.roi_heads, detector.roi_heads.box_head.attached["focused"]
    with torch.no_grad():
        focused.key.weight.normal_(generator=torch.Generator().manual_seed(1))
        batch, _ = detector.transform(list(images(2)))
        maps = {"0": detector.backbone(batch.tensors)}
        proposals = [boxes[:20] for boxes in detector.rpn(batch, maps)[0]]
        vectors = []
        for n, boxes in enumerate(proposals):
            one = {"0": maps["0"][n : n + 1]}
            pooled = heads.box_roi_pool(one, [boxes], batch.image_sizes[n : n + 1]).flatten(1)
            features = torch.relu(heads.box_head.fc7(torch.relu(heads.box_head.fc6(pooled))))
            affinity = focused.key(features) @ focused.query(features).T / 8**0.5
            aggregated = affinity.softmax(1) @ features
            vectors.append(aggregated.amax(0) if pool == "max" else aggregated.mean(0))
        torch.testing.assert_close(model._of_regions(batch, maps), torch.stack(vectors))
        whole = model.scene(maps["0"]).mean((2, 3))
        logits = model.classifier(torch.cat((whole, torch.stack(vectors)), 1))
        torch.testing.assert_close(model(images(2)), logits)


def test_the_whole_is_seen_before_the_pyramid():
    """The pyramid may be random, where only the weights of a classifier are there."""
    network = small_detector(fpn=True)
    model = SceneNet(network, regions="none", **SMALL).eval()
    assert model.scene[0].in_channels == 16
    with torch.no_grad():
        expected = model(images())
        for parameter in network.backbone.fpn.parameters():
            parameter.normal_()
        torch.testing.assert_close(model(images()), expected)
        body = network.backbone.body(network.transform(list(images()))[0].tensors)
        torch.testing.assert_close(model.classifier(model.scene(body["1"]).mean((2, 3))), expected)


def test_attention_between_regions_can_be_watched(detector):
    model = SceneNet(detector, **SMALL).eval()
    with torch.no_grad(), foveal.watch(model) as seen:
        model(images(2))
    (record,) = seen.values()
    graphs = foveal.attention.region_graphs(record, [(48, 64)] * 2)
    assert [len(graph.boxes) for graph in graphs] == [30, 30]


def test_the_box_head_learns_if_asked_to(detector):
    model = SceneNet(detector, train_head=True, **SMALL)
    model(images()).square().mean().backward()
    trained = {name for name, p in model.named_parameters() if p.grad is not None and name.startswith("detector.")}
    assert trained == {f"detector.roi_heads.box_head.fc{n}.{part}" for n in (6, 7) for part in ("weight", "bias")}


def test_images_without_proposals():
    network = small_detector(rpn_score_thresh=2.0)
    foveal.insert(network, "focused")
    model = SceneNet(network, **SMALL).eval()
    assert model(images()).isfinite().all()
    assert pooled_regions(torch.ones(2, 4), [0, 2, 0], "max").tolist() == [[0.0] * 4, [1.0] * 4, [0.0] * 4]


def test_by_name():
    section = {"name": "fasterrcnn_mobilenet_v3_large_320_fpn", "num_classes": 4, "min_size": 64}
    model = foveal.create_model("scene_net", detector=section, regions="features", **SMALL)
    assert model.eval()(images(1)).shape == (1, 5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"regions": "focused"}, "foveal.insert"),
        ({"regions": "features", "hidden": -1}, "hidden=-1"),
        ({"regions": "features", "proposals": 0}, "proposals=0"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(UserError, match=message):
        SceneNet(small_detector(), **options)


def test_other_networks_are_no_detectors():
    with pytest.raises(UserError, match=r"ResNet has no transform.*R-CNN"):
        SceneNet(foveal.models.registry.any_model("resnet18"))
