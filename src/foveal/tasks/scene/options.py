"""The recipe sections of task ``scene``: those of a classifier without class attention, which its detector has not."""

from __future__ import annotations

from dataclasses import dataclass

from foveal.recipe import MeasureOptions
from foveal.tasks.answers import AnswerLoss


@dataclass
class SceneLoss(AnswerLoss):
    """What is minimised."""

    sharpen = None  # no key of a recipe: it has no type


@dataclass
class SceneMeasure(MeasureOptions):
    """What the test measures beyond accuracy: nothing so far."""

    class_attention = None  # likewise
