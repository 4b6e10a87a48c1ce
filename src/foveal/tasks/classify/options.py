"""The recipe sections of task ``classify``."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from foveal.errors import UserError
from foveal.recipe import MeasureOptions, Recipe
from foveal.tasks.answers import AnswerLoss
from foveal.typed import check_least

LAYERS = ["layer3", "layer4"]  # of a ResNet: the inner one and the last
INNER = ("separability_inner", "consistency_inner")  # losses that need an inner layer


@dataclass
class ClassAttention:
    """Which class attention maps are measured.

    Attributes:
        layers: names of the inner layer and of the last, or of the last alone; null: ``layer3`` and ``layer4``.
        kind: ``channel`` for A_ch, ``gradcam`` for Grad-CAM.
        sigma: threshold of the last layer's mask, as a fraction of the map's maximum.
        omega: sharpness of that mask.
    """

    layers: list[str] | None = None
    kind: Literal["channel", "gradcam"] = "channel"
    sigma: float = 0.55
    omega: float = 100.0

    def __post_init__(self) -> None:
        check_layers(self.layers, "measure.class_attention.layers")


@dataclass
class Sharpening:
    """Separability and consistency of class attention, see :class:`foveal.supervise.Sharpen`.

    The losses are ``separability_inner``, ``separability_last`` and ``consistency_inner``; ``loss.weights`` has the
    weight of each.

    Attributes:
        layers: names of the inner layer and of the last, or of the last alone; null: those of
            ``measure.class_attention``.
        kind: ``channel`` for A_ch, ``gradcam`` for Grad-CAM; null: that of ``measure.class_attention``.
        order: 1: the losses act through the features; 2: through the gradients too.
        theta: consistency asks for at least this share of inner attention inside the mask.
        sigma: threshold of masks, as a fraction of a map's maximum.
        omega: sharpness of masks.
        mask: whose mask consistency uses.
        mask_gradient: let gradients through masks.
        normalise: divide maps by their own maxima before they are compared.
        true_gradient: let gradients through the true class's map in the minimum of separability; without them only the
            confusing class's map gives way.
        sum_gradient: let gradients through the denominator of separability.
        hinge: no reward for a consistency better than ``theta``.
        batch_norm: batch norm in the maps' gradients: ``coupled`` through the statistics of the batch, or ``frozen``.
        pairs: with several labels: ``every`` true class against the best-scoring wrong class, or ``one`` pair.
        positives: with ``every``: greatest number of true classes per image and step.
        warmup: number of first epochs without the attention losses.
    """

    layers: list[str] | None = None
    kind: Literal["channel", "gradcam"] | None = None
    order: int = 1
    theta: float = 0.8
    sigma: float = 0.55
    omega: float = 100.0
    mask: Literal["last", "inner"] = "last"
    mask_gradient: bool = False
    normalise: bool = False
    true_gradient: bool = True
    sum_gradient: bool = True
    hinge: bool = False
    batch_norm: Literal["coupled", "frozen"] = "coupled"
    pairs: Literal["every", "one"] = "every"
    positives: int = 3
    warmup: int = 0

    def __post_init__(self) -> None:
        check_least(self, "loss.sharpen", order=1, theta=0, positives=1, warmup=0)
        check_layers(self.layers, "loss.sharpen.layers")
        if not self.omega > 0:
            raise UserError(f"loss.sharpen.omega: expected a number above 0, got {self.omega:g}")


@dataclass
class ClassifyLoss(AnswerLoss):
    """What is minimised.

    Attributes:
        sharpen: how class attention is supervised; null: it is not supervised.
    """

    sharpen: Sharpening | None = None


@dataclass
class ClassifyMeasure(MeasureOptions):
    """What the test measures beyond accuracy or average precision.

    Attributes:
        class_attention: how much the maps of the true and the confusing class overlap and, if the dataset has boxes,
            whether attention is on the object. Null: not measured, unless ``loss.sharpen`` is set.
    """

    class_attention: ClassAttention | None = field(default=None)


def check_layers(layers: list[str] | None, key: str) -> None:
    """Raise unless ``layers`` are one or two different names."""
    if layers is not None and (not 1 <= len(layers) <= 2 or len(set(layers)) < len(layers)):
        raise UserError(f"{key}: expected an inner and the last layer, or the last alone, got {layers}")


def complete(recipe: Recipe) -> Recipe:
    """The recipe with the layers and the kind of maps that either section leaves to the other."""
    loss, measure = recipe.loss, recipe.measure
    sharpen, attention = loss.sharpen, measure.class_attention
    if sharpen is None and attention is None:
        return recipe
    layers = (sharpen and sharpen.layers) or (attention and attention.layers) or LAYERS
    kind = (sharpen and sharpen.kind) or (attention and attention.kind) or "channel"
    weights = loss.weights
    if sharpen is not None:
        sharpen = replace(sharpen, layers=sharpen.layers or list(layers), kind=sharpen.kind or kind)
        if len(layers) == 1:  # weights of 0 may stand for losses that are not there
            weights = {name: weight for name, weight in weights.items() if weight or name not in INNER}
        if attention is None:
            attention = ClassAttention(sharpen.layers, sharpen.kind, sharpen.sigma, sharpen.omega)
    if attention is not None:
        attention = replace(attention, layers=attention.layers or list(layers))
    loss = replace(loss, sharpen=sharpen, weights=weights)
    return replace(recipe, loss=loss, measure=replace(measure, class_attention=attention))
