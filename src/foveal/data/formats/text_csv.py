"""CSV files with a header that names a column of texts and one of labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from foveal.data.place import Place
from foveal.data.problems import collected
from foveal.data.splits import SPLITS
from foveal.data.text.csv_files import read_csv_rows, some_texts
from foveal.data.text.documents import TextFormat, TextOptions, register_texts
from foveal.data.text.reading import Corpus, Texts, check_classes, stamp
from foveal.errors import DataError


def read_csv(
    files: dict[str, Path],
    text: str,
    label: str,
    encoding: str = "utf-8",
    per_class: int | None = None,
    seed: int = 0,
) -> Corpus:
    """Texts and labels of any files with a header.

    Args:
        files: of each split; ``train`` is needed.
        text: name of the column of texts; several are joined if given as ``title+body``.
        label: name of the column of labels.
        encoding: of the files.
        per_class: number of training texts of each class, drawn at random; all if None.
        seed: of that draw.
    """
    columns = [name.strip() for name in text.split("+")]
    names = sorted({name for _, name in _rows(files["train"], columns, label, encoding)})
    if len(names) < 2:
        raise DataError(f"{files['train']}: the column {label!r} holds {len(names)} class(es); at least two are needed")
    splits: dict[str, Callable[[], Texts]] = {
        split: partial(_texts, file, columns, label, encoding, names) for split, file in files.items()
    }
    if per_class is not None:
        splits["train"] = some_texts(splits["train"], per_class, seed)
    return Corpus(names, splits, stamp(files.values()))


def _rows(file: Path, columns: Sequence[str], label: str, encoding: str) -> Iterator[tuple[str, str]]:
    """The text and the label of every row."""
    rows = read_csv_rows(file, encoding)
    header = [name.strip() for name in next(rows, [])]
    for name in (*columns, label):
        if name not in header:
            raise DataError(f"{file} has no column {name!r}; its columns are {', '.join(map(repr, header)) or 'none'}")
    empty = True
    text_columns, label_column = [header.index(name) for name in columns], header.index(label)
    for number, row in enumerate(rows, 2):
        if not row:
            continue
        empty, valid = False, False
        with collected():
            if len(row) != len(header):
                raise DataError(f"{file}, row {number}: {len(row)} columns instead of {len(header)}")
            if not row[label_column].strip():
                raise DataError(f"{file}, row {number}: the column {label!r} is empty; give it a class or leave it out")
            valid = True
        if valid:
            yield "\n\n".join(row[column] for column in text_columns), row[label_column].strip()
    if empty:
        raise DataError(f"{file} holds no rows below its header")


def _texts(file: Path, columns: Sequence[str], label: str, encoding: str, answers: Sequence[str]) -> Texts:
    numbers = {name: i for i, name in enumerate(answers)}
    for text, name in _rows(file, columns, label, encoding):
        if name in numbers:
            yield text, numbers[name]
        else:
            check_classes([name], answers, file)


def _read(path: Path, options: TextOptions, encoding: str) -> Corpus:
    files = {split: path / f"{split}.csv" for split in SPLITS if (path / f"{split}.csv").is_file()}
    if path.is_file():
        files = {"train": path}
    if "train" not in files:
        raise DataError(
            f"{path / 'train.csv'} is missing; expected train.csv and, if there are such, val.csv, test.csv"
        )
    return read_csv(files, options.text, options.label, encoding, options.per_class, options.seed)


register_texts(
    TextFormat(
        "textcsv",
        "table of texts",
        _read,
        Place(
            folders=("textcsv",),
            needs=("train.csv",),
            how="put train.csv, and val.csv and test.csv if there are such, there, with a header that names the "
            "columns; or give data.folder=FILE.csv",
            files=True,
        ),
        ("per_class", "text", "label"),
        own_files=True,
    ),
    "any CSV files with a column of texts and one of labels",
)
