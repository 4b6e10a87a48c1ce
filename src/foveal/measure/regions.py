"""Regions of objects: boxes and masks in one form."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from foveal.errors import UserError
from foveal.measure._inputs import check_maps


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
    masks = []
    for image_boxes in boxes:
        image_boxes = torch.as_tensor(image_boxes)
        if image_boxes.numel() and (image_boxes.ndim != 2 or image_boxes.shape[1] != 4):
            shape = tuple(image_boxes.shape)
            raise UserError(f"boxes of an image must be (M, 4) as x0, y0, x1, y1, got shape {shape}")
        x0, y0, x1, y1 = image_boxes.reshape(-1, 4).float().T[..., None]
        if bool((x1 < x0).any() or (y1 < y0).any()):
            raise UserError("boxes must be x0, y0, x1, y1 with x0 ≤ x1 and y0 ≤ y1; some are not")
        rows, columns = _covered(y0, y1, size[0]), _covered(x0, x1, size[1])
        masks.append((rows[:, :, None] & columns[:, None, :]).any(0))
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
    if not isinstance(region, Tensor):
        if len(region) != len(attention):
            raise UserError(f"expected the boxes of {len(attention)} images, got those of {len(region)}")
        region = box_mask(region, (attention.shape[-2], attention.shape[-1])).to(attention.device)
    check_maps(attention, region)
    return region
