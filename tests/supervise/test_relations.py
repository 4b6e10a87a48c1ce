"""Targets and losses on the attention between a detector's regions."""

import copy

import pytest
import torch
from small_detector import sizes_of, small_detector, two_images
from torch._dynamo.testing import CompileCounterWithBackend

import foveal
from foveal import registry
from foveal.attention import region_graphs
from foveal.errors import UserError
from foveal.measure import CenterMass
from foveal.supervise import center_mass, object_pairs, region_pairs, relation_loss, relation_pairs
from foveal.tasks.attention_losses import AttentionLosses

SITE = "roi_heads.box_head.attached.focused"


@pytest.fixture(scope="module")
def step():
    """A detector in training, what its attention did, and what it was given."""
    detector, (images, targets) = small_detector(), two_images()
    foveal.insert(detector, "focused", key_channels=8)
    torch.manual_seed(0)
    with foveal.watch(detector.train()) as seen:
        detector(images, targets)
    return detector, seen[SITE], images, targets


@pytest.mark.parametrize("kind", ["category", "instance", "annotated"])
def test_targets_are_those_of_each_image(step, kind):
    _, record, images, targets = step
    pairs = region_pairs(record, targets, sizes_of(images), kind)
    assert pairs.shape == record.shape
    for i, (graph, target) in enumerate(zip(region_graphs(record, sizes_of(images)), targets, strict=True)):
        n = len(graph.boxes)
        if kind == "annotated":
            expected = relation_pairs(graph.boxes, target["boxes"], target["relations"])
        else:
            expected = object_pairs(graph.boxes, target["boxes"], target["labels"], kind)
        assert torch.equal(pairs[i, :n, :n], expected)
        assert not pairs[i, n:].any()
        assert not pairs[i, :, n:].any()
    assert pairs[0].any()  # proposals in training include the annotated boxes
    assert not pairs[1].any()  # one object has no pair


def test_strategies(step):
    _, record, images, targets = step
    sizes = sizes_of(images)
    pairs = region_pairs(record, targets, sizes)
    matrix, rows = center_mass(record, pairs), center_mass(record, pairs, over="row")
    m = matrix[0].double()
    assert relation_loss(record, targets, sizes, strategy="mat").item() == pytest.approx(-m.log().item(), rel=1e-4)
    focal = relation_loss(record, targets, sizes)
    assert focal.item() == pytest.approx((-((1 - m) ** 2) * m.log()).item(), rel=1e-4)
    assert relation_loss(record, targets, sizes, strategy="mat", r=2.0).item() == pytest.approx(focal.item())
    l2 = relation_loss(record, targets, sizes, shape="l2")
    assert l2.item() == pytest.approx(((1 - m) ** 2).item(), rel=1e-4)
    by_rows = relation_loss(record, targets, sizes, strategy="row")
    logits = region_graphs(record, sizes)[0].logits
    labelled = pairs[0, : len(logits), : len(logits)]
    masses = (logits.softmax(1) * labelled).sum(1)[labelled.any(1)]
    assert by_rows.item() == pytest.approx(-masses.log().mean().item(), rel=1e-4)
    assert rows[0].item() == pytest.approx(masses.mean().item(), rel=1e-4)
    metric = CenterMass()
    metric.update(record, pairs)
    assert metric.compute().item() == pytest.approx(m.item(), rel=1e-4)


def test_the_loss_raises_the_mass():
    """Of objects that can be told apart by their colours."""
    detector, (images, targets) = small_detector(), two_images()
    for number, box in enumerate(targets[0]["boxes"].int().tolist()):
        images[0][:, box[1] : box[3], box[0] : box[2]] = 3.0 * torch.eye(3)[number][:, None, None]
    done = foveal.insert(detector, "focused", key_channels=8)
    optimiser, sizes = torch.optim.Adam(done.parameters(), 0.3), sizes_of(images)
    masses = []
    for _ in range(60):
        with foveal.watch(detector) as seen:
            detector(images)
        with torch.no_grad():
            pairs = region_pairs(seen[SITE], targets, sizes, iou=0.2)
            masses.append(center_mass(seen[SITE], pairs)[0].item())
        optimiser.zero_grad()
        relation_loss(seen[SITE], targets, sizes, iou=0.2).backward()
        optimiser.step()
    assert masses[0] < 0.3
    assert masses[-1] > 0.8


def test_a_compiled_box_head_has_the_same_losses_and_gradients():
    """As ``train.compile`` compiles it; the number of regions changes from batch to batch."""
    plain = small_detector()
    foveal.insert(plain, "focused", key_channels=8, start="paper")
    compiled = copy.deepcopy(plain)
    torch.compiler.reset()
    backend = CompileCounterWithBackend("aot_eager")
    compiled.roi_heads.box_head.compile(dynamic=True, backend=backend)
    images, targets = two_images()
    for count in (2, 1):
        batch, true = images[:count], targets[:count]
        totals = []
        for detector in (plain, compiled):
            torch.manual_seed(0)  # of the regions that are drawn
            with foveal.watch(detector.train()) as seen:
                losses = detector(batch, true)
            relation = relation_loss(seen[SITE], true, sizes_of(batch))
            assert relation > 0
            totals.append(sum(losses.values()) + relation)
        torch.testing.assert_close(*totals)
        weights = [dict(detector.roi_heads.named_parameters()) for detector in (plain, compiled)]
        gradients = [torch.autograd.grad(total, list(w.values())) for total, w in zip(totals, weights, strict=True)]
        torch.testing.assert_close(gradients[1], gradients[0])
        assert gradients[1][list(weights[1]).index("box_head.attached.focused.key.weight")].any()
    assert backend.frame_count


def test_images_without_objects():
    images, _ = two_images()
    empty = [{"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.long)} for _ in images]
    detector = small_detector()
    foveal.insert(detector, "focused", key_channels=8)
    with foveal.watch(detector.train()) as seen:
        losses = detector(images, empty)
    assert all(loss.isfinite() for loss in losses.values())
    loss = relation_loss(seen[SITE], empty, sizes_of(images))
    assert loss == 0
    loss.backward()
    assert not detector.get_submodule(SITE).key.weight.grad.any()


def test_boxes_of_no_area_and_nan_are_nothing(step):
    _, record, images, targets = step
    bad = torch.tensor([[5.0, 5, 5, 20], [float("nan"), 0, 9, 9]])
    first = {
        "boxes": torch.cat((targets[0]["boxes"], bad)),
        "labels": torch.cat((targets[0]["labels"], torch.tensor([3, 3]))),
    }
    with_bad = region_pairs(record, [first, targets[1]], sizes_of(images))
    assert torch.equal(with_bad, region_pairs(record, targets, sizes_of(images)))


def test_by_name_in_a_recipe(step):
    detector, _, images, targets = step
    from foveal.recipe import AttentionLoss

    options = {"relation": AttentionLoss("relations", at="*.focused", options={"strategy": "row", "kind": "annotated"})}
    losses = AttentionLosses(options, detector)
    with losses.watching() as seen:
        detector(images, targets)
    values = losses(seen, {"image": images, "target": targets}, None)
    record = seen["relation"][SITE]
    expected = relation_loss(record, targets, sizes_of(images), strategy="row", kind="annotated")
    assert values["relation"].item() == pytest.approx(expected.item())
    assert "relations" in registry.attention_losses.names()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "categry"}, "category"),
        ({"strategy": "matrix"}, "mat"),
        ({"targets": []}, "0 targets for 2 images"),
        ({"targets": [{"boxes": torch.zeros(0, 4)}] * 2}, "no 'labels'"),
        ({"sizes": [(1, 1)]}, "each of the 2 images"),
    ],
)
def test_bad_input(step, change, message):
    _, record, images, targets = step
    arguments = {"targets": targets, "sizes": sizes_of(images)} | change
    with pytest.raises(UserError, match=message):
        relation_loss(record, **arguments)
