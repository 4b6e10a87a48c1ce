"""Random parts of images that keep their labelled objects in view.

A random part of 8–100% of an image often misses a small object, whose label then says what cannot be seen. Here a part
is drawn again until it shows enough of an object of every class that the image is labelled with.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

ATTEMPTS = 10
OTHER_DRAWS = 2**32  # what the seeds of further attempts are apart, far more than there are epochs


def objects_in(boxes: Tensor, labels: Tensor, size: Tensor) -> Tensor:
    """The labelled objects of each image in its pixels.

    Args:
        boxes: (N, M, 5), as in :class:`~foveal.data.images.labelled.ImageSet`.
        labels: class int64 (N,), or 0 and 1 for each class (N, K).
        size: height and width of each image, int64 (N, 2).

    Returns:
        float (N, M, 5): class, or -1 for no object or one whose class is not labelled; x0, y0, x1, y1.
    """
    kind = boxes[..., 0].long()
    labelled = labels[:, None] == kind if labels.ndim == 1 else labels.gather(1, kind.clamp_min(0)) > 0
    kind = torch.where(labelled & (kind >= 0), kind, -1)
    middle = (size / 2).flip(1).repeat(1, 2)[:, None]  # of x and y, twice
    corners = boxes[..., 1:] * size.amin(1)[:, None, None] + middle
    corners = corners.clamp_min(0).minimum(2 * middle)
    return torch.cat([kind[..., None].to(corners.dtype), corners], 2)


def shows(part: Tensor, objects: Tensor, keep: float) -> Tensor:
    """Whether parts of images show enough of them.

    Args:
        part: first row and column, height and width, and 1 if it is mirrored, int64 (N, 5).
        objects: of each image, from :func:`objects_in`.
        keep: least share of the box of an object of every class.

    Returns:
        bool (N,).
    """
    kind, (x0, y0, x1, y1) = objects[..., 0], objects[..., 1:].unbind(2)
    top, left, height, width, _ = part[:, :, None].unbind(1)
    seen_width = (torch.minimum(x1, left + width) - torch.maximum(x0, left)).clamp_min(0)
    seen_height = (torch.minimum(y1, top + height) - torch.maximum(y0, top)).clamp_min(0)
    enough = (kind >= 0) & (seen_width * seen_height >= keep * (x1 - x0) * (y1 - y0))
    of_class = ((kind[:, :, None] == kind[:, None]) & enough[:, None]).any(2)  # for each object, one of its class
    return (of_class | (kind < 0)).all(1)


def keeping(draw: Callable[[int], Tensor], seed: int, size: Tensor, objects: Tensor, keep: float) -> Tensor:
    """Of ten random parts of each image the first that :func:`shows` enough, or else the whole image.

    Args:
        draw: makes parts (N, 5) from a seed.
        seed: of the epoch; parts that show enough at once are those of ``draw(seed)``.
        size: height and width of each image, int64 (N, 2).
        objects: of each image, from :func:`objects_in`.
        keep: as in :func:`shows`.
    """
    part = draw(seed)
    lacking = (~shows(part, objects, keep)).nonzero()[:, 0]
    for attempt in range(1, ATTEMPTS):
        part[lacking] = draw(seed + attempt * OTHER_DRAWS)[lacking]
        lacking = lacking[~shows(part[lacking], objects[lacking], keep)]
    part[lacking, :2], part[lacking, 2:4] = 0, size[lacking]
    return part
