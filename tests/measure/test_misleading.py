"""Input that measures cannot mean anything on: an error or a warning that tells."""

import numpy as np
import pytest
import torch

from foveal.errors import UserError
from foveal.measure import (
    TruePositiveStrength,
    attention_precision_recall,
    box_mask,
    energy_in_box,
    pointing_game,
    true_positive_strength,
)

MAPS = torch.rand(2, 8, 8) + 0.1
NO_TARGET = torch.zeros(2, 8, 8, dtype=torch.bool)
MEASURES = [true_positive_strength, energy_in_box, pointing_game, attention_precision_recall]


@pytest.mark.parametrize("measure", MEASURES)
def test_no_target_is_told(measure):
    with pytest.warns(UserWarning, match=r"no sample has a target \(its mask is false everywhere\)"):
        measure(MAPS, NO_TARGET)


@pytest.mark.parametrize("measure", MEASURES)
def test_an_empty_batch_is_told(measure):
    with pytest.warns(UserWarning, match="the batch is empty"):
        measure(MAPS[:0], NO_TARGET[:0])


@pytest.mark.parametrize("measure", [true_positive_strength, lambda *a: energy_in_box(*a).all])
def test_samples_without_a_target_are_left_out(measure):
    mask = NO_TARGET.clone()
    mask[0, :4] = True
    assert measure(MAPS, mask) == measure(MAPS[:1], mask[:1])


def test_samples_without_a_target_are_left_out_over_batches():
    metric, mask = TruePositiveStrength(), NO_TARGET.clone()
    mask[0, :4] = True
    metric.update(MAPS, mask)
    metric.update(MAPS, NO_TARGET)
    torch.testing.assert_close(metric.compute(), true_positive_strength(MAPS[:1], mask[:1]))


@pytest.mark.parametrize("measure", MEASURES)
def test_an_array_is_no_tensor(measure):
    with pytest.raises(UserError, match=r"mask must be a torch.Tensor, got ndarray; convert it with torch.as_tensor"):
        measure(MAPS, np.ones((2, 8, 8), dtype=bool))


def test_boxes_as_fractions_are_told():
    with pytest.warns(UserWarning, match="multiply fractions by the width and height"):
        box_mask([torch.tensor([[0.2, 0.1, 0.8, 0.9]])], (224, 224))


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_boxes_that_are_no_numbers(number):
    with pytest.raises(UserError, match="leave out objects whose place is not known"):
        box_mask([torch.tensor([[0.0, 0.0, number, 5.0]])], (8, 8))
