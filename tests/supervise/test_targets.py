"""Targets against loops over pairs."""

import pytest
import torch
from torchvision.ops import box_iou as torchvision_iou

from foveal.errors import UserError
from foveal.supervise import Tag, object_pairs, relation_pairs, word_pairs
from foveal.supervise.targets import assign, box_iou

NAMES = {Tag.NOUN: "noun", Tag.VERB: "verb", Tag.ADJ: "adjective", Tag.ADV: "adverb"}
MEANT = [{"noun"}, {"verb", "noun"}, {"noun", "adjective"}, {"adverb", "verb"}, {"adverb", "adjective"}]


def slow_words(tags, words, kind):
    count = len(tags)
    actual = torch.zeros(count, count, dtype=torch.bool)
    for m in range(count):
        for n in range(count):
            if m == n or tags[m] == 0 or tags[n] == 0:
                continue
            if kind.startswith("semantic"):
                both = {NAMES.get(int(tags[m])), NAMES.get(int(tags[n]))}
                actual[m, n] = both in MEANT and (kind == "semantic" or both != {"noun"})
            elif kind == "same_category":
                actual[m, n] = tags[m] == tags[n]
            elif kind == "different_category":
                actual[m, n] = tags[m] != tags[n]
            else:
                actual[m, n] = words[m] != words[n]
    return actual


@pytest.mark.parametrize(
    "kind", ["semantic", "semantic_mixed", "same_category", "different_category", "different_word"]
)
@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8])
def test_word_pairs(kind, dtype):
    g = torch.Generator().manual_seed(0)
    tags = torch.randint(0, 13, (2, 5, 9), generator=g).to(dtype)
    words = torch.randint(0, 4, (2, 5, 9), generator=g)
    actual = word_pairs(tags, words, kind)
    assert actual.shape == (2, 5, 9, 9)
    assert actual.dtype == torch.bool
    assert actual.any()
    for b in range(2):
        for s in range(5):
            assert torch.equal(actual[b, s], slow_words(tags[b, s], words[b, s], kind))
    assert torch.equal(actual, actual.mT)


def test_mixed_pairs_are_the_semantic_ones_of_different_categories():
    tags = torch.arange(13)[torch.randint(0, 13, (60,), generator=torch.Generator().manual_seed(0))]
    every, mixed, different = (word_pairs(tags, kind=k) for k in ("semantic", "semantic_mixed", "different_category"))
    assert torch.equal(mixed, every & different)
    assert mixed.sum() < every.sum()


def test_word_pairs_of_nothing():
    assert word_pairs(torch.zeros(3, 4, dtype=torch.int64)).sum() == 0
    assert word_pairs(torch.tensor([1])).tolist() == [[False]]
    assert word_pairs(torch.zeros(2, 0, dtype=torch.int64)).shape == (2, 0, 0)
    assert word_pairs(torch.tensor([1, 1, -3])).sum() == 2  # less than 0 is padding


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.zeros(3),), "tags must be integers"),
        (([1, 2],), "tags must be a tensor of integers"),
        ((torch.zeros(3, dtype=torch.bool),), "tags must be integers"),
        ((torch.ones(3, dtype=torch.int64), None, "semantics"), "did you mean 'semantic'"),
        ((torch.ones(3, dtype=torch.int64), None, "different_word"), "give words"),
        ((torch.ones(3, dtype=torch.int64), torch.ones(4, dtype=torch.int64), "different_word"), "one shape"),
    ],
)
def test_words_that_cannot_be_used(arguments, message):
    with pytest.raises(UserError, match=message):
        word_pairs(*arguments)


def boxes_like(shape, seed, size=40.0):
    g = torch.Generator().manual_seed(seed)
    corner = torch.rand(*shape, 2, generator=g) * size
    return torch.cat([corner, corner + 5 + torch.rand(*shape, 2, generator=g) * size], -1)


def near(boxes, proposals, seed):
    """Proposals that are moved copies of boxes, so that many overlap one."""
    g = torch.Generator().manual_seed(seed)
    which = torch.randint(0, boxes.shape[-2], (*boxes.shape[:-2], proposals), generator=g)
    chosen = boxes.gather(-2, which[..., None].expand(*which.shape, 4))
    return chosen + 2 * torch.randn(chosen.shape, generator=g)


def slow_iou(a, b):
    sides = [max(0.0, float(min(a[i + 2], b[i + 2]) - max(a[i], b[i]))) for i in (0, 1)]
    areas = [max(0.0, float(x[2] - x[0])) * max(0.0, float(x[3] - x[1])) for x in (a, b)]
    shared = sides[0] * sides[1]
    return shared / (sum(areas) - shared) if sum(areas) > shared else 0.0


def slow_assign(proposals, boxes, present, iou):
    actual = []
    for proposal in proposals:
        overlaps = [slow_iou(proposal, box) if there else -1.0 for box, there in zip(boxes, present, strict=True)]
        best = max(overlaps, default=0.0)
        actual.append(overlaps.index(best) if best > iou else -1)
    return actual


@pytest.mark.parametrize("iou", [0.5, 0.3])
@pytest.mark.parametrize("kind", ["category", "instance"])
def test_object_pairs(kind, iou):
    boxes = boxes_like((3, 5), 0)
    labels = torch.tensor([[0, 1, 1, 2, 0], [4, 4, 4, -1, -1], [-1] * 5])
    proposals = near(boxes, 12, 1)
    actual = object_pairs(proposals, boxes, labels, kind, iou)
    assert actual.shape == (3, 12, 12)
    assert actual[0].any()
    assert not actual[2].any()
    for b in range(3):
        shows = slow_assign(proposals[b], boxes[b], labels[b] >= 0, iou)
        for m in range(12):
            for n in range(12):
                pair = shows[m] >= 0 and shows[n] >= 0 and shows[m] != shows[n]
                pair = pair and (kind == "instance" or bool(labels[b, shows[m]] != labels[b, shows[n]]))
                assert bool(actual[b, m, n]) == pair
        assert torch.equal(actual[b], object_pairs(proposals[b], boxes[b], labels[b], kind, iou))


@pytest.mark.parametrize("symmetric", [False, True])
def test_relation_pairs(symmetric):
    boxes = boxes_like((2, 5), 3)
    proposals = near(boxes, 12, 4)
    relations = torch.tensor([[[0, 1], [1, 3], [1, 3]], [[4, 2], [-1, -1], [-1, -1]]])
    actual = relation_pairs(proposals, boxes, relations, symmetric=symmetric)
    assert actual.any()
    for b in range(2):
        shows = slow_assign(proposals[b], boxes[b], [True] * 5, 0.5)
        related = {tuple(pair) for pair in relations[b].tolist() if min(pair) >= 0}
        related |= {(o, s) for s, o in related} if symmetric else set()
        for m in range(12):
            for n in range(12):
                assert bool(actual[b, m, n]) == (m != n and (shows[m], shows[n]) in related)
        assert torch.equal(actual[b], relation_pairs(proposals[b], boxes[b], relations[b], symmetric=symmetric))


def test_pictures_without_objects():
    none = torch.zeros(0, 4)
    proposals = boxes_like((6,), 0)
    assert not object_pairs(proposals, none, torch.zeros(0, dtype=torch.int64)).any()
    assert not relation_pairs(proposals, none, torch.zeros(0, 2, dtype=torch.int64)).any()
    assert not relation_pairs(proposals, proposals, torch.zeros(0, 2, dtype=torch.int64)).any()
    assert object_pairs(none, proposals, torch.arange(6)).shape == (0, 0)


def test_overlap_is_that_of_torchvision():
    a, b = boxes_like((7,), 0), boxes_like((4,), 1)
    torch.testing.assert_close(box_iou(a, b), torchvision_iou(a, b))
    nothing = torch.tensor([[3.0, 3, 3, 3]])
    assert box_iou(nothing, nothing).item() == 0


def test_an_overlap_of_exactly_the_threshold_is_background():
    boxes = torch.tensor([[0.0, 0, 10, 10]])
    assert assign(torch.tensor([[0.0, 0, 5, 10]]), boxes).tolist() == [-1]
    assert assign(torch.tensor([[0.0, 0, 5.1, 10]]), boxes).tolist() == [0]


def test_targets_have_no_gradient():
    proposals = boxes_like((6,), 0).requires_grad_()
    assert not object_pairs(proposals, proposals.detach(), torch.arange(6)).requires_grad


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p, b: object_pairs(p[:, :3], b, torch.zeros(3, dtype=torch.int64)), r"proposals must be \(..., N, 4\)"),
        (lambda p, b: object_pairs(p, b[None], torch.zeros(1, 3, dtype=torch.int64)), "the same images"),
        (lambda p, b: object_pairs(p, b, torch.zeros(2, dtype=torch.int64)), "one for each box"),
        (lambda p, b: object_pairs(p, b, torch.zeros(3, dtype=torch.int64), "class"), "unknown kind of object pairs"),
        (lambda p, b: relation_pairs(p, b, torch.zeros(2, 3, dtype=torch.int64)), "relations must be integers"),
        (lambda p, b: relation_pairs(p, b, torch.zeros(2, 2)), "relations must be integers"),
    ],
)
def test_boxes_that_cannot_be_used(call, message):
    with pytest.raises(UserError, match=message):
        call(boxes_like((4,), 0), boxes_like((3,), 1))


@pytest.mark.parametrize("kind", ["semantic", "same_category"])
def test_a_tag_that_does_not_exist(kind):
    with pytest.raises(UserError, match=r"foveal\.supervise\.Tag, 0 to 12, got 13"):
        word_pairs(torch.tensor([1, 13]), kind=kind)


def test_an_overlap_that_nothing_reaches():
    boxes = torch.tensor([[0.0, 0.0, 5.0, 5.0]])
    with pytest.raises(UserError, match=r"iou=2: expected a fraction"):
        object_pairs(boxes, boxes, torch.tensor([1]), iou=2)
