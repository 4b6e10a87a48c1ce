"""Checks of the words and numbers that pictures of sentences are drawn from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeGuard

import torch
from torch import Tensor

from foveal.attention.records.record import AttentionRecord
from foveal.errors import UserError

PairWeights = Sequence[Sequence[float]] | Tensor | AttentionRecord
"""Weights (N, K) of pairs, or a pairwise record of one sample."""


def finite(value: object) -> TypeGuard[float]:
    """Whether ``value`` is a number, and neither NaN nor infinite."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def some_words(words: Sequence[str]) -> list[str]:
    """The words as strings; at least one is required."""
    if isinstance(words, str):
        raise UserError("words must be a list of words, got one text; split it first")
    if not words:
        raise UserError("there are no words to draw")
    return [str(word) for word in words]


def numbers(values: Sequence[float] | Tensor, name: str, count: int) -> list[float]:
    """One finite, not negative number for each of ``count`` words."""
    flat = torch.as_tensor(values).detach().cpu().double()
    if flat.ndim != 1 or len(flat) != count:
        raise UserError(f"{name} {tuple(flat.shape)} must be one number for each of the {count} words")
    if not bool(((flat >= 0) & flat.isfinite()).all()):
        raise UserError(f"{name} must be finite and not negative; give weights after the softmax")
    return flat.tolist()


def of_record(weights: AttentionRecord) -> Tensor:
    """The weights (N, K) of a record of one sample, the mean of its heads."""
    if weights.shape[0] != 1:
        raise UserError(
            f"{weights.site} has recorded {weights.shape[0]} samples; choose one with record.matrix(sample)"
        )
    return weights.matrix()


def matrix(weights: PairWeights, name: str, rows: int, columns: int) -> Tensor:
    """A finite, not negative number for each pair of words, float64 (rows, columns)."""
    values = (
        torch.as_tensor(of_record(weights) if isinstance(weights, AttentionRecord) else weights).detach().cpu().double()
    )
    if values.shape != (rows, columns):
        raise UserError(f"{name} {tuple(values.shape)} must be ({rows}, {columns}), a row and a column for each word")
    if not bool(((values >= 0) & values.isfinite()).all()):
        raise UserError(f"{name} must be finite and not negative; give weights after the softmax")
    return values
