from __future__ import annotations

import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, confusion_matrix, jaccard_score

from foveal.errors import UserError
from foveal.measure import MeanIoU, mean_iou
from foveal.measure.mean_iou import PixelConfusion, class_iou, confusion, pixel_accuracy


def images(seed: int = 0, classes: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    prediction = torch.randint(0, classes, (3, 7, 9), generator=draw)
    label = torch.where(torch.rand(3, 7, 9, generator=draw) < 0.5, prediction, prediction.roll(1, 0))
    return prediction, label.masked_fill(torch.rand(3, 7, 9, generator=draw) < 0.2, 255)


def counted(prediction: torch.Tensor, label: torch.Tensor) -> tuple[list[int], list[int]]:
    return label[label != 255].tolist(), prediction[label != 255].tolist()


@pytest.mark.parametrize("seed", range(3))
def test_is_that_of_scikit_learn(seed):
    prediction, label = images(seed)
    true, predicted = counted(prediction, label)
    matrix = confusion(prediction, label, 5)
    assert matrix.tolist() == confusion_matrix(true, predicted, labels=range(5)).tolist()
    expected = jaccard_score(true, predicted, labels=range(5), average=None)
    torch.testing.assert_close(class_iou(matrix).double(), torch.from_numpy(expected), atol=1e-6, rtol=0)
    assert float(mean_iou(prediction, label, 5)) == pytest.approx(expected.mean(), abs=1e-6)
    assert float(pixel_accuracy(matrix)) == pytest.approx(accuracy_score(true, predicted), abs=1e-6)


def test_classes_that_are_absent():
    """One that neither occurs nor is predicted is left out; one that is only predicted counts as 0."""
    prediction, label = images(classes=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = jaccard_score(*counted(prediction, label), labels=range(3), average="macro")
    assert float(mean_iou(prediction, label, 7)) == pytest.approx(expected, abs=1e-6)
    assert class_iou(confusion(prediction, label, 7)).isnan().tolist() == [False] * 3 + [True] * 4
    prediction[0, 0, 0], label[0, 0, 0] = 5, 0
    ious = class_iou(confusion(prediction, label, 7))
    assert ious[5] == 0
    assert float(mean_iou(prediction, label, 7)) == pytest.approx(float(ious[[0, 1, 2, 5]].mean()), abs=1e-6)


def test_nothing_to_measure():
    label = torch.full((1, 2, 2), 255)
    assert mean_iou(torch.zeros(1, 2, 2, dtype=torch.long), label, 3).isnan()


def test_without_an_ignored_label():
    assert mean_iou(torch.tensor([[[255, 0]]]), torch.tensor([[[255, 0]]]), 256, ignored=None) == 1


@given(st.integers(0, 100), st.integers(1, 20))
def test_batches_add_up(seed, cut):
    prediction, label = images(seed)
    metric, matrix = MeanIoU(5), PixelConfusion(5)
    for part in (slice(0, cut), slice(cut, None)):
        rows = (values.reshape(1, 21, 9)[:, part] for values in (prediction, label))
        pair = list(rows)
        metric.update(*pair)
        matrix.update(*pair)
    assert torch.equal(metric.compute(), mean_iou(prediction, label, 5))
    assert torch.equal(matrix.compute(), confusion(prediction, label, 5))


def test_order_does_not_matter():
    prediction, label = images()
    order = torch.randperm(prediction.numel(), generator=torch.Generator().manual_seed(0))
    shuffled = (values.flatten()[order].view(1, 1, -1) for values in (prediction, label))
    assert torch.equal(mean_iou(*shuffled, 5), mean_iou(prediction, label, 5))


def test_bad_input():
    label = torch.zeros(1, 2, 2, dtype=torch.long)
    with pytest.raises(UserError, match="argmax"):
        mean_iou(torch.zeros(1, 3, 2, 2, dtype=torch.long), label, 3)
    with pytest.raises(UserError, match="class numbers"):
        mean_iou(torch.zeros(1, 2, 2), label, 3)
    with pytest.raises(UserError, match="0 to 2, or 255"):
        mean_iou(label, label + 3, 3)
    with pytest.raises(UserError, match="prediction holds"):
        mean_iou(label - 1, label, 3)
