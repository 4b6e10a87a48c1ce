"""Reading run folders: what a run left behind, finished or not."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from foveal.errors import RunError
from foveal.see.documents import DocumentSamples, holds_documents
from foveal.see.samples import Samples
from foveal.see.svg import finite, in_order


@dataclass(frozen=True)
class Run:
    """One run folder.

    Attributes:
        folder: where it lies.
        recipe: text of ``recipe.yaml``.
        environment: ``environment.json``, or None.
        epochs: the whole lines of ``metrics.jsonl``, one an epoch.
        result: ``result.json``, or empty while the run is unfinished.
        samples: ``samples.safetensors`` of a run on images, or None.
        documents: the same of a run on texts.
        problems: what could not be read, in words.
    """

    folder: Path
    recipe: str
    environment: Any = None
    epochs: list[dict[str, Any]] = field(default_factory=list)
    result: dict[str, Any] = field(default_factory=dict)
    samples: Samples | None = None
    documents: DocumentSamples | None = None
    problems: tuple[str, ...] = ()

    @property
    def finished(self) -> bool:
        """Whether the run has a result."""
        return bool(self.result)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The recipe as a mapping; empty when it is not one."""
        try:
            loaded = yaml.safe_load(self.recipe)
        except yaml.YAMLError:
            return {}
        return loaded if isinstance(loaded, dict) else {}

    def named(self, key: str) -> str | None:
        """A word from the result, or from the recipe while there is none; ``{name: word}`` counts as the word."""
        for source in (self.result, self.settings):
            value = source.get(key)
            value = value.get("name") if isinstance(value, dict) else value
            if isinstance(value, str | int) and str(value):
                return str(value)
        return None

    @property
    def title(self) -> str:
        """What the model is called."""
        return self.named("title") or self.named("model") or self.folder.name

    @property
    def dataset(self) -> str:
        """What the data is called."""
        if self.finished:
            return str(self.result.get("dataset") or "data without a name")
        return self.named("dataset") or (self.named("data") or "").upper() or "data without a name"

    @property
    def seed(self) -> str:
        """The seed, or a question mark."""
        return self.named("seed") or "?"

    @property
    def embedded(self) -> bool:
        """Whether the data is foveal's own, a stand-in or generated."""
        return bool(self.result.get("embedded", False))

    @property
    def kind(self) -> str | None:
        """What its class maps are, ``channel`` or ``gradcam``; None if its recipe does not speak of such."""
        return dict(_flat(self.settings)).get("loss.sharpen.kind")

    def part(self, key: str) -> dict[str, Any]:
        """A mapping of the result; empty when it is missing."""
        value = self.result.get(key)
        return value if isinstance(value, dict) else {}


@dataclass(frozen=True)
class Group:
    """Runs of one recipe on one dataset, which differ by seed."""

    name: str
    runs: tuple[Run, ...]

    @property
    def finished(self) -> list[Run]:
        """The runs with a result."""
        return [run for run in self.runs if run.finished]

    def numbers(self, key: str, part: str | None = None) -> list[float]:
        """The finite values of ``key``, one a finished run that has it."""
        found = [(run.part(part) if part else run.result).get(key) for run in self.finished]
        return [value for value in found if finite(value)]

    def split(self, key: str, side: str) -> list[float]:
        """The finite values of ``key`` over images answered ``right`` or ``wrong``, one a finished run that has it."""
        parts = [run.part("class_attention").get(key) for run in self.finished]
        return [part[side] for part in parts if isinstance(part, dict) and finite(part.get(side))]

    @property
    def kind(self) -> str | None:
        """What the class maps of its runs are, see :attr:`Run.kind`."""
        return self.runs[0].kind

    @property
    def samples(self) -> Samples | None:
        """The samples of the first run that kept some."""
        return next((run.samples for run in self.runs if run.samples is not None), None)

    @property
    def documents(self) -> DocumentSamples | None:
        """The documents of the first run that kept some."""
        return next((run.documents for run in self.runs if run.documents is not None), None)

    def average(self, part: str, key: str) -> list[float | None] | None:
        """A list of the result averaged over runs place by place, or that of the first run where lengths differ."""
        lists = [values for run in self.finished if isinstance(values := run.part(part).get(key), list) and values]
        if not lists:
            return None
        columns = zip(*lists, strict=True) if len({len(values) for values in lists}) == 1 else ((v,) for v in lists[0])
        kept = ([value for value in column if finite(value)] for column in columns)
        return [sum(values) / len(values) if values else None for values in kept]


def read_runs(where: str | Path | Sequence[str | Path]) -> list[Run]:
    """Read every run folder in or below ``where``; a run folder is one that holds ``recipe.yaml``.

    Raises:
        RunError: a folder does not exist, or no run is found.
    """
    folders = [Path(where)] if isinstance(where, str | Path) else [Path(folder) for folder in where]
    found: dict[Path, None] = {}
    for folder in folders:
        if not folder.is_dir():
            raise RunError(f"{folder} is not a folder; give a run folder, or a folder with runs in it")
        found.update(dict.fromkeys(_run_folders(folder)))
    if not found:
        given = ", ".join(map(str, folders)) or "an empty list"
        raise RunError(
            f"no run in {given}: a run folder holds recipe.yaml; start one with `foveal train` or `foveal demo`"
        )
    return [read_run(folder) for folder in found]


def read_run(folder: Path) -> Run:
    """Read one run folder; what is missing or damaged is left out and named in ``problems``."""
    problems: list[str] = []

    def text(name: str) -> str:
        try:
            return (folder / name).read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""
        except OSError as error:
            problems.append(f"{name} cannot be read: {error.strerror}")
            return ""

    def loaded(name: str) -> Any:
        content = text(name)
        try:
            return json.loads(content) if content else None
        except json.JSONDecodeError as error:
            problems.append(f"{name} is damaged: {error}")
            return None

    samples = documents = None
    if (path := folder / "samples.safetensors").is_file():
        try:
            if holds_documents(path):
                documents = DocumentSamples.load(path)
            else:
                samples = Samples.load(path)
        except RunError as error:
            problems.append(str(error).replace(str(path), path.name))
    result = loaded("result.json")
    return Run(
        folder=folder,
        recipe=text("recipe.yaml"),
        environment=loaded("environment.json"),
        epochs=_epochs(text("metrics.jsonl").splitlines()),
        result=result if isinstance(result, dict) else {},
        samples=samples,
        documents=documents,
        problems=tuple(problems),
    )


def grouped(runs: Iterable[Run]) -> dict[tuple[str, bool], list[Group]]:
    """Sort runs by dataset (name, embedded) and put together those that differ only by seed and hardware.

    Models come in the order of :func:`foveal.see.svg.in_order`. Those that share a title are told apart by the end of
    their recipe's name, or by the settings that differ.
    """
    datasets: dict[tuple[str, bool], dict[_Key, list[Run]]] = {}
    for run in sorted(runs, key=lambda run: (not run.finished, run.dataset, run.embedded)):
        dataset = (run.dataset, run.embedded)
        if not run.finished:  # its data has not spoken yet; it belongs to the dataset of that name
            dataset = next((known for known in datasets if known[0].casefold() == run.dataset.casefold()), dataset)
        datasets.setdefault(dataset, {}).setdefault(_key(run), []).append(run)
    out = {}
    for dataset, members in sorted(datasets.items(), key=lambda item: _place(item[0])):
        titles = in_order(key[0] for key in members)
        keys = sorted(members, key=lambda key: (titles.index(key[0]), key))
        out[dataset] = [Group(_name(key, keys), tuple(sorted(members[key], key=_by_seed))) for key in keys]
    return out


def _run_folders(top: Path) -> Iterable[Path]:
    for folder, below, files in os.walk(top):
        below[:] = sorted(name for name in below if not name.startswith("."))
        if "recipe.yaml" in files:
            yield Path(folder)


def _epochs(lines: Iterable[str]) -> list[dict[str, Any]]:
    """One row an epoch, the later where a resumed run wrote it twice; a line cut off by a kill is left out."""
    rows: dict[float, dict[str, Any]] = {}
    for line in lines:
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(row, dict) and finite(row.get("epoch")):
            rows[row["epoch"]] = row
    return [rows[epoch] for epoch in sorted(rows)]


_Key = tuple[str, str, tuple[tuple[str, str], ...]]  # title, recipe, settings
_HARDWARE = {"data.workers"} | {
    f"train.{key}" for key in ("accelerator", "devices", "nodes", "strategy", "compile", "tensorboard")
}


def _key(run: Run) -> _Key:
    """What two runs must share to be the same experiment with another seed."""
    settings = {key: value for key, value in _flat(run.settings) if not key.endswith("seed") and key not in _HARDWARE}
    return run.title, run.named("recipe") or settings.get("name", ""), tuple(sorted(settings.items()))


def _flat(tree: Any, path: str = "") -> Iterable[tuple[str, str]]:
    if not isinstance(tree, dict):
        yield path, str(tree)
        return
    for key, value in tree.items():
        yield from _flat(value, f"{path}.{key}" if path else str(key))


def _name(key: _Key, keys: list[_Key]) -> str:
    title, recipe, settings = key
    rivals = [other for other in keys if other[0] == title]
    recipes = {other[1] for other in rivals}
    end = recipe[_shared(recipes) :].strip("-_/ ") if len(recipes) > 1 else ""
    same = [set(other[2]) for other in rivals if other[1] == recipe]
    own = sorted(pair for pair in settings if not all(pair in other for other in same))[:3]
    return " ".join([title, *([end] if end else []), *(f"{name}={value}" for name, value in own)])


def _shared(words: Iterable[str]) -> int:
    """How many letters all words begin with."""
    columns = zip(*words, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda letters: len(set(letters)) == 1, columns))


def _place(dataset: tuple[str, bool]) -> tuple[int, str, bool]:
    """The order of datasets: the paper's, then the alphabet's."""
    known = ("MREF", "MDIST", "MBG")
    return (known.index(dataset[0]) if dataset[0] in known else len(known), *dataset)


def _by_seed(run: Run) -> tuple[int, str, str]:
    return (len(run.seed), run.seed, str(run.folder))
