"""Tables of metrics: one row per model, ours beside the published number."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from markupsafe import Markup

from foveal.see.draw.chart import colour, slots
from foveal.see.draw.curves import axis_end
from foveal.see.page.page import fill
from foveal.see.page.phrases import duration, step_time

if TYPE_CHECKING:
    from foveal.measure.info import MetricInfo

WIDE = 8  # most columns of parts; a table with more has one row per part


@dataclass(frozen=True)
class Value:
    """A metric of one model: the mean over its runs, their standard deviation, and the published number."""

    mean: float
    spread: float | None = None
    published: float | None = None

    @classmethod
    def of(cls, numbers: Sequence[float], published: Sequence[float] = ()) -> Value | None:
        """The value of several runs; None if there are none.

        >>> Value.of([0.5, 0.5, 0.8])
        Value(mean=0.6, spread=0.173..., published=None)
        """
        if not numbers:
            return None
        spread = statistics.stdev(numbers) if len(numbers) > 1 else None
        return cls(statistics.fmean(numbers), spread, statistics.fmean(published) if published else None)


@dataclass(frozen=True)
class ModelRow:
    """A row of :func:`metric_table`.

    Attributes:
        name: the model.
        values: its metrics by key.
        notes: below the name, e.g. ``3 seeds``.
        parameters: how many it has.
        epochs: how many it was trained for.
        best_epoch: the epoch that was tested, counted from 0; it is shown counted from 1.
        progress: below the epochs instead, for a run that is not finished.
        seconds: training time.
        step_seconds: of one training step.
    """

    name: str
    values: Mapping[str, Value] = field(default_factory=dict)
    notes: Sequence[str] = ()
    parameters: float | None = None
    epochs: float | None = None
    best_epoch: float | None = None
    progress: str = ""
    seconds: float | None = None
    step_seconds: float | None = None


@dataclass(frozen=True)
class Cell:
    """A cell of a table: text, a smaller line below it, and for a metric its bar and whether it is the best."""

    text: str = "–"
    note: str = ""
    best: bool = False
    bar: float | None = None
    tick: float | None = None


def metric_table(
    rows: Sequence[ModelRow],
    infos: Sequence[MetricInfo],
    *,
    incomparable: Collection[str] = (),
    colours: Mapping[str, int] | None = None,
) -> Markup:
    """One row per model: every metric with its spread, the published number and the difference, size, epochs, time.

    The best value of a column is marked if it is better than all others as shown. Columns without a value are left out.

    Args:
        rows: the models.
        infos: the metrics, one a column.
        incomparable: keys of metrics whose values do not compare between these models, so that none is best.
        colours: slot of each model, see :func:`foveal.see.draw.chart.slots`.
    """
    columns = {
        info.heading: _metric_column(rows, info, info.key not in incomparable)
        for info in infos
        if any(info.key in row.values for row in rows)
    }
    columns |= {
        "Parameters": [_cell(row.parameters, lambda n: f"{round(n):,}") for row in rows],
        "Epochs": [_cell(row.epochs, lambda n: f"{n:.0f}", _epochs_note(row)) for row in rows],
        "Training time": [_cell(row.seconds, duration, _step_note(row)) for row in rows],
    }
    columns = {heading: cells for heading, cells in columns.items() if any(cell != Cell() for cell in cells)}
    slot = colours or slots(row.name for row in rows)
    inks = [colour(slot.get(row.name, -1)) for row in rows]
    return fill("metrics.html.j2", headings=list(columns), models=list(zip(rows, inks, *columns.values(), strict=True)))


def best(rows: Sequence[ModelRow], info: MetricInfo) -> list[ModelRow]:
    """The rows with the best value as it is shown; several where they tie, none where there is nothing to compare."""
    means = {i: row.values[info.key].mean for i, row in enumerate(rows) if info.key in row.values}
    if len(means) < 2 or info.better is None:
        return []
    digits = _digits(info, list(means.values()))
    top = (max if info.better == "higher" else min)(means.values())
    return [rows[i] for i, mean in means.items() if info.show(mean, digits=digits) == info.show(top, digits=digits)]


def parts_table(
    models: Mapping[str, Mapping[str, Mapping[str, Value]]], infos: Sequence[MetricInfo], *, label: str = "parts"
) -> Markup:
    """Metrics by part, e.g. of images answered right and of those answered wrong, or of every class.

    Args:
        models: title of each model to its metrics by key, each to its values by part.
        infos: the metrics.
        label: what the table is about, for those who cannot see it.

    Returns:
        One row per model; or one per part where there are too many parts for columns. Empty if no model has any.
    """
    parts = {
        info.key: list(dict.fromkeys(part for metrics in models.values() for part in metrics.get(info.key, {})))
        for info in infos
    }
    infos = [info for info in infos if parts[info.key]]
    if not infos:
        return Markup()
    columns = [(info, part) for info in infos for part in parts[info.key]]
    texts = {title: [_part(metrics, *column) for column in columns] for title, metrics in models.items()}
    if len(columns) > WIDE:
        names = [part if len(infos) == 1 else f"{info.title}, {part}" for info, part in columns]
        heading = infos[0].heading if len(infos) == 1 else ""
        rows = [[name, *cells] for name, cells in zip(names, zip(*texts.values(), strict=True), strict=True)]
        return table([heading, *texts], rows, label=label)
    heads = [(info.heading, len(parts[info.key])) for info in infos]
    return fill("parts.html.j2", heads=heads, parts=[part for _, part in columns], models=texts, label=label)


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, label: str = "table") -> Markup:
    """A plain table, the first cell of every row its heading; cells are escaped unless they are markup.

    >>> "<td>1</td>" in table(["part", "value"], [["a", 1]])
    True
    """
    return fill("table.html.j2", columns=columns, rows=rows, label=label)


def _part(metrics: Mapping[str, Mapping[str, Value]], info: MetricInfo, part: str) -> str:
    value = metrics.get(info.key, {}).get(part)
    if value is None:
        return Cell().text
    return info.show(value.mean, value.spread, _digits(info, [value.mean]))


def _cell(value: float | None, show: Callable[[float], str], note: str = "") -> Cell:
    return Cell(note=note) if value is None else Cell(show(value), note)


def _metric_column(rows: Sequence[ModelRow], info: MetricInfo, comparable: bool) -> list[Cell]:
    values = [row.values.get(info.key) for row in rows]
    numbers = [n for value in values if value for n in (value.mean, value.published) if n is not None]
    bars = info.unit == "%" and all(0 <= number <= 1 for number in numbers)
    digits, end, winners = _digits(info, numbers), axis_end(numbers, info), best(rows, info)
    cells = []
    for row, value in zip(rows, values, strict=True):
        if value is None:
            cells.append(Cell())
            continue
        paper = value.published
        cells.append(
            Cell(
                text=info.show(value.mean, value.spread, digits),
                note="" if paper is None else _beside(value.mean, paper, info, digits),
                best=comparable and winners == [row],
                bar=value.mean / end if bars else None,
                tick=paper / end if bars and paper is not None else None,
            )
        )
    return cells


def _beside(ours: float, paper: float, info: MetricInfo, digits: int) -> str:
    """The published number, and how far ours is from it as both are shown."""
    difference = round(float(info.show(ours, digits=digits)) - float(info.show(paper, digits=digits)), digits)
    sign = "+" if difference > 0 else "−" if difference < 0 else ""
    return f"paper {info.show(paper, digits=digits)} ({sign}{abs(difference):.{digits}f})"


def _digits(info: MetricInfo, values: Sequence[float]) -> int:
    """Digits after the point: one for a percentage, else enough to tell values of this size apart."""
    greatest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    if info.unit == "%" or not greatest:
        return 1
    return min(6, max(1, 2 - math.floor(math.log10(greatest))))


def _epochs_note(row: ModelRow) -> str:
    return row.progress or ("" if row.best_epoch is None else f"best {row.best_epoch + 1:.0f}")


def _step_note(row: ModelRow) -> str:
    return "" if row.step_seconds is None else step_time(row.step_seconds)
