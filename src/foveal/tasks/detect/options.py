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
        relations: of a detector with focused attention, which pairs of objects its recall of relations and its
            center-mass are about: ``category``, ``instance`` or ``annotated``.
        pairs: how many of the highest-ranked pairs the recall looks at.
        iou: overlap above which a region shows an object.
        training_images: so many training images are looked at after the test, for their center-mass.
    """

    relations: TargetKind = "category"
    pairs: tuple[int, ...] = number(K, least=1)
    iou: float = number(0.5, least=0, below=1)
    training_images: int = number(0, least=0)
