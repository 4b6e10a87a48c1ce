"""One run folder: its files, written so that a crash or a full disk never destroys what was good."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import filelock
from safetensors import SafetensorError, safe_open

from foveal import registry
from foveal.errors import RunError, UnknownNameError
from foveal.files import ELSEWHERE, write_text, writing
from foveal.recipe import Recipe, complete, load
from foveal.runs.environment import environment
from foveal.runs.old import upgraded_about, upgraded_epoch, upgraded_result
from foveal.runs.zoo import cards, model_folder

if TYPE_CHECKING:  # a command that only reads results starts without PyTorch
    from torch import Tensor

FORMAT = 2
EXPECTED = ("title", "dataset", "embedded", "data", "parameters", "epochs", "seconds", "metrics")  # in result.json


@dataclass(frozen=True)
class Stored:
    """Tensors of a file of the run folder, and the plain values in its header."""

    tensors: dict[str, Tensor]
    about: dict[str, Any]


@dataclass(frozen=True)
class RunFolder:
    """The files of the run in ``path``. Whatever is written replaces its predecessor only when it is complete."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    def file(self, name: str) -> Path:
        """The path of a file of the run."""
        return self.path / name

    @property
    def last(self) -> Path:
        """The last checkpoint, from which a run is resumed."""
        return self.file("last.ckpt")

    @property
    def exists(self) -> bool:
        """Whether a run was started here."""
        return self.file("recipe.yaml").is_file()

    @property
    def finished(self) -> bool:
        """Whether the run has a result."""
        return self.file("result.json").exists()

    @property
    def abandoned(self) -> bool:
        """Whether foveal started a run here that ended before its first epoch did."""
        kept = ("last.ckpt", "best.ckpt", "weights.safetensors", "result.json", "metrics.jsonl")
        return self.file("environment.json").is_file() and not any(self.file(name).exists() for name in kept)

    # Opening ---------------------------------------------------------------------

    @contextlib.contextmanager
    def opened(self, recipe: Recipe, header: Mapping[str, Any]) -> Iterator[None]:
        """Make this the folder of a run of ``recipe``, or go on with an earlier run of the very same recipe.

        While the block runs, no other process can open the folder. Files that a killed process left half written go.

        Args:
            recipe: the resolved recipe.
            header: what else ``run.json`` says, such as the dataset's title.
        """
        self.check(recipe)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = filelock.FileLock(self.file("lock"), timeout=0)
            with contextlib.suppress(NotImplementedError):  # a file system without locks
                lock.acquire()
        except filelock.Timeout as error:
            raise RunError(f"another process is training in {self}; wait for it or choose another --out") from error
        except OSError as error:
            advice = "make it writable" if self.exists else "choose another --out"
            raise RunError(f"cannot write to the run folder {self}: {error.strerror}; {advice}") from error
        with contextlib.ExitStack() as stack:
            stack.callback(lock.release)
            for partial in self.path.glob(".*.partial"):
                partial.unlink(missing_ok=True)
            if not self._holds(recipe):
                self.write_json("environment.json", environment())
                self.write_json("run.json", {"format": FORMAT, "task": recipe.task, **header})
                write_text(self.file("recipe.yaml"), recipe.dump())
            yield

    def check(self, recipe: Recipe) -> None:
        """Raise if the folder holds a run of another recipe; how the recipe was named does not matter.

        A run that ended before its first epoch did is no reason: its folder is taken over.
        """
        if self.exists and not self.abandoned and not self._holds(recipe):
            raise RunError(f"{self} holds a run of another recipe; choose another --out or remove that folder")

    def _holds(self, recipe: Recipe) -> bool:
        return self.exists and comparable(self.recipe()) == comparable(recipe)

    def header(self) -> dict[str, Any]:
        """``run.json``; of a run of before it existed, what the recipe says."""
        try:
            header = json.loads(self.file("run.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {"format": 1}
        except (OSError, ValueError) as error:
            raise RunError(f"{self.file('run.json')} is damaged ({error}); restore it or start another run") from error
        if not isinstance(header, dict) or not isinstance(header.get("format"), int):
            raise RunError(f"{self.file('run.json')} is damaged (no format); restore it or start another run")
        if header["format"] > FORMAT:
            raise RunError(
                f"{self} was made by a newer foveal (run format {header['format']}, this one reads up to {FORMAT}); "
                "upgrade foveal"
            )
        return header

    def recipe(self) -> Recipe:
        """The recipe of the run."""
        if not self.exists:
            raise RunError(f"{self} is not a run folder: it has no recipe.yaml{_runs_below(self.path)}")
        plugins = self.header().get("plugins")
        try:
            return load(self.file("recipe.yaml"))
        except UnknownNameError as error:
            if not plugins:
                raise
            raise RunError(f"{error}; {self} was made with FOVEAL_PLUGINS={','.join(plugins)}") from error

    # Files -----------------------------------------------------------------------

    def write_json(self, name: str, value: Any, otherwise: str = ELSEWHERE) -> None:
        """Write JSON; numbers that are not finite become null. ``otherwise`` as in :func:`foveal.files.writing`."""
        write_text(self.file(name), json.dumps(_finite(value), indent=1) + "\n", otherwise)

    def write_tensors(self, name: str, stored: Stored, otherwise: str | None = None) -> None:
        """Write a safetensors file with its header as JSON texts."""
        header = {key: json.dumps(value) for key, value in {"format": FORMAT, **stored.about}.items()}
        from safetensors.torch import save

        data = save({key: tensor.contiguous() for key, tensor in stored.tensors.items()}, header)
        with writing(self.file(name), otherwise or resume_advice(self.path)) as partial:
            partial.write_bytes(data)

    def tensors(self, name: str) -> Stored:
        """Tensors and header of ``weights.safetensors`` or ``samples.safetensors``."""
        path = self.file(name)
        try:
            with safe_open(path, "pt") as file:
                about = {key: json.loads(text) for key, text in (file.metadata() or {}).items()}
                if not about:
                    raise ValueError("it has no header")
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dict)
        except FileNotFoundError as error:
            raise RunError(
                f"{path} is missing; is the run finished? `foveal train {quoted(self.path)}` resumes it"
            ) from error
        except (OSError, SafetensorError, ValueError) as error:
            command = "train" if name == "weights.safetensors" else "test"
            advice = f"`foveal {command} {quoted(self.path)}` writes it again"
            raise RunError(f"{path} is damaged ({error}); {advice}") from error
        about.pop("format", None)
        return Stored(tensors, upgraded_about(about, self.file("recipe.yaml")))

    def write_result(self, result: Mapping[str, Any], otherwise: str) -> None:
        """Write ``result.json``."""
        self.write_json("result.json", {"format": FORMAT, **result}, otherwise)

    def result(self) -> dict[str, Any]:
        """``result.json`` in the format of today."""
        try:
            result = json.loads(self.file("result.json").read_text(encoding="utf-8"))
            lost = [key for key in EXPECTED if key not in result] if isinstance(result, dict) else EXPECTED
            if lost or not isinstance(result["metrics"], dict):
                raise ValueError(f"it holds no {(*lost, 'metrics')[0]}")
        except FileNotFoundError as error:
            raise RunError(f"{self} has no result yet; `foveal train {quoted(self.path)}` finishes it") from error
        except (OSError, ValueError) as error:  # a ValueError too: neither JSON nor UTF-8
            again = f"`foveal test {quoted(self.path)}` writes it again"
            raise RunError(f"{self.file('result.json')} is damaged ({error}); {again}") from error
        return upgraded_result(result)

    def epochs(self) -> list[dict[str, Any]]:
        """Rows of ``metrics.jsonl``, one an epoch; a line that a crash cut off and what is no number are skipped."""
        return rows(self.journal())

    def journal(self) -> list[str]:
        """Lines of ``metrics.jsonl``, with their ends."""
        try:
            return self.file("metrics.jsonl").read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise RunError(f"{self.file('metrics.jsonl')} cannot be read: {error.strerror}") from error

    def write_epochs(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write ``metrics.jsonl``."""
        text = "".join(json.dumps(row) + "\n" for row in rows)
        write_text(self.file("metrics.jsonl"), text, resume_advice(self.path))


def find_run(path: str | Path) -> RunFolder:
    """The run in ``path``, or the only one below it, or the model of the zoo that is called so.

    The error names those that were probably meant.
    """
    folder = RunFolder(Path(path))
    if not folder.exists:
        below = run_folders(folder.path)
        if len(below) == 1:
            return RunFolder(below[0])
        if not folder.path.is_dir():
            if str(path) in cards():
                return RunFolder(model_folder(str(path)))
            models = f"; models that come with foveal: {', '.join(cards())}" if cards() else ""
            raise RunError(f"there is no run folder {folder}{models}")
        raise RunError(f"{folder} is not a run folder: it has no recipe.yaml{_runs_below(folder.path)}")
    return folder


def run_folders(top: Path) -> list[Path]:
    """Every run folder in or below ``top``, in order; hidden folders are not searched."""
    runs = []
    for folder, below, files in os.walk(top):
        below[:] = sorted(name for name in below if not name.startswith("."))
        if "recipe.yaml" in files:
            runs.append(Path(folder))
    return runs


def _runs_below(path: Path) -> str:
    runs = run_folders(path)
    if not runs:
        return ""
    shown = ", ".join(map(str, runs[:3])) + (f" or another of {len(runs)}" if len(runs) > 3 else "")
    return f"; did you mean {shown}?"


def quoted(path: Path) -> str:
    """A path as it is typed in a shell."""
    return shlex.quote(str(path))


def resume_advice(path: Path) -> str:
    """What to do if a file of the run in ``path`` cannot be written."""
    return f"Free some space or make the folder writable, then resume with: foveal train {quoted(path)}"


def comparable(recipe: Recipe) -> Recipe:
    """Without its name and its place in a table, with what its task fills in, and with weights only if not the usual.

    Recipes that train the same are then equal.
    """
    recipe = complete(recipe)
    usual = registry.tasks.get(recipe.task).usual_weights
    weights = {name: weight for name, weight in recipe.loss.weights.items() if weight != usual.get(name, 1.0)}
    return replace(recipe, name="", cell=None, loss=replace(recipe.loss, weights=weights))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {k: _finite(v) for k, v in value.items()}
    return [_finite(v) for v in value] if isinstance(value, list | tuple) else value


def unreadable_lines(lines: Sequence[str]) -> int:
    """How many lines of a journal are no row of it, except one without an end: a crash may have cut it off."""
    return sum(not _row(line) for line in lines if line.strip() and line.endswith("\n"))


def _row(line: str) -> dict[str, float]:
    """The numbers of a line; empty if it is not a row of the journal."""
    try:
        row = json.loads(line)
    except ValueError:
        return {}
    numbers = {key: value for key, value in row.items() if finite(value)} if isinstance(row, dict) else {}
    return numbers if "epoch" in numbers else {}


def rows(lines: Iterable[str]) -> list[dict[str, Any]]:
    """One row an epoch, the later where a resumed run wrote it twice; values that are not finite are left out."""
    by_epoch: dict[float, dict[str, Any]] = {}
    for line in lines:
        if numbers := _row(line):
            by_epoch[numbers["epoch"]] = upgraded_epoch(numbers)
    return [by_epoch[epoch] for epoch in sorted(by_epoch)]


def finite(value: object) -> TypeGuard[float]:
    """Whether ``value`` is a number, and neither NaN nor infinite."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
