"""Supervision of the attention between the regions of a detector.

Wang, Samari, Kim, Chaudhuri, Siddiqi: "FAN: Focused Attention Networks" (https://arxiv.org/abs/1905.11498).

The targets are made anew at every step, because proposals move. They are constants: no gradient goes through them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from foveal.attention.records.record import AttentionRecord
from foveal.attention.regions import Sizes, box_scale, regions_of
from foveal.errors import UserError, unknown
from foveal.supervise.center_mass import LossShape, Over, center_mass_loss
from foveal.supervise.registry import register_attention_loss
from foveal.supervise.targets import object_pairs, relation_pairs

TargetKind = Literal["category", "instance", "annotated"]
Strategy = Literal["row", "mat", "mat-focal"]
STRATEGIES: dict[str, tuple[Over, float]] = {"row": ("row", 0.0), "mat": ("matrix", 0.0), "mat-focal": ("matrix", 2.0)}
"""The paper's supervision strategies: which softmax, and the focal exponent. ``unsup`` is a weight of 0."""


def region_pairs(
    record: AttentionRecord,
    targets: Sequence[Mapping[str, Tensor]],
    sizes: Sizes,
    kind: TargetKind = "category",
    iou: float = 0.5,
    *,
    symmetric: bool = False,
) -> Tensor:
    """Pairs of a detector's proposals that attention should rest on, for a batch of images.

    Args:
        record: of the mechanism ``focused``, of B images and at most N proposals.
        targets: for each image ``boxes`` (M, 4) in pixels as x1, y1, x2, y2, ``labels`` int (M,) and, for
            ``annotated``, ``relations`` int (R, 2), subject and object as rows of ``boxes``.
        sizes: (H, W) of each image that its boxes belong to: as it was given to the detector, which resizes it.
        kind: ``category``: two objects of different categories; ``instance``: any two objects; ``annotated``: subject
            and object of a relation.
        iou: a proposal shows the object of highest IoU if that is above ``iou``.
        symmetric: for ``annotated``, also from object to subject.

    Returns:
        bool (B, N, N), for :func:`foveal.supervise.center_mass_loss` and :class:`foveal.measure.CenterMass`.
    """
    if kind not in get_args(TargetKind):
        raise unknown("kind of region pairs", str(kind), get_args(TargetKind))
    noted = regions_of(record)
    if len(targets) != len(noted.boxes):
        raise UserError(f"there are {len(targets)} targets for {len(noted.boxes)} images; give one for each")
    needed = ("boxes", "relations" if kind == "annotated" else "labels")
    for target in targets:
        if missing := [key for key in needed if key not in target]:
            raise UserError(f"a target has no {missing[0]!r}, which kind={kind!r} needs; it has {', '.join(target)}")
    proposals = noted.boxes * box_scale(noted, sizes)[:, None]
    boxes = _padded([target["boxes"].reshape(-1, 4) for target in targets], 0, proposals)
    boxes = boxes.nan_to_num(0, 0, 0)  # a box of no area shows nothing
    if kind == "annotated":
        relations = _padded([target["relations"].reshape(-1, 2).long() for target in targets], -1, proposals)
        return relation_pairs(proposals, boxes, relations, iou, symmetric=symmetric)
    labels = _padded([target["labels"].long() for target in targets], -1, proposals)
    return object_pairs(proposals, boxes, labels, kind, iou)


def _padded(values: list[Tensor], padding: float, like: Tensor) -> Tensor:
    """Tensors of different lengths as one batch."""
    return pad_sequence([value.to(like.device) for value in values], batch_first=True, padding_value=padding)


def relation_loss(
    record: AttentionRecord,
    targets: Sequence[Mapping[str, Tensor]],
    sizes: Sizes,
    *,
    strategy: Strategy = "mat-focal",
    kind: TargetKind = "category",
    shape: LossShape = "focal",
    r: float | None = None,
    iou: float = 0.5,
    symmetric: bool = False,
) -> Tensor:
    """L_rel of a detector's attention between proposals; the paper adds it with λ = 0.01.

    Args:
        record: as in :func:`region_pairs`, like ``targets``, ``sizes``, ``kind``, ``iou`` and ``symmetric``.
        targets: the same.
        sizes: the same.
        strategy: ``mat``, one softmax over all pairs and −log M; ``mat-focal``, the same with the focal exponent 2;
            ``row``, one softmax for each row and −log M.
        kind: the same.
        shape: of the loss, as in :func:`foveal.supervise.center_mass_loss`.
        r: the focal exponent, if not that of the strategy.
        iou: the same.
        symmetric: the same.

    Returns:
        Scalar, the mean over images that have a labelled pair; 0 if none has.
    """
    if strategy not in STRATEGIES:
        raise unknown("supervision strategy", str(strategy), STRATEGIES)
    over, exponent = STRATEGIES[strategy]
    if not record.shape[-1]:  # no proposals at all
        return regions_of(record).q.sum() * 0
    pairs = region_pairs(record, targets, sizes, kind, iou, symmetric=symmetric)
    return center_mass_loss(record, pairs, over=over, shape=shape, r=exponent if r is None else r)


@register_attention_loss("relations")
def relation_loss_of_batch(
    record: AttentionRecord,
    batch: Mapping[str, Any],
    strategy: Strategy = "mat-focal",
    kind: TargetKind = "category",
    shape: LossShape = "focal",
    r: float | None = None,
    iou: float = 0.5,
    symmetric: bool = False,
) -> Tensor:
    """:func:`relation_loss` of a batch with lists ``image``, (3, H, W) each, and ``target``."""
    sizes = [(int(image.shape[-2]), int(image.shape[-1])) for image in batch["image"]]
    options: dict[str, Any] = {"strategy": strategy, "kind": kind, "shape": shape, "r": r, "iou": iou}
    return relation_loss(record, batch["target"], sizes, symmetric=symmetric, **options)
