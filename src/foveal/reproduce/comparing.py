"""Is one recipe better than another? Runs of the same seed are compared in pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from foveal.errors import UserError, unknown
from foveal.metric_info import metric_info
from foveal.recipe.grids import former_names
from foveal.reproduce.rows import Row, Values, not_rows, read_csv, seed_values
from foveal.reproduce.statistics import Comparison, paired, together
from foveal.runs import Group, grouped, read_runs
from foveal.runs.folder import finite


def compare(path: Path, first: str, second: str, metric: str | None = None) -> Comparison:
    """Compare two recipes in a file that ``foveal reproduce --csv`` wrote, by the seeds that both have.

    Args:
        path: the file.
        first: name of a recipe, perhaps a former one.
        second: that of another.
        metric: what to compare; the first metric of the first recipe if left out.
    """
    rows = read_csv(path)
    first, second = (former_names().get(name, name) for name in (first, second))
    metric = metric or next((row["metric"] for row in rows if row["recipe"] == first), "accuracy")
    one, other = (_values(rows, recipe, metric, path) for recipe in (first, second))
    seeds = [seed for seed in one if seed in other]
    if len(seeds) < 2 and one.keys() != other.keys():
        raise UserError(
            f"{first} has seeds {', '.join(map(str, one))}, {second} has {', '.join(map(str, other))}: fewer than two "
            "in common; run both with the same --seeds and --first-seed"
        )
    stored = next(row for row in rows if row["metric"] == metric)
    known = {"unit": stored["unit"], "better": stored["better"] or None} if "unit" in stored else None
    pairs = paired([one[seed] for seed in seeds], [other[seed] for seed in seeds])
    return replace(pairs, info=metric_info(metric, known))


def against_first(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, Comparison]]:
    """Rows of a table against its first one, dataset by dataset, by their first metric of which more or less is better.

    Args:
        rows: of :func:`foveal.reproduce.summarise`.

    Returns:
        The first recipe, another, and their difference; recipes that do not share two seeds are left out.
    """
    firsts: dict[str, tuple[str, str, Values]] = {}
    pairs = []
    for row in rows:
        values, metric = seed_values(row), row["metric"]
        if not row["better"] or metric != firsts.setdefault(row["dataset"], (row["recipe"], metric, values))[1]:
            continue
        first, _, one = firsts[row["dataset"]]
        seeds = [seed for seed in one if seed in values]
        if first != row["recipe"] and len(seeds) > 1:
            found = paired([one[seed] for seed in seeds], [values[seed] for seed in seeds])
            info = metric_info(metric, {"unit": row["unit"], "better": row["better"]})
            pairs.append((first, row["recipe"], replace(found, info=info)))
    tests = together([found for *_, found in pairs])
    return [(first, second, test) for (first, second, _), test in zip(pairs, tests, strict=True)]


def compare_runs(folders: Sequence[Path]) -> dict[str, list[Group]]:
    """Finished runs of one or several folders, by dataset and then by recipe, those of an earlier folder first.

    Raises:
        UserError: there are no two recipes on the same dataset.
    """
    datasets: dict[str, list[Group]] = {}
    for folder in folders:
        for (_, _, dataset), groups in grouped(read_runs(folder, samples=False)).items():
            finished = [group for group in groups if group.finished]
            names = {group.name for group in datasets.get(dataset, [])}
            named = [replace(g, name=f"{g.name} in {folder}") if g.name in names else g for g in finished]
            datasets.setdefault(dataset, []).extend(named)
    comparable = {dataset: groups for dataset, groups in datasets.items() if len(groups) > 1}
    if not comparable:
        seen = "; ".join(f"{g.name} on {dataset}" for dataset, groups in datasets.items() for g in groups)
        raise UserError(f"nothing to compare: give finished runs of two recipes on the same data, got {seen or 'none'}")
    return comparable


def paired_groups(first: Group, second: Group, metric: str) -> Comparison | None:
    """Compare runs of the same seed; None if fewer than two pairs have the metric."""
    one, other = (
        {run.seed: value for run in group.finished if finite(value := run.part("metrics").get(metric))}
        for group in (first, second)
    )
    seeds = [seed for seed in one if seed in other]
    if len(seeds) < 2:
        return None
    return replace(paired([one[seed] for seed in seeds], [other[seed] for seed in seeds]), info=first.info(metric))


def _values(rows: Sequence[Row], recipe: str, metric: str, path: Path) -> Values:
    """Values of a metric by seed."""
    known = {row["recipe"]: row for row in rows if row["metric"] == metric}
    if not known and rows:
        raise unknown("metric", metric, {row["metric"] for row in rows})
    if recipe not in known:
        other = [row["metric"] for row in rows if row["recipe"] == recipe and "/" not in row["metric"]]
        if other:
            raise UserError(f"{recipe} has no {metric}; it has {', '.join(other)}: choose one with --metric")
        raise unknown("recipe", recipe, known)
    try:
        return seed_values(known[recipe])
    except (ValueError, AttributeError) as error:
        raise not_rows(path, error) from error
