"""Where in an image the values of attention belong: maps at the size of the image, and tokens as the cells of a map."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

MOST_EXTRA = 16  # tokens that are no patches


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


def map_size(positions: int, size: Sequence[int]) -> tuple[int, int] | None:
    """Height and width of a map with so many positions of an image of ``size``; None if no stride gives such a map.

    >>> map_size(6 * 9, (48, 72)), map_size(7, (48, 72))
    ((6, 9), None)
    """
    for stride in range(1, max(size) + 1):
        height, width = (math.ceil(side / stride) for side in size)
        if height * width <= positions:
            return (height, width) if height * width == positions else None
    return None


def token_map(tokens: int, size: Sequence[int]) -> tuple[int, tuple[int, int]] | None:
    """How a transformer has made tokens of an image of ``size``: those before the map, and the map's height and width.

    None if no map with up to ``MOST_EXTRA`` other tokens, such as a class token and registers, has so many.

    >>> token_map(197, (224, 224)), token_map(6 * 9, (48, 72))
    ((1, (14, 14)), (0, (6, 9)))
    """
    for extra in range(min(MOST_EXTRA, tokens - 1) + 1):
        if (found := map_size(tokens - extra, size)) is not None:
            return extra, found
    return None
