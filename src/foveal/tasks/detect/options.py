"""The recipe section of task ``detect``."""

from __future__ import annotations

from dataclasses import dataclass

from foveal.measure.relation_recall import K
from foveal.recipe import MeasureOptions
from foveal.recipe.choice import Options, number
from foveal.supervise.relations import TargetKind


@dataclass(kw_only=True)
class DetectMeasure(MeasureOptions, Options):
    """What the test measures beyond average precision.

    Attributes:
        relations: which pairs of objects count for a detector with focused attention, in its recall of relations and
            its center-mass: ``category``, ``instance`` or ``annotated``.
        pairs: numbers of highest-ranked pairs among which the recall is computed.
        iou: a region matches an object if their IoU is above this.
        training_images: number of training images on which center-mass is measured too, after the test.
    """

    relations: TargetKind = "category"
    pairs: tuple[int, ...] = number(K, least=1)
    iou: float = number(0.5, least=0, below=1)
    training_images: int = number(0, least=0)
