"""The text corpora that recipes can name: their readers, where their files are and how to get them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from foveal.data.corpora import (
    Corpus,
    read_imdb,
    read_newsgroups,
    read_textfolder,
    without_breaks,
    without_parts,
)
from foveal.data.docstrings import clean, read_docstrings
from foveal.data.documents import SPLITS, DocumentData, TextFormat, TextOptions
from foveal.data.registry import Entry, register_data
from foveal.data.text_csv import read_csv, read_numbered_csv
from foveal.errors import DataError

_FORMATS: dict[str, TextFormat] = {}


def text_format(name: str) -> TextFormat:
    """How texts of the dataset called ``name`` are read; those of a dataset of your own like any files."""
    return _FORMATS.get(name, _FORMATS["textfolder"])


def _register(form: TextFormat, summary: str, expected: tuple[str, ...] = ()) -> None:
    _FORMATS[form.name] = form
    register_data(Entry(form.name, summary, TextOptions, partial(DocumentData, form), expected, form.how))


_register(
    TextFormat(
        "docstrings",
        "docstrings of installed libraries",
        lambda *_: read_docstrings(),
        clean=lambda text, _: clean(text),
    ),
    "docstrings of installed libraries, classified by library; embedded",
)
_register(
    TextFormat(
        "20news",
        "20 Newsgroups",
        lambda place, _, encoding: read_newsgroups(place, encoding),
        ("20news-bydate.tar.gz", "20news-bydate", "20news"),
        "20news-bydate.tar.gz from http://qwone.com/~jason/20Newsgroups/, as it is or unpacked in 20news-bydate/",
        ("strip",),
        encoding="latin-1",
        clean=lambda text, o: without_parts(text, o.strip.split()),
    ),
    "18,846 messages of 20 newsgroups",
    ("20news-bydate*",),
)
_register(
    TextFormat(
        "yahoo-answers",
        "Yahoo Answers",
        lambda place, o, encoding: read_numbered_csv(place, 4, encoding, o.per_class, o.seed),
        ("yahoo_answers_csv",),
        "yahoo_answers_csv.tar.gz of Zhang, Zhao, LeCun (2015), unpacked",
        ("per_class",),
        clean=lambda text, _: without_breaks(text),
    ),
    "1.46 million questions and answers of 10 topics",
    tuple(f"yahoo_answers_csv/{name}" for name in ("train.csv", "test.csv", "classes.txt")),
)
_register(
    TextFormat(
        "ag-news",
        "AG News",
        lambda place, o, encoding: read_numbered_csv(place, 3, encoding, o.per_class, o.seed),
        ("ag_news_csv",),
        "ag_news_csv.tar.gz of Zhang, Zhao, LeCun (2015), unpacked",
        ("per_class",),
        clean=lambda text, _: without_breaks(text),
    ),
    "127,600 news items of 4 topics",
    tuple(f"ag_news_csv/{name}" for name in ("train.csv", "test.csv", "classes.txt")),
)
_register(
    TextFormat(
        "imdb",
        "IMDB",
        lambda place, _, encoding: read_imdb(place, encoding),
        ("aclImdb", "imdb"),
        "aclImdb_v1.tar.gz from https://ai.stanford.edu/~amaas/data/sentiment/, unpacked",
        clean=lambda text, _: without_breaks(text),
    ),
    "50,000 film reviews, positive or negative",
    ("aclImdb/train/pos", "aclImdb/train/neg", "aclImdb/test/pos", "aclImdb/test/neg"),
)
_register(
    TextFormat(
        "textfolder",
        "text folder",
        lambda place, _, encoding: read_textfolder(place, encoding),
        ("textfolder",),
        "put texts there as train/CLASS/*.txt, val/CLASS/*.txt and test/CLASS/*.txt, or as CLASS/*.txt",
    ),
    "any text files sorted into one folder for each class",
    ("textfolder",),
)


def _read_csv(place: Path, o: TextOptions, encoding: str) -> Corpus:
    files = {split: place / f"{split}.csv" for split in SPLITS if (place / f"{split}.csv").is_file()}
    if place.is_file():
        files = {"train": place}
    if "train" not in files:
        raise DataError(
            f"{place / 'train.csv'} is missing; expected train.csv and, if there are such, val.csv, test.csv"
        )
    return read_csv(files, o.text, o.label, encoding, o.per_class, o.seed)


_register(
    TextFormat(
        "textcsv",
        "table of texts",
        _read_csv,
        ("textcsv",),
        "put train.csv, and val.csv and test.csv if there are such, there, with a header that names the columns; or "
        "give data.folder=FILE.csv",
        ("per_class", "text", "label"),
    ),
    "any CSV files with a column of texts and one of labels",
    ("textcsv",),
)
