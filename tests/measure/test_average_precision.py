from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score
from torch import Tensor

from foveal.errors import UserError
from foveal.measure import (
    LabelMAP,
    WeightedAveragePrecision,
    average_precision,
    label_map,
    weighted_average_precision,
)

INTERPOLATIONS = ["area", "11point", "step"]
seeds = st.integers(0, 2**31)
sizes = st.tuples(st.integers(1, 25), st.integers(1, 4))


def ranked(seed: int, size: tuple[int, int] = (20, 4), levels: int = 6) -> tuple[Tensor, Tensor]:
    """Scores with ties; the last attribute of several has no positive."""
    draw = torch.Generator().manual_seed(seed)
    scores = torch.randint(0, levels, size, generator=draw) / levels
    labels = torch.rand(size, generator=draw) < 0.3
    if size[1] > 1:
        labels[:, -1] = False
    return scores, labels


def voc(scores: list[float], labels: list[bool], interpolation: str) -> float:
    """PASCAL VOC by the book, in exact fractions, one operating point per distinct score."""
    positives = sum(labels)
    if not positives:
        return math.nan
    recall, precision = [], []
    for threshold in sorted(set(scores), reverse=True):
        taken = [label for score, label in zip(scores, labels, strict=True) if score >= threshold]
        recall.append(Fraction(sum(taken), positives))
        precision.append(Fraction(sum(taken), len(taken)))
    if interpolation == "11point":
        best = [max((p for p, r in zip(precision, recall, strict=True) if r >= Fraction(t, 10))) for t in range(11)]
        return float(sum(best) / 11)
    area, before = Fraction(0), Fraction(0)
    for i, r in enumerate(recall):
        area += (r - before) * (max(precision[i:]) if interpolation == "area" else precision[i])
        before = r
    return float(area)


def brute_force(scores: Tensor, labels: Tensor, interpolation: str) -> Tensor:
    columns = zip(scores.T.tolist(), labels.T.tolist(), strict=True)
    return torch.tensor([voc(s, y, interpolation) for s, y in columns])


@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
@given(seed=seeds, size=sizes, levels=st.sampled_from([1, 2, 6, 1000]))
def test_equals_brute_force(interpolation, seed: int, size: tuple[int, int], levels: int) -> None:
    scores, labels = ranked(seed, size, levels)
    actual = average_precision(scores, labels, interpolation)
    torch.testing.assert_close(actual, brute_force(scores, labels, interpolation), equal_nan=True)


@given(seeds, st.sampled_from([1, 2, 6, 1000]))
def test_step_equals_scikit_learn(seed: int, levels: int) -> None:
    scores, labels = ranked(seed, (20, 3), levels)
    labels[0] = True
    expected = average_precision_score(labels.numpy(), scores.numpy(), average=None)
    torch.testing.assert_close(average_precision(scores, labels, "step"), torch.tensor(expected).float())
    weighted = average_precision_score(labels.numpy(), scores.numpy(), average="weighted")
    assert weighted_average_precision(scores, labels, "step").item() == pytest.approx(weighted, abs=1e-6)


@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
def test_large_input_equals_scikit_learn_or_bounds_it(interpolation) -> None:
    draw = torch.Generator().manual_seed(0)
    scores, labels = torch.randn(20_000, 3, generator=draw), torch.rand(20_000, 3, generator=draw) < 0.1
    step = torch.tensor(average_precision_score(labels.numpy(), scores.numpy(), average=None)).float()
    actual = average_precision(scores, labels, interpolation)
    if interpolation == "step":
        torch.testing.assert_close(actual, step)
    else:
        assert (actual > step).all()  # the envelope can only raise precision
        torch.testing.assert_close(actual, step, rtol=0, atol=0.1)


def test_eleven_points_by_hand() -> None:
    scores = torch.tensor([[0.9], [0.8], [0.7], [0.6]])
    labels = torch.tensor([[1], [0], [1], [0]])
    # Recall 0.5 at precision 1, then recall 1 at precision 2/3: six levels of the first, five of the second.
    assert average_precision(scores, labels, "11point").item() == pytest.approx((6 + 5 * 2 / 3) / 11)
    assert average_precision(scores, labels, "area").item() == pytest.approx((1 + 2 / 3) / 2)


def test_recall_levels_are_exact() -> None:
    """3/10 must reach the level 0.3, which binary floats get wrong as 3 * 0.1 > 0.3."""
    labels = torch.tensor([True] * 3 + [False] * 90 + [True] * 7)[:, None]
    scores = torch.linspace(1, 0, 100)[:, None]
    assert average_precision(scores, labels, "11point").item() == pytest.approx((4 + 7 * 0.1) / 11)


@given(seeds, st.permutations(range(20)), st.integers(0, 20), st.sampled_from(INTERPOLATIONS))
def test_order_and_batching_change_nothing(seed: int, order: list[int], cut: int, interpolation) -> None:
    scores, labels = ranked(seed)
    metric = WeightedAveragePrecision(interpolation)
    metric.update(scores[order][:cut], labels[order][:cut])
    metric.update(scores[order][cut:], labels[order][cut:])
    expected = weighted_average_precision(scores, labels, interpolation)
    torch.testing.assert_close(metric.compute(), expected, equal_nan=True)


@given(seeds, st.sampled_from(INTERPOLATIONS))
def test_only_the_order_of_scores_counts(seed: int, interpolation) -> None:
    scores, labels = ranked(seed)
    torch.testing.assert_close(
        average_precision(scores, labels, interpolation),
        average_precision(scores.double().exp() * 7 - 3, labels, interpolation),
        equal_nan=True,
    )


@given(seeds, st.sampled_from(INTERPOLATIONS))
def test_weights_are_the_positives(seed: int, interpolation) -> None:
    scores, labels = ranked(seed)
    labels[0, 0] = True
    entry = brute_force(scores, labels, interpolation).tolist()
    counts = labels.sum(0).tolist()
    expected = sum(a * c for a, c in zip(entry, counts, strict=True) if c) / sum(counts)
    assert weighted_average_precision(scores, labels, interpolation).item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
def test_constant_scores_give_the_prevalence(interpolation) -> None:
    labels = torch.tensor([True, False, False, True, False])[:, None]
    actual = average_precision(torch.zeros(5, 1), labels, interpolation)
    torch.testing.assert_close(actual, torch.tensor([0.4]))


@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
def test_perfect_ranking_is_one_with_infinite_scores_too(interpolation) -> None:
    scores = torch.tensor([math.inf, math.inf, 0.0, -math.inf])[:, None]
    assert average_precision(scores, torch.tensor([1, 1, 0, 0])[:, None], interpolation).item() == 1


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0), (4, 2)])
@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
def test_nothing_positive_is_nan(shape: tuple[int, int], interpolation) -> None:
    scores, labels = torch.rand(shape), torch.zeros(shape, dtype=torch.bool)
    actual = average_precision(scores, labels, interpolation)
    assert actual.shape == shape[1:]
    assert actual.isnan().all()
    assert weighted_average_precision(scores, labels, interpolation).isnan()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions(dtype: torch.dtype) -> None:
    scores, labels = ranked(5, levels=8)  # eighths are exact in every dtype
    actual = average_precision(scores.to(dtype), labels)
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual, average_precision(scores, labels), equal_nan=True)


def test_labels_may_be_zero_and_one() -> None:
    scores, labels = ranked(6)
    expected = weighted_average_precision(scores, labels)
    assert expected > 0
    assert weighted_average_precision(scores, labels.long()) == expected
    assert weighted_average_precision(scores, labels.float()) == expected


def test_kept_scores_hold_no_graph() -> None:
    scores, labels = ranked(7)
    metric = WeightedAveragePrecision()
    metric(scores.requires_grad_(), labels)
    assert not metric.scores[0].requires_grad


@pytest.mark.parametrize(
    ("scores", "labels", "message"),
    [
        (torch.rand(3), torch.ones(3), r"both be \(N, K\).*got \(3,\) and \(3,\)"),
        (torch.rand(3, 2), torch.ones(2, 3), r"got \(3, 2\) and \(2, 3\)"),
        (torch.rand(3, 2), torch.full((3, 2), 0.5), "bool or 0 and 1, got torch.float32"),
        (torch.rand(3, 2), torch.full((3, 2), -1), "bool or 0 and 1, got torch.int64"),
        (torch.full((3, 2), math.nan), torch.ones(3, 2), "scores hold nan"),
    ],
)
def test_bad_input_says_what_to_do(scores: Tensor, labels: Tensor, message: str) -> None:
    for function in (average_precision, weighted_average_precision, WeightedAveragePrecision().update):
        with pytest.raises(UserError, match=message):
            function(scores, labels)


def test_unknown_interpolation_names_the_near_miss() -> None:
    scores, labels = ranked(0)
    for call in (average_precision, weighted_average_precision):
        with pytest.raises(UserError, match="unknown interpolation '11-point'; did you mean '11point'"):
            call(scores, labels, "11-point")
    with pytest.raises(UserError, match="known: 11point, area, step"):
        WeightedAveragePrecision("voc")


@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
@given(seed=seeds, size=sizes)
def test_mean_leaves_out_what_does_not_count(interpolation, seed: int, size: tuple[int, int]) -> None:
    """The mean, over attributes with a positive, of the average precision of the samples that count."""
    scores, labels = ranked(seed, size)
    valid = torch.rand(size, generator=torch.Generator().manual_seed(seed)) < 0.7
    entry = [
        voc(s[v].tolist(), y[v].tolist(), interpolation) for s, y, v in zip(scores.T, labels.T, valid.T, strict=True)
    ]
    entry = [value for value in entry if not math.isnan(value)]
    expected = torch.tensor(sum(entry) / len(entry) if entry else math.nan)
    actual = label_map(scores, labels, valid, interpolation)
    torch.testing.assert_close(actual, expected, equal_nan=True)
    metric = LabelMAP(interpolation)
    half = size[0] // 2
    for part in (slice(0, half), slice(half, None)):
        metric.update(scores[part], labels[part], valid[part])
    torch.testing.assert_close(metric.compute(), expected, equal_nan=True)


def test_mean_without_valid_counts_all() -> None:
    scores, labels = ranked(3)
    expected = average_precision(scores, labels)[:-1].mean()  # the last has no positive
    assert label_map(scores, labels) == expected


def test_valid_of_another_shape() -> None:
    scores, labels = ranked(0)
    with pytest.raises(UserError, match=r"valid must be bool of shape \(20, 4\), got torch.bool \(20, 3\)"):
        label_map(scores, labels, torch.ones(20, 3, dtype=torch.bool))
