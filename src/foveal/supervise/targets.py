"""Targets of the center-mass loss: pairs of objects in images and pairs of words in sentences.

Wang, Samari, Kim, Chaudhuri, Siddiqi: "FAN: Focused Attention Networks" (https://arxiv.org/abs/1905.11498).

Every function takes one graph or a batch of them, consists of a few tensor operations on any device, and returns bool
pairs with an empty diagonal, without a gradient, for :func:`foveal.supervise.center_mass_loss`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Literal, get_args

import torch
from torch import Tensor

from foveal.errors import UserError, unknown
from foveal.supervise._inputs import check_boxes, check_tensors, may_look

ObjectKind = Literal["category", "instance"]
WordKind = Literal["semantic", "semantic_mixed", "different_category", "same_category", "different_word"]


class Tag(IntEnum):
    """Lexical categories: the universal part-of-speech tags of Petrov, Das, McDonald (https://arxiv.org/abs/1104.2086).

    ``PAD`` is not a word. Proper nouns are nouns.
    """

    PAD = 0
    NOUN = 1
    VERB = 2
    ADJ = 3
    ADV = 4
    PRON = 5
    DET = 6
    ADP = 7
    NUM = 8
    CONJ = 9
    PRT = 10
    X = 11
    PUNCT = 12


SEMANTIC = (
    (Tag.NOUN, Tag.NOUN),
    (Tag.VERB, Tag.NOUN),
    (Tag.NOUN, Tag.ADJ),
    (Tag.ADV, Tag.VERB),
    (Tag.ADV, Tag.ADJ),
)
"""Unordered pairs of categories that are semantically related."""


def semantic_table(*, mixed: bool = False) -> Tensor:
    """:data:`SEMANTIC` as a symmetric bool table over :class:`Tag`, for ``related=`` of the center-mass.

    Args:
        mixed: only pairs of two different categories, so without noun–noun.
    """
    table = torch.zeros(len(Tag), len(Tag), dtype=torch.bool)
    first, second = torch.tensor(SEMANTIC).T
    table[first, second] = table[second, first] = True
    return _off_diagonal(table) if mixed else table


def _off_diagonal(pairs: Tensor) -> Tensor:
    return pairs & ~torch.eye(pairs.shape[-1], dtype=torch.bool, device=pairs.device)


def word_pairs(tags: Tensor, words: Tensor | None = None, kind: WordKind = "semantic") -> Tensor:
    """Pairs of words that attention should rest on.

    Args:
        tags: int (..., N), a :class:`Tag` for every word; 0 (``PAD``) or less is padding and in no pair.
        words: int (..., N), the words as vocabulary items; only for ``different_word``.
        kind: ``semantic``: noun–noun, verb–noun, noun–adjective, adverb–verb, adverb–adjective; ``semantic_mixed``: the
            same without noun–noun; ``different_category``, ``same_category``: by their tags; ``different_word``: any
            two different words.

    Returns:
        bool (..., N, N), symmetric.

    >>> word_pairs(torch.tensor([Tag.DET, Tag.ADJ, Tag.NOUN, Tag.VERB, Tag.PAD])).int()
    tensor([[0, 0, 0, 0, 0],
            [0, 0, 1, 0, 0],
            [0, 1, 0, 1, 0],
            [0, 0, 1, 0, 0],
            [0, 0, 0, 0, 0]], dtype=torch.int32)
    """
    if not isinstance(tags, Tensor):
        raise UserError(f"tags must be a tensor of integers (..., N), got {type(tags).__name__}")
    if tags.ndim < 1 or tags.dtype.is_floating_point or tags.dtype == torch.bool:
        raise UserError(f"tags must be integers (..., N), got {tags.dtype} {tuple(tags.shape)}")
    tags = tags.long()
    if may_look(tags) and tags.numel() and int(tags.max()) >= len(Tag):
        raise UserError(f"tags must be those of foveal.supervise.Tag, 0 to {len(Tag) - 1}, got {int(tags.max())}")
    if kind in ("semantic", "semantic_mixed"):
        table = semantic_table(mixed=kind == "semantic_mixed").to(tags.device)
        known = tags.masked_fill((tags < 0) | (tags >= len(Tag)), int(Tag.PAD))
        return _off_diagonal(table[known[..., :, None], known[..., None, :]])
    real = (tags > 0)[..., :, None] & (tags > 0)[..., None, :]
    if kind in ("different_category", "same_category"):
        same = tags[..., :, None] == tags[..., None, :]
        return _off_diagonal(real & (same if kind == "same_category" else ~same))
    if kind != "different_word":
        raise unknown("kind of word pairs", str(kind), get_args(WordKind))
    if words is None:
        raise UserError("kind='different_word' compares the words themselves; give words (..., N) as well")
    if words.shape != tags.shape:
        raise UserError(f"words {tuple(words.shape)} and tags {tuple(tags.shape)} must have one shape")
    return _off_diagonal(real & (words[..., :, None] != words[..., None, :]))


def box_iou(a: Tensor, b: Tensor) -> Tensor:
    """Intersection over union of boxes (..., N, 4) and (..., M, 4) as x1, y1, x2, y2.

    Returns:
        (..., N, M), 0 for boxes without area or with NaN. Unlike torchvision's it takes batches and has no NaN.
    """
    a, b = a[..., :, None, :], b[..., None, :, :]
    sides = (torch.minimum(a[..., 2:], b[..., 2:]) - torch.maximum(a[..., :2], b[..., :2])).clamp_min(0)
    intersection = sides.prod(-1)
    areas = ((x[..., 2:] - x[..., :2]).clamp_min(0).prod(-1) for x in (a, b))
    union = sum(areas) - intersection
    return (intersection / union.masked_fill(union <= 0, 1)).nan_to_num(0, 0, 0)


def assign(proposals: Tensor, boxes: Tensor, iou: float = 0.5, present: Tensor | None = None) -> Tensor:
    """The object that each proposal shows: the one of highest IoU, if that is above ``iou``.

    Args:
        proposals: (..., N, 4) as x1, y1, x2, y2.
        boxes: (..., M, 4), the objects.
        iou: threshold; an overlap equal to it is not enough.
        present: bool (..., M), false for boxes that only pad a batch.

    Returns:
        int64 (..., N), row of ``boxes``, or −1 for background.

    >>> boxes = torch.tensor([[0.0, 0, 10, 10], [20, 20, 30, 30]])
    >>> assign(torch.tensor([[0.0, 0, 9, 10], [21, 20, 30, 30], [5, 5, 25, 25]]), boxes)
    tensor([ 0,  1, -1])
    """
    _check_boxes(proposals, boxes)
    if not boxes.shape[-2]:
        return proposals.new_full(proposals.shape[:-1], -1, dtype=torch.int64)
    wide = torch.promote_types(proposals.dtype, torch.float32)
    if not 0 <= iou < 1:
        raise UserError(f"iou={iou}: expected a fraction, at least 0 and below 1")
    overlap = box_iou(proposals.detach().to(wide), boxes.detach().to(wide))
    if present is not None:
        overlap = overlap.masked_fill(~present[..., None, :], -1)
    best, index = overlap.max(-1)
    return index.masked_fill(~(best > iou), -1)


def _check_boxes(proposals: Tensor, boxes: Tensor) -> None:
    check_tensors(proposals=proposals, boxes=boxes)
    for name, tensor in (("proposals", proposals), ("boxes", boxes)):
        if tensor.ndim < 2 or tensor.shape[-1] != 4:
            raise UserError(f"{name} must be (..., N, 4) as x1, y1, x2, y2, got {tuple(tensor.shape)}")
    if proposals.shape[:-2] != boxes.shape[:-2]:
        raise UserError(
            f"proposals {tuple(proposals.shape)} and boxes {tuple(boxes.shape)} must be of the same images; pad boxes "
            "with the label −1 to batch them"
        )
    if may_look(proposals) and may_look(boxes):
        check_boxes(proposals, boxes)


def object_pairs(
    proposals: Tensor, boxes: Tensor, labels: Tensor, kind: ObjectKind = "category", iou: float = 0.5
) -> Tensor:
    """Pairs of proposals that show two different objects.

    Args:
        proposals: (..., N, 4) as x1, y1, x2, y2.
        boxes: (..., M, 4), the annotated objects.
        labels: int (..., M), their categories; −1 for boxes that only pad a batch.
        kind: ``category``: the objects are of different categories; ``instance``: any two different objects.
        iou: a proposal shows the object of highest IoU if that is above ``iou``, otherwise background, which is in no
            pair.

    Returns:
        bool (..., N, N), symmetric.

    >>> boxes = torch.tensor([[0.0, 0, 10, 10], [20, 20, 30, 30]])
    >>> object_pairs(boxes, boxes, torch.tensor([3, 3])).any(), object_pairs(boxes, boxes, torch.tensor([3, 5])).sum()
    (tensor(False), tensor(2))
    """
    if kind not in ("category", "instance"):
        raise unknown("kind of object pairs", str(kind), ("category", "instance"))
    check_tensors(boxes=boxes, labels=labels)
    if labels.shape != boxes.shape[:-1]:
        raise UserError(f"labels {tuple(labels.shape)} must be one for each box, {tuple(boxes.shape[:-1])}")
    shows = assign(proposals, boxes, iou, labels >= 0)
    pairs = (shows >= 0)[..., :, None] & (shows >= 0)[..., None, :] & (shows[..., :, None] != shows[..., None, :])
    if kind == "category" and boxes.shape[-2]:
        label = labels.gather(-1, shows.clamp_min(0))
        pairs &= label[..., :, None] != label[..., None, :]
    return pairs


def object_relations(labels: Tensor, kind: ObjectKind = "category") -> Tensor:
    """The relations of weak labels: all pairs of objects, or those of different categories, without order.

    Args:
        labels: int (M,), the categories of an image's objects.
        kind: as in :func:`object_pairs`.

    Returns:
        int64 (R, 2), rows of the objects, the lower one first; for :func:`foveal.measure.relation_recall` with
        ``ordered=False``.

    >>> object_relations(torch.tensor([3, 5, 3]))
    tensor([[0, 1],
            [1, 2]])
    """
    if kind not in ("category", "instance"):
        raise unknown("kind of object pairs", str(kind), ("category", "instance"))
    if labels.ndim != 1:
        raise UserError(f"labels must be (M,), one for each object of an image, got {tuple(labels.shape)}")
    pairs = torch.triu_indices(len(labels), len(labels), 1, device=labels.device).T
    return pairs if kind == "instance" else pairs[labels[pairs[:, 0]] != labels[pairs[:, 1]]]


def relation_pairs(
    proposals: Tensor, boxes: Tensor, relations: Tensor, iou: float = 0.5, *, symmetric: bool = False
) -> Tensor:
    """Pairs of proposals whose objects are annotated as related.

    Args:
        proposals: (..., N, 4) as x1, y1, x2, y2.
        boxes: (..., M, 4), the annotated objects.
        relations: int (..., R, 2), rows of ``boxes``: subject and object; −1 pads a batch.
        iou: as in :func:`object_pairs`.
        symmetric: also from object to subject.

    Returns:
        bool (..., N, N): row m shows the subject and column n the object of some relation.

    >>> boxes = torch.tensor([[0.0, 0, 10, 10], [20, 20, 30, 30]])
    >>> relation_pairs(boxes, boxes, torch.tensor([[1, 0]]))
    tensor([[False, False],
            [ True, False]])
    """
    check_tensors(boxes=boxes, relations=relations)
    objects, integer = boxes.shape[-2], not (relations.dtype.is_floating_point or relations.dtype == torch.bool)
    if relations.ndim < 2 or relations.shape[-1] != 2 or relations.shape[:-2] != boxes.shape[:-2] or not integer:
        raise UserError(
            f"relations must be integers {(*boxes.shape[:-2], 'R', 2)}, rows of boxes, "
            f"got {relations.dtype} {tuple(relations.shape)}"
        )
    shows = assign(proposals, boxes, iou)
    if not objects:
        return torch.zeros(*shows.shape, shows.shape[-1], dtype=torch.bool, device=shows.device)
    subject, object_ = relations.long().unbind(-1)
    inside = (relations >= 0).all(-1) & (relations < objects).all(-1)
    # One extra cell after the table receives the padding of the batch.
    cell = (subject * objects + object_).masked_fill(~inside, objects * objects)
    table = torch.zeros(*boxes.shape[:-2], objects * objects + 1, dtype=torch.bool, device=boxes.device)
    table = table.scatter(-1, cell, True)
    row = shows.clamp_min(0)
    cells = row[..., :, None] * objects + row[..., None, :]
    pairs = table.gather(-1, cells.flatten(-2)).view(cells.shape)
    pairs = pairs & (shows >= 0)[..., :, None] & (shows >= 0)[..., None, :]
    return _off_diagonal(pairs | pairs.mT if symmetric else pairs)
