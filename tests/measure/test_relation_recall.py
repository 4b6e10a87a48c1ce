"""Recall of relationships against a plain loop, and on cases made by hand."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from foveal.errors import UserError
from foveal.measure import RelationRecall, relation_recall

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "relation_recall.py"
BOXES = torch.tensor([[0.0, 0, 10, 10], [20, 0, 30, 10], [0, 20, 10, 30], [20, 20, 30, 30]])


@pytest.fixture(scope="module")
def bench():
    """The benchmark, which has the plain loop."""
    spec = importlib.util.spec_from_file_location("bench_relation_recall", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def random_image(seed: int, proposals: int = 30, objects: int = 5, relations: int = 6) -> tuple[Tensor, ...]:
    """Proposals that often show an object, scores with ties, and relations with repetitions."""
    draw = torch.Generator().manual_seed(seed)
    corners = 40 * torch.rand(objects, 2, generator=draw)
    boxes = torch.cat((corners, corners + 5 + 20 * torch.rand(objects, 2, generator=draw)), 1)
    near = boxes[torch.randint(objects, (proposals,), generator=draw)]
    near = near + 2 * torch.randn(proposals, 4, generator=draw)
    scores = torch.randint(0, 12, (proposals, proposals), generator=draw).float()
    return scores, near, boxes, torch.randint(objects, (relations, 2), generator=draw)


@settings(max_examples=25)
@given(
    seed=st.integers(0, 10**6),
    proposals=st.integers(0, 25),
    objects=st.integers(1, 6),
    relations=st.integers(0, 8),
    ordered=st.booleans(),
)
def test_equals_the_loop(bench, seed: int, proposals: int, objects: int, relations: int, ordered: bool) -> None:
    scores, near, boxes, related = random_image(seed, proposals, objects, relations)
    k = (1, 5, 40, 10_000)
    expected = bench.loop(scores.tolist(), near.tolist(), boxes.tolist(), related.tolist(), k, ordered)
    recall = relation_recall(scores, near, boxes, related, k, ordered=ordered)
    torch.testing.assert_close(recall, torch.tensor(expected), equal_nan=True)


def test_by_hand() -> None:
    """Four boxes: a duplicate proposal, a mirrored pair and a repeated relation."""
    proposals = torch.cat((BOXES, BOXES[:1] + torch.tensor([0.0, 0, 0, 1])))  # the last shows box 0 again
    scores = torch.zeros(5, 5)
    scores[1, 0] = 9  # the mirror of the first relation: it takes the first rank
    scores[4, 1] = 8  # the first relation, by the duplicate
    scores[0, 1] = 7  # the same relation again
    scores[2, 3] = 6  # the second
    relations = torch.tensor([[0, 1], [2, 3], [0, 1], [3, 0]])
    k = (1, 2, 3, 4)
    assert relation_recall(scores, proposals, BOXES, relations, k).tolist() == pytest.approx([0, 1 / 3, 1 / 3, 2 / 3])
    either = relation_recall(scores, proposals, BOXES, relations, k, ordered=False)
    assert either.tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 2 / 3])


def test_overlap_of_exactly_half_is_not_enough() -> None:
    proposals = torch.tensor([[0.0, 0, 10, 5], [20, 0, 30, 10]])
    arguments = (torch.eye(2), proposals, BOXES, torch.tensor([[0, 1]]), (2,))
    assert relation_recall(*arguments) == 0
    assert relation_recall(*arguments, iou=0.49) == 1


def test_pairs_that_are_not_valid_have_no_rank() -> None:
    scores = torch.full((4, 4), -torch.inf)
    scores[2, 3] = -5.0
    recall = relation_recall(scores, BOXES, BOXES, torch.tensor([[2, 3], [0, 1]]), (1, 100))
    assert recall.tolist() == [0.5, 0.5]


def test_nothing_to_find_and_nothing_to_find_it_with() -> None:
    none, some = torch.zeros(0, 2, dtype=torch.long), torch.tensor([[0, 1]])
    assert relation_recall(torch.zeros(4, 4), BOXES, BOXES, none).isnan().all()
    assert relation_recall(torch.zeros(4, 4), BOXES, BOXES, torch.tensor([[-1, -1]])).isnan().all()
    for count in (0, 1):
        assert relation_recall(torch.zeros(count, count), BOXES[:count], BOXES, some).tolist() == [0] * 5
    assert relation_recall(torch.zeros(4, 4), BOXES, torch.zeros(0, 4), none).isnan().all()
    flat = BOXES.clone()
    flat[:, 2] = flat[:, 0]  # no area
    assert relation_recall(torch.zeros(4, 4), BOXES, flat, some).tolist() == [0] * 5


def test_order_of_proposals_and_half_precision() -> None:
    scores, proposals, boxes, relations = random_image(3)
    scores = torch.randperm(scores.numel(), generator=torch.Generator().manual_seed(0)).view(scores.shape) / 64
    order = torch.randperm(len(scores), generator=torch.Generator().manual_seed(1))
    k = (3, 30, 300)
    expected = relation_recall(scores, proposals, boxes, relations, k)
    assert torch.equal(relation_recall(scores[order][:, order], proposals[order], boxes, relations, k), expected)
    assert torch.equal(relation_recall(scores.double(), proposals.double(), boxes.double(), relations, k), expected)
    assert relation_recall(scores.bfloat16(), proposals, boxes, relations, k)[-1] == expected[-1]


def test_metric_is_the_mean_over_images_with_relations() -> None:
    images = [random_image(seed, proposals=10 + seed) for seed in range(4)]
    empty = (*images[0][:3], torch.zeros(0, 2, dtype=torch.long))
    metric = RelationRecall(k=(5, 50))
    for part in (images[:2], [empty], images[2:]):
        metric.update(*zip(*part, strict=True))
    expected = torch.stack([relation_recall(*image, k=(5, 50)) for image in images]).mean(0)
    torch.testing.assert_close(metric.compute(), expected)
    assert [info.key for info in metric.infos] == ["relation_recall@5", "relation_recall@50"]
    metric.reset()
    metric.update(*([value] for value in empty))
    assert metric.compute().isnan().all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pair_scores": torch.zeros(3, 4)}, "row and a column for each proposal"),
        ({"pair_scores": torch.full((4, 4), torch.nan)}, "NaN"),
        ({"pair_scores": torch.zeros(4, 4).long()}, "floating point"),
        ({"pair_scores": [[0.0]]}, "torch.as_tensor"),
        ({"proposals": torch.zeros(4, 5)}, "x1, y1, x2, y2"),
        ({"boxes": BOXES * torch.nan}, "boxes hold NaN"),
        ({"relations": torch.tensor([[0, 4]])}, "there are 4 boxes"),
        ({"relations": torch.tensor([[0.0, 1.0]])}, "integers"),
        ({"relations": torch.tensor([0, 1])}, r"\(R, 2\)"),
        ({"k": ()}, "at least 1"),
        ({"k": (0,)}, "at least 1"),
    ],
)
def test_bad_input(change: dict[str, object], message: str) -> None:
    arguments = {"pair_scores": torch.zeros(4, 4), "proposals": BOXES, "boxes": BOXES}
    with pytest.raises(UserError, match=message):
        relation_recall(**(arguments | {"relations": torch.tensor([[0, 1]])} | change))


def test_metric_needs_as_many_of_each() -> None:
    with pytest.raises(UserError, match="same images"):
        RelationRecall().update([torch.zeros(4, 4)], [BOXES], [BOXES], [])
