"""Corpora as batches: cutting, vocabulary, splits, cache, vectors, memory and disk."""

import gzip
import sys
from functools import partial

import numpy as np
import pytest
import torch

from foveal.data import dataset
from foveal.data import encode as encoding
from foveal.data.cache import cache_folder
from foveal.data.documents import DocumentData, TextOptions, complete
from foveal.data.encode import SPECIAL, Form, encode, numbered, prepare, read_split, read_vocabulary
from foveal.data.glove import read_glove
from foveal.data.texts import text_format
from foveal.errors import DataError, UserError
from foveal.supervise import Tag

CPU = torch.device("cpu")
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


def texts_of(data, batch):
    return [[[data.vocabulary[w] for w in s if w] for s in doc] for doc in batch["words"]]


# Encoding ------------------------------------------------------------------


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
    monkeypatch.setattr(encoding, "TOGETHER", 7)
    texts = [f"text {i} of word{i % 13}. and more" for i in range(100)]
    for processes in (1, 3):
        (tmp_path / str(processes)).mkdir()
        splits = {"train": some(*texts)}
        encode(splits, Form(3, 5, "none"), tmp_path / str(processes), vocabulary=50, min_count=1, processes=processes)
    for name in ("train-words.npy", "train-tags.npy", "train-labels.npy", "vocabulary.txt"):
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "3" / name).read_bytes()


def test_texts_are_read_only_as_far_as_needed(tmp_path, monkeypatch):
    """A stream is never gathered: while the first block is worked on, only a few more are read."""
    monkeypatch.setattr(encoding, "TOGETHER", 2)
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


# Sources -------------------------------------------------------------------


def test_batches(tmp_path):
    data = source(folder_of_texts(tmp_path), sentences=4, words=5)
    loader = data.loader("train", 8, seed=1, device=CPU)
    batches = list(loader)
    assert len(batches) == len(loader) == len(data.tensors("train")["labels"]) // 8
    batch = batches[0]
    assert batch["words"].shape == batch["tags"].shape == (8, 4, 5)
    assert batch["words"].dtype == batch["tags"].dtype == batch["label"].dtype == torch.int64
    for text, label in zip(texts_of(data, batch), batch["label"].tolist(), strict=True):
        assert text[0][1] == data.answers[label]
        assert text[1] == ["they", "never", "sleep"]
    again = list(data.loader("train", 8, seed=1, device=CPU))
    other = list(data.loader("train", 8, seed=1, epoch=1, device=CPU))
    assert torch.equal(batch["index"], again[0]["index"])
    assert not torch.equal(batch["index"], other[0]["index"])
    assert sum(len(b["label"]) for b in data.loader("test", 5, device=CPU)) == 12


def test_the_splits_do_not_overlap_and_lose_nothing():
    texts = [(str(i), 0) for i in range(5000)]
    splits = complete({"train": lambda: iter(texts)}, 0.1, 0.2, seed=3)
    parts = {name: [text for text, _ in read()] for name, read in splits.items()}
    assert sorted((text for part in parts.values() for text in part), key=int) == [text for text, _ in texts]
    assert len(parts["test"]) == pytest.approx(1000, abs=90)
    assert len(parts["val"]) == pytest.approx(500, abs=70)
    other = complete({"train": lambda: iter(texts)}, 0.1, 0.2, seed=4)
    assert parts["test"] != [text for text, _ in other["test"]()]
    with pytest.raises(UserError, match="nothing to test on"):
        complete({"train": lambda: iter(texts)}, 0.1, 0.0, seed=0)


def test_the_test_texts_may_choose_the_epoch(tmp_path):
    data = source(folder_of_texts(tmp_path), val_fraction=0.0)
    assert "the same texts" in data.describe()
    val, test = (torch.cat([b["words"] for b in data.loader(s, 5, device=CPU)]) for s in ("val", "test"))
    assert torch.equal(val, test)
    assert len(data.tensors("train")["labels"]) == 40


def test_processes_share_a_batch(tmp_path):
    data = source(folder_of_texts(tmp_path))
    whole = next(iter(data.loader("train", 8, device=CPU)))
    halves = [next(iter(data.loader("train", 4, rank=rank, world=2, device=CPU))) for rank in range(2)]
    assert torch.equal(whole["words"], torch.cat([half["words"] for half in halves]))


def test_from_disk_as_from_memory(tmp_path):
    root = folder_of_texts(tmp_path)
    held, streamed = source(root, stream=False), source(root, stream=True)
    assert isinstance(streamed._arrays("train")["words"], np.memmap)
    for a, b in zip(held.loader("train", 8, device=CPU), streamed.loader("train", 8, device=CPU), strict=True):
        assert a.keys() == b.keys()
        assert all(torch.equal(a[name], b[name]) for name in a)
    assert not streamed._held


def test_what_is_very_large_is_read_from_disk(tmp_path, monkeypatch):
    from foveal.data import documents

    monkeypatch.setattr(documents, "LARGE", 1000)
    data = source(folder_of_texts(tmp_path))
    list(data.loader("train", 8, device=CPU))
    assert not data._held


def test_the_corpus_is_cached_until_a_file_changes(tmp_path, monkeypatch):
    from foveal.data import documents

    root = folder_of_texts(tmp_path)
    made = []
    real = encoding.encode

    def counted(*given, **options):
        made.append(1)
        return real(*given, **options)

    monkeypatch.setattr(documents, "encode", counted)
    first, second = source(root), source(root)
    assert len(made) == 1
    assert first.vocabulary == second.vocabulary
    source(root, words=7)
    assert len(made) == 2
    (root / "textfolder/train/cats/00.txt").write_text("Something else entirely.")
    assert "entirely" in source(root).vocabulary
    assert len(made) == 3


@pytest.mark.parametrize("harm", ["short", "gone", "numbers"])
def test_a_damaged_cache_is_made_again(tmp_path, harm):
    root = folder_of_texts(tmp_path)
    before = source(root)
    (file,) = cache_folder().glob("textfolder-*/train-words.npy")
    if harm == "short":
        file.write_bytes(file.read_bytes()[:200])
    elif harm == "gone":
        file.unlink()
    else:
        words = np.load(file)
        np.save(file, words + 10_000)
    with pytest.warns(UserWarning, match="is damaged"):
        after = source(root)
    assert torch.equal(after.tensors("train")["words"], before.tensors("train")["words"])


def test_a_cache_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FOVEAL_CACHE", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="cannot use the cache"):
        data = source(folder_of_texts(tmp_path))
    assert len(next(iter(data.loader("train", 4, device=CPU)))["label"]) == 4


def test_tags_are_those_of_the_words(tmp_path):
    pytest.importorskip("textblob", reason="part-of-speech tags: install foveal[text]")
    data = source(folder_of_texts(tmp_path), tagger="pattern", sentences=4, words=5)
    batch = next(iter(data.loader("test", 2, device=CPU)))
    assert texts_of(data, batch)[0][0] == ["the", "cats", "number0", "play"]
    assert batch["tags"][0, 0].tolist()[:2] == [Tag.DET, Tag.NOUN]
    assert batch["tags"][0, 1].tolist()[:3] == [Tag.PRON, Tag.ADV, Tag.VERB]
    assert ((batch["tags"] > 0) == (batch["words"] > 0)).all()


def test_embedded_docstrings(monkeypatch):
    monkeypatch.setattr("foveal.data.docstrings.MOST", 40)
    data = dataset("docstrings").build(TextOptions(**PLAIN), None)
    assert data.embedded
    assert len(data.answers) >= 4
    assert "docstrings of installed libraries" in data.describe()
    assert text_format("docstrings").text("Sum of numpy arrays", TextOptions()) == "Sum of arrays"
    batch = next(iter(data.loader("train", 16, device=CPU)))
    assert (batch["words"] > 0).any((1, 2)).all()


# Vectors ---------------------------------------------------------------------


@pytest.mark.parametrize("packed", [False, True])
def test_word_vectors(tmp_path, packed):
    lines = "cats 1 2 3\nzebra 7 7 7\ndogs -1 0.5 2\n"
    file = tmp_path / ("glove.txt.gz" if packed else "glove.txt")
    file.write_bytes(gzip.compress(lines.encode()) if packed else lines.encode())
    vectors, found = read_glove(file, ["", "<unknown>", "dogs", "the", "cats"])
    assert found == 2
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
    ("lines", "said"),
    [
        ("cats 1 2\ndogs 1 2 3\n", "3 numbers instead of 2"),
        ("cats one two\n", "line 1: not a word and its numbers"),
        ("zebra 1 2\n", "none of the 2 words"),
        ("cats 1 2\ndogs 1 nan\n", "line 2: a number that is not finite"),
        ("cats 1 1e60\n", "line 1: a number that is not finite"),
        (None, "cannot be read"),
    ],
)
def test_word_vectors_that_cannot_be_read(tmp_path, lines, said):
    file = tmp_path / "glove.txt"
    if lines is not None:
        file.write_text(lines)
    with pytest.raises(DataError, match=said):
        read_glove(file, ["", "cats", "dogs"])


# What cannot be used ---------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"sentences": 0}, "data.sentences=0"),
        ({"vocabulary": 0}, "data.vocabulary=0"),
        ({"val_fraction": 1.0}, "data.val_fraction=1.0"),
        ({"encoding": "klingon"}, "data.encoding=klingon: no text encoding"),
        ({"encoding": "base64"}, "data.encoding=base64: no text encoding"),
        ({"encoding": ""}, "data.encoding=: no text encoding"),
        ({"strip": "headers"}, "data.strip has no meaning for textfolder"),
        ({"per_class": 5}, "data.per_class has no meaning"),
        ({"tagger": "pattern", "language": "fr"}, "knows en and not 'fr'"),
        ({"folder": "elsewhere"}, "elsewhere is missing"),
    ],
)
def test_options_that_cannot_be_used(tmp_path, options, said):
    root = folder_of_texts(tmp_path)
    with pytest.raises(UserError, match=said):
        source(root, **options)


def test_files_that_are_missing(tmp_path):
    for name in ("20news", "yahoo-answers", "ag-news", "imdb", "textfolder", "textcsv"):
        with pytest.raises(DataError, match="set FOVEAL_DATA"):
            dataset(name).build(TextOptions(), None)
        with pytest.raises(DataError, match="is missing"):
            dataset(name).build(TextOptions(), tmp_path)
        assert dataset(name).missing(tmp_path)


def test_too_few_texts(tmp_path):
    root = folder_of_texts(tmp_path, train=1, test=1)
    with pytest.raises(DataError, match="no text is left for val"):
        source(root)
    data = source(root, val_fraction=0.0)
    with pytest.raises(UserError, match="do not fill one batch"):
        data.loader("train", 8, device=CPU)
    with pytest.raises(UserError, match="unknown split 'dev'"):
        data.loader("dev", 8, device=CPU)


@pytest.mark.parametrize("text", ["", "... !? --", "🙂 🙃"])
def test_texts_without_a_word(tmp_path, text):
    for file in folder_of_texts(tmp_path).rglob("train/*/*.txt"):
        file.write_text(text, encoding="utf-8")
    for _ in range(2):  # also from the cache
        with pytest.raises(DataError, match="training texts of textfolder hold not a single word"):
            source(tmp_path)


def test_no_word_is_frequent_enough(tmp_path):
    root = folder_of_texts(tmp_path)
    with pytest.raises(DataError, match=r"no word occurs 9000 times .* use a smaller data\.min_count"):
        source(root, min_count=9000)


def test_one_table_for_all_splits(tmp_path):
    rows = "".join(f"{i},word{i % 3} text,{'yes' if i % 2 else 'no'}\n" for i in range(60))
    (tmp_path / "mine.csv").write_text("id,body,answer\n" + rows)
    entry = dataset("textcsv")
    options = TextOptions(**PLAIN, folder="mine.csv", text="body", label="answer", test_fraction=0.2)
    data = entry.build(options, tmp_path)
    assert data.answers == ["no", "yes"]
    assert sum(len(data.tensors(split)["labels"]) for split in ("train", "val", "test")) == 60
    with pytest.raises(DataError, match="no column 'text'; its columns are 'id', 'body', 'answer'"):
        entry.build(TextOptions(**PLAIN, folder="mine.csv"), tmp_path)


def test_an_empty_text_is_all_padding(tmp_path):
    root = folder_of_texts(tmp_path)
    (root / "textfolder/test/cats/00.txt").write_text("")
    data = source(root)
    assert (data.tensors("test")["words"].sum((1, 2)) == 0).sum() == 1


def test_sources_are_built_by_name():
    assert isinstance(dataset("docstrings").build, partial)
    assert dataset("docstrings").build.func is DocumentData
