"""The run folder: what lies where, written so that a crash or a full disk never destroys what was good.

``recipe.yaml`` resolved recipe · ``environment.json`` versions, hardware, revision · ``metrics.jsonl`` a line for each
epoch · ``last.ckpt``, ``best.ckpt`` checkpoints · ``weights.safetensors`` the best model, alone · ``result.json`` the
test · ``samples.safetensors`` test samples with their attention, for pictures.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import platform
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from foveal.errors import RunError
from foveal.files import ELSEWHERE, write_text, writing
from foveal.recipe import Recipe, Relation, load

try:
    import fcntl
except ImportError:  # pragma: no cover (Windows: two processes in one folder are not noticed)
    fcntl = None  # type: ignore[assignment]

PACKAGES = ("foveal", "torch", "torchvision", "timm", "lightning", "torchmetrics", "numpy", "scikit-learn")


def quoted(path: Path) -> str:
    """A path as it is typed in a shell."""
    return shlex.quote(str(path))


def resume(out: Path) -> str:
    """What to do if a file of the run in ``out`` cannot be written."""
    return f"Free some space or make the folder writable, then resume with: foveal train {quoted(out)}"


def write_json(path: Path, value: Any, otherwise: str = ELSEWHERE) -> None:
    """Write JSON, all of it or nothing; numbers that are not finite become null. ``otherwise`` as in ``writing``."""
    write_text(path, json.dumps(_finite(value), indent=1) + "\n", otherwise)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {k: _finite(v) for k, v in value.items()}
    return [_finite(v) for v in value] if isinstance(value, list | tuple) else value


def write_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any], otherwise: str) -> None:
    """Write a safetensors file; ``about`` is stored as JSON texts in its header. ``otherwise`` as in ``writing``."""
    data = save({k: v.contiguous() for k, v in tensors.items()}, {k: json.dumps(v) for k, v in about.items()})
    with writing(path, otherwise) as partial:
        partial.write_bytes(data)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and header of a file written by :func:`write_tensors`."""
    try:
        with safe_open(path, "pt") as file:
            about = {k: json.loads(v) for k, v in (file.metadata() or {}).items()}
            return {k: file.get_tensor(k) for k in file.keys()}, about  # noqa: SIM118 (not a dict)
    except FileNotFoundError as error:
        raise RunError(
            f"{path} is missing; is the run finished? `foveal train {quoted(path.parent)}` goes on with it"
        ) from error
    except (OSError, SafetensorError, json.JSONDecodeError) as error:
        raise RunError(f"{path} is damaged ({error}); `foveal train {quoted(path.parent)}` writes it again") from error


class SafeCheckpointIO(TorchCheckpointIO):
    """Checkpoints that replace their predecessor only when they are complete, and load without unpickling code."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write beside, then replace."""
        with writing(Path(path), resume(Path(path).parent)) as partial, open(partial, "wb") as file:
            try:
                torch.save(checkpoint, file)
            except RuntimeError as error:  # what torch makes of a full disk
                raise _cause(error, partial) from error

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = True) -> dict[str, Any]:
        """Load tensors and plain values only."""
        try:
            return torch.load(path, map_location=map_location, weights_only=True)
        except Exception as error:
            missing = isinstance(error, FileNotFoundError)
            problem = "missing" if missing else f"damaged ({type(error).__name__})"
            stale = [p for n in ("last.ckpt", "best.ckpt", "result.json") if (p := Path(path).with_name(n)).exists()]
            delete = f"rm {' '.join(map(quoted, stale))}; " if stale else ""
            again = f"to start from the beginning: {delete}foveal train {quoted(Path(path).parent)}"
            raise RunError(f"{path} is {problem}; {again}") from error


def _cause(error: RuntimeError, path: Path) -> OSError:
    """Why torch could not write to ``path``."""
    before: BaseException | None = error
    while before is not None:
        if isinstance(before, OSError):
            return OSError(before.errno, before.strerror)
        before = before.__context__
    if shutil.disk_usage(path.parent).free < 1 << 20:  # the part that was written is still there
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return OSError(str(error).split("\n")[0])


def environment() -> dict[str, Any]:
    """Package versions, hardware and the revision of foveal's source."""
    versions = {}
    for package in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "packages": versions,
        "python": platform.python_version(),
        "system": platform.platform(),
        "cpus": os.cpu_count(),
        "gpu": gpu,
        "revision": _revision(),
    }


def _revision() -> str | None:
    if "FOVEAL_REVISION" in os.environ:  # for a copy of the source without its history
        return os.environ["FOVEAL_REVISION"]

    def git(*words: str) -> str:
        here = Path(__file__).parent
        return subprocess.run(
            ["git", *words], cwd=here, capture_output=True, text=True, check=True, timeout=5
        ).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", __file__)  # a copy installed inside somebody else's repository is not in it
        return git("rev-parse", "HEAD") + ("+changes" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.SubprocessError):
        return None


@contextlib.contextmanager
def open_run(recipe: Recipe, out: Path) -> Iterator[None]:
    """Make ``out`` the folder of a run of ``recipe``, or find an earlier run of the very same recipe in it.

    While the block runs, no other process can open the same folder. Files that a killed process left half written go.
    """
    check_recipe(recipe, out)
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock = open(out / "lock", "a")  # noqa: SIM115 (closed below)
    except OSError as error:
        advice = "make it writable" if (out / "recipe.yaml").exists() else "choose another --out"
        raise RunError(f"cannot write to the run folder {out}: {error.strerror}; {advice}") from error
    with lock:
        try:
            if fcntl is not None:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RunError(f"another process is training in {out}; wait for it or choose another --out") from error
        except OSError:
            pass  # a file system without locks: two processes are not noticed, as on Windows
        for partial in out.glob(".*.partial"):
            partial.unlink(missing_ok=True)
        if not (out / "recipe.yaml").exists():
            write_json(out / "environment.json", environment())
            write_text(out / "recipe.yaml", recipe.dump())
        yield


def check_recipe(recipe: Recipe, out: Path) -> None:
    """Complain if ``out`` holds a run of another recipe; how the recipe was named is no matter."""
    if (out / "recipe.yaml").exists() and _comparable(load_run(out)) != _comparable(recipe):
        raise RunError(f"{out} holds a run of another recipe; choose another --out or remove that folder")


def _comparable(recipe: Recipe) -> Recipe:
    """Without its name, and with what a task fills in: a saved recipe has it, the one it was made of may not."""
    return replace(recipe, name="", loss=replace(recipe.loss, relation=recipe.loss.relation or Relation()))


def load_run(out: Path) -> Recipe:
    """The recipe of the run in ``out``."""
    if not (out / "recipe.yaml").is_file():
        raise RunError(f"{out} is not a run folder: it has no recipe.yaml")
    return load(out / "recipe.yaml")
