"""20 Newsgroups, split by date: ``20news-bydate.tar.gz``, or the two folders it unpacks to.

Lang: "NewsWeeder: learning to filter netnews" (ICML 1995).
"""

from __future__ import annotations

import re
import tarfile
import zlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from foveal.data.formats.text_folders import read_folders
from foveal.data.place import Place
from foveal.data.text.documents import TextFormat, register_texts
from foveal.data.text.reading import Corpus, Texts, check_classes, decoded, stamp
from foveal.errors import DataError

ARCHIVE = "20news-bydate.tar.gz"
FOLDERS = {"train": "20news-bydate-train", "test": "20news-bydate-test"}
_HEADERS = re.compile(r"^(?:From|Subject): ", re.MULTILINE)
_QUOTE = re.compile(r"writes in|writes:|wrote:|says:|said:|^In article|^Quoted from|^\||^>")


def read_newsgroups(path: Path, encoding: str = "latin-1") -> Corpus:
    """Messages of all groups.

    Args:
        path: the archive, or the folder that holds ``20news-bydate-train`` and ``20news-bydate-test``.
        encoding: of the texts.
    """
    if not path.is_dir():
        return _read_archive(path, encoding)
    folders = {split: path / name for split, name in FOLDERS.items()}
    missing = [str(folder) for folder in folders.values() if not folder.is_dir()]
    if missing:
        raise DataError(f"{missing[0]} is missing; expected what {ARCHIVE} unpacks")
    return read_folders(folders, encoding)


def _read_archive(archive: Path, encoding: str) -> Corpus:
    groups: dict[str, list[str]] = {split: [] for split in FOLDERS}
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                *_, folder, group, _name = ["", "", *Path(member.name).parts]
                for split, name in FOLDERS.items():
                    if member.isfile() and folder == name:
                        groups[split].append(group)
    except (OSError, tarfile.TarError, EOFError, zlib.error) as error:
        raise DataError(f"{archive} cannot be read ({error}); get {ARCHIVE} again") from error
    for split, names in groups.items():
        if not names:
            raise DataError(f"{archive} has no {FOLDERS[split]}/GROUP/NUMBER; get the by-date archive")
    answers = sorted(set(groups["train"]))
    check_classes(groups["test"], answers, archive)
    splits = {split: partial(_archive_texts, archive, folder, answers, encoding) for split, folder in FOLDERS.items()}
    return Corpus(answers, splits, stamp([archive]))  # type: ignore[arg-type]


def _archive_texts(archive: Path, folder: str, answers: Sequence[str], encoding: str) -> Texts:
    """In the order of the archive: a compressed file is read from front to back."""
    with tarfile.open(archive) as tar:
        for member in tar:
            parts = Path(member.name).parts
            if member.isfile() and len(parts) >= 3 and parts[-3] == folder:
                file = tar.extractfile(member)
                assert file is not None
                if parts[-2] in answers:
                    yield decoded(file.read(), encoding, f"{archive}: {member.name}"), answers.index(parts[-2])


def without_parts(text: str, parts: Sequence[str]) -> str:
    r"""A message without any of ``headers``, ``footers`` and ``quotes``, cut as by scikit-learn's ``remove``.

    Without them accuracy is far lower and means more: headers name the newsgroup's regulars and their hosts. Headers
    have a line ``From`` or ``Subject``, as every message of the corpus has; a text without keeps its first paragraph.

    >>> without_parts("Subject: moon\n\nIt is round.", ["headers"]), without_parts("The moon.", ["headers"])
    ('It is round.', 'The moon.')
    """
    head, _, body = text.partition("\n\n")
    if "headers" in parts and _HEADERS.search(head):
        text = body
    if "footers" in parts:
        text = _without_footer(text)
    if "quotes" in parts:
        text = "\n".join(line for line in text.split("\n") if not _QUOTE.search(line))
    return text


def _without_footer(text: str) -> str:
    """A text up to its last line that is blank or all hyphens, which sets a signature apart; all of it if none is."""
    lines = text.strip().split("\n")
    last = next((n for n in range(len(lines) - 1, 0, -1) if not lines[n].strip().strip("-")), 0)
    return "\n".join(lines[:last]) if last else text


register_texts(
    TextFormat(
        "20news",
        "20 Newsgroups",
        lambda path, _, encoding: read_newsgroups(path, encoding),
        Place(
            folders=("20news-bydate", "20news"),
            needs=tuple(FOLDERS.values()),
            how=f"{ARCHIVE} from http://qwone.com/~jason/20Newsgroups/, as it is or unpacked in 20news-bydate/",
            archives=(ARCHIVE,),
        ),
        ("strip",),
        encoding="latin-1",
        clean=lambda text, options: without_parts(text, options.strip.split()),
    ),
    "18,846 messages of 20 newsgroups",
)
