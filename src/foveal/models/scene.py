"""Scenes: a class for an image, from its map as a whole and from the regions of a trained detector.

Wang, Samari, Kim, Chaudhuri, Siddiqi: "FAN: Focused Attention Networks" (https://arxiv.org/abs/1905.11498).

Two branches share the detector's backbone. One convolution and a global average give F_s. The detector's proposals give
features F of regions and, by its focused attention, F_c; the maximum over proposals is one vector. Both are
concatenated. Backbone, region proposal network and attention stay as the detector was trained; the convolution and the
layers after it are trained. The attention is not supervised here.

The five configurations of the paper's Table 5 are ``regions="none"`` with the weights of a classifier and with those of
a detector, ``regions="features"``, and ``regions="focused"`` with a detector whose attention was trained without and
with supervision.

Not in the paper: the convolution is 3×3 to 1024 channels, with a batch norm and a ReLU; the maximum over proposals; one
fully connected layer before the classifier. F_s is taken from the last map of the network that was pretrained, before a
feature pyramid or a reduction, so that it is the same with the weights of a classifier and of a detector.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from foveal.attention.insertion.attached import attached_modules, plain_forward
from foveal.attention.regions import FocusedRegions, head_channels
from foveal.errors import UserError
from foveal.models.build import build_model
from foveal.models.detector import exact_boxes
from foveal.models.registry import register

Regions = Literal["none", "features", "focused"]
Pool = Literal["max", "mean"]


class SceneNet(nn.Module):
    """The class of a scene.

    Args:
        detector: one of torchvision's R-CNN detectors, trained; or the ``model`` section that it is built from.
        num_classes: number of classes, K.
        regions: what the regions add to F_s: ``none`` for nothing, ``features`` for F, ``focused`` for F_c, for which
            the detector must have the mechanism ``focused``.
        pool: how the regions become one vector.
        channels: of F_s.
        hidden: channels of the layer before the classifier; 0 for none.
        proposals: most regions of an image.
        dropout: before the classifier.
        train_head: let the fully connected layers of the detector's box head learn too.

    Attributes:
        detector_from: plain values that tell a task how to build the detector again.

    >>> model = SceneNet({"name": "fasterrcnn_mobilenet_v3_large_320_fpn", "insert": "focused"}, num_classes=15)
    >>> model.eval()(torch.rand(2, 3, 64, 64)).shape
    torch.Size([2, 15])
    """

    def __init__(
        self,
        detector: nn.Module | dict[str, Any],
        *,
        num_classes: int = 67,
        regions: Regions = "focused",
        pool: Pool = "max",
        channels: int = 1024,
        hidden: int = 1024,
        proposals: int = 300,
        dropout: float = 0.0,
        train_head: bool = False,
    ) -> None:
        super().__init__()
        if min(channels, proposals) < 1 or hidden < 0:
            raise UserError(
                f"channels={channels}, proposals={proposals}, hidden={hidden}: expected at least 1, 1 and 0"
            )
        whole = build_model(detector, {}) if isinstance(detector, Mapping) else detector
        self.detector, self.detector_from = exact_boxes(check_detector(whole)), dict[str, Any]()
        self.regions, self.pool, self.proposals, self.train_head = regions, pool, proposals, train_head
        if regions == "focused" and self._focused() is None:
            raise UserError(
                "regions='focused' needs a detector with focused attention: insert it (foveal.insert(detector, "
                "'focused'), or insert: focused in a recipe) and train it, or use regions='features'"
            )
        self.detector.requires_grad_(False)
        if train_head:
            self._head().requires_grad_(True)
            if (focused := self._focused()) is not None:
                focused.requires_grad_(False)
        self.detector.eval()
        maps = self._maps(torch.zeros(1, 3, 64, 64).to(next(self.detector.parameters())))[0].shape[1]
        self.scene = nn.Sequential(
            nn.Conv2d(maps, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU(inplace=True)
        )
        width = channels + (self._region_channels() if regions != "none" else 0)
        layers = [nn.Linear(width, hidden), nn.ReLU(inplace=True)] if hidden else []
        self.classifier = nn.Sequential(*layers, nn.Dropout(dropout), nn.Linear(hidden or width, num_classes))
        self.train(self.training)

    def train(self, mode: bool = True) -> SceneNet:
        """Set the mode of the new layers; the detector stays in eval mode, with the statistics of its norms."""
        super().train(mode)
        self.detector.eval()
        return self

    def forward(self, images: Tensor | Sequence[Tensor]) -> Tensor:
        """Logits.

        Args:
            images: (N, 3, H, W), or a list of (3, H, W), in [0, 1]; the detector normalises and resizes them.

        Returns:
            float32 (N, K).
        """
        detector = cast(Any, self.detector)
        with torch.no_grad():
            batch, _ = detector.transform(list(images))
            last, maps = self._maps(batch.tensors)
        whole = self.scene(last).mean((2, 3))
        if self.regions == "none":
            return self.classifier(whole).float()
        return self.classifier(torch.cat((whole, self._of_regions(batch, maps).to(whole.dtype)), 1)).float()

    @torch.no_grad()
    def _maps(self, images: Tensor) -> tuple[Tensor, Mapping[str, Tensor]]:
        """The last map of the pretrained network, (N, C, h, w), and the maps by name that regions are taken from."""
        backbone = cast(Any, self.detector).backbone
        kept: list[Any] = []
        body: nn.Module = getattr(backbone, "body", backbone)
        handle = body.register_forward_hook(lambda module, args, output: kept.append(output))
        try:
            maps = backbone(images)
        finally:
            handle.remove()
        (output,) = kept
        if not isinstance(output, Tensor):
            output = list(output.values() if isinstance(output, Mapping) else output)[-1]
        return output, {"0": maps} if isinstance(maps, Tensor) else maps

    def _of_regions(self, batch: Any, maps: Mapping[str, Tensor]) -> Tensor:
        """F or F_c, pooled over the proposals of each image, (N, C)."""
        detector, heads = cast(Any, self.detector), cast(Any, self.detector).roi_heads
        with torch.no_grad():
            proposals, _ = detector.rpn(batch, maps)
            boxes = [one[: self.proposals] for one in proposals]  # they come in order of their scores
            pooled = plain_forward(heads.box_roi_pool, maps, boxes, batch.image_sizes)
        with torch.set_grad_enabled(self.train_head and torch.is_grad_enabled()):
            features = plain_forward(heads.box_head, pooled).flatten(1)
            focused = self._focused()
            if self.regions == "focused" and focused is not None and len(features):
                features = focused.aggregate(features, boxes, batch.image_sizes)
            return pooled_regions(features, [len(one) for one in boxes], self.pool)

    def _region_channels(self) -> int:
        if (width := head_channels(self._head())) is None:
            raise UserError("the channels of the detector's box head are not known: its layers are none of PyTorch's")
        return width

    def _head(self) -> nn.Module:
        return self.detector.get_submodule("roi_heads.box_head")

    def _focused(self) -> FocusedRegions | None:
        modules = attached_modules(self._head()).values()
        return next((module for module in modules if isinstance(module, FocusedRegions)), None)


def pooled_regions(features: Tensor, counts: Sequence[int], pool: Pool) -> Tensor:
    """One vector for the regions of each image.

    Args:
        features: (ΣN, C), the regions of all images one after the other.
        counts: N of each image.
        pool: ``max`` or ``mean``.

    Returns:
        (B, C); zero for an image without regions.

    >>> pooled_regions(torch.tensor([[1.0], [3.0]]), [2, 0], "mean")
    tensor([[2.],
            [0.]])
    """
    parts = features.split(list(counts))
    reduced = [(part.amax(0) if pool == "max" else part.mean(0)) if len(part) else part.sum(0) for part in parts]
    return torch.stack(reduced)


def check_detector(model: nn.Module) -> nn.Module:
    """``model`` if it has the parts of torchvision's R-CNN detectors."""
    roi_heads = getattr(model, "roi_heads", None)
    missing = [name for name in ("transform", "backbone", "rpn", "roi_heads") if not hasattr(model, name)]
    missing += [f"roi_heads.{name}" for name in ("box_roi_pool", "box_head") if not hasattr(roi_heads, name)]
    if missing:
        raise UserError(
            f"{type(model).__name__} has no {missing[0]}; the scene network needs one of torchvision's R-CNN detectors"
        )
    return model


@register(SceneNet)
def scene_net(**options: Any) -> nn.Module:
    """The class of a scene: its map as a whole beside the regions of a trained detector, with focused attention."""
    return SceneNet(**options)
