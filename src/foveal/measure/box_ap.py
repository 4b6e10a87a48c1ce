"""Average precision of boxes, as COCO's evaluation defines it; faster-coco-eval computes it.

Lin et al., "Microsoft COCO: Common objects in context" (https://arxiv.org/abs/1405.0312). Detections of a class are
matched to true boxes in the order of their scores. The precision at 101 recalls is averaged, then over classes, and for
"AP" over overlaps (IoU) of 0.5, 0.55, …, 0.95. Crowds and difficult objects are neither right nor wrong: a detection of
one counts as nothing. For a crowd it is enough that the detection lies inside of it. The AP at an overlap of 0.5 is
that of VOC with another interpolation.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.distributed import get_rank, get_world_size, is_initialized
from torchmetrics import Metric

from foveal.errors import UserError
from foveal.measure.info import MetricInfo, register_metric

DIFFICULT, CROWD = 1, 2  # marks of true boxes
BEYOND = 1e12  # area beyond every range of sizes: such a true box is ignored
RANGES = ("all", "small", "medium", "large")
ABOUT = (
    "AP is the area under the curve of precision over recall, the mean over classes and over overlaps (IoU) of 0.5 to "
    "0.95, as COCO evaluates."
)

AP50 = register_metric(MetricInfo("box_ap50", "AP50", about="AP50 asks for an overlap of 0.5."))
AP75 = register_metric(MetricInfo("box_ap75", "AP75", about="AP75 asks for an overlap of 0.75."))
SIZES = {
    "small": register_metric(MetricInfo("box_ap_small", "AP, small", about="Small: less than 32×32 pixels.")),
    "medium": register_metric(MetricInfo("box_ap_medium", "AP, medium", about="Medium: up to 96×96 pixels.")),
    "large": register_metric(MetricInfo("box_ap_large", "AP, large", about="Large: more than 96×96 pixels.")),
}


@dataclass(frozen=True)
class BoxScores:
    """What COCO's evaluation says; nan where there is no true box.

    Attributes:
        ap: mean over overlaps and classes.
        ap50, ap75: at overlaps of 0.5 and 0.75.
        by_class: AP of each class, (K,).
        by_size: AP of ``small``, ``medium`` and ``large`` objects.
    """

    ap: float
    ap50: float
    ap75: float
    by_class: Tensor
    by_size: dict[str, float]


def box_scores(
    detections: Sequence[Mapping[str, Tensor]], targets: Sequence[Mapping[str, Tensor]], classes: int
) -> BoxScores:
    """All scores of some images.

    Args:
        detections: of each image, ``boxes`` (d, 4) as left, top, right, bottom, ``labels`` (d,) from 1 on and
            ``scores`` (d,).
        targets: of each image, ``boxes`` (m, 4), ``labels`` (m,), and perhaps ``iscrowd`` and ``difficult`` bool (m,).
        classes: number of classes, K.
    """
    if len(detections) != len(targets):
        raise UserError(f"there are {len(detections)} images with detections and {len(targets)} with true boxes")
    pairs = [_rows(n, *pair) for n, pair in enumerate(zip(detections, targets, strict=True))]
    found, true = (torch.cat(rows) if rows else torch.zeros(0, 7) for rows in zip(*pairs, strict=True))
    return _compute(found, true, classes)


def box_ap(detections: Sequence[Mapping[str, Tensor]], targets: Sequence[Mapping[str, Tensor]], classes: int) -> Tensor:
    """Average precision over overlaps and classes, a scalar in [0, 1]; nan without true boxes.

    Args:
        detections: as in :func:`box_scores`.
        targets: as in :func:`box_scores`.
        classes: number of classes.

    >>> box = torch.tensor([[0.0, 0.0, 10.0, 10.0]])
    >>> target = {"boxes": box, "labels": torch.tensor([1])}
    >>> found = {**target, "boxes": box + torch.tensor([0, 0, 0, 2.0]), "scores": torch.tensor([0.9])}
    >>> box_ap([found], [target], classes=1)  # an overlap of 0.83: right at 0.5 to 0.8
    tensor(0.7000)
    """
    return torch.tensor(box_scores(detections, targets, classes).ap)


def _rows(number: int, found: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Detections (d, 7) and true boxes (m, 7) of an image: number, label, score or mark, box; float32."""
    boxes, labels, scores = (found[key].detach().float() for key in ("boxes", "labels", "scores"))
    true, classes = (target[key].detach().float() for key in ("boxes", "labels"))
    if not len(boxes) == len(labels) == len(scores) or len(true) != len(classes):
        raise UserError(f"image {number}: expected as many labels (and scores) as boxes")
    if len(true) and not bool((true.isfinite().all(1) & (true[:, 2:] > true[:, :2]).all(1)).all()):
        raise UserError(f"image {number}: expected true boxes as left, top, right and bottom, with an area")
    marks = torch.zeros_like(classes)
    for value, key in ((DIFFICULT, "difficult"), (CROWD, "iscrowd")):
        if key in target:
            marks = marks.masked_fill(target[key].bool(), value)

    def row(label: Tensor, value: Tensor, box: Tensor) -> Tensor:
        return torch.cat([torch.full_like(label[:, None], number), label[:, None], value[:, None], box.view(-1, 4)], 1)

    return row(labels, scores, boxes), row(classes, marks, true)


def _compute(found: Tensor, true: Tensor, classes: int) -> BoxScores:
    """The scores of rows from :func:`_rows`."""
    for rows in (found, true):
        if len(rows) and not 1 <= float(rows[:, 1].min()) <= float(rows[:, 1].max()) <= classes:
            raise UserError(f"labels are from {rows[:, 1].min():g} to {rows[:, 1].max():g}; expected 1 to {classes}")
    if not len(true):
        none = torch.nan
        return BoxScores(none, none, none, torch.full((classes,), none), dict.fromkeys(SIZES, none))
    precision = _precision(found.cpu().double(), true.cpu().double(), classes)

    def mean(part: np.ndarray[Any, Any]) -> float:
        return float(part[part > -1].mean()) if (part > -1).any() else torch.nan

    return BoxScores(
        mean(precision[:, :, :, 0]),
        mean(precision[0, :, :, 0]),
        mean(precision[5, :, :, 0]),
        torch.tensor([mean(precision[:, :, k, 0]) for k in range(classes)]),
        {name: mean(precision[:, :, :, RANGES.index(name)]) for name in SIZES},
    )


def _precision(found: Tensor, true: Tensor, classes: int) -> np.ndarray[Any, Any]:
    """What faster-coco-eval computes: (10, 101, K, 4), -1 where a class has no true box of a size."""
    try:
        from faster_coco_eval import COCO, COCOeval_faster
    except ModuleNotFoundError as error:
        raise UserError("the average precision of boxes needs faster-coco-eval: install foveal[detect]") from error
    annotations = []
    for n, (image, label, mark, left, top, right, bottom) in enumerate(true.tolist(), 1):
        width, height = right - left, bottom - top
        area = BEYOND if mark == DIFFICULT else width * height  # a difficult object is ignored as one of no size
        annotations.append(
            {"id": n, "image_id": int(image), "category_id": int(label), "bbox": [left, top, width, height]}
            | {"area": area, "iscrowd": int(mark == CROWD)}
        )
    dataset = {
        "images": [{"id": int(n)} for n in torch.cat([found[:, 0], true[:, 0]]).unique().tolist()],
        "categories": [{"id": k, "name": str(k)} for k in range(1, classes + 1)],
        "annotations": annotations,
    }
    rows = torch.cat([found[:, :1], found[:, 3:5], found[:, 5:] - found[:, 3:5], found[:, 2:3], found[:, 1:2]], 1)
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO(dataset)
        evaluation = COCOeval_faster(truth, truth.loadRes(rows.numpy()), "bbox", print_function=_silent)
        evaluation.evaluate()
        evaluation.accumulate()
    return evaluation.eval["precision"][..., -1].reshape(10, 101, classes, 4)


def _silent(*_: object) -> None:
    pass


class BoxAP(Metric):
    """:func:`box_ap` over a whole test set.

    Args:
        classes: number of classes, K.
        **kwargs: of :class:`torchmetrics.Metric`.

    Attributes:
        scores: all scores of the last :meth:`compute`, or None.

    >>> metric = BoxAP(2)
    >>> box, label = torch.tensor([[0.0, 0.0, 10.0, 10.0]]), torch.tensor([2])
    >>> found = {"boxes": box, "labels": label, "scores": torch.tensor([0.9])}
    >>> metric.update([found], [{"boxes": box, "labels": label}])
    >>> metric.compute()
    tensor(1.)
    """

    info: ClassVar[MetricInfo] = register_metric(MetricInfo("box_ap", "AP", about=ABOUT))
    is_differentiable = False
    higher_is_better = True
    full_state_update = False

    found: list[Tensor]
    true: list[Tensor]

    def __init__(self, classes: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.classes = classes
        self.scores: BoxScores | None = None
        self.add_state("found", [], dist_reduce_fx="cat")
        self.add_state("true", [], dist_reduce_fx="cat")

    def update(self, detections: Sequence[Mapping[str, Tensor]], targets: Sequence[Mapping[str, Tensor]]) -> None:
        """Add images, with detections and targets as in :func:`box_scores`."""
        if len(detections) != len(targets):
            raise UserError(f"there are {len(detections)} images with detections and {len(targets)} with true boxes")
        rank, world = (get_rank(), get_world_size()) if is_initialized() else (0, 1)
        for found, target in zip(detections, targets, strict=True):
            number = len(self.true) * world + rank  # of an image, another one in each process
            for state, rows in zip((self.found, self.true), _rows(number, found, target), strict=True):
                state.append(rows.to(self.device))

    def compute(self) -> Tensor:
        """Average precision of all images so far, a scalar; sets :attr:`scores`."""
        found, true = (torch.cat([torch.zeros(0, 7, device=self.device), *_listed(s)]) for s in (self.found, self.true))
        self.scores = _compute(found, true, self.classes)
        return torch.tensor(self.scores.ap, device=self.device)


def _listed(state: Any) -> list[Tensor]:
    """A list state, which is one tensor where it was gathered from several processes."""
    return [state] if isinstance(state, Tensor) else list(state)
