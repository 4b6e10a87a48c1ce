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
from foveal.data.text.reading import stamp, unreadable
from foveal.errors import DataError

Pairs = Iterator[tuple[str, str]]
"""A sentence and its translation."""

ENCODING = "save it as UTF-8, or set data.encoding to that of the file"  # advice

FilePair = tuple[Path, Path]
"""Source and target."""

LOOKED_AT = 400  # pairs by which languages are told apart
COMMON = {  # words that a few sentences of a language are sure to have, and few others
    language: set(words.split())
    for language, words in {
        "cs": "je na se že jsem není jako ale jsou který",
        "de": "der die das und ist ein eine nicht ich auf mit den dem",
        "en": "the and is a of to in you it that with are",
        "es": "el los las una que es en un por del no",
        "fr": "le les des une est et que dans pas sur je",
        "it": "il che di è un una non per sono gli",
        "nl": "het een van ik niet dat en is je zijn",
        "pt": "o os uma que não em do da um para",
    }.items()
}


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
    """The pairs of some files by split; all must be there, and not in each other's place.

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
    for pairs in files.values():
        for pair in pairs:
            check_languages(pair, line_pairs([pair], encoding, kept), languages)
    splits: dict[str, Callable[[], Pairs]] = {
        split: partial(line_pairs, pairs, encoding, kept) for split, pairs in files.items()
    }
    return ParallelCorpus(splits, stamp(listed))


def check_languages(files: FilePair, pairs: Pairs, languages: tuple[str, str]) -> None:
    """Raise for files that hold the same sentences, or each other's language."""
    some = list(itertools.islice(pairs, LOOKED_AT))
    source, target = files
    if len(some) > 9 and sum(first == second for first, second in some) > len(some) / 2:
        raise DataError(f"{source} and {target} hold the same sentences; one of them must be the translation")
    if any(language not in COMMON for language in languages) or languages[0] == languages[1]:
        return
    texts = [" ".join(side).lower().split() for side in zip(*some, strict=True)] if some else [[], []]
    own, other = (
        sum(word in COMMON[language] for words, language in zip(texts, order, strict=True) for word in words)
        for order in (languages, languages[::-1])
    )
    if other > 20 and other > 3 * own:
        raise DataError(
            f"{source} looks like {languages[1]} and {target} like {languages[0]}: they are in each other's place; "
            "exchange their names"
        )
