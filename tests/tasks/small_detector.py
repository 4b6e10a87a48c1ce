"""Faster R-CNNs of torchvision that run in milliseconds, and images with targets for them."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.backbone_utils import BackboneWithFPN
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.ops import MultiScaleRoIAlign

WIDTH, PROPOSALS = 32, 30


def _stage(channels: int, out: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(channels, out, 3, stride=2, padding=1), nn.BatchNorm2d(out), nn.ReLU())


def small_detector(fpn: bool = False, seed: int = 0, **options: object) -> FasterRCNN:
    """A detector of 3 classes, with or without a feature pyramid, in eval mode."""
    torch.manual_seed(seed)
    stages = OrderedDict(stem=_stage(3, 8), layer1=_stage(8, 12), layer2=_stage(12, 16))
    if fpn:
        body = nn.Sequential(stages)
        backbone: nn.Module = BackboneWithFPN(body, {"layer1": "0", "layer2": "1"}, [12, 16], 16)
        levels, sizes = ["0", "1"], ((16,), (32,), (48,))
    else:
        backbone = nn.Sequential(stages)
        backbone.out_channels = 16
        levels, sizes = ["0"], ((16, 32, 48),)
    chosen: dict[str, object] = {
        "min_size": 64,
        "max_size": 96,
        "rpn_post_nms_top_n_train": PROPOSALS,
        "rpn_post_nms_top_n_test": PROPOSALS,
        "box_batch_size_per_image": 24,
        "box_score_thresh": 0.0,
    }
    return FasterRCNN(
        backbone,
        rpn_anchor_generator=AnchorGenerator(sizes, ((0.5, 1.0, 2.0),) * len(sizes)),
        box_roi_pool=MultiScaleRoIAlign(levels, 3, 2),
        box_head=TwoMLPHead(16 * 9, WIDTH),
        box_predictor=FastRCNNPredictor(WIDTH, 4),
        **(chosen | options),
    ).eval()


def two_images(seed: int = 0) -> tuple[list[Tensor], list[dict[str, Tensor]]]:
    """Images of different sizes with three objects and with one, and a relation in the first."""
    draw = torch.Generator().manual_seed(seed)
    images = [torch.rand(3, 50, 70, generator=draw), torch.rand(3, 80, 40, generator=draw)]
    first = torch.tensor([[2.0, 4, 30, 30], [35, 10, 66, 44], [5, 32, 28, 49]])
    targets = [
        {"boxes": first, "labels": torch.tensor([1, 2, 1]), "relations": torch.tensor([[0, 1]])},
        {"boxes": first[:1], "labels": torch.tensor([3]), "relations": torch.zeros(0, 2, dtype=torch.long)},
    ]
    return images, targets


def sizes_of(images: list[Tensor]) -> list[tuple[int, int]]:
    return [(image.shape[-2], image.shape[-1]) for image in images]
