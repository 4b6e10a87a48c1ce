"""The recipe sections of task ``document``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch

from foveal.errors import UserError
from foveal.models.build import build_model
from foveal.recipe import Recipe
from foveal.tasks.answers import AnswerLoss
from foveal.typed import check_least


@dataclass
class Relation:
    """The center-mass loss on attention between words, for models that ask for it; ``loss.weights.relation`` is 0.1.

    Attributes:
        target: the pairs of words that attention should rest on, see :func:`foveal.supervise.word_pairs`.
        over: one softmax over the whole ``matrix`` of pairs, or one for each ``row``.
        shape: ``focal``, ``l2`` or ``smooth_l1``.
        r: exponent of ``focal``.
    """

    target: Literal["semantic", "semantic_mixed", "different_category", "same_category", "different_word"] = "semantic"
    over: Literal["matrix", "row"] = "matrix"
    shape: Literal["focal", "l2", "smooth_l1"] = "focal"
    r: float = 2.0

    def __post_init__(self) -> None:
        check_least(self, "loss.relation", r=0)


@dataclass
class DocumentLoss(AnswerLoss):
    """What is minimised.

    Attributes:
        relation: how attention between words is supervised; null: as in the paper.
    """

    relation: Relation | None = None


def complete(recipe: Recipe) -> Recipe:
    """The recipe with the paper's supervision where a supervised model leaves it open."""
    with torch.random.fork_rng(devices=[]):  # the seed is for the model that is trained
        small = build_model(recipe.model, {"vocabulary": 2, "classes": 2}, needs=("vocabulary",), trained=True)
    supervised = getattr(small, "supervised", False)
    if recipe.loss.relation is not None and not supervised:
        raise UserError(
            f"loss.relation has no meaning for model {recipe.model['name']}; use fan_hatt_sup or leave it out"
        )
    if not supervised or recipe.loss.relation is not None:
        return recipe
    return replace(recipe, loss=replace(recipe.loss, relation=Relation()))
