"""Rows of CSV files, and random rows of each class."""

from __future__ import annotations

import codecs
import csv
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import torch

from foveal.data.problems import note
from foveal.data.text.reading import Texts
from foveal.errors import DataError, UserError


def read_csv_rows(file: Path, encoding: str) -> Iterator[list[str]]:
    """Rows as lists of strings; bytes that are not valid become the replacement character."""
    before = csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    if codecs.lookup(encoding).name == "utf-8":
        encoding = "utf-8-sig"  # a byte order mark is no part of the first field
    try:
        with open(file, newline="", encoding=encoding, errors="replace") as lines:
            for number, row in enumerate(csv.reader(lines), 1):
                if any("\ufffd" in value for value in row):
                    note(f"{file}, row {number}: not valid {encoding}; set data.encoding to that of the file")
                yield row
    except FileNotFoundError as error:
        raise DataError(f"{file} is missing") from error
    except (OSError, csv.Error) as error:
        raise DataError(f"{file} cannot be read as comma-separated values: {error}") from error
    finally:
        csv.field_size_limit(before)


def some_texts(read: Callable[[], Texts], per_class: int, seed: int) -> Callable[[], Texts]:
    """Reads ``per_class`` random texts of each class, in their order."""
    return partial(_chosen, read, drawn([label for _, label in read()], per_class, seed))


def drawn(labels: Sequence[int], per_class: int, seed: int) -> set[int]:
    """Numbers of ``per_class`` random texts of each class.

    >>> sorted(drawn([0, 1, 0, 1, 1], 2, seed=0))
    [0, 1, 2, 4]
    """
    if per_class < 1:
        raise UserError(f"data.per_class={per_class}: expected at least 1")
    classes = torch.tensor(labels)
    chosen: set[int] = set()
    generator = torch.Generator().manual_seed(seed)
    for label in classes.unique().tolist():
        numbers = (classes == label).nonzero().flatten()
        order = torch.randperm(len(numbers), generator=generator)[:per_class]
        chosen.update(numbers[order].tolist())
    return chosen


def _chosen(read: Callable[[], Texts], chosen: set[int]) -> Texts:
    return ((text, label) for i, (text, label) in enumerate(read()) if i in chosen)
