"""Yahoo Answers, AG News and others of their kind: a class number from 1 on, then columns of text, no header.

Zhang, Zhao, LeCun: "Character-level convolutional networks for text classification" (NeurIPS 2015).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from foveal.data.place import Place
from foveal.data.problems import collected
from foveal.data.text.csv_files import read_csv_rows, some_texts
from foveal.data.text.documents import TextFormat, TextOptions, register_texts
from foveal.data.text.reading import Corpus, Texts, stamp, without_breaks
from foveal.errors import DataError


def read_numbered_csv(
    folder: Path, columns: int, encoding: str = "utf-8", per_class: int | None = None, seed: int = 0
) -> Corpus:
    """Training and test texts.

    Args:
        folder: holds ``train.csv``, ``test.csv`` and ``classes.txt``.
        columns: how many there are, with that of the class.
        encoding: of the files.
        per_class: number of training texts of each class, drawn at random; all if None.
        seed: of that draw.
    """
    names = folder / "classes.txt"
    try:
        answers = [line.strip() for line in names.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{names} cannot be read ({error}); it names one class a line") from error
    splits: dict[str, Callable[[], Texts]] = {}
    for split in ("train", "test"):
        with collected():
            if not (folder / f"{split}.csv").is_file():
                raise DataError(f"{folder / f'{split}.csv'} is missing; it comes with the official archive")
            splits[split] = partial(_texts, folder / f"{split}.csv", columns, len(answers), encoding)
    files = [folder / f"{split}.csv" for split in splits]
    if per_class is not None:
        splits["train"] = some_texts(splits["train"], per_class, seed)
    return Corpus(answers, splits, stamp(files))


def _texts(file: Path, columns: int, classes: int, encoding: str) -> Texts:
    empty = True
    for number, row in enumerate(read_csv_rows(file, encoding), 1):
        if not row:
            continue
        empty, valid = False, False
        with collected():
            if len(row) != columns:
                raise DataError(f"{file}, row {number}: {len(row)} columns instead of {columns}")
            if not row[0].isdecimal() or not 1 <= int(row[0]) <= classes:
                raise DataError(f"{file}, row {number}: class {row[0]!r}, expected a number from 1 to {classes}")
            valid = True
        if valid:
            yield "\n\n".join(part for part in row[1:] if part), int(row[0]) - 1
    if empty:
        raise DataError(f"{file} holds no rows")


def _register(name: str, title: str, archive: str, columns: int, summary: str) -> None:
    def read(folder: Path, options: TextOptions, encoding: str) -> Corpus:
        return read_numbered_csv(folder, columns, encoding, options.per_class, options.seed)

    place = Place(
        folders=(archive,),
        needs=("train.csv", "test.csv", "classes.txt"),
        how=f"{archive}.tar.gz of Zhang, Zhao, LeCun (2015), unpacked",
    )
    clean = lambda text, _: without_breaks(text)  # noqa: E731
    register_texts(TextFormat(name, title, read, place, ("per_class",), clean=clean), summary)


_register("yahoo-answers", "Yahoo Answers", "yahoo_answers_csv", 4, "1.46 million questions and answers of 10 topics")
_register("ag-news", "AG News", "ag_news_csv", 3, "127,600 news items of 4 topics")
