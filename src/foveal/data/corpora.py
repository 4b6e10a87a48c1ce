"""Labelled texts in folders and archives: 20 Newsgroups, IMDB, any folder; :mod:`foveal.data.text_csv` has the tables.

A reader looks at names and labels only; the texts themselves are read one by one when they are asked for, so that a
corpus need not fit into memory.
"""

from __future__ import annotations

import os
import re
import tarfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from foveal.errors import DataError, unknown

Texts = Iterator[tuple[str, int]]
"""Texts with the numbers of their classes."""


@dataclass(frozen=True)
class Corpus:
    """Texts by split.

    Attributes:
        answers: names of the classes.
        splits: ``train`` and, where they are official, ``val`` and ``test``: each a function that reads the texts anew.
        fingerprint: changes when the files do.
    """

    answers: list[str]
    splits: dict[str, Callable[[], Texts]]
    fingerprint: list[object] = field(default_factory=list)


def decoded(raw: bytes, encoding: str) -> str:
    r"""Bytes as text; what is not valid becomes the replacement character, which is no word.

    >>> decoded(b"caf\xe9 noir", "utf-8"), decoded(b"caf\xe9", "latin-1")
    ('caf� noir', 'café')
    """
    return raw.decode(encoding, errors="replace")


def stamp(files: Iterable[Path]) -> list[object]:
    """Names, sizes and times of files, as few numbers."""
    found, count = 0, 0
    for file in files:
        about = file.stat()
        found = zlib.crc32(f"{file.name} {about.st_size} {about.st_mtime_ns}".encode(), found)
        count += 1
    return [count, found]


def check_classes(found: Sequence[str], answers: Sequence[str], where: Path) -> None:
    """Complain of a class that training does not have."""
    for name in found:
        if name not in answers:
            raise DataError(f"{where}: {unknown('class', name, answers)}; training has no texts of it")


# Folders ---------------------------------------------------------------------

TEXT_ENDINGS = (".txt", ".text", ".md")


def _folder_classes(folder: Path) -> list[str]:
    found = sorted(p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    if not found:
        raise DataError(f"{folder} has no class folders; expected one folder of text files for each class")
    return found


def _text_files(folder: Path, endings: Sequence[str]) -> list[Path]:
    found = [
        Path(where, name)
        for where, _, names in os.walk(folder, followlinks=True)
        for name in names
        if not name.startswith(".") and (not endings or Path(name).suffix.lower() in endings)
    ]
    return sorted(found)


def _folder_texts(files: Sequence[tuple[Path, int]], encoding: str) -> Texts:
    for file, label in files:
        try:
            yield decoded(file.read_bytes(), encoding), label
        except OSError as error:
            raise DataError(f"{file} cannot be read: {error.strerror}") from error


def read_folders(
    folders: dict[str, Path], encoding: str, endings: Sequence[str] = (), classes: Sequence[str] = ()
) -> Corpus:
    """Text files sorted into one folder for each class, below one folder for each split.

    Args:
        folders: of each split; ``train`` is needed.
        encoding: of the files.
        endings: of the files, such as ``.txt``; all files if empty.
        classes: their names, if not all folders are classes.
    """
    answers = list(classes) or _folder_classes(folders["train"])
    splits, files = {}, list[Path]()
    for split, folder in folders.items():
        here = list(classes) or _folder_classes(folder)
        check_classes(here, answers, folder)
        listed = [(file, answers.index(name)) for name in here for file in _text_files(folder / name, endings)]
        counts = Counter(label for _, label in listed)
        empty = [answers.index(name) for name in answers if not counts[answers.index(name)]]
        if not listed or (split == "train" and empty):
            raise DataError(f"{folder / (answers[empty[0]] if listed else '')} holds no text files")
        splits[split] = partial(_folder_texts, listed, encoding)
        files += [file for file, _ in listed]
    return Corpus(answers, splits, stamp(files))  # type: ignore[arg-type]


def read_textfolder(folder: Path, encoding: str = "utf-8") -> Corpus:
    """Any ``*.txt`` files as ``train/CLASS``, ``val/CLASS`` and ``test/CLASS``, or just ``CLASS``."""
    present = {split: folder / split for split in ("train", "val", "test") if (folder / split).is_dir()}
    if present and "train" not in present:
        raise DataError(f"{folder} has {' and '.join(present)} but no train folder")
    return read_folders(present or {"train": folder}, encoding, TEXT_ENDINGS)


def read_imdb(folder: Path, encoding: str = "utf-8") -> Corpus:
    """IMDB: ``train/{neg,pos}/*.txt`` and ``test/{neg,pos}/*.txt``, as aclImdb_v1.tar.gz unpacks.

    Maas et al.: "Learning word vectors for sentiment analysis" (ACL 2011).
    """
    for split in ("train", "test"):
        if not (folder / split / "pos").is_dir() or not (folder / split / "neg").is_dir():
            raise DataError(f"{folder / split} lacks pos or neg; expected what aclImdb_v1.tar.gz unpacks")
    found = read_folders({s: folder / s for s in ("train", "test")}, encoding, (".txt",), ("neg", "pos"))
    return Corpus(["negative", "positive"], found.splits, found.fingerprint)


def without_breaks(text: str) -> str:
    r"""A text with line breaks instead of their marks.

    >>> without_breaks(r"Yes.<br />No.\nPerhaps.")
    'Yes.\nNo.\nPerhaps.'
    """
    return text.replace("<br />", "\n").replace("\\n", "\n")


# 20 Newsgroups -----------------------------------------------------------------

STRIPPED = ("headers", "footers", "quotes")
_HEADERS = re.compile(r"^(?:From|Subject): ", re.MULTILINE)


def read_newsgroups(place: Path, encoding: str = "latin-1") -> Corpus:
    """20 Newsgroups, split by date: ``20news-bydate.tar.gz``, or the two folders it unpacks to.

    Lang: "NewsWeeder: learning to filter netnews" (ICML 1995).

    Args:
        place: the archive, or the folder that holds ``20news-bydate-train`` and ``20news-bydate-test``.
        encoding: of the texts.
    """
    if place.is_dir():
        folders = {split: place / f"20news-bydate-{split}" for split in ("train", "test")}
        missing = [str(folder) for folder in folders.values() if not folder.is_dir()]
        if missing:
            raise DataError(f"{missing[0]} is missing; expected what 20news-bydate.tar.gz unpacks")
        return read_folders(folders, encoding)
    return _read_newsgroups_archive(place, encoding)


def _read_newsgroups_archive(archive: Path, encoding: str) -> Corpus:
    members: dict[str, list[tuple[str, str]]] = {"train": [], "test": []}
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                *_, folder, group, _name = ["", "", *Path(member.name).parts]
                split = folder.removeprefix("20news-bydate-")
                if member.isfile() and split in members:
                    members[split].append((member.name, group))
    except (OSError, tarfile.TarError, EOFError, zlib.error) as error:
        raise DataError(f"{archive} cannot be read ({error}); get 20news-bydate.tar.gz again") from error
    for split, found in members.items():
        if not found:
            raise DataError(f"{archive} has no 20news-bydate-{split}/GROUP/NUMBER; get the by-date archive")
    answers = sorted({group for _, group in members["train"]})
    check_classes([group for _, group in members["test"]], answers, archive)
    splits = {s: partial(_archive_texts, archive, f"20news-bydate-{s}", answers, encoding) for s in members}
    return Corpus(answers, splits, stamp([archive]))  # type: ignore[arg-type]


def _archive_texts(archive: Path, folder: str, answers: Sequence[str], encoding: str) -> Texts:
    """In the order of the archive: a compressed file is read from front to back."""
    with tarfile.open(archive) as tar:
        for member in tar:
            parts = Path(member.name).parts
            if member.isfile() and len(parts) >= 3 and parts[-3] == folder:
                file = tar.extractfile(member)
                assert file is not None
                yield decoded(file.read(), encoding), answers.index(parts[-2])


def without_parts(text: str, parts: Sequence[str]) -> str:
    r"""A message without any of ``headers``, ``footers`` and ``quotes``, cut as by scikit-learn's ``remove``.

    Without them accuracy is far lower and means more: headers name the newsgroup's regulars and their hosts. Headers
    have a line ``From`` or ``Subject``, as every message of the corpus has; a text without keeps its first paragraph.

    >>> without_parts("Subject: moon\n\nIt is round.", ["headers"]), without_parts("The moon.", ["headers"])
    ('It is round.', 'The moon.')
    """
    from sklearn.datasets import _twenty_newsgroups as scikit

    functions = {
        "headers": scikit.strip_newsgroup_header,
        "footers": scikit.strip_newsgroup_footer,
        "quotes": scikit.strip_newsgroup_quoting,
    }
    for name in STRIPPED:  # in scikit-learn's order
        if name in parts and (name != "headers" or _HEADERS.search(text.partition("\n\n")[0])):
            text = functions[name](text)
    return text
