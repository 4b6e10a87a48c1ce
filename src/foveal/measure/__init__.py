"""MEASURE: whether attention rests where it should, and how good the answers are.

Every measure is a pure function on plain tensors, and a torchmetrics class of the same name in CamelCase that computes
it over batches and processes. Fractions are in [0, 1].
"""

from foveal.measure._split import Split
from foveal.measure.assert_attends import AttendedMass, assert_attends
from foveal.measure.attention_overlap import AttentionOverlap, attention_overlap
from foveal.measure.attention_precision_recall import AttentionPrecisionRecall, attention_precision_recall
from foveal.measure.average_precision import (
    AveragePrecision,
    LabelMAP,
    WeightedAveragePrecision,
    average_precision,
    label_map,
    weighted_average_precision,
)
from foveal.measure.box_ap import BoxAP, BoxScores, box_ap, box_scores
from foveal.measure.center_mass import CenterMass, center_mass
from foveal.measure.energy_in_box import EnergyInBox, energy_in_box
from foveal.measure.info import MetricInfo, register_metric
from foveal.measure.inner_in_last import InnerInLast, inner_in_last
from foveal.measure.maps import attention_map
from foveal.measure.mean_iou import MeanIoU, mean_iou
from foveal.measure.pointing_game import PointingGame, pointing_game
from foveal.measure.regions import box_mask
from foveal.measure.relation_recall import RelationRecall, relation_recall
from foveal.measure.scale_accuracy import ScaleAccuracy, scale_accuracy
from foveal.measure.translation import Bleu, Chrf, bleu, chrf
from foveal.measure.true_positive_strength import TruePositiveStrength, true_positive_strength
from foveal.measure.word_importance import word_importance

__all__ = [
    "AttendedMass",
    "AttentionOverlap",
    "AttentionPrecisionRecall",
    "AveragePrecision",
    "Bleu",
    "BoxAP",
    "BoxScores",
    "CenterMass",
    "Chrf",
    "EnergyInBox",
    "InnerInLast",
    "LabelMAP",
    "MeanIoU",
    "MetricInfo",
    "PointingGame",
    "RelationRecall",
    "ScaleAccuracy",
    "Split",
    "TruePositiveStrength",
    "WeightedAveragePrecision",
    "assert_attends",
    "attention_map",
    "attention_overlap",
    "attention_precision_recall",
    "average_precision",
    "bleu",
    "box_ap",
    "box_mask",
    "box_scores",
    "center_mass",
    "chrf",
    "energy_in_box",
    "inner_in_last",
    "label_map",
    "mean_iou",
    "pointing_game",
    "register_metric",
    "relation_recall",
    "scale_accuracy",
    "true_positive_strength",
    "weighted_average_precision",
    "word_importance",
]
