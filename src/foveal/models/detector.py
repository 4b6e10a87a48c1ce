"""Faster R-CNN of torchvision on any backbone of torchvision or timm, with and without a feature pyramid.

Ren et al., "Faster R-CNN" (https://arxiv.org/abs/1506.01497); Lin et al., "Feature Pyramid Networks for Object
Detection" (https://arxiv.org/abs/1612.03144). Nothing of the detector is written again: this file builds the backbone
that torchvision's class takes. With a ResNet of torchvision and the pyramid, the names of all parameters are those of
``torchvision.models.detection.fasterrcnn_resnet50_fpn``.

Without the pyramid there is one map of stride 16, that of the last stage (dilated where it can be), reduced to
``width`` channels by a 1×1 convolution, for both the proposals and the regions. The detectors of Relation Networks and
FAN (https://arxiv.org/abs/1905.11498) are built so, but take proposals from the stage before.

Attention is inserted into the backbone (``model.insert`` of a recipe without ``at``), whose layers are called
``backbone.body.…``; the convolutions of the pyramid are ``backbone.fpn.inner_blocks.*.0`` (lateral, 1×1) and
``backbone.fpn.layer_blocks.*.0`` (output, 3×3). ``roi_heads.box_head`` makes the features of regions, (R, 1024), and
``roi_heads.box_predictor`` reads them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.roi_heads import RoIHeads
from torchvision.models.detection.rpn import RegionProposalNetwork
from torchvision.models.detection.transform import GeneralizedRCNNTransform
from torchvision.ops import MultiScaleRoIAlign

from foveal.errors import UserError
from foveal.models.detector_backbone import Maps, PyramidBackbone, SingleMap, feature_maps, freeze_first
from foveal.models.registry import register
from foveal.models.segmenter import stride_first
from foveal.models.weights import fit_problems, read_weights

STRIDES, OCTAVES = 8, (1, 2, 4)  # an anchor's side in strides of its map; a map that is alone has three
REGION = 7  # side of the pooled map of a region


class Detector(FasterRCNN):
    """Boxes, classes and scores of the objects in images.

    Called with a list of images (3, H, W) in [0, 1] of any sizes: in eval mode it returns a dict of ``boxes`` (d, 4),
    ``labels`` (d,) and ``scores`` (d,) for each; in training mode, with a list of targets (dicts of ``boxes`` and
    ``labels``), a dict of four losses.

    Args:
        backbone: a network of torchvision or timm; where both have it, a ResNet is torchvision's, others timm's.
        num_classes: number of classes, the background included.
        fpn: whether there is a feature pyramid.
        width: channels of the maps that proposals and regions are taken from.
        features: which of the backbone's maps are used, 0 for the first; None for those of stride 4 and more, and
            without a pyramid for the last of stride 16.
        anchors: sides of anchors in pixels, a list for each map; None for 8 strides, and of a single map for 8, 16 and
            32.
        hidden: channels of the features of regions.
        min_size: short side that images are brought to; of several, one is drawn for each training image, and the
            last is for testing.
        max_size: greatest long side.
        image_mean: mean of the colours that the weights were trained with.
        image_std: their standard deviation.
        candidates: boxes of each map, before overlapping ones are dropped, that proposals are chosen from; None for
            2,000 in training and 1,000 in testing.
        proposals_train: regions that go on from the first stage in training.
        proposals_test: the same in testing.
        regions: of them, those that the second stage is trained on.
        score: least score of a detection.
        nms: overlap from which on the weaker of two detections of a class is dropped.
        detections: most of an image.
        norm: ``batch`` norms are trained with the network, ``frozen`` ones of the backbone keep weights and statistics.
        frozen: so many parts of the backbone keep their weights: 1 for the stem, 2 for the first stage as well, ….
        caffe: the stride of a stage is in its first 1×1 convolution rather than in the 3×3, as in weights from Caffe
            and Keras.
        options: further arguments of the backbone.
        pretrained: start from the backbone's weights that timm or torchvision downloads.
        checkpoint: weights of a classifier for the backbone, or of a whole detector; see :meth:`load`.

    >>> import torch
    >>> model = Detector("resnet18", num_classes=3, width=16, hidden=32, min_size=64).eval()
    >>> [sorted(found) for found in model([torch.rand(3, 50, 70), torch.rand(3, 64, 40)])]
    [['boxes', 'labels', 'scores'], ['boxes', 'labels', 'scores']]
    """

    def __init__(
        self,
        backbone: str = "resnet50",
        *,
        num_classes: int = 91,
        fpn: bool = True,
        width: int = 256,
        features: Sequence[int] | None = None,
        anchors: Sequence[Sequence[int]] | None = None,
        hidden: int = 1024,
        min_size: Sequence[int] | int = 800,
        max_size: int = 1333,
        image_mean: tuple[float, float, float] = (0.485, 0.456, 0.406),
        image_std: tuple[float, float, float] = (0.229, 0.224, 0.225),
        candidates: int | None = None,
        proposals_train: int = 2000,
        proposals_test: int = 1000,
        regions: int = 512,
        score: float = 0.05,
        nms: float = 0.5,
        detections: int = 100,
        norm: Literal["batch", "frozen"] = "batch",
        frozen: int = 0,
        caffe: bool = False,
        options: dict[str, Any] | None = None,
        pretrained: bool = False,
        checkpoint: str | Path | Mapping[str, Any] | None = None,
    ) -> None:
        sizes = [min_size] if isinstance(min_size, int) else list(min_size)
        if not sizes or min(sizes) < 1 or max_size < max(sizes):
            raise UserError(f"min_size={min_size}, max_size={max_size}: expected 1 or more, and no more than max_size")
        counts = {"proposals_train": proposals_train, "proposals_test": proposals_test, "regions": regions}
        counts |= {"detections": detections, "width": width, "hidden": hidden}
        if wrong := [f"{name}={count}" for name, count in counts.items() if count < 1]:
            raise UserError(f"{', '.join(wrong)}: expected at least 1")
        maps = feature_maps(backbone, single=not fpn, features=features, options=options or {}, pretrained=pretrained)
        if caffe:
            stride_first(maps.body, backbone)
        freeze_first(maps.body, frozen, backbone)
        whole = (PyramidBackbone if fpn else SingleMap)(maps, width, frozen_norms=norm == "frozen")
        sides = anchor_sides(maps, fpn, anchors)
        levels = [str(n) for n in range(len(maps.channels))]
        super().__init__(
            whole,
            rpn_anchor_generator=AnchorGenerator(sides, ((0.5, 1.0, 2.0),) * len(sides)),
            rpn_pre_nms_top_n_train=candidates or max(proposals_train, 2000),
            rpn_pre_nms_top_n_test=candidates or max(proposals_test, 1000),
            rpn_post_nms_top_n_train=proposals_train,
            rpn_post_nms_top_n_test=proposals_test,
            box_roi_pool=MultiScaleRoIAlign(levels, output_size=REGION, sampling_ratio=2),
            box_batch_size_per_image=regions,
            box_score_thresh=score,
            box_nms_thresh=nms,
            box_detections_per_img=detections,
            box_head=TwoMLPHead(width * REGION**2, hidden),
            box_predictor=FastRCNNPredictor(hidden, num_classes),
        )
        self.add_module("transform", Resize(sizes, max_size, list(image_mean), list(image_std)))
        exact_boxes(self)
        self.name = backbone
        if checkpoint is not None:
            self.load(checkpoint)

    def load(self, checkpoint: str | Path | Mapping[str, Any]) -> None:
        """Load the weights of a classifier into the body of the backbone, or those of a whole detector.

        Of a detector, the last two layers keep their values if it knows another number of classes.

        Args:
            checkpoint: as in :func:`~foveal.models.weights.read_weights`, with the names of torchvision or timm.
        """
        weights = read_weights(checkpoint)
        detector = any(name.startswith("roi_heads.") for name in weights)
        part: nn.Module = self if detector else self.get_submodule("backbone.body")
        expected = {n: v for n, v in part.state_dict().items() if not n.endswith("num_batches_tracked")}
        if detector:
            last = [n for n in expected if n.startswith("roi_heads.box_predictor.")]
            if any(n in weights and weights[n].shape[1:] == expected[n].shape[1:] for n in last):
                expected = {n: v for n, v in expected.items() if n not in last or _same_shape(weights, n, v)}
        chosen = {name: weights[name] for name in expected if name in weights}
        if problems := fit_problems(expected, chosen):
            source = checkpoint if isinstance(checkpoint, str | Path) else "the state dict"
            raise UserError(
                f"{source} does not hold weights of {self.name} or of such a detector: {'; '.join(problems)}"
            )
        part.load_state_dict(chosen, strict=False)


class Resize(GeneralizedRCNNTransform):
    """torchvision's resizing, padding and normalising, without copies of numbers to the device for every image."""

    mean: Tensor
    std: Tensor

    def __init__(self, min_size: list[int], max_size: int, mean: list[float], std: list[float]) -> None:
        super().__init__(min_size, max_size, mean, std)
        for name, values in (("mean", mean), ("std", std)):
            self.register_buffer(name, torch.tensor(values)[:, None, None], persistent=False)

    def normalize(self, image: Tensor) -> Tensor:
        """An image (3, H, W) in [0, 1] as (image − mean) / std."""
        return (image - self.mean.to(image.dtype)) / self.std.to(image.dtype)

    def resize(self, image: Tensor, target: dict[str, Tensor] | None = None) -> tuple[Tensor, dict[str, Tensor] | None]:
        """The image with another short side, and its boxes in the new pixels."""
        before = image.shape[-2:]
        least = max(before) // self.max_size + 1
        if min(before) < least:  # less than a pixel would be left of the short side
            image = F.interpolate(image[None], [max(least, side) for side in before])[0]
        image, _ = super().resize(image)
        if target is not None:
            down, across = (new / old for new, old in zip(image.shape[-2:], before, strict=True))
            left, top, right, bottom = target["boxes"].unbind(1)
            target["boxes"] = torch.stack([left * across, top * down, right * across, bottom * down], 1)
        return image, target


class Anchors(AnchorGenerator):
    """torchvision's anchors, in float32 under autocast."""

    def set_cell_anchors(self, dtype: torch.dtype, device: torch.device) -> None:
        """Ignore the type of the maps under autocast."""
        super().set_cell_anchors(torch.float32 if torch.is_autocast_enabled(device.type) else dtype, device)


def exact_boxes(model: nn.Module) -> nn.Module:
    """Make an R-CNN detector of torchvision compute boxes and scores in float32 under autocast, in place.

    torchvision rounds anchors, proposals, true boxes and detections to the type of the maps. bfloat16 has 8 bits: it is
    one pixel coarse from 128 pixels on, and four from 512 on; and scores above 0.996 are all 1.
    """
    for module in model.modules():
        if isinstance(module, RegionProposalNetwork):
            if type(anchors := module.anchor_generator) is AnchorGenerator:
                module.anchor_generator = Anchors(anchors.sizes, anchors.aspect_ratios)
            last = module.head
        elif isinstance(module, RoIHeads):
            last = module.box_predictor
        else:
            continue
        if _widened not in last._forward_hooks.values():
            last.register_forward_hook(_widened)
    return model


def _widened(module: nn.Module, inputs: Any, output: Any) -> Any:
    """The output in float32 under autocast: a tensor, or a list or tuple of outputs."""
    if isinstance(output, Tensor):
        return output.float() if torch.is_autocast_enabled(output.device.type) else output
    return type(output)(_widened(module, inputs, part) for part in output)


def _same_shape(weights: Mapping[str, Any], name: str, value: Any) -> bool:
    return name in weights and weights[name].shape == value.shape


def anchor_sides(maps: Maps, fpn: bool, anchors: Sequence[Sequence[int]] | None) -> tuple[tuple[int, ...], ...]:
    """Sides of the anchors of each map; a pyramid has one map more than the backbone."""
    strides = [*maps.strides, 2 * maps.strides[-1]] if fpn else maps.strides
    if anchors is None:
        return tuple(tuple(STRIDES * stride * octave for octave in ((1,) if fpn else OCTAVES)) for stride in strides)
    if len(anchors) != len(strides) or not all(anchors) or len({len(sides) for sides in anchors}) != 1:
        raise UserError(
            f"anchors={[list(sides) for sides in anchors]}: expected a list of sides for each of the {len(strides)} "
            "maps, all of one length"
        )
    return tuple(tuple(sides) for sides in anchors)


@register(Detector)
def detector(**options: Any) -> nn.Module:
    """Boxes of objects: Faster R-CNN of torchvision on any backbone of torchvision or timm, with or without FPN."""
    return Detector(**options)
