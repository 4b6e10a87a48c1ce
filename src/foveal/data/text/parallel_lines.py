"""Line by line: files of which line n of one is the translation of line n of the other."""

from __future__ import annotations

import codecs
import gzip
import itertools
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from foveal.data.problems import note
from foveal.data.text.languages import checked
from foveal.data.text.reading import stamp, unreadable
from foveal.errors import DataError

Pairs = Iterator[tuple[str, str]]
"""A sentence and its translation."""

ENCODING = "save it as UTF-8, or set data.encoding to that of the file"  # advice

FilePair = tuple[Path, Path]
"""Source and target."""


@dataclass(frozen=True)
class ParallelCorpus:
    """Pairs of sentences by split.

    Attributes:
        splits: ``train`` and, where they are official, ``val`` and ``test``: each a function that reads the pairs anew.
        fingerprint: changes when the files do.
    """

    splits: dict[str, Callable[[], Pairs]]
    fingerprint: list[object] = field(default_factory=list)


def named(folder: Path, name: str) -> Path:
    """The file ``name``, or ``name.gz`` where there is only that."""
    plain, zipped = folder / name, folder / f"{name}.gz"
    return zipped if zipped.is_file() and not plain.is_file() else plain


def lines(file: Path, encoding: str = "utf-8", advice: str = ENCODING) -> Iterator[str]:
    """Lines of a text file, plain or gzipped, without their ends and without a byte order mark.

    Lines end with a line feed only, perhaps after a carriage return: other characters that Python splits at, such as
    U+2028, occur inside sentences.
    """
    if codecs.lookup(encoding).name == "utf-8":
        encoding = "utf-8-sig"  # a byte order mark is no part of the first line
    number = 0
    try:
        opened = gzip.open if file.suffix == ".gz" else open
        with opened(file, "rt", encoding=encoding, newline="\n") as text:
            for line in text:
                number += 1
                yield line.removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        plain = encoding.removesuffix("-sig")
        place = f"{file}, after line {number}" if number else f"{file}"
        raise DataError(f"{place}: not valid {plain}; {advice}") from error
    except FileNotFoundError as error:
        raise DataError(f"{file} is missing") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{file} cannot be read ({error}); it is damaged, get it again") from error
    except OSError as error:
        raise unreadable(file, error) from error


def line_pairs(files: Sequence[FilePair], encoding: str, kept: Callable[[str], str | None] = str) -> Pairs:
    """Pairs of sentences of pairs of files, one after the other; pairs with an empty side are left out.

    Args:
        files: source and target.
        encoding: of the files.
        kept: makes a sentence of a line; None for a line that is none, such as markup.
    """
    for source, target in files:
        total = empty = 0
        both = itertools.zip_longest(*(lines(file, encoding) for file in (source, target)))
        for total, (first, second) in enumerate(both, 1):
            if first is None or second is None:
                raise DataError(
                    f"{source} and {target} do not belong together: {source if first is None else target} ends after "
                    f"{total - 1:,} lines, the other goes on; line n of one must be the translation of line n of the "
                    "other"
                )
            pair = kept(first), kept(second)
            if pair[0] is None or pair[1] is None:
                continue
            if pair[0].strip() and pair[1].strip():
                yield pair[0], pair[1]
            else:
                empty += 1
        if empty:
            note(f"{source} and {target}: {empty:,} of {total:,} pairs have an empty side and are left out")


def corpus(
    files: Mapping[str, Sequence[FilePair]],
    encoding: str,
    kept: Callable[[str], str | None] = str,
    languages: tuple[str, str] = ("", ""),
) -> ParallelCorpus:
    """The pairs of some files by split; all must be there. Their languages are checked while they are read.

    Args:
        files: source and target files of each split.
        encoding: of the files.
        kept: as in :func:`line_pairs`.
        languages: of source and target, two letters each.
    """
    listed = [file for pairs in files.values() for pair in pairs for file in pair]
    for file in listed:
        if not file.is_file():
            raise DataError(f"{file} is missing")

    def read(pairs: Sequence[FilePair]) -> Pairs:
        for pair in pairs:
            yield from checked(pair, line_pairs([pair], encoding, kept), languages)

    return ParallelCorpus({split: partial(read, pairs) for split, pairs in files.items()}, stamp(listed))
