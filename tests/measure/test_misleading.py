"""Input that measures cannot mean anything on: an error or a warning that tells."""

import numpy as np
import pytest
import torch

from foveal.errors import UserError
from foveal.measure import (
    TruePositiveStrength,
    attention_precision_recall,
    box_mask,
    center_mass,
    energy_in_box,
    label_map,
    pointing_game,
    relation_recall,
    true_positive_strength,
    weighted_average_precision,
)
from foveal.supervise import consistency, mask_loss, object_pairs, relation_pairs, separability

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


def test_a_measure_says_what_its_result_is():
    with pytest.warns(UserWarning, match="the result is a recall of nan"):
        precision, recall = attention_precision_recall(MAPS, NO_TARGET)
    assert recall.isnan().all()
    assert not precision.isnan().any()


LABELS = torch.zeros(4, 3, dtype=torch.bool)
BOXES = torch.tensor([[10.0, 10, 40, 40], [50, 50, 90, 90]])
NO_RELATION = torch.zeros(0, 2, dtype=torch.int64)


@pytest.mark.parametrize(
    ("measure", "reason"),
    [
        (lambda: center_mass(torch.zeros(2, 5, 5), torch.zeros(2, 5, 5, dtype=torch.bool)), "it has no labelled pair"),
        (lambda: weighted_average_precision(torch.rand(4, 3), LABELS), "no label is positive"),
        (lambda: label_map(torch.rand(4, 3), LABELS), "no label is positive"),
        (lambda: relation_recall(torch.rand(2, 2), BOXES, BOXES, NO_RELATION), "the image has no relation"),
    ],
)
def test_the_same_rule_for_all_measures(measure, reason):
    with pytest.warns(UserWarning, match=rf"no sample has a target \({reason}\): the result is nan"):
        assert measure().isnan().all()


def test_an_array_of_labels_is_no_tensor():
    with pytest.raises(UserError, match=r"labels must be a torch.Tensor, got ndarray"):
        weighted_average_precision(torch.rand(4, 3), LABELS.numpy())
    with pytest.raises(UserError, match=r"target must be a torch.Tensor, got ndarray; convert it"):
        center_mass(torch.zeros(5, 5), np.ones((5, 5), dtype=bool))


TARGETS = [
    lambda proposals, boxes: object_pairs(proposals, boxes, torch.tensor([1, 2])),
    lambda proposals, boxes: relation_pairs(proposals, boxes, torch.tensor([[0, 1]])),
    lambda proposals, boxes: relation_recall(torch.rand(2, 2), proposals, boxes, torch.tensor([[0, 1]])),
]


@pytest.mark.parametrize("target", TARGETS)
def test_fractions_beside_pixels_are_told(target, recwarn):
    target(BOXES, BOXES)
    target(BOXES / 100, BOXES / 100)  # one scale for both
    assert not recwarn
    with pytest.warns(UserWarning, match="all boxes lie between 0 and 1, but proposals do not.*multiply fractions"):
        target(BOXES, BOXES / 100)
    with pytest.warns(UserWarning, match="all proposals lie between 0 and 1, but boxes do not"):
        target(BOXES / 100, BOXES)


@pytest.mark.parametrize("target", TARGETS)
def test_coordinates_that_are_no_numbers(target):
    with pytest.raises(UserError, match="boxes hold NaN or infinite coordinates; leave out"):
        target(BOXES, BOXES * torch.tensor([1, 1, torch.nan, 1]))
    with pytest.raises(UserError, match=r"boxes must be a torch\.Tensor, got ndarray"):
        target(BOXES, BOXES.numpy())


@pytest.mark.parametrize(
    "loss",
    [
        lambda maps: separability(maps, MAPS),
        lambda maps: consistency(MAPS, maps),
        lambda maps: mask_loss(maps, ~NO_TARGET),
    ],
)
def test_losses_tell_that_they_skip_maps_that_are_not_finite(loss):
    with pytest.warns(UserWarning, match="is not finite for some samples, which are skipped"):
        assert loss(MAPS * torch.nan) == 0
