"""What one model did on a few images: the questions, its answers and the map of every gate."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from foveal.errors import RunError, UserError

T = TypeVar("T")
Verdict = Literal["right", "partly", "wrong"]
Box = tuple[float, float, float, float]
OPTIONAL = ("query", "map", "label", "probability", "mask")


@dataclass(frozen=True)
class Samples:
    """K samples and what one model answered, with one answer per sample or several.

    Attributes:
        image: (K, 3, H, W) uint8.
        query: (K,) which object is asked for; None when the question is about the whole image.
        prediction: (K,) index of the answer, or multi-hot (K, classes).
        gates: attention maps from the first gate to the last, each (K, h, w); none for a model without gates.
        map: (K, H, W) all gates combined; None for a model without gates.
        label: the true answer in the form of ``prediction``; None when unknown.
        probability: (K, classes); None when unknown.
        mask: (K, H, W), where the object asked for is; None when unknown.
        queries: names of the queries.
        answers: names of the classes.
        sites: names of the gates.
        total_gates: how many gates the model has, where ``gates`` holds only some of them.
        question: the question as a template, e.g. ``What colour is the {query}?``; empty when unknown.
        colours: colour of an answer that names one, as ``#rrggbb``.

    >>> import torch
    >>> samples = Samples(
    ...     image=torch.zeros(2, 3, 8, 8, dtype=torch.uint8), query=torch.tensor([7, 3]),
    ...     prediction=torch.tensor([0, 1]), label=torch.tensor([0, 0]),
    ...     gates=(torch.rand(2, 4, 4),), map=torch.rand(2, 8, 8), answers=("red", "blue"),
    ... )
    >>> [(samples.asked(k), samples.names(samples.guess(k)), samples.verdict(k)) for k in range(len(samples))]
    [('7', 'red', 'right'), ('3', 'blue', 'wrong')]
    """

    image: Tensor
    query: Tensor | None
    prediction: Tensor
    gates: tuple[Tensor, ...]
    map: Tensor | None
    label: Tensor | None = None
    probability: Tensor | None = None
    mask: Tensor | None = None
    queries: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()
    sites: tuple[str, ...] = ()
    total_gates: int = 0
    question: str = ""
    colours: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.image.ndim != 4 or self.image.shape[1] != 3 or self.image.dtype != torch.uint8:
            raise UserError(f"image is {self.image.dtype} {tuple(self.image.shape)}; expected uint8 (K, 3, H, W)")
        for name, tensor, sizes in [
            ("query", self.query, (1,)),
            ("prediction", self.prediction, (1, 2)),
            ("label", self.label, (self.prediction.ndim,)),
            ("probability", self.probability, (2,)),
            ("mask", self.mask, (3,)),
            ("map", self.map, (3,)),
            *((f"gate.{i}", gate, (3,)) for i, gate in enumerate(self.gates)),
        ]:
            if tensor is not None and (tensor.ndim not in sizes or len(tensor) != len(self)):
                dims = " or ".join(map(str, sizes))
                raise UserError(
                    f"{name} is {tuple(tensor.shape)}; expected {dims} dimensions, the first {len(self)} long"
                )

    def __len__(self) -> int:
        return len(self.image)

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> Samples:
        """Build samples from what a run keeps.

        Args:
            tensors: the attributes by name, and the gates as ``gate.0``, ``gate.1`` …; others are ignored.
            about: the attributes that are not tensors, by name; any may be missing.

        Raises:
            RunError: a tensor that is required is missing or has the wrong shape.
        """
        count = sum(name.startswith("gate.") for name in tensors)
        try:
            return cls(
                image=tensors["image"],
                prediction=tensors["prediction"],
                gates=tuple(tensors[f"gate.{i}"] for i in range(count)),
                **{name: tensors.get(name) for name in OPTIONAL},  # type: ignore[arg-type]
                **{name: tuple(map(str, about.get(name) or ())) for name in ("queries", "answers", "sites")},  # type: ignore[arg-type]
                total_gates=int(about.get("total_gates") or 0),
                question=str(about.get("question") or ""),
                colours=dict(about.get("colours") or {}),
            )
        except KeyError as error:
            raise RunError(f"the samples hold no tensor {error}; write them again with `foveal test`") from None
        except (TypeError, ValueError) as error:
            raise RunError(f"the samples cannot be drawn: {error}; write them again with `foveal test`") from None

    def asked(self, k: int) -> str | None:
        """Name of what sample ``k`` asks for; None for the whole image."""
        return None if self.query is None else _name(self.queries, int(self.query[k]))

    def asks(self, k: int) -> str:
        """The question of sample ``k`` in words; empty when it is unknown."""
        query = self.asked(k)
        template = self.question or ("" if query is None else "Asked: {query}")
        return template.replace("{query}", query or "")

    def guess(self, k: int) -> list[int]:
        """Classes the model answers for sample ``k``."""
        return _classes(self.prediction[k])

    def truth(self, k: int) -> list[int] | None:
        """True classes of sample ``k``; None when unknown."""
        return None if self.label is None else _classes(self.label[k])

    def names(self, classes: list[int]) -> str:
        """Classes by name, the first three of many."""
        shown = [_name(self.answers, i) for i in classes[:3]] or ["none"]
        return ", ".join(shown) + (f" and {len(classes) - 3} more" if len(classes) > 3 else "")

    def colour(self, classes: list[int]) -> str | None:
        """Colour that an answer names, as ``#rrggbb``; None for an answer that names none."""
        colour = str(self.colours.get(self.names(classes), ""))
        return colour if re.fullmatch("#[0-9a-fA-F]{6}", colour) else None

    def site(self, gate: int) -> str:
        """Name of a gate."""
        return self.sites[gate] if gate < len(self.sites) else f"gate {gate + 1}"

    def confidence(self, k: int) -> float | None:
        """Probability of the one class the model answers; None for several or unknown ones."""
        guess = self.guess(k)
        if self.probability is None or len(guess) != 1 or guess[0] >= self.probability.shape[1]:
            return None
        value = float(self.probability[k, guess[0]])
        return value if 0 <= value <= 1 else None

    def verdict(self, k: int) -> Verdict | None:
        """Whether the answer is right; ``partly`` when only some of several classes are; None when unknown."""
        truth, guess = self.truth(k), self.guess(k)
        if truth is None:
            return None
        return "right" if truth == guess else "partly" if set(truth) & set(guess) else "wrong"

    def box(self, k: int) -> Box | None:
        """Box around the mask of sample ``k`` as fractions (left, top, right, bottom); None without a mask."""
        if self.mask is None or not self.mask[k].any():
            return None
        height, width = self.mask.shape[1:]
        rows, columns = self.mask[k].any(1).nonzero(), self.mask[k].any(0).nonzero()
        left, right = int(columns.min()), int(columns.max()) + 1
        top, bottom = int(rows.min()), int(rows.max()) + 1
        return left / width, top / height, right / width, bottom / height


def shared_samples(models: Mapping[str, Samples]) -> list[dict[str, int]]:
    """Match the samples of several models by image and query.

    Returns:
        One row per sample, title to index; rows that more models have come first, otherwise in the order recorded.
    """
    if not models:
        raise UserError("no models to show; give at least one title with its samples")
    rows: dict[tuple[int, bytes], dict[str, int]] = defaultdict(dict)
    for title, samples in models.items():
        for k in range(len(samples)):
            query = -1 if samples.query is None else int(samples.query[k])
            rows[query, samples.image[k].cpu().numpy().tobytes()].setdefault(title, k)
    return sorted(rows.values(), key=len, reverse=True)


def _classes(row: Tensor) -> list[int]:
    return row.nonzero().flatten().tolist() if row.ndim else [int(row)]


def _name(names: tuple[str, ...], index: int) -> str:
    return names[index] if 0 <= index < len(names) else str(index)


def spread(items: Sequence[T], limit: int) -> list[T]:
    """At most ``limit`` of the items, spread over all: those of a folder of images are sorted by class.

    >>> spread("aabbcc", 3)
    ['a', 'b', 'c']
    """
    return [items[n * len(items) // limit] for n in range(limit)] if len(items) > limit else list(items)
