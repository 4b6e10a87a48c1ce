"""Where a dataset lies, said once: the sources find their files here, and ``foveal data`` reports the same folder."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from foveal.errors import DataError

GZIPPED = "[.gz]"  # end of a needed file's name: it may be compressed


def data_root(given: str | Path | None = None) -> Path | None:
    """The folder of real datasets: ``given``, else ``FOVEAL_DATA``, else None."""
    chosen = given or os.environ.get("FOVEAL_DATA")
    if not chosen:
        return None
    root = Path(chosen).expanduser()
    if not root.is_dir():
        raise DataError(
            f"the data folder {root} does not exist; set FOVEAL_DATA or --data to the folder with the datasets"
        )
    return root


@dataclass(frozen=True)
class Layout:
    """A form in which the files of a dataset may lie in its folder.

    Attributes:
        name: such as ``class folders``.
        needs: glob patterns below the folder, each of which must match; ``[.gz]`` at the end marks an optional ending.
    """

    name: str
    needs: tuple[str, ...]

    def missing(self, folder: Path) -> list[str]:
        """The patterns that match nothing in ``folder``."""
        return [need for need in self.needs if not _matches(folder, need)]


@dataclass(frozen=True)
class Place:
    """Where a dataset may lie below the data folder, and what must be there.

    Attributes:
        folders: names that its folder may have, the usual one first.
        needs: patterns of the official layout, as in :class:`Layout`.
        how: where to get the files.
        layouts: other layouts that are read too.
        archives: names of single files that are read without unpacking; they are tried before the folders.
        files: whether ``data.folder`` may name a single file.
        option: the key of a recipe's ``data`` section that names the folder; empty if there is none.
        instead: what to use if there are no such files, for error messages.
        also: other places whose files are needed as well.

    A folder in which one of the layouts is complete is preferred to one in which something is missing.
    """

    folders: tuple[str, ...]
    needs: tuple[str, ...] = ()
    how: str = ""
    layouts: tuple[Layout, ...] = ()
    archives: tuple[str, ...] = ()
    files: bool = False
    option: str = "folder"
    instead: str = ""
    also: tuple[Place, ...] = ()

    @property
    def official(self) -> Layout:
        """The layout that the official archives unpack to."""
        return Layout("official files", self.needs)

    @property
    def expected(self) -> tuple[str, ...]:
        """Files and folders below the data folder, in the usual place and the official layout."""
        own = tuple(f"{self.folders[0]}/{need}" for need in self.needs) or self.folders[:1]
        return own + tuple(path for place in self.also for path in place.expected)

    def find(self, root: Path | None, folder: str | None = None, *, name: str = "") -> Path:
        """The folder (or file) to read.

        Args:
            root: the folder of real datasets, or None.
            folder: what the recipe says: absolute, below ``root`` or below the current folder.
            name: of the dataset, for the message.

        Raises:
            DataError: if there is no such folder; its files are the reader's to check.
        """
        candidates = self.candidates(root, folder)
        choice = self.choose(candidates)
        if choice is not None:
            return choice[0]
        prefix = f"{name}: " if name else ""
        instead = f", or {self.instead}" if self.instead else ""
        if root is None and not any(path.is_absolute() for path in candidates):
            option = f", or data.{self.option} to its full path" if self.option else ""
            raise DataError(
                f"{prefix}set FOVEAL_DATA (or --data) to a folder that holds {folder or self.folders[0]}{option}"
                f"{instead}; {self.how}"
            )
        what = "folder or file" if self.files or self.archives else "folder"
        listed = " or ".join(map(str, candidates))
        raise DataError(f"{prefix}no {what} {listed}{instead}; {self.how}")

    def candidates(self, root: Path | None, folder: str | None = None) -> list[Path]:
        """All paths to look at, in order; the name of the only folder says no more than None."""
        if folder is not None and (folder,) != self.folders:
            given = Path(folder).expanduser()
            return [given] if root is None or given.is_absolute() else [root / given, given]
        return [] if root is None else [root / name for name in (*self.archives, *self.folders)]

    def choose(self, candidates: list[Path]) -> tuple[Path, Layout] | None:
        """The first candidate with a complete layout, else the first that exists, and its most complete layout."""
        first: tuple[Path, Layout] | None = None
        for path in candidates:
            if path.is_file() and (self.files or self.archives):
                return path, Layout("single file", ())
            if not path.is_dir():
                continue
            lacks = {layout: len(layout.missing(path)) for layout in (self.official, *self.layouts)}
            layout = min(lacks, key=lambda layout: lacks[layout] / max(1, len(layout.needs)))
            if not lacks[layout]:
                return path, layout
            first = first or (path, layout)
        return first


@dataclass(frozen=True)
class Status:
    """What is there of a dataset.

    Attributes:
        folder: the folder or file that training would read, or the one to make if there is none; None for a dataset
            that needs no files.
        there: whether all that training needs is there.
        layout: the form in which the files lie, such as ``official files`` or ``class folders``.
        files: every needed file or folder, and whether it is there.
        how: where to get the files.
    """

    folder: Path | None = None
    there: bool = True
    layout: str = ""
    files: dict[str, bool] = field(default_factory=dict)
    how: str = ""

    @property
    def missing(self) -> list[str]:
        """Needed files that are not there."""
        return [file for file, there in self.files.items() if not there]


def status(place: Place | None, root: Path | None) -> Status:
    """What training would find below ``root`` of a dataset in ``place``, if its recipe names no folder."""
    if place is None:
        return Status()
    choice = place.choose(place.candidates(root))
    if choice is None:
        folder, layout = (root or Path()) / place.folders[0], place.official
        missing = set(layout.needs)
    else:
        folder, layout = choice
        missing = set(layout.missing(folder))
    files = {str(folder / need): need not in missing for need in layout.needs} or {str(folder): choice is not None}
    how = [place.how]
    for other in (status(place, root) for place in place.also):
        files |= other.files
        how.append(other.how)
    return Status(folder, choice is not None and all(files.values()), layout.name, files, "; ".join(filter(None, how)))


def folder_state(path: Path, depth: int = 2) -> tuple[tuple[str, int], ...]:
    """When ``path`` and the folders below it, down to ``depth``, last gained or lost a file."""
    state = [(str(path), path.stat().st_mtime_ns)]
    if depth and path.is_dir():
        with os.scandir(path) as entries:
            folders = sorted(entry.path for entry in entries if entry.is_dir() or (depth == 2 and entry.is_file()))
        state += [pair for folder in folders for pair in folder_state(Path(folder), depth - 1)]
    return tuple(state)


def _matches(folder: Path, pattern: str) -> bool:
    """Whether anything in ``folder`` matches."""
    names = [pattern]
    if pattern.endswith(GZIPPED):
        plain = pattern.removesuffix(GZIPPED)
        names = [plain, f"{plain}.gz"]
    return any(next(folder.glob(name), None) is not None for name in names)
