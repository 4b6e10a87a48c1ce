"""Runs that differ only by seed and hardware, put together."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from foveal.errors import UserError
from foveal.metric_info import MetricInfo, metric_info
from foveal.recipe import load
from foveal.recipe.grids import former_names
from foveal.runs.folder import Stored, comparable, finite
from foveal.runs.reading import Run

HARDWARE = {"data.workers"} | {
    f"train.{key}"
    for key in ("accelerator", "devices", "nodes", "strategy", "compile", "tensorboard", "threads_backward")
}
NO_SETTINGS = ("name", "version", "cell", "published")  # keys of a recipe that change nothing in a run

Key = tuple[str, bool, str]
"""Task, whether the data is embedded, and the dataset."""


@dataclass(frozen=True)
class Group:
    """Runs of one recipe on one dataset, which differ by seed."""

    name: str
    runs: tuple[Run, ...]

    @property
    def finished(self) -> list[Run]:
        """The runs with a result."""
        return [run for run in self.runs if run.finished]

    @property
    def metrics(self) -> list[str]:
        """Keys of all metrics of the runs, in the order in which they were measured."""
        return list(dict.fromkeys(key for run in self.finished for key in run.part("metrics")))

    def info(self, key: str) -> MetricInfo:
        """What is known of a metric."""
        stored = next((infos[key] for run in self.finished if key in (infos := run.part("infos"))), None)
        return metric_info(key, stored)

    def numbers(self, key: str, part: str = "metrics") -> list[float]:
        """The finite values of ``key`` in a part of the result, one for each finished run that has it."""
        return [value for run in self.finished if finite(value := run.part(part).get(key))]

    def values(self, key: str) -> list[float]:
        """The finite values of ``key`` at the top of the result, such as ``parameters`` and ``seconds``."""
        return [value for run in self.finished if finite(value := run.result.get(key))]

    def published(self, key: str) -> float | None:
        """What a paper reports of a metric."""
        numbers = self.numbers(key, "published")
        return statistics.fmean(numbers) if numbers else None

    def parts(self, metric: str) -> dict[str, list[float]]:
        """Values of a metric by part (classes, right and wrong answers), one for each finished run that has it."""
        parts: dict[str, list[float]] = {}
        for run in self.finished:
            by_part = run.part("parts").get(metric)
            for name, value in by_part.items() if isinstance(by_part, dict) else ():
                if finite(value):
                    parts.setdefault(name, []).append(value)
        return parts

    def curve(self, name: str, key: str) -> list[float | None] | None:
        """A list of a curve averaged over runs place by place, or that of the first run where lengths differ."""
        curves = [curve for run in self.finished if isinstance(curve := run.part("curves").get(name), dict)]
        lists = [values for curve in curves if isinstance(values := curve.get(key), list) and values]
        if not lists:
            return None
        columns = zip(*lists, strict=True) if len({len(values) for values in lists}) == 1 else ((v,) for v in lists[0])
        kept = ([value for value in column if finite(value)] for column in columns)
        return [sum(values) / len(values) if values else None for values in kept]

    @property
    def samples(self) -> Stored | None:
        """The samples of the first run that kept some."""
        return next((run.samples for run in self.runs if run.samples is not None), None)


def spread_over_seeds(group: Group, info: MetricInfo) -> str:
    """The mean of a metric over the runs of ``group``, with its standard deviation if there are several."""
    numbers = group.numbers(info.key)
    if not numbers:
        return "–"
    return info.show(statistics.fmean(numbers), statistics.stdev(numbers) if len(numbers) > 1 else None, digits=2)


def grouped(runs: Iterable[Run]) -> dict[Key, list[Group]]:
    """Sort runs by task and dataset, and put together those that differ only by seed and hardware.

    Groups come in the order of their table's rows, and of its columns where these share a dataset; datasets come in
    that of its columns; what is in no table follows by the alphabet. Groups that share a title are told apart by the
    end of their recipe's name, or by settings that differ.
    """
    datasets: dict[Key, dict[_Same, list[Run]]] = {}
    for key, same, run in _identified(list(runs)):
        datasets.setdefault(key, {}).setdefault(same, []).append(run)

    def column(item: tuple[Key, dict[_Same, list[Run]]]) -> tuple[Any, ...]:
        (task, embedded, dataset), groups = item
        places = [run.place[1] for members in groups.values() for run in members if run.place is not None]
        return (min(places, default=1000), dataset.casefold(), task, embedded)

    ordered = {}
    for key, groups in sorted(datasets.items(), key=column):
        keys = sorted(groups, key=lambda same: _row(same, groups[same]))
        ordered[key] = [Group(_name(same, keys), tuple(sorted(groups[same], key=_by_seed))) for same in keys]
    return ordered


_Same = tuple[str, str, tuple[tuple[str, str], ...]]  # title, recipe, settings


def _row(same: _Same, runs: list[Run]) -> tuple[Any, ...]:
    places = [run.place for run in runs if run.place is not None]
    return (min(places, default=(1000, 0)), same[0].casefold(), same)


def _identified(runs: Sequence[Run]) -> Iterator[tuple[Key, _Same, Run]]:
    """Each run with its task and dataset, and with what it shares with those of other seeds.

    What is written differently may mean the same. Only such recipes are loaded, because that imports their task.
    """
    keys = [(run.task, run.embedded, run.dataset) for run in runs]
    written = [_same(run, run.settings) for run in runs]
    variants = Counter((key, same[:2]) for key, same in set(zip(keys, written, strict=True)))
    for key, same, run in zip(keys, written, runs, strict=True):
        yield key, same if variants[key, same[:2]] == 1 else _same(run, _settings(run)), run


def _same(run: Run, recipe: Mapping[str, Any]) -> _Same:
    """What two runs must share to be the same experiment with another seed."""
    mapping = {key: value for key, value in recipe.items() if key not in NO_SETTINGS}
    settings = {
        k: v
        for k, v in flat(mapping)
        if not k.endswith("seed") and k not in HARDWARE and not k.startswith("train.loggers")
    }
    name = former_names().get(run.recipe_name, run.recipe_name)
    return run.title, name, tuple(sorted(settings.items()))


def _settings(run: Run) -> dict[str, Any]:
    """The recipe in the keys of today, with what its task fills in; as it is written if it cannot be loaded."""
    try:
        recipe = comparable(load(run.folder / "recipe.yaml"))
    except UserError:
        return run.settings
    return yaml.safe_load(recipe.dump())


def flat(tree: Any, path: str = "") -> Iterable[tuple[str, str]]:
    """Dotted keys and values of nested mappings."""
    if not isinstance(tree, dict):
        yield path, str(tree)
        return
    for key, value in tree.items():
        yield from flat(value, f"{path}.{key}" if path else str(key))


def _name(same: _Same, keys: list[_Same]) -> str:
    title, recipe, settings = same
    rivals = [other for other in keys if other[0] == title]
    recipes = {other[1] for other in rivals}
    end = recipe[_shared(recipes) :].removesuffix(".yaml").strip("-_/ ") if len(recipes) > 1 else ""
    others = [set(other[2]) for other in rivals if other[1] == recipe]
    own = sorted(pair for pair in settings if not all(pair in other for other in others))[:3]
    return " ".join([title, *([end] if end else []), *(f"{name}={value}" for name, value in own)])


def _shared(words: Iterable[str]) -> int:
    """How many letters all words begin with."""
    columns = zip(*words, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda letters: len(set(letters)) == 1, columns))


def _by_seed(run: Run) -> tuple[int, str, str]:
    return (len(run.seed), run.seed, str(run.folder))
