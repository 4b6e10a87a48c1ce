"""Processes of their own that start in a tenth of a second: forked from a server that has imported PyTorch.

The server is a fresh interpreter, one for each process of pytest. It has imported what foveal needs, and has computed
and registered nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple

from torch.multiprocessing import start_processes

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["torch", "torchvision", "timm", "lightning", "torchmetrics.classification", "sklearn.datasets"]
)
COMMAND_LINE = """
import sys
from foveal import __main__
sys.argv[0] = __main__.__file__  # what Lightning starts again for a second process
__main__.main()
"""


class Ended(NamedTuple):
    """Exit status of a process, and what it wrote to stdout and stderr."""

    returncode: int
    stdout: str
    stderr: str


class Forked:
    """A process that runs some Python, with as much of ``subprocess.Popen`` as the tests use."""

    def __init__(
        self, code: str, *words: object, cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> None:
        self.files = [Path(tempfile.mkstemp(prefix="forked-")[1]) for _ in range(2)]
        environment = dict(os.environ if env is None else env)
        arguments = (code, list(map(str, words)), str(cwd or Path.cwd()), environment, *map(str, self.files))
        self.process = CONTEXT.Process(target=_run, args=arguments)
        self.process.start()

    def poll(self) -> int | None:
        """Exit status, the negative number of a signal, or None while it runs."""
        return self.process.exitcode

    def send_signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def stop_all(self) -> None:
        """Kill it and the processes that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def errors(self) -> str:
        """What it has written to stderr so far."""
        return self.files[1].read_text(encoding="utf-8")

    def wait(self, timeout: float = 300) -> Ended:
        """Wait for its end and that of all processes that it started."""
        deadline = time.monotonic() + timeout
        self.process.join(timeout)
        with open(self.files[1], "rb") as errors:
            while not _free(errors):
                if time.monotonic() > deadline:
                    self.stop_all()
                    raise TimeoutError(f"still running after {timeout} s: {self.errors()}")
                time.sleep(0.02)
        ended = Ended(self.poll(), *(path.read_text(encoding="utf-8") for path in self.files))
        for path in self.files:
            path.unlink()
        return ended


def _free(file: BinaryIO) -> bool:
    """Whether no process holds the lock of a file: it is held until all that inherited it are gone."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _run(code: str, words: list[str], folder: str, environment: dict[str, str], out: str, err: str) -> None:
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND), number)
    fcntl.flock(2, fcntl.LOCK_EX)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # even if the shell that runs the tests ignores it
    sys.path[:0] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    sys.argv = ["-c", *words]
    exec(compile(code, "<forked>", "exec"), {"__name__": "__main__"})


def start(*words: object, **options) -> Forked:
    """Start a command of foveal."""
    return Forked(COMMAND_LINE, *words, **options)


def run_command(*words: object, **options) -> Ended:
    """Run a command of foveal."""
    return start(*words, **options).wait()


def side_by_side(function: Callable[..., None], *args: object, processes: int = 2) -> None:
    """Call ``function(rank, processes, *args)`` in so many processes."""
    start_processes(function, (processes, *args), processes, start_method="forkserver")
