"""What readers of labelled texts share.

A reader looks at names and labels only; the texts themselves are read one by one when they are needed, so that a
corpus need not fit into memory.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from foveal.data.problems import collected, is_checking, note
from foveal.errors import DataError, unknown

TEXT_ENDINGS = (".txt", ".text", ".md")

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


def decoded(raw: bytes, encoding: str, source: object = "") -> str:
    r"""Bytes as text; what is not valid becomes the replacement character, which is no word.

    Args:
        raw: the bytes.
        encoding: of the text.
        source: what the bytes come from; a check of the data reports it if they are not valid.

    >>> decoded(b"caf\xe9 noir", "utf-8"), decoded(b"caf\xe9", "latin-1")
    ('caf� noir', 'café')
    """
    if is_checking():
        try:
            raw.decode(encoding)
        except UnicodeDecodeError as error:
            note(f"{source} is not valid {encoding} at byte {error.start}; set data.encoding to that of the file")
    return raw.decode(encoding, errors="replace")


def stamp(files: Iterable[Path]) -> list[object]:
    """Number of files, and a checksum of their names, sizes and times."""
    checksum, count = 0, 0
    for file in files:
        with collected():
            stat = _stat(file)
            checksum = zlib.crc32(f"{file.name} {stat.st_size} {stat.st_mtime_ns}".encode(), checksum)
            count += 1
    return [count, checksum]


def _stat(file: Path) -> os.stat_result:
    try:
        return file.stat()
    except OSError as error:
        raise unreadable(file, error) from error


def unreadable(file: Path, error: OSError) -> DataError:
    """The error for a file that the system cannot read."""
    return DataError(f"{file} cannot be read: {error.strerror}; get it again or remove it")


def check_classes(names: Sequence[str], answers: Sequence[str], source: Path) -> None:
    """Raise for a class that training does not have."""
    for name in dict.fromkeys(names):
        with collected():
            if name not in answers:
                raise DataError(f"{source}: {unknown('class', name, answers)}; training has no texts of it")


def without_breaks(text: str) -> str:
    r"""A text with line breaks instead of their marks.

    >>> without_breaks(r"Yes.<br />No.\nPerhaps.")
    'Yes.\nNo.\nPerhaps.'
    """
    return text.replace("<br />", "\n").replace("\\n", "\n")
