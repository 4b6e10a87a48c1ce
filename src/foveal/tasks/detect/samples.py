"""Test images that a run keeps, with what is in them and what was found, as tensors of fixed shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from foveal.see import Found

LONGEST = 480  # pixels of a kept image
LEAST = 0.05  # score of a kept detection


class Sample(NamedTuple):
    """One image.

    Attributes:
        image: uint8 (3, H, W).
        true: its objects, without crowds.
        found: what a model found.
    """

    image: Tensor
    true: Found
    found: Found

    @classmethod
    def of(cls, image: Tensor, found: Mapping[str, Tensor], target: Mapping[str, Any]) -> Sample:
        """A copy on the CPU, made smaller if it is large."""
        factor = min(1.0, LONGEST / max(image.shape[1:]))
        if factor < 1:
            size = [max(1, round(side * factor)) for side in image.shape[1:]]
            image = F.interpolate(image[None].float(), size, mode="bilinear", antialias=True)[0].round().to(torch.uint8)
        keep, counted = found["scores"] >= LEAST, ~target["iscrowd"]
        boxes, labels, scores = (found[key][keep].detach().cpu() for key in ("boxes", "labels", "scores"))
        true, classes = (target[key][counted].cpu() for key in ("boxes", "labels"))
        return cls(image.cpu(), Found(true * factor, classes), Found(boxes * factor, labels, scores.float()))


def packed(samples: Sequence[Sample]) -> dict[str, Tensor]:
    """Samples as tensors: images and objects are padded, and labels of padding are 0."""
    sizes = torch.tensor([sample.image.shape[1:] for sample in samples])
    height, width = sizes.amax(0).tolist()
    images = [F.pad(s.image, (0, width - s.image.shape[2], 0, height - s.image.shape[1])) for s in samples]
    tensors = {"image": torch.stack(images), "size": sizes}
    for name in ("true", "found"):
        objects = [getattr(sample, name) for sample in samples]
        tensors[f"{name}.boxes"] = pad_sequence([one.boxes.float() for one in objects], batch_first=True)
        tensors[f"{name}.labels"] = pad_sequence([one.labels for one in objects], batch_first=True)
    scores = [sample.found.scores for sample in samples if sample.found.scores is not None]
    tensors["found.scores"] = pad_sequence(scores, batch_first=True)
    return tensors


def unpacked(tensors: Mapping[str, Tensor]) -> list[Sample]:
    """What :func:`packed` packed."""
    samples = []
    for n, (height, width) in enumerate(tensors["size"].tolist()):
        true, found = tensors["true.labels"][n] > 0, tensors["found.labels"][n] > 0
        samples.append(
            Sample(
                tensors["image"][n, :, :height, :width],
                Found(tensors["true.boxes"][n][true], tensors["true.labels"][n][true]),
                Found(*(tensors[f"found.{key}"][n][found] for key in ("boxes", "labels", "scores"))),
            )
        )
    return samples
