"""Is one recipe better than another? Runs of the same seed are compared in pairs, if their rows say the seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from foveal.errors import UserError, unknown
from foveal.metric_info import metric_info
from foveal.recipe.grids import former_names
from foveal.reproduce.rows import Row, not_rows, read_csv, seed_values, values_of
from foveal.reproduce.statistics import Comparison, paired, together, unpaired
from foveal.runs import Group, grouped, read_runs
from foveal.runs.folder import finite


def compare(path: Path, first: str, second: str, metric: str | None = None, pairs: bool = True) -> Comparison:
    """Compare two recipes in a file that ``foveal reproduce --csv`` wrote, by the seeds that both have.

    Args:
        path: the file.
        first: name of a recipe, perhaps a former one.
        second: that of another.
        metric: what to compare; the first metric of the first recipe if left out.
        pairs: see :func:`compare_rows`.
    """
    rows = read_csv(path)
    first, second = (former_names().get(name, name) for name in (first, second))
    metric = metric or next((row["metric"] for row in rows if row["recipe"] == first), "accuracy")
    one, other = (_row(rows, recipe, metric) for recipe in (first, second))
    try:
        comparison = compare_rows(one, other, pairs)
    except (ValueError, AttributeError) as error:
        raise not_rows(path, error) from error
    if comparison is None:
        seeds = [", ".join(map(str, seed_values(row))) or "not recorded" for row in (one, other)]
        raise UserError(
            f"{first} has seeds {seeds[0]}, {second} has {seeds[1]}: fewer than two to compare; run both with the same "
            "--seeds and --first-seed"
        )
    return comparison


def compare_rows(first: Mapping[str, Any], second: Mapping[str, Any], pairs: bool = True) -> Comparison | None:
    """Compare two rows of one metric; None if there are fewer than two pairs, or two runs of each.

    Args:
        first: a row of a results file.
        second: another.
        pairs: runs of the same seed are pairs. Rows that do not say which seeds they have are compared without pairs.
    """
    values = seed_values(first), seed_values(second)
    pairs = pairs and all(values)
    found = _by_seed(*values) if pairs else _unpaired(values_of(first), values_of(second))
    known = {"unit": first["unit"], "better": first["better"] or None} if "unit" in first else None
    older = tuple(row["recipe"] for row in (first, second) if row.get("older"))
    return found and replace(found, info=metric_info(first["metric"], known), older=older)


def _by_seed(first: Mapping[Any, float], second: Mapping[Any, float]) -> Comparison | None:
    seeds = [seed for seed in first if seed in second]
    return paired([first[seed] for seed in seeds], [second[seed] for seed in seeds]) if len(seeds) > 1 else None


def _unpaired(first: Sequence[float], second: Sequence[float]) -> Comparison | None:
    return unpaired(first, second) if min(len(first), len(second)) > 1 else None


def against_first(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, Comparison]]:
    """Rows of a table against its first one, dataset by dataset, by their first metric of which more or less is better.

    Args:
        rows: of :func:`foveal.reproduce.summarise`.

    Returns:
        The first recipe, another, and their difference; recipes that do not share two seeds are left out. Rows that do
        not say which seeds they have are not paired.
    """
    firsts: dict[str, Mapping[str, Any]] = {}
    pairs = []
    for row in rows:
        if not row["better"]:
            continue
        first = firsts.setdefault(row["dataset"], row)
        if first["recipe"] != row["recipe"] and first["metric"] == row["metric"] and (test := compare_rows(first, row)):
            pairs.append((first["recipe"], row["recipe"], test))
    tests = together([test for *_, test in pairs])
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


def compare_groups(first: Group, second: Group, metric: str, pairs: bool = True) -> Comparison | None:
    """Compare runs of the same seed, or all runs without ``pairs``; None if fewer than two have the metric."""
    if pairs:
        one, other = (
            {run.seed: value for run in group.finished if finite(value := run.part("metrics").get(metric))}
            for group in (first, second)
        )
        found = _by_seed(one, other)
    else:
        found = _unpaired(first.numbers(metric), second.numbers(metric))
    return found and replace(found, info=first.info(metric))


def _row(rows: Sequence[Row], recipe: str, metric: str) -> Row:
    """The row of a recipe and metric."""
    known = {row["recipe"]: row for row in rows if row["metric"] == metric}
    if not known and rows:
        raise unknown("metric", metric, {row["metric"] for row in rows})
    if recipe not in known:
        other = [row["metric"] for row in rows if row["recipe"] == recipe and "/" not in row["metric"]]
        if other:
            raise UserError(f"{recipe} has no {metric}; it has {', '.join(other)}: choose one with --metric")
        raise unknown("recipe", recipe, known)
    return known[recipe]
