"""Mean intersection over union of a segmentation, and what else follows from its confusion matrix.

Everingham et al., "The PASCAL visual object classes challenge: a retrospective" (IJCV 2015), section 3.3. Counts of
pixels are added up over the whole test set before anything is divided, as the official evaluations of VOC and
Cityscapes do.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from torchmetrics import Metric

from foveal.errors import UserError
from foveal.measure.info import MetricInfo, register_metric

IGNORED = 255

PIXEL_ACCURACY = register_metric(
    MetricInfo("pixel_accuracy", "Pixel accuracy", about="Pixel accuracy is the share of pixels that are right.")
)


def _check(prediction: Tensor, label: Tensor) -> None:
    if prediction.shape != label.shape:
        raise UserError(
            f"prediction {tuple(prediction.shape)} and label {tuple(label.shape)} must have the same shape (N, H, W): "
            "take the argmax of the logits, at the size of the label"
        )
    if prediction.is_floating_point() or label.is_floating_point():
        raise UserError(f"prediction and label must hold class numbers, got {prediction.dtype} and {label.dtype}")


def confusion(prediction: Tensor, label: Tensor, classes: int, ignored: int | None = IGNORED) -> Tensor:
    """Pixels of each true class (row) that were given to each class (column).

    Args:
        prediction: int (N, H, W), class of each pixel.
        label: int (N, H, W), its true class.
        classes: number of classes, K.
        ignored: label of pixels that do not count, or None.

    Returns:
        int64 (K, K).

    >>> confusion(torch.tensor([[[0, 1, 1]]]), torch.tensor([[[0, 0, 255]]]), 2)
    tensor([[1, 1],
            [0, 0]])
    """
    _check(prediction, label)
    label, prediction = label.flatten().long(), prediction.flatten().long()
    if ignored is not None:
        counted = label != ignored
        label, prediction = label[counted], prediction[counted]
    for name, values in (("label", label), ("prediction", prediction)):
        if values.numel() and not 0 <= int(values.min()) <= int(values.max()) < classes:
            raise UserError(
                f"{name} holds classes from {int(values.min())} to {int(values.max())}; expected 0 to {classes - 1}"
                + ("" if ignored is None else f", or {ignored} for pixels that do not count")
            )
    return torch.bincount(label * classes + prediction, minlength=classes**2).view(classes, classes)


def class_iou(matrix: Tensor) -> Tensor:
    """IoU of every class from a confusion matrix (K, K): float (K,), nan for a class that has no pixel in either.

    >>> class_iou(torch.tensor([[1, 1, 0], [0, 1, 0], [0, 0, 0]]))
    tensor([0.5000, 0.5000,    nan])
    """
    matrix = matrix.double()
    both = matrix.diagonal()
    return (both / (matrix.sum(0) + matrix.sum(1) - both)).float()


def pixel_accuracy(matrix: Tensor) -> Tensor:
    """Share of the pixels that are right from a confusion matrix (K, K), a scalar; nan if there is none."""
    matrix = matrix.double()
    return (matrix.diagonal().sum() / matrix.sum()).float()


def mean_iou(prediction: Tensor, label: Tensor, classes: int, ignored: int | None = IGNORED) -> Tensor:
    """Mean over classes of the intersection over union.

    With P_k the pixels that were given to class k and T_k those that are of it, over all images::

        IoU_k = |P_k ∩ T_k| / |P_k ∪ T_k|

    A class that neither occurs nor is predicted has no IoU and is left out of the mean. One that is predicted but does
    not occur has 0 and counts.

    Args:
        prediction: int (N, H, W), class of each pixel.
        label: int (N, H, W), its true class.
        classes: number of classes, K.
        ignored: label of pixels that do not count, or None.

    Returns:
        Scalar in [0, 1]; nan if no pixel counts.

    >>> prediction, label = torch.tensor([[[0, 0, 1, 1]]]), torch.tensor([[[0, 1, 1, 255]]])
    >>> mean_iou(prediction, label, classes=3)  # 1/2 and 1/2; class 2 is not there
    tensor(0.5000)
    """
    return class_iou(confusion(prediction, label, classes, ignored)).nanmean()


class PixelConfusion(Metric):
    """:func:`confusion` over a whole test set, for :func:`class_iou` and :func:`pixel_accuracy`.

    Args:
        classes: number of classes, K.
        ignored: label of pixels that do not count, or None.
        **kwargs: of :class:`torchmetrics.Metric`.
    """

    is_differentiable = False
    higher_is_better: bool | None = None
    full_state_update = False

    matrix: Tensor

    def __init__(self, classes: int, ignored: int | None = IGNORED, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.classes, self.ignored = classes, ignored
        self.add_state("matrix", torch.zeros(classes, classes, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, prediction: Tensor, label: Tensor) -> None:
        """Add images: ``prediction`` and ``label``, int (N, H, W) each."""
        self.matrix = self.matrix + confusion(prediction, label, self.classes, self.ignored)

    def compute(self) -> Tensor:
        """Pixels by true and predicted class, int64 (K, K)."""
        return self.matrix


class MeanIoU(PixelConfusion):
    """:func:`mean_iou` over a whole test set.

    Args:
        classes: number of classes, K.
        ignored: label of pixels that do not count, or None.
        **kwargs: of :class:`torchmetrics.Metric`.

    >>> metric = MeanIoU(3)
    >>> metric.update(torch.tensor([[[0, 0]]]), torch.tensor([[[0, 1]]]))
    >>> metric.update(torch.tensor([[[1, 1]]]), torch.tensor([[[1, 255]]]))
    >>> metric.compute()
    tensor(0.5000)
    """

    info: ClassVar[MetricInfo] = register_metric(
        MetricInfo(
            "mean_iou",
            "Mean IoU",
            about="IoU is the overlap of a class's predicted and true pixels divided by their union; a class that "
            "neither occurs nor is predicted is left out of the mean.",
        )
    )

    higher_is_better = True

    def compute(self) -> Tensor:
        """Mean IoU of all images so far, a scalar."""
        return class_iou(self.matrix).nanmean()
