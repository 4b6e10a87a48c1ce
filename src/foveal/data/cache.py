"""A cache of generated tensors that survives crashes, full disks and two processes at once."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from filelock import FileLock
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from foveal.errors import DataError
from foveal.files import cache_folder


def files_state(files: Iterable[Path]) -> str:
    """A key that changes when one of the files does, by its size and time.

    Raises:
        DataError: if there is no such file.
    """
    state = hashlib.sha256()
    for file in files:
        try:
            stat = os.stat(file)
        except OSError as error:
            raise DataError(f"{file}: no such file") from error
        state.update(f"{file}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode(errors="surrogateescape"))
    return state.hexdigest()


def cached(name: str, key: dict[str, object], make: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
    """Tensors stored under ``name`` and ``key``, made by ``make`` if they are not there or damaged.

    A second process that asks for the same thing waits for the first. A file that is truncated or whose checksum is
    wrong is made again. If the cache cannot be written the tensors are returned all the same, with a warning.
    """
    text = json.dumps(key, sort_keys=True)
    path = cache_folder() / f"{name}-{zlib.crc32(text.encode()):08x}.safetensors"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        warnings.warn(_unusable(path.parent, error), stacklevel=2)
        return make()
    with _locked(path.with_suffix(".lock")):
        tensors = _load(path, text)
        if tensors is None:
            tensors = make()
            _store(path, text, tensors)
        return tensors


@contextlib.contextmanager
def cached_folder(name: str, key: dict[str, object], make: Callable[[Path], None]) -> Iterator[Path]:
    """A folder of files that ``make`` fills if it is not there: for what is too large to be held in memory.

    A second process that asks for the same thing waits for the first; the folder gets its name only when it is
    complete. If the cache cannot be written, the files are in a temporary folder until the block ends, with a warning.
    """
    text = json.dumps(key, sort_keys=True)
    folder = cache_folder() / f"{name}-{zlib.crc32(text.encode()):08x}"
    with contextlib.ExitStack() as stack:
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(_locked(folder.with_suffix(".lock")))
            if not (folder / "key.json").is_file() or (folder / "key.json").read_text(encoding="utf-8") != text:
                with tempfile.TemporaryDirectory(dir=folder.parent, prefix=folder.name, suffix=".partial") as partial:
                    complete = Path(partial) / "complete"
                    complete.mkdir()
                    make(complete)
                    (complete / "key.json").write_text(text, encoding="utf-8")
                    if folder.exists():
                        os.replace(folder, Path(partial) / "old")
                    os.replace(complete, folder)
        except OSError as error:
            warnings.warn(_unusable(folder.parent, error), stacklevel=3)
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            make(folder)
        yield folder


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock while the block runs, where there can be one; files are replaced atomically in any case."""
    lock = FileLock(path)
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError, NotImplementedError):  # what cannot be written is reported when it is
            stack.enter_context(lock)
        yield


def _unusable(folder: Path, error: OSError) -> str:
    return f"cannot use the cache in {folder} ({error}); set FOVEAL_CACHE to a writable folder"


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
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except FileNotFoundError:
        return None
    except (OSError, SafetensorError) as error:
        warnings.warn(f"{path} is damaged ({error}); making it again", stacklevel=3)
        return None
    if metadata.get("key") != key:
        return None
    if metadata.get("checksum") != _checksum(tensors):
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
