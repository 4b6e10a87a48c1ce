"""Scenes of coloured digits: what MREF, MDIST and MBG consist of; :mod:`foveal.data.embedded.painting` paints them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TypeVar

import torch
from torch import Tensor

from foveal.data._random import integers, uniform
from foveal.errors import DataError, UserError

T = TypeVar("T")
# The order of the labels; reference colours from the authors' code.
COLOURS = {
    "green": (16, 166, 81),
    "yellow": (255, 241, 78),
    "white": (224, 224, 224),
    "red": (146, 16, 16),
    "blue": (16, 98, 192),
}


@dataclass(frozen=True)
class SceneSpec:
    """How scenes are drawn; the defaults are the paper's.

    Attributes:
        canvas: side of the image.
        digits: least and greatest number of digits.
        scale: least and greatest digit scale; a digit of scale s is floor(28·s) pixels wide.
        distractors: number of coloured 5×5 fragments of other digits, under the digits (17 in MDIST).
        background: whether there is a picture behind everything (MBG).
    """

    canvas: int = 100
    digits: tuple[int, int] = (5, 9)
    scale: tuple[float, float] = (0.5, 3.0)
    distractors: int = 0
    background: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.digits[0] <= self.digits[1] <= 10:
            raise UserError(f"data.count={list(self.digits)}: expected 1 ≤ least ≤ greatest ≤ 10")
        if not 0 < self.scale[0] <= self.scale[1] or int(28 * self.scale[0]) < 2:
            raise UserError(f"data.scale={list(self.scale)}: expected least ≤ greatest and floor(28·least) ≥ 2")
        widest = int(28 * self.scale[1])
        if widest > self.canvas:
            raise UserError(
                f"data.canvas={self.canvas}: expected at least {widest}, the side of a digit of scale "
                f"{self.scale[1]:g}; or lower data.scale"
            )


@dataclass
class Sources:
    """The digits and pictures that scenes are painted from.

    Attributes:
        digits: uint8 (M, s, s) intensities, sorted by class.
        starts: int64 (11,): digits of class c are ``digits[starts[c]:starts[c + 1]]``.
        pictures: uint8 (P, 3, h, w) with h, w at least the canvas, or None.
    """

    digits: Tensor
    starts: Tensor
    pictures: Tensor | None = None

    @classmethod
    def by_class(cls, images: Tensor, labels: Tensor) -> Sources:
        """Digits uint8 (M, s, s) with labels (M,), sorted by class."""
        order = labels.argsort(stable=True)
        counts = labels.bincount(minlength=10)
        if len(counts) != 10 or (counts == 0).any():
            raise DataError(f"expected digits of all ten classes 0–9, found {counts.tolist()} of each")
        return cls(images[order], torch.cat([counts.new_zeros(1), counts.cumsum(0)]))

    def to(self, device: torch.device | str) -> Sources:
        """Move everything to ``device``."""
        return _to(self, device)


@dataclass
class Scenes:
    """A batch of scenes. N images, K digit slots of which the first ``count`` are used; the rest hold −1 or 0.

    Attributes:
        images: uint8 (N, 3, S, S).
        owner: uint8 (N, S, S): 0 for background, k + 1 where the digit of slot k has intensity above zero.
        digit: int64 (N, K) class of each digit, −1 where unused.
        colour: int64 (N, K) index into :data:`COLOURS`.
        scale: float32 (N, K).
        box: int64 (N, K, 3): left, top, side.
    """

    images: Tensor
    owner: Tensor
    digit: Tensor
    colour: Tensor
    scale: Tensor
    box: Tensor

    def __len__(self) -> int:
        return len(self.images)

    def to(self, device: torch.device | str) -> Scenes:
        """Move everything to ``device``."""
        return _to(self, device)

    def triples(self) -> tuple[Tensor, Tensor]:
        """Image index and slot of every digit, in order: (T,), (T,)."""
        image, slot = (self.digit >= 0).nonzero(as_tuple=True)
        return image, slot

    def mask(self, image: Tensor, slot: Tensor) -> Tensor:
        """Binary masks (T, S, S) of the digits in ``slot`` of ``image``."""
        return self.owner[image] == (slot + 1)[:, None, None].to(torch.uint8)

    @staticmethod
    def cat(parts: list[Scenes]) -> Scenes:
        """Join batches of scenes."""
        return Scenes(*(torch.cat([getattr(p, f.name) for p in parts]) for f in fields(Scenes)))


def _to(value: T, device: torch.device | str) -> T:
    moved = {f.name: getattr(value, f.name) for f in fields(value)}  # type: ignore[arg-type]
    return type(value)(**{k: v.to(device) if isinstance(v, Tensor) else v for k, v in moved.items()})


def digit_counts(spec: SceneSpec, seed: int, index: Tensor) -> Tensor:
    """Number of digits in each image of ``index``; known before anything is painted."""
    return integers(spec.digits[0], spec.digits[1], uniform(seed, 0, index))


def images_for(spec: SceneSpec, seed: int, triples: int, start: int = 0) -> int:
    """How many images from ``start`` on hold at least ``triples`` triples."""
    upper = -(-triples // spec.digits[0])
    total = digit_counts(spec, seed, torch.arange(start, start + upper)).cumsum(0)
    return int((total < triples).sum()) + 1
