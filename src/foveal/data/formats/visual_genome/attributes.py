"""Attributes of objects in Visual Genome, read from the official files.

Krishna et al., "Visual Genome: Connecting Language and Vision Using Crowdsourced Dense Image Annotations"
(https://arxiv.org/abs/1602.07332). The query is an object class, the answers are the attributes that annotators gave to
the objects of that class in the image. The folder looks as the official archives unpack::

    attributes.json      [{"image_id": 1, "attributes": [{"object_id": 5, "names": ["clock"], "x": 421, "y": 91,
                           "w": 79, "h": 339, "attributes": ["green", "tall"], "synsets": ["clock.n.01"]}, ...]}, ...]
    image_data.json      [{"image_id": 1, "width": 800, "height": 600, "url": ...}, ...]
    objects.json         optional: names and boxes of objects for which attributes.json has none
    VG_100K, VG_100K_2   the images, named by id: 2.jpg

Seo et al. (https://arxiv.org/abs/1606.02393) keep the 488 object and 274 attribute classes that appear more than 100
times, in 45,393 images. They used an early release and do not say what they counted. Which release gives exactly these
numbers has not been checked. The classes of a folder are in ``queries`` and ``answers``.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from foveal.data.formats.visual_genome.annotations import SITE, Box, Index, Sample, read_index
from foveal.data.problems import collected
from foveal.data.splits import SPLITS
from foveal.errors import DataError, UserError, unknown

PAPER_SIZES = (25_393, 10_000, 10_000)
IMAGE_FOLDERS = ("VG_100K", "VG_100K_2")


def split_sizes(images: int, sizes: Sequence[int] | None = None) -> tuple[int, int, int]:
    """Number of training, validation and test images: ``sizes``, or the paper's fractions of ``images``.

    >>> split_sizes(45_393)
    (25393, 10000, 10000)
    >>> split_sizes(100)
    (56, 22, 22)
    """
    if sizes is None:
        train, val = (round(images * part / sum(PAPER_SIZES)) for part in PAPER_SIZES[:2])
        return train, val, images - train - val
    if len(sizes) != 3 or min(sizes) < 0:
        raise UserError(f"sizes must be three numbers of images (train, val, test), got {list(sizes)}")
    if sum(sizes) > images:
        raise UserError(f"sizes {list(sizes)} ask for {sum(sizes)} images, but only {images} have a kept label")
    return sizes[0], sizes[1], sizes[2]


def split_images(images: Iterable[int], split: str, seed: int = 0, sizes: Sequence[int] | None = None) -> set[int]:
    """The images of one split; the order of ``images`` does not matter.

    >>> sorted(split_images(range(10), "test")), sorted(split_images(range(10), "test", seed=1))
    ([1, 5], [1, 9])
    """
    order = sorted(images, key=lambda image: hashlib.sha256(f"{seed}:{image}".encode()).digest())
    train, val, test = split_sizes(len(order), sizes)
    start, count = {"train": (0, train), "val": (train, val), "test": (train + val, test)}[split]
    return set(order[start : start + count])


def union_mask(boxes: Iterable[Box], size: tuple[int, int], image_size: int) -> Tensor:
    """The mask of all ``boxes`` after the image is resized to a square.

    Args:
        boxes: left, top, width, height in pixels of the original image; what lies outside of it is cut off.
        size: width and height of the original image.
        image_size: side S of the resized image.

    Returns:
        bool (S, S), true for every pixel that a box touches.

    >>> union_mask([(0, 0, 50, 20)], size=(100, 40), image_size=4).int()
    tensor([[1, 1, 0, 0],
            [1, 1, 0, 0],
            [0, 0, 0, 0],
            [0, 0, 0, 0]], dtype=torch.int32)
    """
    mask = torch.zeros(image_size, image_size, dtype=torch.bool)
    width, height = size
    for x, y, w, h in boxes:
        left, top = max(0, math.floor(x * image_size / width)), max(0, math.floor(y * image_size / height))
        right, bottom = math.ceil((x + w) * image_size / width), math.ceil((y + h) * image_size / height)
        mask[top : max(0, bottom), left : max(0, right)] = True
    return mask


def image_files(root: Path, images: set[int]) -> dict[int, Path]:
    """The file of each of ``images``. All are looked for at once, so that training does not stop at a missing one."""
    present = {folder: set(os.listdir(root / folder)) for folder in IMAGE_FOLDERS if (root / folder).is_dir()}
    files = {i: root / folder / f"{i}.jpg" for folder, names in present.items() for i in images if f"{i}.jpg" in names}
    absent = sorted(images - files.keys())
    for image in absent:
        with collected():
            raise DataError(
                f"image {image}.jpg is annotated but neither in {root / IMAGE_FOLDERS[0]} nor in "
                f"{root / IMAGE_FOLDERS[1]} ({len(absent)} of {len(images)} are absent); get images.zip and "
                f"images2.zip from {SITE} and unpack them there"
            )
    return files


def read_square(path: Path, side: int) -> Image.Image:
    """An image file as RGB, resized to a square."""
    try:
        with Image.open(path) as image:
            return image.convert("RGB").resize((side, side), Image.Resampling.BILINEAR)
    except (OSError, SyntaxError, ValueError) as error:
        raise DataError(
            f"cannot read the image {path} ({error}); it is missing or damaged, unpack it again from images.zip or "
            f"images2.zip of {SITE}"
        ) from error


class VisualGenomeAttributes(Dataset[dict[str, Any]]):
    """Which attributes do the objects of a class have in an image?

    There is one sample per image and object class, with the union of the attributes and of the boxes of that class in
    the image. Images with at least one kept label are divided by a hash of seed and image id, so that no image is in
    two splits. The annotation files are parsed once per process and shared by the splits; nothing is written.

    Each item is a dict:

    - ``image``: uint8 (3, S, S), RGB, resized without keeping the aspect ratio;
    - ``query``: int, index into ``queries``;
    - ``label``: float (K,), 1 for each attribute that holds, in the order of ``answers``;
    - ``mask``: bool (S, S), the union of the boxes of the class;
    - ``index``: int.

    Args:
        root: folder with the official files, see the module.
        split: ``train``, ``val`` or ``test``.
        image_size: side S of the images.
        min_count: classes that appear this often or less are dropped.
        seed: which division into splits.
        sizes: number of train, val and test images; ``None`` for the paper's 25,393 : 10,000 : 10,000 of all images
            that there are.

    Attributes:
        queries: names of the Q object classes, the most frequent first.
        answers: names of the K attributes, the most frequent first.
        samples: what each item is made from.
    """

    queries: list[str]
    answers: list[str]
    samples: list[Sample]

    def __init__(
        self,
        root: str | Path,
        split: str,
        image_size: int = 224,
        min_count: int = 100,
        seed: int = 0,
        sizes: tuple[int, int, int] | None = None,
    ) -> None:
        if split not in SPLITS:
            raise unknown("split", str(split), SPLITS)
        if image_size < 1:
            raise UserError(f"image_size must be at least 1, got {image_size}")
        self.root, self.split, self.image_size = Path(root), split, image_size
        self.min_count, self.seed, self.sizes = min_count, seed, sizes
        index = self._index()
        self.queries, self.answers = index.queries, index.answers
        self.samples = self._samples(index, split)
        if not self.samples:
            count = f"{len(index.sizes)} labelled images"
            raise DataError(f"the {split} split of {self.root} is empty ({count}); give other sizes or add images")
        images = {sample.image for sample in self.samples}
        self.image_sizes = {image: index.sizes[image] for image in images}
        self.files = self._files(images)

    def _index(self) -> Index:
        return read_index(self.root, self.min_count)

    def _files(self, images: set[int]) -> dict[int, Path]:
        return image_files(self.root, images)

    def _samples(self, index: Index, split: str) -> list[Sample]:
        chosen = split_images(index.sizes, split, self.seed, self.sizes)
        return [sample for sample in index.samples if sample.image in chosen]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> dict[str, Any]:
        sample = self.samples[index]
        label = torch.zeros(len(self.answers))
        label[list(sample.answers)] = 1.0
        return {
            "image": torch.from_numpy(np.array(self._image(sample.image))).permute(2, 0, 1).contiguous(),
            "query": sample.query,
            "label": label,
            "mask": union_mask(sample.boxes, self.image_sizes[sample.image], self.image_size),
            "index": index,
        }

    def _image(self, image: int) -> Image.Image:
        return read_square(self.files[image], self.image_size)

    def prior(self, smoothing: float = 1.0) -> Tensor:
        """Log-odds of every attribute given the object class, always over the training split.

        With n_q the training samples of class q, n_qa those of them that have attribute a, and s the smoothing::

            p = (n_qa + s) / (n_q + 2s);  log p / (1 − p) = log (n_qa + s) − log (n_q − n_qa + s)

        Args:
            smoothing: Laplace's s, above zero.

        Returns:
            (Q, K), zero for a class without training samples; what ``AttributeNet.set_prior`` takes.
        """
        if not smoothing > 0:
            raise UserError(f"smoothing must be above zero, or log-odds become infinite; got {smoothing}")
        samples = self._samples(self._index(), "train")
        q, k = len(self.queries), len(self.answers)
        total = torch.bincount(torch.tensor([s.query for s in samples], dtype=torch.long), minlength=q)[
            :, None
        ].double()
        pairs = torch.tensor([s.query * k + a for s in samples for a in s.answers], dtype=torch.long)
        positive = torch.bincount(pairs, minlength=q * k).view(q, k).double()
        return (torch.log(positive + smoothing) - torch.log(total - positive + smoothing)).float()
