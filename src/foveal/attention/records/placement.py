"""Bring the values of spatial attention to the size of an image: where in the image each value belongs."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def place(values: Tensor, size: tuple[int, int], grid: tuple[float, float] | None = None) -> Tensor:
    """Spatial attention at image size.

    Args:
        values: (N, h, w), floating point.
        size: (H, W).
        grid: the pixel at the centre of the first value's receptive field, and the distance in pixels from one value to
            the next (:attr:`foveal.attention.AttentionRecord.grid`). Each value fades linearly to zero at the centres
            of its neighbours. None: the values are stretched over the image (bilinear, ``align_corners=False``).

    Returns:
        (N, H, W), differentiable.

    >>> place(torch.tensor([[[1.0, 3.0]]]), (3, 5), grid=(1.0, 2.0))[0, 1]
    tensor([0.5000, 1.0000, 2.0000, 3.0000, 1.5000])
    >>> place(torch.tensor([[[1.0, 3.0]]]), (1, 4))
    tensor([[[1.0000, 1.5000, 2.5000, 3.0000]]])
    """
    if grid is None:
        return F.interpolate(values[:, None], tuple(size), mode="bilinear", align_corners=False)[:, 0]
    first, step = grid
    tents = []
    for pixels, units in zip(size, values.shape[1:], strict=True):
        pixel, unit = (torch.arange(count, device=values.device, dtype=values.dtype) for count in (pixels, units))
        distance = ((pixel[:, None] - first) / step - unit).abs()
        tents.append((1 - distance).clamp_min(0))
    return tents[0] @ values @ tents[1].T
