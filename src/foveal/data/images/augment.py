"""Standard augmentation of images for classification, from random numbers of each sample's own.

How a sample is augmented depends only on (seed, epoch, number of the sample): not on its batch, the number of worker
processes or GPUs, or whether a run was resumed.

``large``, for photographs: a random part of 8–100% of the area, resized (Szegedy et al., https://arxiv.org/abs/1409.4842)
and a random horizontal flip; evaluation sees the middle of the image after its short side became 256/224 of the size.
``crop``, for photographs that their object fills: a random part of that same resized image, and a flip.
``small``, for tiny images: padded by an eighth of the side (4 pixels of 32), cropped at random and flipped (Lee et al.,
https://arxiv.org/abs/1409.5185); evaluation sees the whole of a square image. ``none``: training sees what evaluation
sees, by the rule of ``large`` for image files.

An image file that is read in every epoch goes through :func:`view`. Images that are held on the device are augmented
there, a batch at a time: :func:`shifts` draws the numbers of ``small``, :func:`crops` those of ``crop`` and
:func:`resized_crops` those of ``large``; :mod:`foveal.data.images.held` applies them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from foveal.data._random import integers, uniform

FLIP, ROW, COLUMN, OTHER, AREA, ASPECT = range(6)  # streams of random numbers


def view(size: int, augment: str, flip: bool, training: bool) -> Callable[[Image.Image], Tensor]:
    """A function that makes uint8 (3, size, size) of an image; random in training unless ``augment`` is ``none``."""
    from torchvision.transforms import v2  # takes a second to import, which a list of datasets does not need

    short = size if augment == "small" else short_side(size)
    steps: list[Any] = [v2.Resize(short), v2.CenterCrop(size)]
    if training and augment == "large":
        steps = [v2.RandomResizedCrop(size)]
    elif training and augment == "crop":
        steps = [v2.Resize(short), v2.RandomCrop(size)]
    elif training and augment == "small":
        steps.append(v2.RandomCrop(size, padding=size // 8))
    if training and augment != "none" and flip:
        steps.append(v2.RandomHorizontalFlip())
    return v2.Compose([*steps, v2.PILToTensor()])


def short_side(size: int) -> int:
    """Short side of the resized image; evaluation sees its middle ``size`` pixels."""
    return round(size * 256 / 224)


def whole(image: Image.Image, short: int, enlarge: bool) -> Tensor:
    """An image to crop from later, uint8 (H, W, 3); its short side is at most ``short``, or equal if ``enlarge``."""
    from torchvision.transforms.v2.functional import resize

    if enlarge or min(image.size) > short:
        image = resize(image, [short])
    return torch.from_numpy(np.array(image))


def seeded(view: Callable[[Image.Image], Tensor], image: Image.Image, seed: int, sample: int) -> Tensor:
    """``view(image)`` with torch's random numbers seeded for this sample; their state is restored afterwards."""
    number = int(uniform(seed, OTHER, torch.tensor([sample])).item() * 2**53)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(number)  # torch.manual_seed would also queue up work for every GPU
        return view(image)


def shifts(sample: Tensor, side: int, seed: int, flip: bool) -> Tensor:
    """How ``small`` moves each sample of an epoch.

    Args:
        sample: number of each sample, int64 (N,).
        side: side S of the images.
        seed: of the epoch.
        flip: whether to mirror every other image.

    Returns:
        int64 (N, 3) on the same device: first row and column of the crop in the padded image, and 1 if it is mirrored.
    """
    row, column = (integers(0, 2 * (side // 8), uniform(seed, stream, sample)) for stream in (ROW, COLUMN))
    return torch.stack([row, column, _mirrored(sample, seed, flip)], 1)


def crops(sample: Tensor, size: Tensor, side: int, seed: int, flip: bool) -> Tensor:
    """The part of each image that ``crop`` takes in an epoch.

    Args:
        sample: number of each sample, int64 (N,).
        size: height and width of its image, int64 (N, 2); at least ``side``.
        side: side S of the part.
        seed: of the epoch.
        flip: whether to mirror every other image.

    Returns:
        int64 (N, 5): first row and column, height and width of the part, and 1 if it is mirrored.
    """
    extent = torch.full_like(size, side)
    return torch.cat([_random_corner(sample, size, extent, seed), extent, _mirrored(sample, seed, flip)[:, None]], 1)


def resized_crops(sample: Tensor, size: Tensor, seed: int, flip: bool) -> Tensor:
    """The part of each image that ``large`` takes in an epoch, by the rule of torchvision's RandomResizedCrop.

    Of ten parts of 8–100% of the area and with a width of 3/4 to 4/3 of the height, it is the first that lies in the
    image; if none does, the middle of the image in the nearest of these shapes.

    Args:
        sample: number of each sample, int64 (N,).
        size: height and width of its image, int64 (N, 2).
        seed: of the epoch.
        flip: whether to mirror every other image.

    Returns:
        int64 (N, 5), as from :func:`crops`.
    """
    attempt = torch.arange(10, device=sample.device)
    area, aspect = (uniform(seed, stream, sample[:, None], attempt) for stream in (AREA, ASPECT))
    area = size.prod(1, keepdim=True) * (0.08 + 0.92 * area)
    aspect = torch.exp(math.log(4 / 3) * (2 * aspect - 1))
    candidates = torch.stack([area / aspect, area * aspect], 2).sqrt().round().long()  # (N, 10, 2)
    middle = torch.minimum(size, (size.flip(1) * (4 / 3)).round().long())
    candidates = torch.cat([candidates, middle[:, None]], 1)
    fits = ((candidates > 0) & (candidates <= size[:, None])).all(2)  # the middle always does
    first = fits.long().argmax(1)
    extent = candidates[torch.arange(len(candidates), device=sample.device), first]
    corner = torch.where(
        (first == len(attempt))[:, None], (size - extent) // 2, _random_corner(sample, size, extent, seed)
    )
    return torch.cat([corner, extent, _mirrored(sample, seed, flip)[:, None]], 1)


def _random_corner(sample: Tensor, size: Tensor, extent: Tensor, seed: int) -> Tensor:
    """First row and column, int64 (N, 2), of a part of this height and width at random in each image."""
    position = torch.stack([uniform(seed, stream, sample) for stream in (ROW, COLUMN)], 1)
    return integers(0, size - extent, position)


def _mirrored(sample: Tensor, seed: int, flip: bool) -> Tensor:
    return (uniform(seed, FLIP, sample) < 0.5).long() if flip else torch.zeros_like(sample)


def crop_and_flip(pixels: Tensor, shift: Tensor) -> Tensor:
    """``small`` for a whole batch at once, on the device where it lies.

    Args:
        pixels: uint8 (N, 3, S, S).
        shift: of each image, from :func:`shifts`.

    Returns:
        uint8 (N, 3, S, S).
    """
    count, channels, side, _ = pixels.shape
    padded = F.pad(pixels, (side // 8,) * 4)
    along = torch.arange(side, device=pixels.device)
    row, column, mirrored = shift[:, :, None].unbind(1)
    rows = row + along
    columns = column + torch.where(mirrored.bool(), side - 1 - along, along)
    image = torch.arange(count, device=pixels.device)[:, None, None, None]
    channel = torch.arange(channels, device=pixels.device)[:, None, None]
    return padded[image, channel, rows[:, None, :, None], columns[:, None, None, :]]


def resized(pixels: Tensor, side: int) -> Tensor:
    """Square images uint8 (N, 3, H, H) at another size, bicubic with antialiasing."""
    if pixels.shape[-1] == side:
        return pixels
    parts = [
        F.interpolate(part.float(), (side, side), mode="bicubic", antialias=True, align_corners=False)
        .round()
        .clamp(0, 255)
        .to(torch.uint8)
        for part in pixels.split(1024)
    ]
    return torch.cat(parts)


def resized_masks(masks: Tensor, side: int) -> Tensor:
    """Square masks bool (N, H, H) at another size; a pixel is inside if its nearest is."""
    if masks.shape[-1] == side:
        return masks
    return F.interpolate(masks[:, None].to(torch.uint8), (side, side), mode="nearest-exact")[:, 0].bool()
