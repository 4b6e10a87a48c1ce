"""The recipe sections of task ``segment``."""

from __future__ import annotations

from dataclasses import dataclass

from foveal.errors import UserError
from foveal.recipe import LossOptions, MeasureOptions
from foveal.typed import check_least


@dataclass
class SegmentLoss(LossOptions):
    """What is minimised: ``segmentation``, and ``auxiliary`` (usual weight 0.4) of models with an auxiliary head.

    Attributes:
        label_smoothing: of the cross entropy.
    """

    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, "loss", label_smoothing=0)
        if self.label_smoothing > 1:
            raise UserError(f"loss.label_smoothing: expected at most 1, got {self.label_smoothing:g}")


@dataclass
class SegmentMeasure(MeasureOptions):
    """How images are predicted in validation, test and ``foveal predict``.

    Attributes:
        window: height and width of a window that slides over the image; null predicts the whole image at once.
        stride: from one window to the next, as a fraction of its sides.
        flip: average with the prediction of the mirrored image.
    """

    window: tuple[int, int] | None = None
    stride: float = 0.67
    flip: bool = False

    def __post_init__(self) -> None:
        if self.window is not None and min(self.window) < 1:
            raise UserError(f"measure.window={list(self.window)}: expected a height and a width of 1 or more")
        if not 0 < self.stride <= 1:
            raise UserError(f"measure.stride: expected more than 0 and at most 1, got {self.stride:g}")
