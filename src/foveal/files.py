"""Files that are written whole or not at all: a crash or a full disk never destroys what was good.

Also where the cache lies.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from foveal.errors import RunError

ELSEWHERE = "Free some space or choose another --out, then start again"


@contextlib.contextmanager
def writing(path: Path, otherwise: str = ELSEWHERE) -> Iterator[Path]:
    """A temporary file beside ``path`` that replaces it if the block succeeds; otherwise the old file stays.

    Args:
        path: the file.
        otherwise: what to do if it cannot be written, for the error's message.
    """
    partial = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".partial")
        os.close(handle)
        partial = Path(name)
        partial.chmod(0o644)  # temporary files are private
        yield partial
        with open(partial, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        raise RunError(
            f"cannot write {path}: {error.strerror or error}; what was there before is untouched. {otherwise}"
        ) from error
    finally:
        if partial is not None:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)


def check_writable(path: Path) -> None:
    """Raise if a file could not be written there."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            return
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}") from error


def write_text(path: Path, text: str, otherwise: str = ELSEWHERE) -> None:
    """Write a text file, all of it or nothing; arguments as in :func:`writing`."""
    with writing(path, otherwise) as partial:
        partial.write_text(text, encoding="utf-8")


def cache_folder() -> Path:
    """``FOVEAL_CACHE``, or ``foveal`` in the user's cache folder."""
    if "FOVEAL_CACHE" in os.environ:
        return Path(os.environ["FOVEAL_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "foveal"
