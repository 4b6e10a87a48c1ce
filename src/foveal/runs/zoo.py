"""Trained weights that come with foveal: run folders in the package, each with a card that says what it is."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ZOO = Path(__file__).resolve().parents[1] / "zoo"


@dataclass(frozen=True)
class Card:
    """What is known of trained weights.

    Attributes:
        title: the model.
        about: what it answers, and what it is not.
        data: what it was trained and tested on.
        recipe: that trained it, ``foveal train RECIPE``.
        revision: of foveal's source then.
        torch: version of PyTorch then.
        hardware: that it was trained on.
        parameters: how many.
        metrics: of the test, measured with the weights as they are stored.
        licence: of the weights, and of what they were trained on.
    """

    title: str
    about: str
    data: str
    recipe: str
    revision: str
    torch: str
    hardware: str
    parameters: int
    metrics: dict[str, float]
    licence: str

    def line(self) -> str:
        """In one line."""
        return f"{self.about} Trained on {self.data}; {self.recipe}"


@cache
def cards() -> dict[str, Card]:
    """The card of every model, by name."""
    files = sorted(ZOO.glob("*/card.json"))
    return {file.parent.name: Card(**json.loads(file.read_text(encoding="utf-8"))) for file in files}


def model_folder(name: str) -> Path:
    """Where the model ``name`` lies, or would."""
    return ZOO / name


def in_zoo(folder: Path) -> bool:
    """Whether a run folder is one of these, which nothing may change."""
    return folder.resolve().parent == ZOO
