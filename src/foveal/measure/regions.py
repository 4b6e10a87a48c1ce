"""Regions of objects: boxes and masks in one form."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from foveal.errors import UserError
from foveal.measure._inputs import check_maps, check_tensors


def box_mask(boxes: Sequence[Tensor], size: tuple[int, int]) -> Tensor:
    """Boxes as masks.

    Args:
        boxes: for each of N images its boxes (M, 4) as x0, y0, x1, y1 in pixels; an image may have none.
        size: (H, W) of the masks.

    Returns:
        bool (N, H, W), true on the pixels whose centre lies in a box of the image. A box without any
        pixel centre gets the pixel that contains its own centre; a box without area gets none.

    >>> box_mask([torch.tensor([[1.0, 0.0, 3.0, 1.0]])], (2, 4)).int()
    tensor([[[0, 1, 1, 0],
             [0, 0, 0, 0]]], dtype=torch.int32)
    """
    masks, largest = [], 0.0
    for image_boxes in boxes:
        image_boxes = torch.as_tensor(image_boxes)
        if image_boxes.numel() and (image_boxes.ndim != 2 or image_boxes.shape[1] != 4):
            shape = tuple(image_boxes.shape)
            raise UserError(f"boxes of an image must be (M, 4) as x0, y0, x1, y1, got shape {shape}")
        image_boxes = image_boxes.reshape(-1, 4).float()
        if not bool(image_boxes.isfinite().all()):
            raise UserError("boxes must be finite numbers, got nan or inf; leave out objects whose place is not known")
        largest = max(largest, float(image_boxes.amax()) if len(image_boxes) else 0.0)
        x0, y0, x1, y1 = image_boxes.T[..., None]
        if bool((x1 < x0).any() or (y1 < y0).any()):
            raise UserError("boxes must be x0, y0, x1, y1 with x0 ≤ x1 and y0 ≤ y1; some are not")
        rows, columns = _covered(y0, y1, size[0]), _covered(x0, x1, size[1])
        masks.append((rows[:, :, None] & columns[:, None, :]).any(0))
    if 0 < largest <= 1 < min(size):
        warnings.warn(
            "all boxes lie between 0 and 1, so that they cover one pixel at most: boxes are in pixels; multiply "
            "fractions by the width and height",
            stacklevel=2,
        )
    if not masks:
        return torch.zeros(0, *size, dtype=torch.bool)
    return torch.stack(masks)


def _covered(first: Tensor, last: Tensor, side: int) -> Tensor:
    """Which of ``side`` pixels lie in each of M intervals, given as (M, 1): bool (M, side)."""
    pixel = torch.arange(side, device=first.device)
    inside = (first <= pixel + 0.5) & (pixel + 0.5 < last)
    middle = (pixel == ((first + last) / 2).floor()) & (first < last)
    return torch.where(inside.any(1, keepdim=True), inside, middle)


def region_mask(attention: Tensor, region: Tensor | Sequence[Tensor]) -> Tensor:
    """``region`` as bool (N, H, W), checked against ``attention`` (N, H, W)."""
    if isinstance(region, np.ndarray) and region.dtype == bool:
        check_tensors(mask=region)
    if not isinstance(region, Tensor):
        if len(region) != len(attention):
            raise UserError(f"expected the boxes of {len(attention)} images, got those of {len(region)}")
        region = box_mask(region, (attention.shape[-2], attention.shape[-1])).to(attention.device)
    check_maps(attention, region)
    return region
