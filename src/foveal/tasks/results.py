"""What a test measured: metrics with their names and units, their parts, and curves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from foveal.measure.info import MetricInfo


@dataclass
class Results:
    """Everything a test measured, as plain numbers.

    Attributes:
        metrics: values by key; None where there was nothing to measure.
        infos: what each metric is called, its unit and its direction.
        parts: values of a metric by part, such as classes, or right and wrong answers.
        curves: lists of numbers by name, for the task's own charts.
        notes: what a metric rests on, or why it has no value, by its key.
    """

    metrics: dict[str, float | None] = field(default_factory=dict)
    infos: dict[str, MetricInfo] = field(default_factory=dict)
    parts: dict[str, dict[str, float | None]] = field(default_factory=dict)
    curves: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)

    def add(
        self, info: MetricInfo, value: float | Tensor | None, parts: Mapping[str, Any] | None = None, note: str = ""
    ) -> None:
        """Add a metric and, if it has such, its parts and a note; what is not a number counts as not measured."""
        self.metrics[info.key] = number(value)
        self.infos[info.key] = info
        if parts:
            self.parts[info.key] = {name: number(part) for name, part in parts.items()}
        if note:
            self.notes[info.key] = note

    def dump(self) -> dict[str, Any]:
        """As ``result.json`` holds it."""
        infos = {key: info.dump() for key, info in self.infos.items()}
        parts = {"parts": self.parts, "curves": self.curves, "notes": self.notes}
        return {"metrics": self.metrics, "infos": infos, **parts}


def number(value: float | Tensor | None) -> float | None:
    """``value`` as a plain number; None where it is none."""
    if value is None:
        return None
    plain = float(value)
    return None if math.isnan(plain) else plain
