"""Focused attention between the regions of a detector, inserted into its box head.

Wang, Samari, Kim, Chaudhuri, Siddiqi: "FAN: Focused Attention Networks" (https://arxiv.org/abs/1905.11498).

The proposals of an image are a graph. Each aggregates the features of all (F_c), and class scores and box offsets are
computed from F_d = F + F_c, where F are the features after the last layer of the box head and its ReLU. The affinities
rank pairs of proposals as relationships, and :func:`foveal.supervise.relation_loss` supervises them.

Departures: ``start="identity"`` multiplies F_c by a learned number that starts at zero, so that a trained detector
detects what it detected before. The number of proposals, 300 in the paper, is the detector's own setting
(``rpn_post_nms_top_n_test`` and others of torchvision).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from foveal.attention.focused import FocusedAttention
from foveal.attention.insertion.layers import channels_of, own_modules
from foveal.attention.insertion.registry import Gate, Start, Tap, check_start, register_mechanism
from foveal.attention.records.dot_product import DotProduct
from foveal.attention.records.record import AttentionRecord
from foveal.errors import UserError

POOL, HEAD = "box_roi_pool", "box_head"  # torchvision's names, beside each other in the RoI heads
Sizes = Sequence[tuple[int, int]] | Sequence[torch.Size]
"""Height and width of each image of a batch."""


class RegionAttention(DotProduct):
    """Lazy attention between the proposals of each image of a batch.

    Attributes:
        boxes: (B, N, 4) as x1, y1, x2, y2 in pixels of the images as the detector has resized them; zero for padding.
        sizes: (H, W) of these images.
    """

    boxes: Tensor
    sizes: list[tuple[int, int]]


class RegionGraph(NamedTuple):
    """The attention between the proposals of one image.

    Attributes:
        logits: affinities (N, N), row m attending to column n.
        boxes: (N, 4) as x1, y1, x2, y2.
    """

    logits: Tensor
    boxes: Tensor


def region_graphs(record: AttentionRecord, sizes: Sizes) -> list[RegionGraph]:
    """The attention of each image of a batch, without padding.

    Args:
        record: of the mechanism ``focused``.
        sizes: (H, W) of each image as the detector was given it; boxes are in its pixels.

    Returns:
        One graph per image: for :func:`foveal.attention.relationship_proposals`,
        :func:`foveal.measure.relation_recall` and :func:`foveal.see.relations`.
    """
    noted = regions_of(record)
    q, k, scale = noted.affinities()
    boxes = noted.boxes * box_scale(noted, sizes)[:, None]
    counts = [q.shape[-2]] * len(q) if noted.valid is None else noted.valid.sum(-1).tolist()
    wide = torch.promote_types(q.dtype, torch.float32)
    return [RegionGraph((q[i, :n].to(wide) @ k[i, :n].to(wide).mT) * scale, boxes[i, :n]) for i, n in enumerate(counts)]


def regions_of(record: AttentionRecord) -> RegionAttention:
    """What the mechanism ``focused`` noted; raises for a record of anything else."""
    if not isinstance(record.noted, RegionAttention):
        raise UserError(f"{record.site} is not attention between regions; insert 'focused' into a detector")
    return record.noted


def box_scale(noted: RegionAttention, sizes: Sizes) -> Tensor:
    """What boxes as the detector saw them are multiplied by to be in pixels of images of ``sizes``, (B, 4)."""
    if len(sizes) != len(noted.sizes):
        raise UserError(f"sizes must be (H, W) for each of the {len(noted.sizes)} images, got {len(sizes)}")
    ratios = [
        (float(width) / seen_width, float(height) / seen_height) * 2
        for (height, width), (seen_height, seen_width) in zip(sizes, noted.sizes, strict=True)
    ]
    return noted.boxes.new_tensor(ratios)


class RegionTap(Tap):
    """Keeps the proposals that a RoI pooling was given, until the box head has used them.

    Attributes:
        latest: boxes (N, 4) of each image, and sizes (H, W) of the images; None if there are none.
    """

    def __init__(self) -> None:
        super().__init__()
        self.latest: tuple[list[Tensor], list[tuple[int, int]]] | None = None

    def take(self, features: Any, boxes: list[Tensor], image_shapes: list[tuple[int, int]]) -> None:
        """Keep the arguments of ``torchvision.ops.MultiScaleRoIAlign``."""
        self.latest = (boxes, [(int(height), int(width)) for height, width in image_shapes])

    def give(self) -> tuple[list[Tensor], list[tuple[int, int]]]:
        """Boxes and sizes, once."""
        if self.latest is None:
            raise UserError(f"the box head was called without {self.site} before it, so its proposals are not known")
        latest, self.latest = self.latest, None
        return latest

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"latest": None}


@register_mechanism("focused")
class FocusedRegions(FocusedAttention, Gate):
    """Focused attention between the proposals of a detector: F + F_c after its box head.

    Args:
        channels: channels C of the box head's output.
        key_channels: size d of the space in which proposals are compared, per head.
        heads: number of heads; must divide ``channels``.
        start: ``identity`` to start as the identity (one more parameter), ``paper`` for F + F_c.

    Attributes:
        amount: what F_c is multiplied by, (), or None.
    """

    in_backbone = False

    def __init__(self, channels: int, *, key_channels: int = 64, heads: int = 1, start: Start = "paper") -> None:
        super().__init__(channels, key_channels=key_channels, heads=heads)
        check_start(start)
        self.amount = nn.Parameter(torch.zeros(())) if start == "identity" else None
        self._taps: tuple[RegionTap, ...] = ()  # in a tuple, so that it is no child: it belongs to the pooling
        self._regions: tuple[list[Tensor], list[tuple[int, int]]] | None = None

    @classmethod
    def serves(cls, layer: nn.Module) -> str | None:
        """A box head: anything that ends with a layer of known width."""
        known = head_channels(layer) is not None
        return None if known else "its number of output channels is not known; choose the box head"

    @classmethod
    def usual(cls, model: nn.Module) -> list[str]:
        """The box head beside every RoI pooling."""
        names = dict(model.named_modules())
        prefixes = [name.removesuffix(POOL) for name in names if name.rpartition(".")[2] == POOL]
        heads = [f"{prefix}{HEAD}" for prefix in prefixes if f"{prefix}{HEAD}" in names]
        if not heads:
            raise UserError(
                f"{type(model).__name__} has no default site for 'focused': it attends between the regions of a "
                "detector with RoI heads, such as torchvision's Faster R-CNN; in a network of your own use "
                "foveal.attention.FocusedAttention"
            )
        return heads

    @classmethod
    def for_layer(cls, layer: nn.Module, *, start: Start, **options: Any) -> Self:
        """Build it for the width of the box head."""
        channels = head_channels(layer)
        assert channels is not None
        return cls(channels, start=start, **options)

    def beside(self, model: nn.Module, site: str) -> dict[str, Tap]:
        """The RoI pooling before the box head, which knows the proposals."""
        prefix = site.rpartition(".")[0]
        pool = f"{prefix}.{POOL}" if prefix else POOL
        if pool not in dict(model.named_modules()):
            raise UserError(
                f"there is no {pool}, which knows the proposals: 'focused' goes on the box head of torchvision's R-CNN "
                "detectors; in a network of your own use foveal.attention.FocusedAttention"
            )
        tap = RegionTap()
        self._taps = (tap,)
        return {pool: tap}

    def forward(self, features: Tensor) -> Tensor:  # type: ignore[override]
        """F + F_c.

        Args:
            features: F, (ΣN, C) or (ΣN, C, 1, 1), the proposals of all images one after the other.
        """
        boxes, sizes = self._taps[0].give() if self._taps else ([], [])
        flat = features.flatten(1)
        if not flat.shape[0]:
            return features
        aggregated = self.aggregate(flat, boxes, sizes)
        if self.amount is not None:
            aggregated = self.amount * aggregated
        return features + aggregated.to(features.dtype).view_as(features)

    def aggregate(self, features: Tensor, boxes: Sequence[Tensor], sizes: Sizes) -> Tensor:
        """F_c of the features F (ΣN, C), each proposal attending to those of its image.

        Args:
            features: of the proposals of all images one after the other.
            boxes: (N, 4), the proposals of each image.
            sizes: (H, W) of each image.

        Returns:
            (ΣN, C).
        """
        counts = [len(one) for one in boxes]
        if sum(counts) != len(features):
            raise UserError(f"there are features of {len(features)} regions, but {sum(counts)} proposals")
        if len(set(counts)) == 1:
            padded, mask = features.unflatten(0, (len(counts), counts[0])), None
        else:
            padded = pad_sequence(list(features.split(counts)), batch_first=True)
            places = torch.arange(padded.shape[1], device=features.device)
            mask = places < torch.tensor(counts, device=features.device)[:, None]
        self._regions = (list(boxes), [(int(height), int(width)) for height, width in sizes])
        try:
            aggregated, _ = super().forward(padded, mask, need_logits=False)
        finally:
            self._regions = None
        if mask is None:
            return aggregated.flatten(0, 1)
        return torch.cat([one[:count] for one, count in zip(aggregated, counts, strict=True)])  # a GPU need not wait

    def _noted(self, rows: Tensor, columns: Tensor, mask: Tensor | None, **options: Any) -> DotProduct:
        assert self._regions is not None
        boxes, sizes = self._regions
        noted = RegionAttention(rows, columns, mask, **options)
        noted.boxes, noted.sizes = pad_sequence([one.detach() for one in boxes], batch_first=True), sizes
        return noted


def head_channels(head: nn.Module) -> int | None:
    """Channels that the last layer of a box head puts out, or None if its layers do not tell."""
    layers = [head, *(module for _, module in own_modules(head))]
    widths = [layer.out_features if isinstance(layer, nn.Linear) else channels_of(layer) for layer in layers]
    return next((width for width in reversed(widths) if width is not None), None)
