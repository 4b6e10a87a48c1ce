"""What a region attends to, as samples keep it."""

import pytest
import torch

from foveal.attention import RegionGraph
from foveal.tasks.attended import KEPT, of_object, packed, strongest, unpacked

BOXES = torch.tensor([[0.0, 0, 10, 10], [1, 0, 10, 10], [20, 0, 30, 10], [0, 20, 10, 30]])
LOGITS = torch.tensor([[0.0, 0, 3, 0], [0, 0, 0, 0], [0, 0, 0, 5], [1, 0, 2, 0]])
TRUE = {"boxes": BOXES[[3, 0, 2]], "labels": torch.tensor([4, 7, 2])}


def test_the_region_of_the_first_object_with_a_relation():
    seen = of_object(RegionGraph(LOGITS, BOXES), TRUE, torch.tensor([[1, 2], [1, 0], [2, 0]]))
    row = LOGITS[0].softmax(0)
    assert seen.boxes.shape == (KEPT, 4)
    assert torch.equal(seen.boxes[:2], BOXES[[0, 2]])
    assert torch.allclose(seen.weights[:2], row[[0, 2]])
    assert seen.mass == pytest.approx(float(row[2] + row[3]))
    assert seen.labels.tolist() == [7, 2, 4]


def test_without_relations_it_is_the_strongest_pair():
    graph = RegionGraph(LOGITS, BOXES)
    for seen in (strongest(graph), of_object(graph, TRUE, torch.zeros(0, 2, dtype=torch.int64))):
        assert torch.equal(seen.boxes[0], BOXES[2])
        assert seen.mass.isnan()


@pytest.mark.parametrize("count", [0, 1])
def test_too_few_regions_for_a_pair(count):
    graph = RegionGraph(torch.zeros(count, count), BOXES[:count])
    assert not strongest(graph).boxes.any()
    assert len(unpacked(packed([strongest(graph)]))[0].boxes) == 0


def test_packed_and_unpacked():
    graph = RegionGraph(LOGITS, BOXES)
    kept = [of_object(graph, TRUE, torch.tensor([[1, 2]])), strongest(graph)]
    first, second = unpacked(packed(kept))
    assert torch.equal(first.boxes[0], BOXES[0])
    assert len(first.boxes) == len(first.weights) == 4
    assert (first.labels.tolist(), second.labels.tolist()) == ([7, 2], [])
    assert unpacked({"image": BOXES}) == []
