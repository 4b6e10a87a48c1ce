"""Read every file of a dataset before training, and list all that is wrong."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import torch

from foveal.data.batches import Batches
from foveal.data.images.reading import read_image
from foveal.data.problems import Problem, Progress, collected, collecting
from foveal.data.registry import Entry, Source, dataset
from foveal.data.splits import SPLITS
from foveal.errors import DataError
from foveal.typed import parse

T = TypeVar("T")
BLOCK = 256  # files that are read side by side between two reports


def check(
    name: str | Entry,
    options: Mapping[str, Any] | Any = None,
    root: Path | None = None,
    progress: Progress | None = None,
) -> Iterator[Problem]:
    """Read all files of a dataset and yield what is wrong with them, as it is found.

    Args:
        name: of the dataset, or its entry.
        options: the ``data`` section of a recipe, as a mapping, whose ``name`` is ignored, or as the dataset's
            dataclass; None for the defaults.
        root: the folder of real datasets.
        progress: wraps every long iteration, as ``rich.progress.track`` does.
    """
    entry = dataset(name) if isinstance(name, str) else name
    if options is None or isinstance(options, Mapping):
        section = {key: value for key, value in (options or {}).items() if key != "name"}
        options = parse(entry.options, section, "data")
    reported = set()
    for problem in _problems(entry, options, root, progress or _silent):
        if problem.message not in reported:  # a file that is read twice has its problems twice
            reported.add(problem.message)
            yield problem


def _problems(entry: Entry, options: Any, root: Path | None, progress: Progress) -> Iterator[Problem]:
    try:
        if entry.check is not None:
            yield from entry.check(options, root, progress)
        else:
            source = entry.build(options, root)
            own = getattr(source, "check", None)
            yield from own(progress) if own is not None else check_batches(source, progress)
    except DataError as error:  # nothing can be read beyond this one
        yield Problem(str(error))


def check_batches(source: Source, progress: Progress) -> Iterator[Problem]:
    """Read all samples of a source, one by one if its loader is foveal's, else up to the first problem of a split."""
    for split in SPLITS:
        with collecting() as problems, collected():
            loader = source.loader(split, 1, device=torch.device("cpu"))
            total = len(loader)  # type: ignore[arg-type]
            steps = loader.order if isinstance(loader, Batches) else loader
            for step in progress(steps, description=f"reading {split}", total=total):
                with collected():
                    if isinstance(loader, Batches):
                        loader.gather(step)
        yield from problems


def check_files(
    files: Iterable[Path],
    progress: Progress | None = None,
    description: str = "",
    read: Callable[[Path], Any] = read_image,
) -> Iterator[Problem]:
    """Read files side by side and yield the problems of those that cannot be read, in order."""
    files = list(files)
    blocks = [files[begin : begin + BLOCK] for begin in range(0, len(files), BLOCK)]

    def problem(file: Path) -> Problem | None:
        try:
            read(file)
        except DataError as error:
            return Problem(str(error), file=file)
        return None

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        results = itertools.chain.from_iterable(pool.map(problem, block) for block in blocks)
        for result in (progress or _silent)(results, description=description, total=len(files)):
            if result is not None:
                yield result


def _silent(steps: Iterable[T], **_: Any) -> Iterable[T]:
    return steps
