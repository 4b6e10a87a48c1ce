"""Texts as word numbers and tags."""

import sys

import pytest

from foveal.data.text import encode as encoding
from foveal.data.text.encode import SPECIAL, Form, encode, numbered, prepare, read_split, read_vocabulary
from foveal.supervise import Tag

pytestmark = pytest.mark.usefixtures("cache")


def some(*texts):
    return lambda: iter([(text, i % 2) for i, text in enumerate(texts)])


def test_encoding_by_hand(tmp_path):
    splits = {"train": some("b a a! c", "a b"), "test": some("a zz! A B", "")}
    encode(splits, Form(3, 2, "none"), tmp_path, vocabulary=10, min_count=2)
    # The third word of the first sentence is cut off and does not count, c is too rare, zz is not of training.
    assert read_vocabulary(tmp_path) == [*SPECIAL, "b", "a"]
    train, test = read_split(tmp_path, "train"), read_split(tmp_path, "test")
    assert train["words"].tolist() == [[[2, 3], [1, 0], [0, 0]], [[3, 2], [0, 0], [0, 0]]]
    assert test["words"].tolist() == [[[3, 1], [3, 2], [0, 0]], [[0, 0], [0, 0], [0, 0]]]
    assert train["tags"].tolist()[0] == [[Tag.X, Tag.X], [Tag.X, 0], [0, 0]]
    assert test["labels"].tolist() == [0, 1]
    assert not list(tmp_path.glob("*.raw"))


def test_the_vocabulary_is_the_most_frequent_words(tmp_path):
    encode({"train": some("a b b c c c")}, Form(1, 9, "none"), tmp_path, vocabulary=2, min_count=1)
    assert read_vocabulary(tmp_path) == [*SPECIAL, "c", "b"]
    assert read_split(tmp_path, "train")["words"][0, 0, :6].tolist() == [1, 3, 3, 2, 2, 2]


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="processes are forked on Linux only")
def test_several_processes_give_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(encoding, "BLOCK", 7)
    texts = [f"text {i} of word{i % 13}. and more" for i in range(100)]
    for processes in (1, 3):
        (tmp_path / str(processes)).mkdir()
        splits = {"train": some(*texts)}
        encode(splits, Form(3, 5, "none"), tmp_path / str(processes), vocabulary=50, min_count=1, processes=processes)
    for name in ("train-words.npy", "train-tags.npy", "train-labels.npy", "vocabulary.txt"):
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "3" / name).read_bytes()


def test_texts_are_read_only_as_far_as_needed(tmp_path, monkeypatch):
    """A stream is never gathered: while the first block is worked on, only a few more are read."""
    monkeypatch.setattr(encoding, "BLOCK", 2)
    monkeypatch.setattr(encoding, "FEW", 4)
    read = []

    def endless():
        for i in range(1000):
            read.append(i)
            yield f"text {i}", 0

    blocks = encoding.prepared(endless(), Form(1, 3, "none"), processes=1)
    next(blocks)
    assert len(read) <= 6
    blocks.close()


def test_new_texts_are_numbered_like_old_ones(tmp_path):
    form = Form(2, 4, "none")
    encode({"train": some("a b c! d e", "x")}, form, tmp_path, vocabulary=99, min_count=1)
    words, tags = numbered([prepare("a B new! E", form)], read_vocabulary(tmp_path), form)
    vocabulary = read_vocabulary(tmp_path)
    assert [[vocabulary[w] for w in s] for s in words[0]] == [["a", "b", "<unknown>", ""], ["e", "", "", ""]]
    assert (tags > 0).tolist() == (words > 0).tolist()


def test_strange_documents():
    form = Form(3, 4, "none")
    assert prepare("", form) == []
    assert prepare(" \n\n ... !!! \ufffd\x00 ", form) == []
    assert prepare("Hm", form) == [(["hm"], bytes([Tag.X]))]
    assert len(prepare("Yes. " * 100, form)) == 3
    assert [len(words) for words, _ in prepare("w " * 1000, form)] == [4]
