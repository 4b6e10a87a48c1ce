"""The handwritten digits that come with scikit-learn: 1,797 images of 8×8 pixels.

They are a small dataset to classify, and stand in for MNIST wherever digits are painted into scenes.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from foveal.data.images.augment import resized
from foveal.data.images.classification import Format, register_images
from foveal.data.images.labelled import ImageSet, LabelledImages


def sklearn_digits(split: str) -> tuple[Tensor, Tensor]:
    """Digits with a border of one pixel, the first 1,400 for ``train`` and the others for ``test``.

    Returns:
        Intensities uint8 (M, 10, 10) and labels int64 (M,).
    """
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = torch.from_numpy(bunch.images * (255 / 16)).round().to(torch.uint8)
    part = slice(0, 1400) if split == "train" else slice(1400, None)
    return torch.nn.functional.pad(images[part], (1, 1, 1, 1)), torch.from_numpy(bunch.target[part]).long()


def read_digits(_: Path) -> ImageSet:
    """The digits as grey 32×32 images, the first 1,400 for training."""
    splits = {}
    for split in ("train", "test"):
        images, labels = sklearn_digits(split)
        splits[split] = LabelledImages(resized(images[:, None], 32).repeat(1, 3, 1, 1), labels)
    return ImageSet([str(digit) for digit in range(10)], splits)


register_images(
    Format(
        "digits",
        "scikit-learn's 8×8 digits",
        read_digits,
        size=32,
        augment="small",
        flip=False,
        mean=(0.5, 0.5, 0.5),
        std=(0.5, 0.5, 0.5),
        note="embedded, for trying things out",
    ),
    "handwritten digits that come with scikit-learn; embedded",
)
