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
    assert results.metrics["relation_recall@20"] == pytest.approx(expected[0].item())
    assert results.metrics["relation_recall@400"] == pytest.approx(expected[1].item())
    assert expected[1] > 0
    assert results.metrics["center_mass"] == pytest.approx(torch.stack(masses).mean().item(), rel=1e-5)


def test_images_without_any_region():
    """Nothing is found of their relations: a recall of zero, as of an image beside others that have regions."""
    metrics, results = RelationMetrics(k=(20,)), Results()
    images, targets = two_images()
    metrics.update(None, targets, sizes_of(images))
    metrics.update_training(None, targets, sizes_of(images))
    metrics.add_to(results)
    assert results.metrics == {"relation_recall@20": 0, "center_mass": None, "center_mass_train": None}
    assert set(results.notes.values()) == {"regions show two related objects in 0 of 2 images"}


@pytest.mark.parametrize("mark", ["iscrowd", "difficult"])
@pytest.mark.parametrize("kind", ["category", "instance", "annotated"])
@torch.no_grad()
def test_crowds_and_difficult_objects_have_no_relations(kind, mark):
    """The same result as without them, and as if they had never been annotated."""
    detector = small_detector()
    foveal.insert(detector, "focused", key_channels=8)
    images, targets = two_images()
    targets[0] |= {"relations": torch.tensor([[0, 1], [2, 0]])}
    marked = [dict(target) for target in targets]
    marked[0][mark] = torch.tensor([False, True, False])
    without = [dict(target) for target in targets]
    without[0] |= {key: targets[0][key][[0, 2]] for key in ("boxes", "labels")}
    without[0]["relations"] = torch.tensor([[1, 0]])
    with foveal.watch(detector) as seen:
        detector(images)
    found = []
    for some in (marked, without, targets):
        metrics, results = RelationMetrics(kind, k=(20, 400), iou=0.2), Results()
        metrics.update(seen[SITE], some, sizes_of(images))
        metrics.add_to(results)
        found.append({key: value for key, value in results.metrics.items() if value is not None})
    assert found[0] == found[1]
    assert found[0] != found[2]
