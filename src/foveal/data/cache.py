"""A cache of generated tensors that survives crashes, full disks and two processes at once."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import warnings
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from foveal.files import cache_folder

try:
    import fcntl
except ImportError:  # pragma: no cover (Windows: replacing the file is still atomic, two processes may both generate)
    fcntl = None  # type: ignore[assignment]


def cached(name: str, key: dict[str, object], make: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
    """Tensors stored under ``name`` and ``key``, made by ``make`` if they are not there or damaged.

    A second process that asks for the same thing waits for the first. A file that is truncated or whose checksum is
    wrong is made again. If the cache cannot be written the tensors are returned all the same, with a warning.
    """
    text = json.dumps(key, sort_keys=True)
    path = cache_folder() / f"{name}-{zlib.crc32(text.encode()):08x}.safetensors"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = _locked(path.with_suffix(".lock"))
    except OSError as error:
        warnings.warn(
            f"cannot use the cache in {path.parent} ({error}); set FOVEAL_CACHE to a writable folder", stacklevel=2
        )
        return make()
    with lock:
        found = _load(path, text)
        if found is not None:
            return found
        tensors = make()
        _store(path, text, tensors)
        return tensors


@contextlib.contextmanager
def cached_folder(name: str, key: dict[str, object], make: Callable[[Path], None]) -> Iterator[Path]:
    """A folder of files that ``make`` fills if it is not there: for what is too large to be held in memory.

    A second process that asks for the same thing waits for the first; the folder gets its name only when it is
    complete. If the cache cannot be written, the files live in a temporary folder, with a warning, as long as the block
    runs.
    """
    text = json.dumps(key, sort_keys=True)
    folder = cache_folder() / f"{name}-{zlib.crc32(text.encode()):08x}"
    with contextlib.ExitStack() as stack:
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(_locked(folder.with_suffix(".lock")))
            if not (folder / "key.json").is_file() or (folder / "key.json").read_text(encoding="utf-8") != text:
                with tempfile.TemporaryDirectory(dir=folder.parent, prefix=folder.name, suffix=".partial") as partial:
                    made = Path(partial) / "made"
                    made.mkdir()
                    make(made)
                    (made / "key.json").write_text(text, encoding="utf-8")
                    if folder.exists():
                        os.replace(folder, Path(partial) / "old")
                    os.replace(made, folder)
        except OSError as error:
            warnings.warn(
                f"cannot use the cache in {folder.parent} ({error}); set FOVEAL_CACHE to a writable folder",
                stacklevel=3,
            )
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            make(folder)
        yield folder


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(open(path, "a"))
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            pass  # an unwritable cache is reported when it is written
        yield


def _checksum(tensors: dict[str, Tensor]) -> str:
    value = 0
    for name in sorted(tensors):
        tensor = tensors[name]
        value = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), value)
        value = zlib.crc32(tensor.contiguous().numpy().tobytes(), value)
    return f"{value:08x}"


def _load(path: Path, key: str) -> dict[str, Tensor] | None:
    try:
        with safe_open(path, "pt") as file:
            about = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except FileNotFoundError:
        return None
    except (OSError, SafetensorError) as error:
        warnings.warn(f"{path} is damaged ({error}); making it again", stacklevel=3)
        return None
    if about.get("key") != key:
        return None
    if about.get("checksum") != _checksum(tensors):
        warnings.warn(f"{path} is damaged (wrong checksum); making it again", stacklevel=3)
        return None
    return tensors


def _store(path: Path, key: str, tensors: dict[str, Tensor]) -> None:
    partial = None
    try:
        handle, partial = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".partial")
        os.close(handle)
        save_file(tensors, partial, {"key": key, "checksum": _checksum(tensors)})
        os.chmod(partial, 0o644)  # temporary files are private
        os.replace(partial, path)
    except (OSError, SafetensorError) as error:
        warnings.warn(f"could not write the cache {path} ({error}); it will be made again next time", stacklevel=3)
        if partial is not None:
            Path(partial).unlink(missing_ok=True)
