"""Results of many runs as rows: ours with its spread over seeds beside the published value."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from foveal.metric_info import MetricInfo, metric_info
from foveal.reproduce.cells import Cell
from foveal.reproduce.provenance import MADE_WITH, made_with
from foveal.runs import RunFolder

COLUMNS = (  # of the file, in order
    *("table", "recipe", "model", "dataset", "metric", "unit", "better"),
    *("published", "mean", "std", "difference", "seeds", "values", "run_seeds"),
    *("parameters", "epochs", "seconds", "step_seconds", "embedded"),
    *MADE_WITH,
)


def scores(result: dict[str, Any]) -> dict[str, float]:
    """All metrics of a run by name, those of a part as ``average_precision/cat`` or ``pointing_game/wrong``."""
    parts = {f"{metric}/{part}": value for metric, by in result["parts"].items() for part, value in by.items()}
    return {key: value for key, value in (result["metrics"] | parts).items() if value is not None}


def summarise(ran: Iterable[Cell]) -> list[dict[str, Any]]:
    """One row a recipe and metric: the published value, ours with its spread over seeds, and how it was made."""
    by_recipe: dict[str, list[Cell]] = {}
    for cell in ran:
        if cell.done:
            by_recipe.setdefault(cell.recipe.name, []).append(cell)
    rows: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    for name, group in by_recipe.items():
        results = [RunFolder(cell.out).result() for cell in group]
        measured = {cell.recipe.seed: scores(result) for cell, result in zip(group, results, strict=True)}
        for number, metric in enumerate(dict.fromkeys(itertools.chain(*measured.values()))):
            values = {seed: metrics[metric] for seed, metrics in measured.items() if metric in metrics}
            row = _row(name, group, results, metric, values)
            place = (0, 0) if group[0].recipe.cell is None else group[0].recipe.cell.place
            rows.append(((row["table"], "/" in metric, number, place), row))
    return [row for _, row in sorted(rows, key=lambda pair: pair[0])]


def _row(
    name: str, group: Sequence[Cell], results: Sequence[dict[str, Any]], metric: str, values: dict[int, float]
) -> dict[str, Any]:
    recipe = group[0].recipe
    cell, published = recipe.cell, recipe.published.get(metric)
    info = row_info(metric, results[0])
    mean, numbers = statistics.mean(values.values()), list(values.values())
    steps = [result["step_seconds"] for result in results if result.get("step_seconds")]
    return {
        "table": "" if cell is None else cell.table,
        "recipe": name,
        "model": recipe.title if cell is None else cell.row,
        "dataset": results[0]["dataset"] if cell is None or not cell.column else cell.column,
        "metric": metric,
        "title": info.title,
        "unit": info.unit,
        "better": info.better or "",
        "published": "" if published is None else round(published, 4),
        "mean": round(mean, 4),
        "std": round(statistics.stdev(numbers), 4) if len(numbers) > 1 else "",
        "difference": "" if published is None else round(mean - published, 4),
        "seeds": len(numbers),
        "values": " ".join(f"{value:.4f}" for value in numbers),
        "run_seeds": " ".join(map(str, values)),
        "parameters": results[0]["parameters"],
        "epochs": round(statistics.mean(result["epochs"] for result in results), 1),
        "seconds": round(statistics.mean(result["seconds"] for result in results), 1),
        "step_seconds": round(statistics.median(steps), 6) if steps else "",
        "embedded": results[0]["embedded"],
        **made_with(group),
    }


def row_info(metric: str, result: dict[str, Any]) -> MetricInfo:
    """What is known of a metric or of a part of one."""
    base = metric.partition("/")[0]
    infos = result.get("infos") or {}
    return metric_info(metric, infos.get(metric) or infos.get(base))


def spread(row: Mapping[str, Any]) -> str:
    """``mean ± spread`` in the metric's unit.

    >>> spread({"metric": "accuracy", "mean": 0.9851, "std": 0.002})
    '98.51 ± 0.20'
    """
    info = MetricInfo(row["metric"], row["metric"], row.get("unit", "%"))
    std = row.get("std")
    return info.show(float(row["mean"]), None if std in (None, "") else float(std), digits=2)
