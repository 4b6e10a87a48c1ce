"""Word vectors."""

import gzip

import pytest
import torch

from foveal.data import dataset
from foveal.data.formats.glove import read_glove
from foveal.data.text.documents import TextOptions
from foveal.errors import DataError

PLAIN = {"tagger": "none", "min_count": 1}


@pytest.fixture(autouse=True)
def _fresh_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FOVEAL_CACHE", str(tmp_path / "cache"))


def folder_of_texts(folder, train=20, test=6):
    for split, count in (("train", train), ("test", test)):
        for kind in ("cats", "dogs"):
            place = folder / "textfolder" / split / kind
            place.mkdir(parents=True)
            for i in range(count):
                (place / f"{i:02}.txt").write_text(f"The {kind} number{i} play. They never sleep! {kind} again")
    return folder


def source(root, **options):
    return dataset("textfolder").build(TextOptions(**PLAIN | options), root)


@pytest.mark.parametrize("packed", [False, True])
def test_word_vectors(tmp_path, packed):
    lines = "cats 1 2 3\nzebra 7 7 7\ndogs -1 0.5 2\n"
    file = tmp_path / ("glove.txt.gz" if packed else "glove.txt")
    file.write_bytes(gzip.compress(lines.encode()) if packed else lines.encode())
    vectors, known = read_glove(file, ["", "<unknown>", "dogs", "the", "cats"])
    assert known == 2
    assert vectors.shape == (5, 3)
    assert vectors[4].tolist() == [1, 2, 3]
    assert vectors[2].tolist() == [-1, 0.5, 2]
    assert vectors[0].abs().sum() == 0
    assert vectors[3].abs().sum() > 0
    assert torch.equal(vectors, read_glove(file, ["", "<unknown>", "dogs", "the", "cats"])[0])
    data = source(folder_of_texts(tmp_path), embeddings=file.name)
    assert data.embeddings().shape == (len(data.vocabulary), 3)
    assert "vectors from glove.txt" in data.describe()
    assert source(tmp_path).embeddings() is None


def test_a_single_number_has_no_spread(tmp_path):
    (tmp_path / "glove.txt").write_text("cats 3\n")
    vectors, _ = read_glove(tmp_path / "glove.txt", ["", "<unknown>", "cats", *"abcdefgh"])
    assert vectors.isfinite().all()
    assert vectors[2].item() == 3
    assert len(vectors[3:].unique()) == 8


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("cats 1 2\ndogs 1 2 3\n", "3 numbers instead of 2"),
        ("cats one two\n", "line 1: not a word and its numbers"),
        ("zebra 1 2\n", "none of the 2 words"),
        ("cats 1 2\ndogs 1 nan\n", "line 2: a number that is not finite"),
        ("cats 1 1e60\n", "line 1: a number that is not finite"),
        (None, "cannot be read"),
    ],
)
def test_word_vectors_that_cannot_be_read(tmp_path, lines, message):
    file = tmp_path / "glove.txt"
    if lines is not None:
        file.write_text(lines)
    with pytest.raises(DataError, match=message):
        read_glove(file, ["", "cats", "dogs"])
