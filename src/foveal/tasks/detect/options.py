"""The recipe section of task ``detect``."""

from __future__ import annotations

from dataclasses import dataclass

from foveal.measure.relation_recall import K
from foveal.recipe import MeasureOptions
from foveal.supervise.relations import TargetKind


@dataclass
class DetectMeasure(MeasureOptions):
    """What the test measures beyond average precision.

    Attributes:
        relations: of a detector with focused attention, which pairs of objects its recall of relations and its
            center-mass are about: ``category``, ``instance`` or ``annotated``.
        pairs: how many of the highest-ranked pairs the recall looks at.
        iou: overlap above which a region shows an object.
    """

    relations: TargetKind = "category"
    pairs: tuple[int, ...] = K
    iou: float = 0.5
