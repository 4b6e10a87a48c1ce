"""What a region of a detector attends to: kept with samples, drawn in reports and predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from foveal.attention import RegionGraph, relationship_proposals
from foveal.supervise.targets import box_iou

KEPT = 60  # regions of a sample that are kept: those that the reference attends to most


class Attended(NamedTuple):
    """One region of an image, and those that it attends to most.

    Attributes:
        boxes: (KEPT, 4), the region itself first; zero for padding.
        weights: (KEPT,), its weight for each of them; zero for padding.
        mass: (), its weight for all regions that show an object related to its own; nan if nothing is known of that.
        labels: class of its object and then of the related ones, (n,), from 1 on; empty if nothing is known.
    """

    boxes: Tensor
    weights: Tensor
    mass: Tensor
    labels: Tensor


def strongest(graph: RegionGraph) -> Attended:
    """The region of the most probable relationship, and what it attends to."""
    first = relationship_proposals(*graph, k=1).pairs
    boxes, weights = _row(graph, int(first[0, 0])) if len(first) else (torch.zeros(KEPT, 4), torch.zeros(KEPT))
    return Attended(boxes, weights, torch.tensor(torch.nan), torch.zeros(0, dtype=torch.int64))


def of_object(graph: RegionGraph, target: Mapping[str, Tensor], relations: Tensor, iou: float = 0.5) -> Attended:
    """The region of the first object that has a relation, so that several models have the same one.

    Args:
        graph: of one image.
        target: its ``boxes`` (m, 4), in the same pixels, and ``labels`` (m,).
        relations: rows of subject and object, (r, 2).
        iou: overlap above which a region shows an object.

    Returns:
        What the region nearest to the object attends to; that of :func:`strongest` in an image without relations.
    """
    if not len(relations) or not len(graph.boxes):
        return strongest(graph)
    subject = int(relations[0, 0])
    related = relations[relations[:, 0] == subject, 1]
    overlaps = box_iou(target["boxes"].to(graph.boxes), graph.boxes)  # (m, N)
    reference = int(overlaps[subject].argmax())
    shows = (overlaps[related] > iou).any(0)
    mass = (graph.logits[reference].softmax(0) * shows).sum()
    labels = torch.cat([target["labels"][subject, None], target["labels"][related].unique()])
    return Attended(*_row(graph, reference), mass.cpu(), labels.cpu())


def _row(graph: RegionGraph, reference: int) -> tuple[Tensor, Tensor]:
    """Boxes (KEPT, 4) and weights (KEPT,) of a row, the reference first, then from the greatest weight on."""
    boxes, weights = torch.zeros(KEPT, 4), torch.zeros(KEPT)
    row = graph.logits[reference].softmax(0)
    order = row.index_fill(0, torch.tensor(reference, device=row.device), 2).argsort(descending=True)[:KEPT]
    boxes[: len(order)], weights[: len(order)] = graph.boxes[order].cpu().float(), row[order].cpu().float()
    return boxes, weights


def packed(samples: Sequence[Attended]) -> dict[str, Tensor]:
    """Samples as tensors; labels are padded with 0."""
    boxes, weights, mass, labels = zip(*samples, strict=True)
    columns = (
        torch.stack(boxes),
        torch.stack(weights),
        torch.stack(mass),
        pad_sequence(list(labels), batch_first=True),
    )
    return {f"relation.{key}": column for key, column in zip(Attended._fields, columns, strict=True)}


def unpacked(tensors: Mapping[str, Tensor]) -> list[Attended]:
    """What :func:`packed` packed, without padding; nothing of a model without attention between regions."""
    if "relation.boxes" not in tensors:
        return []
    columns = zip(*(tensors[f"relation.{key}"] for key in Attended._fields), strict=True)
    return [
        Attended(boxes[real := boxes.any(1)], weights[real], mass, labels[labels > 0])
        for boxes, weights, mass, labels in columns
    ]
