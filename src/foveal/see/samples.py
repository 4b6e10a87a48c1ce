"""What one model did on a few samples: the questions, its answers and the map of every gate.

A run keeps them in ``samples.safetensors``; the pictures of this room are drawn from them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from foveal.errors import RunError, UserError

Verdict = Literal["right", "partly", "wrong"]
OPTIONAL = ("query", "map", "label", "probability", "mask")


@dataclass(frozen=True)
class Samples:
    """K samples and what one model answered, with one answer a sample or several.

    Attributes:
        image: (K, 3, H, W) uint8.
        query: (K,) which object is asked for; None when the question is about the whole image.
        prediction: (K,) index of the answer, or multi-hot (K, classes).
        gates: attention maps from the first gate to the last, each (K, h, w); none for a model without such.
        map: (K, H, W) all gates combined; None for a model without gates.
        label: the true answer in the form of ``prediction``; None when unknown.
        probability: (K, classes); None when unknown.
        mask: (K, H, W), where the object asked for is; None when unknown.
        queries: names of the queries.
        answers: names of the classes.
        sites: names of the gates.

    >>> import torch
    >>> seen = Samples(
    ...     image=torch.zeros(2, 3, 8, 8, dtype=torch.uint8), query=torch.tensor([7, 3]),
    ...     prediction=torch.tensor([0, 1]), label=torch.tensor([0, 0]),
    ...     gates=(torch.rand(2, 4, 4),), map=torch.rand(2, 8, 8), answers=("red", "blue"),
    ... )
    >>> [(seen.asked(k), seen.names(seen.guess(k)), seen.verdict(k)) for k in range(len(seen))]
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

    def asked(self, k: int) -> str | None:
        """Name of what sample ``k`` asks for; None for the whole image."""
        return None if self.query is None else _name(self.queries, int(self.query[k]))

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
        """Whether the answer is right; ``partly`` when only some of several classes are; None when nobody knows."""
        truth, guess = self.truth(k), self.guess(k)
        if truth is None:
            return None
        return "right" if truth == guess else "partly" if set(truth) & set(guess) else "wrong"

    def box(self, k: int) -> tuple[float, float, float, float] | None:
        """Box around the mask of sample ``k`` as fractions (left, top, right, bottom); None without a mask."""
        if self.mask is None or not self.mask[k].any():
            return None
        height, width = self.mask.shape[1:]
        rows, columns = self.mask[k].any(1).nonzero(), self.mask[k].any(0).nonzero()
        left, right = int(columns.min()), int(columns.max()) + 1
        top, bottom = int(rows.min()), int(rows.max()) + 1
        return left / width, top / height, right / width, bottom / height

    def save(self, path: str | Path) -> None:
        """Write ``samples.safetensors``."""
        tensors = {f"gate.{i}": gate.float() for i, gate in enumerate(self.gates)}
        tensors |= {"image": self.image, "prediction": self.prediction}
        tensors |= {name: tensor for name in OPTIONAL if (tensor := getattr(self, name)) is not None}
        names = {"queries": self.queries, "answers": self.answers, "sites": self.sites}
        save_file(
            {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()},
            path,
            {name: json.dumps(list(values)) for name, values in names.items()},
        )

    @classmethod
    def load(cls, path: str | Path) -> Samples:
        """Read ``samples.safetensors``; a :class:`~foveal.errors.RunError` says what is wrong with it."""
        try:
            with safe_open(path, "pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
                names = {
                    name: tuple(map(str, json.loads(text)))
                    for name, text in (file.metadata() or {}).items()
                    if name in ("queries", "answers", "sites")
                }
            count = sum(name.startswith("gate.") for name in tensors)
            maps = tuple(tensors.pop(f"gate.{i}") for i in range(count))
            known = {name: tensors.get(name) for name in OPTIONAL}
            required = {name: tensors[name] for name in ("image", "prediction")}
            return cls(**required, **known, gates=maps, **names)  # type: ignore[arg-type]
        except KeyError as error:
            raise RunError(f"{path} holds no tensor {error}; write it again with `foveal test`") from None
        except (OSError, SafetensorError, ValueError, TypeError) as error:
            raise RunError(f"{path} cannot be read: {error}") from None


def _classes(row: Tensor) -> list[int]:
    return row.nonzero().flatten().tolist() if row.ndim else [int(row)]


def _name(names: tuple[str, ...], index: int) -> str:
    return names[index] if 0 <= index < len(names) else str(index)
