import math

import pytest
import torch

from foveal import supervise
from foveal.errors import UserError
from foveal.measure import CenterMass, center_mass, word_importance


def graphs(batch=6, count=5, seed=0):
    g = torch.Generator().manual_seed(seed)
    target = torch.rand(batch, count, count, generator=g) < 0.3
    target[1] = False
    return torch.randn(batch, count, count, generator=g), target, torch.rand(batch, count, generator=g) < 0.8


@pytest.mark.parametrize("over", ["matrix", "row"])
def test_the_mean_over_graphs_that_have_something_to_find(over):
    logits, target, mask = graphs()
    mask[3] = False
    entry = supervise.center_mass(logits, target, mask, over)
    has = [i for i in range(6) if (target[i] & mask[i][:, None] & mask[i] & ~torch.eye(5, dtype=torch.bool)).any()]
    assert 1 not in has
    assert 3 not in has
    torch.testing.assert_close(center_mass(logits, target, mask, over), entry[has].mean())


@pytest.mark.parametrize("over", ["matrix", "row"])
def test_batch_by_batch(over):
    logits, target, mask = graphs()
    metric = CenterMass(over)
    for part in (slice(0, 1), slice(1, 2), slice(2, 6)):
        metric.update(logits[part], target[part], mask[part])
    torch.testing.assert_close(metric.compute(), center_mass(logits, target, mask, over))
    off_diagonal = ~torch.eye(5, dtype=torch.bool)
    pairs = (target & mask[:, None] & mask[..., None] & off_diagonal).flatten(1).any(1)
    assert metric.counted == (int(pairs.sum()), 6)
    metric.reset()
    metric.update((logits, logits), torch.randint(0, 3, (6, 5)), related="different", scale=0.1)
    assert 0 < metric.compute() < 1


def test_nothing_to_find():
    assert math.isnan(center_mass(torch.zeros(2, 3, 3), torch.zeros(3, 3, dtype=torch.bool)))
    metric = CenterMass()
    metric.update(torch.zeros(2, 3, 3), torch.zeros(3, 3, dtype=torch.bool))
    assert math.isnan(metric.compute())
    assert metric.counted == (0, 2)
    with pytest.raises(UserError, match="did you mean 'row'"):
        CenterMass("rows")


def test_word_importance_sums_to_the_number_of_words():
    mask = torch.arange(7) < torch.tensor([[7], [3], [1], [0]])
    logits = torch.randn(2, 4, 7, 7).masked_fill(~mask[:, None, :], -1e9)
    actual = word_importance(logits.softmax(-1), mask.expand(2, 4, 7))
    assert actual.shape == (2, 4, 7)
    torch.testing.assert_close(actual.sum(-1), mask.sum(-1).float().expand(2, 4))
    assert (actual[~mask.expand(2, 4, 7)] == 0).all()


def test_word_importance_against_loops():
    weights = torch.rand(4, 4, dtype=torch.float64).softmax(1)
    for n in range(4):
        assert word_importance(weights)[n].item() == pytest.approx(sum(weights[m, n].item() for m in range(4)))
    features = torch.randn(4, 3, dtype=torch.float64)
    torch.testing.assert_close((weights @ features).sum(0), word_importance(weights) @ features)


@pytest.mark.parametrize(
    ("weights", "mask", "message"),
    [
        (torch.ones(3, 4), None, "N, N"),
        (torch.ones(3, 3).int(), None, "floating point"),
        (-torch.ones(3, 3), None, "not negative"),
        (torch.full((3, 3), math.nan), None, "finite"),
        (torch.ones(3, 3), torch.ones(3), "mask must be bool"),
        (torch.ones(2, 3, 3), torch.ones(3, dtype=torch.bool), r"bool \(2, 3\)"),
    ],
)
def test_weights_that_cannot_be_used(weights, mask, message):
    with pytest.raises(UserError, match=message):
        word_importance(weights, mask)
