"""The scenes of a dataset of images with boxes, as a source of labelled images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from foveal.data import Source
from foveal.data.batches import Batches
from foveal.data.images.boxed import BoxedImages
from foveal.data.images.detection import BoxData
from foveal.data.images.masked import resized_to


def scene_source(source: Source) -> Source:
    """What task ``scene`` reads: the scenes of a dataset with boxes, if it has such, else ``source`` itself."""
    return BoxScenes(source) if isinstance(source, BoxData) and source.scenes else source


class BoxScenes:
    """Whole images of a dataset with boxes, each labelled with its scene. Boxes and relations are not read.

    Images keep their shape, because the detector was trained on them as they are. So that batches are tensors, images
    are padded to a square, and batches hold their size.

    Args:
        source: the dataset; it has scenes.

    Attributes:
        answers: names of the scenes.
        size: longest side of all images.
    """

    multilabel = False
    mean, std = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)

    def __init__(self, source: BoxData) -> None:
        assert source.scenes is not None
        self.source, self.answers = source, source.scenes
        self.name, self.title, self.embedded, self.root = source.name, source.title, source.embedded, source.root
        self.size = max(_longest_side(source, split) for split in source.splits)

    def describe(self) -> str:
        """One line on what the data is."""
        return f"{self.source.describe()}; {len(self.answers)} scenes"

    def about(self) -> dict[str, Any]:
        """Names of the scenes, and how an image becomes the model's input."""
        return {
            "answers": self.answers,
            "multilabel": False,
            "size": self.size,
            "view": {**self.source.about()["view"], "mean": list(self.mean), "std": list(self.std)},
            "question": "What does this show?",
            "asked": f"what they show ({len(self.answers)} scenes)",
        }

    def loader(self, split: str, batch: int, **place: Any) -> SceneBatches:
        """Batches of ``split`` for one epoch, see :func:`padded`; ``place`` is as for the dataset's own."""
        return SceneBatches(self.source.loader(split, batch, **place), self.size)


class SceneBatches:
    """Batches of whole images with their scenes.

    Args:
        batches: lists of images and targets.
        side: of the padded images.
    """

    def __init__(self, batches: Batches, side: int) -> None:
        self.batches, self.side = batches, side

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        return (padded(batch, self.side) for batch in self.batches)


def padded(batch: Mapping[str, Any], side: int) -> dict[str, Tensor]:
    """A batch of lists as tensors.

    Args:
        batch: image, uint8 (3, H, W) of any sizes up to ``side``; target, each with scene; and index.
        side: S.

    Returns:
        image uint8 (N, 3, S, S), black beside and below the pictures; size, their heights and widths, int64 (N, 2);
        label int64 (N,); index (N,).
    """
    images = batch["image"]
    canvas = images[0].new_zeros(len(images), 3, side, side)
    for place, image in zip(canvas, images, strict=True):
        place[:, : image.shape[1], : image.shape[2]] = image
    return {
        "image": canvas,
        "size": torch.tensor([image.shape[1:] for image in images]),
        "label": torch.stack([target["scene"] for target in batch["target"]]),
        "index": batch["index"],
    }


def unpadded(images: Tensor, size: Tensor | None) -> Sequence[Tensor]:
    """Images (N, 3, S, S) without what :func:`padded` put beside them; ``size`` None: there is no such thing."""
    if size is None:
        return list(images)
    return [image[:, :height, :width] for image, (height, width) in zip(images, size.tolist(), strict=True)]


def _longest_side(source: BoxData, split: str) -> int:
    images = source.splits[split]
    if isinstance(images, BoxedImages):
        return int(images.images.size.max())
    return max(max(resized_to(size, source.options.short)) for size in images.sizes)
