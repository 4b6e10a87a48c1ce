"""Labelled texts in files of comma-separated values: Yahoo Answers, AG News, any file with a header."""

from __future__ import annotations

import codecs
import csv
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import torch

from foveal.data.corpora import Corpus, Texts, check_classes, stamp
from foveal.errors import DataError, UserError


def _rows(file: Path, encoding: str) -> Iterator[list[str]]:
    before = csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    if codecs.lookup(encoding).name == "utf-8":
        encoding = "utf-8-sig"  # a byte order mark is no part of the first field
    try:
        with open(file, newline="", encoding=encoding, errors="replace") as lines:
            yield from csv.reader(lines)
    except FileNotFoundError as error:
        raise DataError(f"{file} is missing") from error
    except (OSError, csv.Error) as error:
        raise DataError(f"{file} cannot be read as comma-separated values: {error}") from error
    finally:
        csv.field_size_limit(before)


def read_numbered_csv(
    folder: Path, columns: int, encoding: str = "utf-8", per_class: int | None = None, seed: int = 0
) -> Corpus:
    """Yahoo Answers, AG News and others of their kind: a class number from 1 on, then columns of text, no header.

    Zhang, Zhao, LeCun: "Character-level convolutional networks for text classification" (NeurIPS 2015).

    Args:
        folder: holds ``train.csv``, ``test.csv`` and ``classes.txt``.
        columns: how many there are, with that of the class.
        encoding: of the files.
        per_class: only so many training texts of each class, drawn at random.
        seed: of that draw.
    """
    try:
        answers = [line.strip() for line in (folder / "classes.txt").read_text(encoding="utf-8-sig").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{folder / 'classes.txt'} cannot be read ({error}); it names one class a line") from error
    answers = [name for name in answers if name]
    read = {s: partial(_numbered, folder / f"{s}.csv", columns, len(answers), encoding) for s in ("train", "test")}
    splits: dict[str, Callable[[], Texts]] = dict(read)
    if per_class is not None:
        splits["train"] = partial(_drawn, read["train"], drawn(_labels(read["train"]), per_class, seed))
    return Corpus(answers, splits, stamp(folder / f"{s}.csv" for s in ("train", "test")))


def _numbered(file: Path, columns: int, classes: int, encoding: str) -> Texts:
    empty = True
    for number, row in enumerate(_rows(file, encoding), 1):
        if not row:
            continue
        if len(row) != columns:
            raise DataError(f"{file}, row {number}: {len(row)} columns instead of {columns}")
        if not row[0].isdecimal() or not 1 <= int(row[0]) <= classes:
            raise DataError(f"{file}, row {number}: class {row[0]!r}, expected a number from 1 to {classes}")
        empty = False
        yield "\n\n".join(part for part in row[1:] if part), int(row[0]) - 1
    if empty:
        raise DataError(f"{file} holds no rows")


def read_csv(
    files: dict[str, Path],
    text: str,
    label: str,
    encoding: str = "utf-8",
    per_class: int | None = None,
    seed: int = 0,
) -> Corpus:
    """Any files with a header that names a column of texts and one of labels.

    Args:
        files: of each split; ``train`` is needed.
        text: name of the column of texts; several are joined if given as ``title+body``.
        label: name of the column of labels.
        encoding: of the files.
        per_class: only so many training texts of each class, drawn at random.
        seed: of that draw.
    """
    columns = [name.strip() for name in text.split("+")]
    names = sorted({name for _, name in _named(files["train"], columns, label, encoding)})
    if len(names) < 2:
        raise DataError(f"{files['train']}: the column {label!r} holds {len(names)} class(es); at least two are needed")
    splits: dict[str, Callable[[], Texts]] = {
        split: partial(_named_texts, file, columns, label, encoding, names) for split, file in files.items()
    }
    if per_class is not None:
        splits["train"] = partial(_drawn, splits["train"], drawn(_labels(splits["train"]), per_class, seed))
    return Corpus(names, splits, stamp(files.values()))


def _named(file: Path, columns: Sequence[str], label: str, encoding: str) -> Iterator[tuple[str, str]]:
    rows = _rows(file, encoding)
    header = [name.strip() for name in next(rows, [])]
    for name in (*columns, label):
        if name not in header:
            raise DataError(f"{file} has no column {name!r}; its columns are {', '.join(map(repr, header)) or 'none'}")
    empty = True
    places, at = [header.index(name) for name in columns], header.index(label)
    for number, row in enumerate(rows, 2):
        if not row:
            continue
        if len(row) != len(header):
            raise DataError(f"{file}, row {number}: {len(row)} columns instead of {len(header)}")
        if not row[at].strip():
            raise DataError(f"{file}, row {number}: the column {label!r} is empty; give it a class or leave it out")
        empty = False
        yield "\n\n".join(row[place] for place in places), row[at].strip()
    if empty:
        raise DataError(f"{file} holds no rows below its header")


def _named_texts(file: Path, columns: Sequence[str], label: str, encoding: str, answers: Sequence[str]) -> Texts:
    numbers = {name: i for i, name in enumerate(answers)}
    for text, name in _named(file, columns, label, encoding):
        if name not in numbers:
            check_classes([name], answers, file)
        yield text, numbers[name]


def _labels(texts: Callable[[], Texts]) -> list[int]:
    return [label for _, label in texts()]


def drawn(labels: Sequence[int], per_class: int, seed: int) -> set[int]:
    """Places of ``per_class`` random texts of each class.

    >>> sorted(drawn([0, 1, 0, 1, 1], 2, seed=0))
    [0, 1, 2, 4]
    """
    if per_class < 1:
        raise UserError(f"data.per_class={per_class}: expected at least 1")
    classes = torch.tensor(labels)
    chosen: set[int] = set()
    generator = torch.Generator().manual_seed(seed)
    for label in classes.unique().tolist():
        places = (classes == label).nonzero().flatten()
        order = torch.randperm(len(places), generator=generator)[:per_class]
        chosen.update(places[order].tolist())
    return chosen


def _drawn(texts: Callable[[], Texts], chosen: set[int]) -> Texts:
    return ((text, label) for i, (text, label) in enumerate(texts()) if i in chosen)
