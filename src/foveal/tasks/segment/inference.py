"""Logits of images of any size: of the whole image at once, or averaged over a sliding window."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foveal.errors import UserError
from foveal.tasks.segment.options import SegmentMeasure


def logits_of(output: Any, name: str = "") -> dict[str, Tensor]:
    """What a segmentation model puts out, by name: ``out``, and perhaps ``aux``.

    Args:
        output: logits (N, K, H, W), or a dict of them as from torchvision's models.
        name: of the model, for the message.
    """
    if isinstance(output, Tensor):
        return {"out": output}
    if isinstance(output, Mapping) and isinstance(output.get("out"), Tensor):
        return dict(output)
    raise UserError(f"model {name} is no segmentation network: expected logits (N, K, H, W) or a dict with 'out'")


def segment(model: nn.Module, images: Tensor, options: SegmentMeasure | None = None) -> Tensor:
    """Logits of every pixel of a batch.

    Args:
        model: ``images -> logits``, in eval mode.
        images: (N, 3, H, W), normalised.
        options: window and mirroring; None for the whole image.

    Returns:
        float32 (N, K, H, W). With a window, and mirrored images, the mean of the probabilities' logarithms.
    """
    options = options or SegmentMeasure()
    logits = _windows(model, images, options)
    if options.flip:
        mirrored = _windows(model, images.flip(3), options).flip(3)
        logits = (logits.log_softmax(1) + mirrored.log_softmax(1)) / 2
    return logits


def _windows(model: nn.Module, images: Tensor, options: SegmentMeasure) -> Tensor:
    height, width = images.shape[-2:]
    window = options.window
    if window is None or (height <= window[0] and width <= window[1]):
        return logits_of(model(images))["out"].float()
    rows, columns = (starts(length, side, options.stride) for length, side in zip((height, width), window, strict=True))
    images = F.pad(images, (0, max(0, window[1] - width), 0, max(0, window[0] - height)))  # one side may be short
    total: Tensor | None = None
    count = images.new_zeros(images.shape[-2:], dtype=torch.float32)
    for top in rows:
        for left in columns:
            part = (..., slice(top, top + window[0]), slice(left, left + window[1]))
            logits = logits_of(model(images[part]))["out"].float().log_softmax(1)
            if total is None:
                total = logits.new_zeros(*logits.shape[:2], *images.shape[-2:])
            total[part] += logits
            count[part] += 1
    assert total is not None
    return (total / count)[..., :height, :width]


def starts(length: int, window: int, stride: float) -> list[int]:
    """First pixel of each window along one side, spread evenly, so that the windows cover it all.

    >>> starts(100, 40, 0.5), starts(30, 40, 0.5)
    ([0, 20, 40, 60], [0])
    """
    room = length - window
    if room <= 0:
        return [0]
    steps = math.ceil(room / max(1, round(window * stride)))
    return [round(room * step / steps) for step in range(steps + 1)]
