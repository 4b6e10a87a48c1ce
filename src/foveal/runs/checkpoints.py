"""Checkpoints that replace their predecessor only when they are complete, and load without unpickling code."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO

from foveal.errors import RunError
from foveal.files import writing
from foveal.runs.folder import quoted, resume_advice
from foveal.runs.old import upgraded_checkpoint


class SafeCheckpointIO(TorchCheckpointIO):
    """Lightning's checkpoint files, written whole or not at all, and read as tensors and plain values only."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write beside, then replace."""
        advice = resume_advice(Path(path).parent)
        with interrupts_deferred(), writing(Path(path), advice) as partial, open(partial, "wb") as file:
            try:
                torch.save(checkpoint, file)
            except RuntimeError as error:  # what torch raises if a write fails
                raise _cause(error, partial) from error

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = True) -> dict[str, Any]:
        """Load tensors and plain values only."""
        try:
            checkpoint = torch.load(path, map_location=map_location, weights_only=True)
        except Exception as error:
            missing = isinstance(error, FileNotFoundError)
            problem = "missing" if missing else f"damaged ({type(error).__name__})"
            stale = [p for n in ("last.ckpt", "best.ckpt", "result.json") if (p := Path(path).with_name(n)).exists()]
            delete = f"rm {' '.join(map(quoted, stale))}; " if stale else ""
            again = f"to start from the beginning: {delete}foveal train {quoted(Path(path).parent)}"
            raise RunError(f"{path} is {problem}; {again}") from error
        return upgraded_checkpoint(checkpoint)


@contextlib.contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Ctrl-C in the block takes effect at its end.

    An exception in the middle of ``torch.save`` becomes one of torch's own, or ends the process: its writer is
    finished by a destructor, which writes to the file once more.
    """
    if threading.current_thread() is not threading.main_thread():  # Ctrl-C goes to the main thread only
        yield
        return
    interrupts = []
    handler = signal.signal(signal.SIGINT, lambda number, frame: interrupts.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if interrupts:
            signal.raise_signal(signal.SIGINT)


def _cause(error: RuntimeError, path: Path) -> OSError:
    """Why torch could not write to ``path``: its own error hides a full disk."""
    before: BaseException | None = error
    while before is not None:
        if isinstance(before, OSError):
            return OSError(before.errno, before.strerror)
        before = before.__context__
    if shutil.disk_usage(path.parent).free < 1 << 20:  # the part that was written is still there
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return OSError(str(error).split("\n")[0])
