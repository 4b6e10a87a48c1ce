"""What a metric is called, in which unit it is shown, and which direction is better.

A metric's value travels with its :class:`MetricInfo`: a run's result, a table, a CSV file, a report and the terminal
show whatever metrics there are and need no list of names.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from foveal import registry

Direction = Literal["higher", "lower"]


@dataclass(frozen=True)
class MetricInfo:
    """A metric in words.

    Attributes:
        key: its name in results, CSV files and recipes.
        title: its name for people.
        unit: ``%`` for a fraction that is shown times 100; otherwise the value is shown as it is.
        better: which direction is better; None where neither is, as for a property of the data.
        about: one sentence that explains it below a table.

    >>> accuracy = MetricInfo("accuracy", "Accuracy")
    >>> accuracy.heading, accuracy.show(0.9312), accuracy.show(0.9312, 0.004)
    ('Accuracy, %', '93.1', '93.1 ± 0.4')
    >>> MetricInfo("bleu", "BLEU", unit="").show(27.31, digits=2)
    '27.31'
    >>> MetricInfo("mflops", "Arithmetic", unit="MFLOP").show(37181.3)
    '37,181.3'
    """

    key: str
    title: str
    unit: str = "%"
    better: Direction | None = "higher"
    about: str = ""

    @property
    def heading(self) -> str:
        """Title and unit, for the head of a column."""
        return f"{self.title}, {self.unit}" if self.unit else self.title

    def scaled(self, value: float) -> float:
        """The number that is shown for ``value``."""
        return 100 * value if self.unit == "%" else value

    def show(self, value: float, spread: float | None = None, digits: int = 1) -> str:
        """``value`` and its spread in the unit of the metric, without the unit."""
        text = f"{self.scaled(value):,.{digits}f}"
        if spread is None or not math.isfinite(spread):
            return text
        return f"{text} ± {self.scaled(spread):,.{digits}f}"

    def with_unit(self, value: float, digits: int = 1) -> str:
        """``value`` and the unit.

        >>> MetricInfo("accuracy", "Accuracy").with_unit(0.5)
        '50.0 %'
        """
        return f"{self.show(value, digits=digits)} {self.unit}".strip()

    def dump(self) -> dict[str, Any]:
        """What a result file keeps beside the value."""
        return {"title": self.title, "unit": self.unit, "better": self.better, "about": self.about}


def register_metric(info: MetricInfo) -> MetricInfo:
    """Make a metric known by its key, for results that do not carry its info."""
    return registry.metrics.register(info.key, info)


def metric_info(key: str, stored: Mapping[str, Any] | None = None) -> MetricInfo:
    """What is known of the metric ``key``: as stored with a result, as registered, or guessed from the key.

    >>> metric_info("my_new_metric").heading
    'My new metric, %'

    ``KEY/PART`` is a part of a metric, such as a class; ``KEY@NUMBER`` is the metric at a setting, and stands in tables
    as any other.
    """
    if stored is not None:
        known = {name: stored[name] for name in ("title", "unit", "better", "about") if name in stored}
        return MetricInfo(key, **{"title": _title(key), **known})
    if key in registry.metrics:
        return registry.metrics.get(key)
    for mark, words in (("/", ", "), ("@", " at ")):
        base, _, part = key.partition(mark)
        if part and base in registry.metrics:
            info = registry.metrics.get(base)
            return MetricInfo(key, f"{info.title}{words}{part}", info.unit, info.better, info.about)
    return MetricInfo(key, _title(key))


def _title(key: str) -> str:
    return key.replace("_", " ").replace("/", ", ").strip().capitalize()


register_metric(MetricInfo("accuracy", "Accuracy"))
register_metric(MetricInfo("top5_accuracy", "Top-5 accuracy"))
