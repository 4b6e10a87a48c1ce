"""What a run left behind, finished or not; whatever is damaged is left out and named."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import yaml

from foveal.errors import RunError
from foveal.runs.folder import RunFolder, Stored, rows, run_folders, unreadable_lines

T = TypeVar("T")
NO_NAME = "data without a name"


@dataclass(frozen=True)
class Run:
    """One run folder, read.

    Attributes:
        folder: where it lies.
        recipe_text: text of ``recipe.yaml``.
        header: ``run.json``.
        environment: ``environment.json``, or None.
        epochs: rows of ``metrics.jsonl``.
        result: ``result.json``, or empty while the run is unfinished.
        samples: ``samples.safetensors``, or None.
        problems: what could not be read.
    """

    folder: Path
    recipe_text: str = ""
    header: dict[str, Any] = field(default_factory=dict)
    environment: Any = None
    epochs: list[dict[str, Any]] = field(default_factory=list)
    result: dict[str, Any] = field(default_factory=dict)
    samples: Stored | None = None
    problems: tuple[str, ...] = ()

    @property
    def finished(self) -> bool:
        """Whether the run has a result."""
        return bool(self.result)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The recipe as a mapping; empty when it is not one."""
        try:
            loaded = yaml.safe_load(self.recipe_text)
        except (yaml.YAMLError, RecursionError):
            return {}
        return loaded if isinstance(loaded, dict) else {}

    def setting(self, *path: str) -> Any:
        """A value of the recipe by its path of keys; None where there is none."""
        value: Any = self.settings
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        return value

    def _word(self, key: str, *path: str) -> str | None:
        for value in (self.result.get(key), self.header.get(key), self.setting(*(path or (key,)))):
            if isinstance(value, str | int) and not isinstance(value, bool) and str(value):
                return str(value)
        return None

    @property
    def task(self) -> str:
        """Name of the task; empty if nothing says it."""
        return self._word("task") or ""

    @property
    def title(self) -> str:
        """What the model is called."""
        return self._word("title") or self._word("model", "model", "name") or self.folder.name

    @property
    def dataset(self) -> str:
        """What the data is called."""
        return self._word("dataset") or str(self.setting("data", "name") or "").upper() or NO_NAME

    @property
    def seed(self) -> str:
        """The seed, or a question mark."""
        return self._word("seed") or "?"

    @property
    def recipe_name(self) -> str:
        """How the recipe was asked for."""
        return self._word("recipe", "name") or ""

    @property
    def embedded(self) -> bool:
        """Whether the data is foveal's own, a stand-in or generated."""
        return bool(self.result.get("embedded", self.header.get("embedded", False)))

    @property
    def place(self) -> tuple[int, int] | None:
        """Number of its row and column in a table; None for a run of its own."""
        cell = self.result.get("cell") or self.setting("cell")
        place = cell.get("place") if isinstance(cell, dict) else None
        return (int(place[0]), int(place[1])) if isinstance(place, list | tuple) and len(place) == 2 else None

    def part(self, key: str) -> dict[str, Any]:
        """A mapping of the result; empty when it is missing."""
        value = self.result.get(key)
        return value if isinstance(value, dict) else {}


def read_runs(where: str | Path | Sequence[str | Path], *, samples: bool = True) -> list[Run]:
    """Read every run folder in or below ``where``; a run folder is one that holds ``recipe.yaml``.

    Without ``samples``, the test samples of the runs are left out; PyTorch is not imported then.

    Raises:
        RunError: a folder does not exist, or no run is found.
    """
    return [read_run(folder, samples=samples) for folder in found_runs(where)]


def found_runs(where: str | Path | Sequence[str | Path]) -> list[Path]:
    """Every run folder in or below ``where``.

    Raises:
        RunError: a folder does not exist, or no run is found.
    """
    listed = [where] if isinstance(where, str | Path) else where
    if not isinstance(listed, Sequence) or not all(isinstance(folder, str | Path) for folder in listed):
        raise RunError(f"give a run folder, or a list of them, got {where!r}")
    folders = [Path(folder) for folder in listed]
    runs: dict[Path, None] = {}
    for folder in folders:
        if not folder.is_dir():
            raise RunError(f"{folder} is not a folder; give a run folder, or a folder with runs in it")
        runs.update(dict.fromkeys(run_folders(folder)))
    if not runs:
        names = ", ".join(map(str, folders)) or "an empty list"
        raise RunError(
            f"no run in {names}: a run folder holds recipe.yaml; start one with `foveal train` or `foveal demo`"
        )
    return list(runs)


def read_run(folder: str | Path, *, samples: bool = True) -> Run:
    """Read one run folder; what is missing or damaged is left out and named in ``problems``."""
    place = RunFolder(Path(folder))
    problems: list[str] = []

    def attempt(read: Callable[[], T], otherwise: T) -> T:
        try:
            return read()
        except RunError as error:
            problems.append(str(error).replace(f"{place}/", ""))
        except OSError as error:
            problems.append(f"{Path(error.filename or '').name} cannot be read: {error.strerror}")
        except ValueError as error:
            problems.append(f"environment.json is damaged: {error}")
        return otherwise

    journal: list[str] = attempt(place.journal, list[str]())
    if damaged := unreadable_lines(journal):
        problems.append(f"metrics.jsonl: {damaged} line(s) cannot be read")
    has_samples = samples and place.file("samples.safetensors").is_file()
    return Run(
        folder=place.path,
        recipe_text=attempt(lambda: place.file("recipe.yaml").read_text(encoding="utf-8", errors="replace"), ""),
        header=attempt(place.header, {}),
        environment=attempt(lambda: _json(place.file("environment.json")), None),
        epochs=rows(journal),
        result=attempt(place.result, {}) if place.finished else {},
        samples=attempt(lambda: place.tensors("samples.safetensors"), None) if has_samples else None,
        problems=tuple(problems),
    )


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8", errors="replace")) if path.is_file() else None
