"""IMDB film reviews: ``train/{neg,pos}/*.txt`` and ``test/{neg,pos}/*.txt``, as aclImdb_v1.tar.gz unpacks.

Maas et al.: "Learning word vectors for sentiment analysis" (ACL 2011).
"""

from __future__ import annotations

from pathlib import Path

from foveal.data.formats.text_folders import read_folders
from foveal.data.place import Place
from foveal.data.problems import collected
from foveal.data.text.documents import TextFormat, register_texts
from foveal.data.text.reading import Corpus, without_breaks
from foveal.errors import DataError


def read_imdb(folder: Path, encoding: str = "utf-8") -> Corpus:
    """Training and test reviews, negative or positive."""
    for split in ("train", "test"):
        with collected():
            if not (folder / split / "pos").is_dir() or not (folder / split / "neg").is_dir():
                raise DataError(f"{folder / split} lacks pos or neg; expected what aclImdb_v1.tar.gz unpacks")
    corpus = read_folders({s: folder / s for s in ("train", "test")}, encoding, (".txt",), ("neg", "pos"))
    return Corpus(["negative", "positive"], corpus.splits, corpus.fingerprint)


register_texts(
    TextFormat(
        "imdb",
        "IMDB",
        lambda folder, _, encoding: read_imdb(folder, encoding),
        Place(
            folders=("aclImdb", "imdb"),
            needs=("train/pos", "train/neg", "test/pos", "test/neg"),
            how="aclImdb_v1.tar.gz from https://ai.stanford.edu/~amaas/data/sentiment/, unpacked",
        ),
        clean=lambda text, _: without_breaks(text),
    ),
    "50,000 film reviews, positive or negative",
)
