"""What a segmentation network costs, beside the time of its steps: arithmetic, and memory in training."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode


class PeakMemory:
    """The greatest memory of a GPU between ``start`` and ``stop``, which may follow each other many times.

    Attributes:
        bytes: of it; 0 without a GPU.
    """

    def __init__(self) -> None:
        self.bytes = 0

    def start(self, device: torch.device) -> None:
        """Measure from here on."""
        self._reset(device)

    def stop(self, device: torch.device) -> None:
        """Measure up to here."""
        self.bytes = max(self.bytes, self._read(device))

    def _reset(self, device: torch.device) -> None:
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)

    def _read(self, device: torch.device) -> int:
        return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0


def mflops(model: nn.Module, crop: tuple[int, int]) -> float:
    """MFLOPs of the forward pass of one image of ``crop`` (height, width), deformable convolutions included."""
    import torchvision  # noqa: F401  # registers the operator

    formulas = {torch.ops.torchvision.deform_conv2d: _deformable}
    device, training = next(model.parameters()).device, model.training
    try:
        with torch.no_grad(), FlopCounterMode(display=False, custom_mapping=formulas) as counter:
            model.eval()(torch.zeros(1, 3, *crop, device=device))
    finally:
        model.train(training)
    return counter.get_total_flops() / 1e6


def _deformable(x: Any, weight: Any, *rest: Any, out_shape: Any = None, **options: Any) -> int:
    """Those of the convolution; sampling is not counted, as in torch's formulas."""
    return 2 * math.prod(out_shape) * math.prod(weight[1:])
