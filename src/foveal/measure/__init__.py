"""MEASURE: does attention rest where it should, and what does that buy.

Every measure is a pure function on plain tensors and a torchmetrics class of the same name in CamelCase that gathers it
over batches and processes. Fractions are in [0, 1].
"""

from foveal.measure.attention_precision_recall import AttentionPrecisionRecall, attention_precision_recall
from foveal.measure.average_precision import WeightedAveragePrecision, average_precision, weighted_average_precision
from foveal.measure.maps import attention_map
from foveal.measure.scale_accuracy import ScaleAccuracy, scale_accuracy
from foveal.measure.true_positive_strength import TruePositiveStrength, true_positive_strength

__all__ = [
    "AttentionPrecisionRecall",
    "ScaleAccuracy",
    "TruePositiveStrength",
    "WeightedAveragePrecision",
    "attention_map",
    "attention_precision_recall",
    "average_precision",
    "scale_accuracy",
    "true_positive_strength",
    "weighted_average_precision",
]
