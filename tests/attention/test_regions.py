"""Focused attention in the box head of a detector."""

import copy
import pickle

import pytest
import torch
import torchvision
from small_detector import PROPOSALS, WIDTH, sizes_of, small_detector, two_images
from small_net import SmallNet, tree
from torch import nn

import foveal
from foveal.attention import FocusedAttention, region_graphs, relationship_proposals
from foveal.attention.insertion.describe import inserted, reinsert
from foveal.errors import UserError

SITE = "roi_heads.box_head.attached.focused"


def same(first, second):
    return all(torch.equal(a[key], b[key]) for a, b in zip(first, second, strict=True) for key in a)


@torch.no_grad()
def trained(detector, seed=1):
    """Attention that does something."""
    torch.manual_seed(seed)
    focused = detector.get_submodule(SITE)
    focused.key.weight.normal_()
    focused.query.weight.normal_()
    if focused.amount is not None:
        focused.amount.fill_(0.7)
    return detector


@pytest.mark.parametrize("fpn", [False, True])
def test_detects_what_it_detected_before(fpn):
    detector, (images, targets) = small_detector(fpn), two_images()
    plain_tree, state = tree(detector), copy.deepcopy(detector.state_dict())
    with torch.no_grad():
        before = detector(images)
    assert sum(len(one["boxes"]) for one in before) > 5
    done = foveal.insert(detector, "focused", key_channels=8)
    assert done.sites == ["roi_heads.box_head"]
    assert [name for name in detector.state_dict() if ".attached." not in name] == list(state)
    with torch.no_grad():
        assert same(detector(images), before)
    missing, unexpected = detector.load_state_dict(state, strict=False)
    assert not unexpected
    assert missing == [f"{SITE}.{name}" for name in ("amount", "key.weight", "query.weight")]
    trained(detector)
    with torch.no_grad():
        assert not same(detector(images), before)
    detector.train()
    sum(detector(images, targets).values()).backward()
    assert detector.get_submodule(SITE).key.weight.grad.abs().sum() > 0
    done.eject()
    assert tree(detector.eval()) == plain_tree
    detector.load_state_dict(state)  # the step above moved the statistics of batch norms
    with torch.no_grad():
        assert same(detector(images), before)


def test_every_image_is_a_graph_of_its_own():
    """Features are those of the equation, computed for each image alone; padding changes nothing."""
    detector, _ = trained_detector()
    focused, heads = detector.get_submodule(SITE), detector.roi_heads
    features = torch.randn(12, WIDTH)
    boxes, sizes = [torch.rand(7, 4), torch.rand(0, 4), torch.rand(5, 4)], [(9, 9)] * 3
    aggregated = focused.aggregate(features, boxes, sizes)
    parts = []
    for part in features.split([7, 0, 5]):
        logits = (part @ focused.key.weight.T) @ (part @ focused.query.weight.T).T / focused.key_channels**0.5
        parts.append(logits.softmax(1) @ part)
    torch.testing.assert_close(aggregated, torch.cat(parts))
    with pytest.raises(UserError, match="12 regions, but 7"):
        focused.aggregate(features, boxes[:1], sizes[:1])
    with pytest.raises(UserError, match=r"without roi_heads\.box_roi_pool"):
        heads.box_head(torch.rand(3, 16, 3, 3))


def boxes_height(image):
    """Height of the image as the detector has resized it."""
    return 64 if image.shape[-2] == 50 else 96


def trained_detector(**options):
    detector = small_detector(**options)
    foveal.insert(detector, "focused", key_channels=8)
    return trained(detector), two_images()


def test_record_has_the_proposals():
    detector, (images, _) = trained_detector()
    kept = []
    keep = detector.roi_heads.box_roi_pool.register_forward_pre_hook(lambda module, args: kept.extend(args[1:]))
    with torch.no_grad(), foveal.watch(detector) as seen:
        detections = detector(images)
    keep.remove()
    with torch.no_grad():
        assert same(detections, detector(images))  # watching changes nothing
    (proposals, sizes), record = kept, seen[SITE]
    assert record.kind == "pairwise"
    assert record.noted.sizes == sizes == [(64, 89), (96, 48)]
    graphs = region_graphs(record, sizes)
    for graph, boxes in zip(graphs, proposals, strict=True):
        assert torch.equal(graph.boxes, boxes)
        assert graph.logits.shape == (len(boxes), len(boxes))
    for graph, weights in zip(graphs, record.values, strict=True):
        n = len(graph.boxes)
        torch.testing.assert_close(graph.logits.softmax(1), weights[:n, :n])
        assert not weights[n:].any()
    for graph, boxes, image in zip(region_graphs(record, sizes_of(images)), proposals, images, strict=True):
        height, width = image.shape[-2:]
        assert bool((graph.boxes[:, 2] <= width + 1e-3).all())
        assert bool((graph.boxes[:, 3] <= height + 1e-3).all())
        torch.testing.assert_close(graph.boxes[:, 3] * boxes_height(image) / height, boxes[:, 3])
    with pytest.raises(UserError, match="each of the 2 images"):
        region_graphs(record, [(50, 70)])


def test_one_forward_gives_detections_and_relationships():
    detector, (images, _) = trained_detector()
    with torch.no_grad(), foveal.watch(detector) as seen:
        detector(images)
    graph = region_graphs(seen[SITE], sizes_of(images))[0]
    ranked = relationship_proposals(*graph, k=40)
    assert len(ranked.pairs) == 40
    assert bool((ranked.weights.diff() <= 0).all())
    assert bool((ranked.pairs[:, 0] != ranked.pairs[:, 1]).all())
    share = graph.logits.flatten().softmax(0).view_as(graph.logits)
    torch.testing.assert_close(ranked.weights, share[ranked.pairs[:, 0], ranked.pairs[:, 1]])
    assert torch.equal(ranked.objects, graph.boxes[ranked.pairs[:, 1]])
    off_diagonal = share.masked_fill(torch.eye(len(share), dtype=torch.bool), 0)
    torch.testing.assert_close(ranked.weights[0], off_diagonal.max())
    assert len(relationship_proposals(*graph, k=10**6).pairs) == len(share) * (len(share) - 1)


def test_relationships_of_hardly_any_proposals():
    for count in (0, 1):
        ranked = relationship_proposals(torch.zeros(count, count), torch.zeros(count, 4), k=10)
        assert [len(part) for part in ranked] == [0, 0, 0, 0]
    with pytest.raises(UserError, match="a box for each row"):
        relationship_proposals(torch.zeros(3, 3), torch.zeros(2, 4))
    with pytest.raises(UserError, match="NaN"):
        relationship_proposals(torch.full((3, 3), torch.nan), torch.zeros(3, 4))
    with pytest.raises(UserError, match="k=0"):
        relationship_proposals(torch.zeros(3, 3), torch.zeros(3, 4), k=0)


def test_fewer_proposals_than_asked_for_and_none():
    images, _ = two_images()
    detector, _ = trained_detector(rpn_post_nms_top_n_test=3)
    with torch.no_grad(), foveal.watch(detector) as seen:
        detector(images)
    assert seen[SITE].shape == (2, 3, 3)
    detector, _ = trained_detector(rpn_score_thresh=2.0)  # no proposal scores as high
    with torch.no_grad(), foveal.watch(detector) as seen:
        detections = detector(images)
    assert [len(one["boxes"]) for one in detections] == [0, 0]
    assert SITE not in seen
    different, _ = trained_detector(rpn_nms_thresh=0.05)
    with torch.no_grad(), foveal.watch(different) as seen:
        different(images)
    counts = seen[SITE].noted.valid.sum(1)
    assert counts[0] != counts[1]
    assert int(counts.max()) < PROPOSALS


def test_paper_start_is_the_plain_sum():
    detector = small_detector()
    foveal.insert(detector, "focused", start="paper")
    focused = detector.get_submodule(SITE)
    assert focused.amount is None
    focused._taps[0].take(None, [torch.rand(5, 4)], [(8, 8)])
    features = torch.rand(5, WIDTH)
    plain = FocusedAttention(WIDTH)
    plain.load_state_dict(focused.state_dict())
    torch.testing.assert_close(focused(features), features + plain(features[None])[0][0])


def test_copies_and_descriptions():
    detector, (images, _) = trained_detector()
    with torch.no_grad():
        expected = detector(images)
        for again in (copy.deepcopy(detector), pickle.loads(pickle.dumps(detector))):
            assert again.get_submodule(SITE)._taps[0] is again.get_submodule("roi_heads.box_roi_pool.attached.focused")
            assert same(again(images), expected)
        other = small_detector()
        reinsert(other, inserted(detector))
        other.load_state_dict(detector.state_dict())
        assert same(other(images), expected)


def test_several_heads_and_half_precision():
    detector, (images, _) = small_detector(), two_images()
    foveal.insert(detector, "focused", key_channels=4, heads=2)
    with torch.no_grad(), foveal.watch(trained(detector)) as seen, torch.autocast("cpu", torch.bfloat16):
        detector(images)
    record = seen[SITE]
    assert record.shape == (2, 2, PROPOSALS, PROPOSALS)
    graph = region_graphs(record, record.noted.sizes)[0]
    mean = (record.noted.q[0].float() @ record.noted.k[0].float().mT).mean(0) * record.noted.scale
    torch.testing.assert_close(graph.logits, mean, atol=1e-4, rtol=1e-3)


def test_dry_run_and_usual_places():
    rows = foveal.sites(small_detector(), "focused", example=torch.rand(1, 3, 64, 64))
    assert [(row.name, row.parameters) for row in rows] == [("roi_heads.box_head", 2 * WIDTH * 64)]
    with torch.device("meta"):
        mask_rcnn = torchvision.models.get_model("maskrcnn_resnet50_fpn_v2", weights=None, weights_backbone=None)
        retinanet = torchvision.models.get_model("retinanet_resnet50_fpn", weights=None, weights_backbone=None)
    assert foveal.insert(mask_rcnn, "focused").sites == ["roi_heads.box_head"]
    with pytest.raises(UserError, match=r"RetinaNet has no default site for 'focused': .* a detector with RoI heads"):
        foveal.insert(retinanet, "focused")


def test_wrong_places_are_errors_and_change_nothing():
    net = SmallNet()
    before = tree(net)
    with pytest.raises(UserError, match=r"no box_roi_pool.*FocusedAttention"):
        foveal.insert(net, "focused", at="last")
    with pytest.raises(UserError, match="output channels is not known"):
        foveal.insert(net, "focused", at="act")
    assert tree(net) == before
    detector = small_detector()
    before = tree(detector)
    with pytest.raises(UserError, match="heads that divide channels"):
        foveal.insert(detector, "focused", heads=5)
    foveal.insert(detector, "focused").eject()
    assert tree(detector) == before
    foveal.insert(detector, "focused")
    with pytest.raises(UserError, match="already"):
        foveal.insert(detector, "focused")


def test_records_of_other_attention_are_refused():
    attention = FocusedAttention(8)
    model = nn.Sequential(attention)
    with foveal.watch(model) as seen:
        model(torch.rand(1, 3, 8))
    with pytest.raises(UserError, match="not attention between regions"):
        region_graphs(seen["0"], [(3, 3)])
