"""Any parallel text: ``train.en`` and ``train.de``, ``val`` and ``test`` likewise, plain or gzipped.

Or one pair of files of any name: then a part of the sentences is kept for validation and test. All pairs with the same
source sentence, of which Tatoeba (https://tatoeba.org) has many, go to the same part.
"""

from __future__ import annotations

from pathlib import Path

from foveal.data.place import Place
from foveal.data.text.parallel import ParallelFormat, ParallelOptions, register_parallel
from foveal.data.text.parallel_lines import FilePair, ParallelCorpus, corpus, named
from foveal.errors import DataError

NAMES = {"train": ("train",), "val": ("val", "valid", "dev"), "test": ("test",)}


def read_parallel(folder: Path, options: ParallelOptions) -> ParallelCorpus:
    """The files of a folder by split, or its only pair."""
    languages = (options.source, options.target)
    names = NAMES if options.test is None else {**NAMES, "test": (options.test, f"test_{options.test}")}
    found: dict[str, list[FilePair]] = {}
    for split, stems in names.items():
        for stem in stems:
            files = [named(folder, f"{stem}.{language}") for language in languages]
            if all(file.is_file() for file in files):
                found[split] = [(files[0], files[1])]
                break
    if options.test is not None and "test" not in found:
        raise DataError(f"{folder} has no {options.test}.{languages[0]} and {options.test}.{languages[1]}")
    if "train" not in found:
        found = {"train": [_only_pair(folder, languages)], **found}
    return corpus(found, options.encoding, languages=languages)


def _only_pair(folder: Path, languages: tuple[str, str]) -> FilePair:
    """The only pair of files that differ in their language alone."""
    stems = [
        {file.name.removesuffix(".gz").removesuffix(f".{language}") for file in _files(folder, language)}
        for language in languages
    ]
    both = sorted(stems[0] & stems[1])
    if len(both) != 1:
        what = f"several pairs ({', '.join(both)})" if both else "no such pair"
        raise DataError(
            f"{folder} has {what}: expected train.{languages[0]} and train.{languages[1]} (or .gz), or a single pair "
            "of files of any name; data.source and data.target are the endings"
        )
    source, target = (named(folder, f"{both[0]}.{language}") for language in languages)
    return source, target


def _files(folder: Path, language: str) -> list[Path]:
    return [file for ending in (language, f"{language}.gz") for file in folder.glob(f"*.{ending}")]


register_parallel(
    ParallelFormat(
        "parallel",
        "parallel text",
        read_parallel,
        Place(
            folders=("parallel",),
            needs=("*.*",),
            how="put train.en and train.de there, val and test likewise (plain or .gz), line by line; or one such pair",
        ),
        own_files=True,
    ),
    "any two text files, line n of one the translation of line n of the other",
)

register_parallel(
    ParallelFormat(
        "tatoeba",
        "Tatoeba",
        read_parallel,
        Place(
            folders=("tatoeba",),
            needs=("*.en[.gz]",),
            how="sentence pairs of https://tatoeba.org as two files, such as deu-eng.en and deu-eng.de, plain or .gz",
        ),
    ),
    "short sentences and their translations, many of them several times",
)
