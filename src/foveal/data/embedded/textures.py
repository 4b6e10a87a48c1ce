"""Generated textures in place of photographs behind the scenes of MBG."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from foveal.data._random import uniform


def textures(side: int, part: str, count: int = 96) -> Tensor:
    """Smooth colour noise of several frequencies and contrasts; different textures for each split.

    Args:
        side: of the textures.
        part: ``train``, ``val`` or ``test``.
        count: how many.

    Returns:
        uint8 (count, 3, side, side).
    """
    seed = {"train": 1, "val": 2, "test": 3}[part]
    number = torch.arange(count)[:, None]
    total = torch.zeros(count, 3, side, side, dtype=torch.float64)
    for octave, cells in enumerate((2, 5, 11, 23)):
        grid = uniform(seed, octave, number, torch.arange(3 * cells * cells)).view(count, 3, cells, cells)
        weight = uniform(seed, 10 + octave, number)[..., None, None] / (1 + 0.5 * octave)
        total += weight * (F.interpolate(grid, (side, side), mode="bicubic", align_corners=False) - 0.5)
    base = uniform(seed, 20, number, torch.arange(3))[..., None, None]
    base, total = (0.4 * v + 0.6 * v.mean(1, keepdim=True) for v in (base, total))  # muted, as photographs are
    return ((base + total).clamp(0, 1) * 255).round().to(torch.uint8)
