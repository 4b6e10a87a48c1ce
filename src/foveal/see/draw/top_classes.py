"""The classes that a model scores best, and where it looks for each of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from foveal.attention.class_maps.cam import MapKind, cam
from foveal.attention.class_maps.layout import Reshape
from foveal.attention.class_maps.taps import Taps
from foveal.errors import UserError

KIND_NAMES: dict[str | None, str] = {"channel": "A_ch", "gradcam": "Grad-CAM"}
TENSORS = ("classes", "probability", "maps", "rank")


@dataclass(frozen=True)
class TopClasses:
    """The best-scoring classes of N images, and the attention map of each.

    Attributes:
        classes: int64 (N, K), best first.
        probability: (N, K).
        maps: (N, K, h, w), not negative.
        rank: int64 (N, C): place of every class, 0 for the best.
        kind: what the maps are, ``channel`` or ``gradcam``; None if unknown.
    """

    classes: Tensor
    probability: Tensor
    maps: Tensor
    rank: Tensor
    kind: str | None = None

    def __len__(self) -> int:
        return len(self.classes)

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], kind: str | None = None) -> TopClasses | None:
        """Build them from what a run keeps, see :meth:`tensors`; None if it kept none."""
        if not all(f"top.{name}" in tensors for name in TENSORS):
            return None
        return cls(**{name: tensors[f"top.{name}"] for name in TENSORS}, kind=kind)

    def tensors(self) -> dict[str, Tensor]:
        """The tensors by the names under which a run keeps them."""
        return {f"top.{name}": getattr(self, name) for name in TENSORS}

    def only(self, n: int) -> TopClasses:
        """The classes of image ``n`` alone."""
        return replace(self, **{name: getattr(self, name)[n : n + 1] for name in TENSORS})


def top_classes(
    model: nn.Module,
    x: Tensor,
    at: str = "layer4",
    *,
    top: int = 5,
    kind: MapKind = "channel",
    multilabel: bool = False,
    reshape: Reshape | None = None,
) -> TopClasses:
    """The ``top`` best-scoring classes of each image and their attention maps; the model runs in eval mode.

    Args:
        model: a classifier, as :func:`foveal.cam` takes it; it is left as it was.
        x: its input (N, C, H, W).
        at: the layer of the maps, see :func:`foveal.cam`.
        top: how many classes; fewer if the model has fewer.
        kind: ``channel`` or ``gradcam``.
        multilabel: whether several classes may hold, so that each has a probability of its own.
        reshape: see :func:`foveal.cam`.
    """
    if top < 1:
        raise UserError(f"top={top}: expected at least 1")
    modes = {module: module.training for module in model.modules()}
    taps = Taps(model, at, reshape)
    try:
        with torch.no_grad():
            model.eval()
            with taps:
                model(x)
            logits = taps.logits.float()
            probability = logits.sigmoid() if multilabel else logits.softmax(1)
            order = logits.argsort(1, descending=True)
            classes = order[:, :top]
            maps = cam(model, x, classes, at, kind, reshape=reshape)
    finally:
        for module, training in modes.items():
            module.training = training
    best = probability.gather(1, classes)
    return TopClasses(classes.cpu(), best.cpu(), maps.cpu(), order.argsort(1).cpu(), kind)
