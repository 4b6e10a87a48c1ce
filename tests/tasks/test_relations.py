"""Relation recall and center-mass of a detector, over batches."""

import pytest
import torch
from small_detector import sizes_of, small_detector, two_images

import foveal
from foveal.measure import center_mass, relation_recall
from foveal.supervise import object_relations, region_pairs
from foveal.tasks import Results
from foveal.tasks.relations import RelationMetrics

SITE = "roi_heads.box_head.attached.focused"


@pytest.mark.parametrize("kind", ["category", "instance", "annotated"])
@torch.no_grad()
def test_over_two_batches(kind):
    detector = small_detector()
    foveal.insert(detector, "focused", key_channels=8)
    metrics, recalls, masses = RelationMetrics(kind, k=(20, 400), iou=0.2), [], []
    for seed in range(2):
        images, targets = two_images(seed)
        with foveal.watch(detector) as seen:
            detector(images)
        metrics.update(seen[SITE], targets, sizes_of(images))
        masses.append(center_mass(seen[SITE], region_pairs(seen[SITE], targets, sizes_of(images), kind, 0.2)))
        graph, target = foveal.attention.region_graphs(seen[SITE], sizes_of(images))[0], targets[0]
        annotated = kind == "annotated"
        relations = target["relations"] if annotated else object_relations(target["labels"], kind)
        arguments = (*graph, target["boxes"], relations, (20, 400), 0.2)
        recalls.append(relation_recall(*arguments, ordered=annotated))  # the second image has no relation
    results = Results()
    metrics.add_to(results)
    expected = torch.stack(recalls).mean(0)
    assert results.metrics["relation_recall/20"] == pytest.approx(expected[0].item())
    assert results.metrics["relation_recall/400"] == pytest.approx(expected[1].item())
    assert expected[1] > 0
    assert results.metrics["center_mass"] == pytest.approx(torch.stack(masses).mean().item(), rel=1e-5)
