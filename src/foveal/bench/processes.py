"""Processes side by side, each timed alone: while one times itself, the others are stopped.

The last argument of a process is a line of JSON, {"items": [...], "parts": [...]}. It measures all items in each part,
and reports lines of JSON on its standard output; what else it prints there is ignored:

    {"ready": PART}                     all is prepared; it waits for a line on its standard input before it times
    {"part": PART, "figures": [...]}    for each item a dictionary of figures, or of its "error"
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

POLL = 0.2  # seconds between two looks at processes that say nothing
OUT_OF_MEMORY = re.compile("memory|alloc|status -9", re.IGNORECASE)


@dataclass(frozen=True)
class Job:
    """A process that measures several things, to be compared with the first of them, in parts.

    Attributes:
        words: the command; what to measure is appended to it.
        items: what it measures, as JSON has it.
        parts: what it reports figures of, in this order.
    """

    words: Sequence[str]
    items: Sequence[Any]
    parts: Sequence[str]


Report = tuple[Job, str, Sequence[dict[str, Any] | None]]
"""A job, one of its parts, and the figures of each item; None for what is measured again."""


def wait_for_turn(part: str) -> None:
    """Called by a process that has prepared ``part``: returns when it has the machine to itself."""
    print(json.dumps({"ready": part}), flush=True)
    if not sys.stdin.readline():
        sys.exit("the process that waits for the figures is gone")


class Child:
    """The running process of a job, in a session of its own, so that signals reach what it starts as well."""

    def __init__(self, job: Job, environment: Mapping[str, str]) -> None:
        self.job = job
        self.missing = list(job.parts)
        self.alone = True  # had no other process beside it so far
        self.failed = False  # ended or hung before it had reported all
        self.messages: list[dict[str, Any]] = []
        self.paused = 0.0  # seconds
        self.stopped = math.nan
        self.begin = time.monotonic()
        self._closed = False
        self._text = b""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed by kill)
        self.process = subprocess.Popen(
            [*job.words, json.dumps({"items": job.items, "parts": job.parts})], bufsize=0, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, env={**os.environ, **environment},
        )  # fmt: skip

    def fileno(self) -> int:
        """For ``select``: its standard output."""
        return self.process.stdout.fileno()  # type: ignore[union-attr]

    def listen(self, seconds: float = 0.0) -> None:
        """Receive messages; waits up to ``seconds`` for something to be said."""
        while not self._closed and select.select([self], [], [], seconds)[0]:
            chunk = os.read(self.fileno(), 1 << 16)
            self._closed = not chunk
            *lines, self._text = (self._text + chunk).split(b"\n")
            self.messages += [json.loads(line) for line in lines if line.startswith((b'{"ready"', b'{"part"'))]
            seconds = 0

    def ended(self) -> bool:
        """Whether the process has ended and all that it said was received."""
        if self.process.poll() is None and not self._closed:
            return False
        self.listen()
        return True

    def seconds(self) -> float:
        """How long it ran, without the time that it was stopped."""
        return time.monotonic() - self.begin - self.paused

    def stop(self) -> None:
        """Stop it until ``resume``."""
        self._signal(signal.SIGSTOP)
        self.stopped = time.monotonic()

    def resume(self) -> None:
        """Let it go on."""
        self.paused += time.monotonic() - self.stopped
        self._signal(signal.SIGCONT)

    def begin_timing(self) -> None:
        """Answer that it is ready."""
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(b"\n")  # type: ignore[union-attr]

    def failure(self) -> str:
        """How it ended, and the last line of its errors."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(1)
        self._errors.seek(0)
        last = (self._errors.read().decode(errors="replace").strip().splitlines() or [""])[-1][:200]
        return f"the process ended with status {self.process.returncode}: {last}"

    def kill(self) -> None:
        """End the process and all that it started."""
        self._signal(signal.SIGKILL)
        self.process.wait()
        for file in (self._errors, self.process.stdin, self.process.stdout):
            file.close()  # type: ignore[union-attr]

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)


@contextlib.contextmanager
def stopped(children: Sequence[Child], settle: float) -> Iterator[None]:
    """``children`` are stopped, and what they had begun on a GPU has had ``settle`` seconds to end."""
    done: list[Child] = []
    try:
        for child in children:
            child.stop()
            done.append(child)
        if children:
            time.sleep(settle)
        yield
    finally:
        for child in done:
            child.resume()


def side_by_side(
    jobs: Iterable[Job], *, most: int = 1, timeout: float = 600, until: float = math.inf, patience: float = 60,
    settle: float = 0.5, environment: Mapping[str, str] | None = None,
) -> Iterator[Report]:  # fmt: skip
    """Run jobs and yield the figures of their parts as they come; all processes end with the iterator.

    Items that lacked memory while other processes ran are measured again at the end, alone, with the first item beside
    them. If a process ends or hangs, each of its items is. Their figures are None until then.

    Args:
        jobs: what to run, in this order; taken when there is room for one more.
        most: number of processes at a time.
        timeout: seconds that a process may take for each item, without those that it was stopped.
        until: time (time.monotonic()) after which no process is started.
        patience: seconds after that; what is not ready then is given up, and nothing is reported of it.
        settle: seconds between stopping the others and timing one.
        environment: variables added to those of this process.
    """
    queue, running, again = iter(jobs), list[Child](), list[Job]()
    before = signal.signal(signal.SIGTERM, _terminated)
    try:
        while True:
            while len(running) < most and time.monotonic() < until:
                job = next(queue, None) or (again.pop(0) if again and not running else None)
                if job is None:
                    break
                running.append(Child(job, environment or {}))
                for child in running if len(running) > 1 else ():
                    child.alone = False
            if not running:
                return
            late = time.monotonic() > until + patience
            select.select(running, [], [], POLL)
            for child in list(running):
                others = [other for other in running if other is not child]
                for part, figures in _reports(child, others, timeout, settle):
                    retries = _retries(child, part, figures)
                    again += retries
                    repeated = [item for job in retries for item in job.items]
                    items = zip(child.job.items, figures, strict=True)
                    yield child.job, part, [None if "error" in one and item in repeated else one for item, one in items]
                if late or not child.missing:
                    running.remove(child)
                    child.kill()
    finally:
        signal.signal(signal.SIGTERM, before)
        for child in running:
            child.kill()


def _reports(
    child: Child, others: Sequence[Child], timeout: float, settle: float
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """What a child has to report now; if it is ready it is timed. A child that ended reports all its parts."""
    ended, timeout = child.ended(), timeout * len(child.job.items)
    child.listen()
    while child.messages:
        message = child.messages.pop(0)
        if "part" in message:
            child.missing.remove(message["part"])
            yield message["part"], message["figures"]
        elif not ended:
            with stopped(others, settle):
                child.begin_timing()
                while not (child.messages or child.ended() or child.seconds() > timeout):
                    child.listen(POLL)
    if child.missing and (ended or child.seconds() > timeout):
        error = child.failure() if ended else f"not done after {timeout:.0f} s"
        parts, child.missing, child.failed = child.missing, [], True
        yield from ((part, [{"error": error}] * len(child.job.items)) for part in parts)


def _retries(child: Child, part: str, figures: Sequence[Mapping[str, Any]]) -> list[Job]:
    """Jobs that measure again what failed only because of other processes or other items."""
    first, *rest = child.job.items
    if child.failed and len(rest) > 1:
        groups = [[first, item] for item in rest]
    else:
        lacks, *lack = [not child.alone and OUT_OF_MEMORY.search(one.get("error", "")) for one in figures]
        failed = [item for item, one in zip(rest, lack, strict=True) if lacks or one]
        groups = [[first, *failed]] if lacks or failed else []
    return [replace(child.job, items=items, parts=[part]) for items in groups]


def _terminated(*_: object) -> NoReturn:
    sys.exit(128 + signal.SIGTERM)  # instead of ending at once, with processes left behind
