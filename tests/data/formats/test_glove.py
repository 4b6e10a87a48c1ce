"""Word vectors."""

import gzip

import pytest
import torch
from small_files import build_texts, write_textfolder

from foveal.data.formats.glove import read_glove
from foveal.errors import DataError

pytestmark = pytest.mark.usefixtures("cache")


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
    source = build_texts(write_textfolder(tmp_path), embeddings=file.name)
    assert source.embeddings().shape == (len(source.vocabulary), 3)
    assert "vectors from glove.txt" in source.describe()
    assert build_texts(tmp_path).embeddings() is None


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
