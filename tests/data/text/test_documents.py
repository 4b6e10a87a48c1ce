"""Corpora as batches: splits, cache, memory and disk."""

from functools import partial

import numpy as np
import pytest
import torch
from small_files import build_texts, write_textfolder

from foveal.data import dataset
from foveal.data.cache import cache_folder
from foveal.data.text import encode as encoding
from foveal.data.text.documents import DocumentData, TextOptions, text_format
from foveal.errors import DataError, UserError
from foveal.supervise import Tag

CPU = torch.device("cpu")

pytestmark = pytest.mark.usefixtures("cache")


def texts_of(data, batch):
    return [[[data.vocabulary[w] for w in s if w] for s in doc] for doc in batch["words"]]


def test_batches(tmp_path):
    data = build_texts(write_textfolder(tmp_path), sentences=4, words=5)
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


def test_the_test_texts_may_choose_the_epoch(tmp_path):
    data = build_texts(write_textfolder(tmp_path), val_fraction=0.0)
    assert "the same texts" in data.describe()
    val, test = (torch.cat([b["words"] for b in data.loader(s, 5, device=CPU)]) for s in ("val", "test"))
    assert torch.equal(val, test)
    assert len(data.tensors("train")["labels"]) == 40


def test_processes_share_a_batch(tmp_path):
    data = build_texts(write_textfolder(tmp_path))
    whole = next(iter(data.loader("train", 8, device=CPU)))
    halves = [next(iter(data.loader("train", 4, rank=rank, world=2, device=CPU))) for rank in range(2)]
    assert torch.equal(whole["words"], torch.cat([half["words"] for half in halves]))


def test_from_disk_as_from_memory(tmp_path):
    root = write_textfolder(tmp_path)
    held, streamed = build_texts(root, stream=False), build_texts(root, stream=True)
    assert isinstance(streamed._arrays("train")["words"], np.memmap)
    for a, b in zip(held.loader("train", 8, device=CPU), streamed.loader("train", 8, device=CPU), strict=True):
        assert a.keys() == b.keys()
        assert all(torch.equal(a[name], b[name]) for name in a)
    assert not streamed._on_device


def test_what_is_very_large_is_read_from_disk(tmp_path, monkeypatch):
    from foveal.data.text import documents

    monkeypatch.setattr(documents, "LARGE", 1000)
    data = build_texts(write_textfolder(tmp_path))
    list(data.loader("train", 8, device=CPU))
    assert not data._on_device


def test_the_corpus_is_cached_until_a_file_changes(tmp_path, monkeypatch):
    from foveal.data.text import documents

    root = write_textfolder(tmp_path)
    encoded = []
    real = encoding.encode

    def counted(*arguments, **options):
        encoded.append(1)
        return real(*arguments, **options)

    monkeypatch.setattr(documents, "encode", counted)
    first, second = build_texts(root), build_texts(root)
    assert len(encoded) == 1
    assert first.vocabulary == second.vocabulary
    build_texts(root, words=7)
    assert len(encoded) == 2
    (root / "textfolder/train/cats/00.txt").write_text("Something else entirely.")
    assert "entirely" in build_texts(root).vocabulary
    assert len(encoded) == 3


@pytest.mark.parametrize("harm", ["short", "gone", "numbers"])
def test_a_damaged_cache_is_made_again(tmp_path, harm):
    root = write_textfolder(tmp_path)
    before = build_texts(root)
    (file,) = cache_folder().glob("textfolder-*/train-words.npy")
    if harm == "short":
        file.write_bytes(file.read_bytes()[:200])
    elif harm == "gone":
        file.unlink()
    else:
        words = np.load(file)
        np.save(file, words + 10_000)
    with pytest.warns(UserWarning, match="is damaged"):
        after = build_texts(root)
    assert torch.equal(after.tensors("train")["words"], before.tensors("train")["words"])


def test_a_cache_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FOVEAL_CACHE", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="cannot use the cache"):
        data = build_texts(write_textfolder(tmp_path))
    assert len(next(iter(data.loader("train", 4, device=CPU)))["label"]) == 4


def test_tags_are_those_of_the_words(tmp_path):
    pytest.importorskip("textblob", reason="part-of-speech tags: install foveal[text]")
    data = build_texts(write_textfolder(tmp_path), tagger="pattern", sentences=4, words=5)
    batch = next(iter(data.loader("test", 2, device=CPU)))
    assert texts_of(data, batch)[0][0] == ["the", "cats", "number0", "play"]
    assert batch["tags"][0, 0].tolist()[:2] == [Tag.DET, Tag.NOUN]
    assert batch["tags"][0, 1].tolist()[:3] == [Tag.PRON, Tag.ADV, Tag.VERB]
    assert ((batch["tags"] > 0) == (batch["words"] > 0)).all()


def test_embedded_docstrings(monkeypatch):
    monkeypatch.setattr("foveal.data.embedded.docstrings.MOST", 40)
    data = build_texts(None, "docstrings")
    assert data.embedded
    assert len(data.answers) >= 4
    assert "docstrings of installed libraries" in data.describe()
    assert text_format("docstrings").text("Sum of numpy arrays", TextOptions()) == "Sum of arrays"
    batch = next(iter(data.loader("train", 16, device=CPU)))
    assert (batch["words"] > 0).any((1, 2)).all()


@pytest.mark.parametrize(
    ("options", "message"),
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
        ({"folder": "elsewhere"}, "no folder .*elsewhere"),
    ],
)
def test_options_that_cannot_be_used(tmp_path, options, message):
    root = write_textfolder(tmp_path)
    with pytest.raises(UserError, match=message):
        build_texts(root, **options)


def test_files_that_are_missing(tmp_path):
    for name in ("20news", "yahoo-answers", "ag-news", "imdb", "textfolder", "textcsv"):
        with pytest.raises(DataError, match="set FOVEAL_DATA"):
            dataset(name).build(TextOptions(), None)
        with pytest.raises(DataError, match=f"{name}: no folder"):
            dataset(name).build(TextOptions(), tmp_path)
        assert dataset(name).status(tmp_path).missing


def test_too_few_texts(tmp_path):
    root = write_textfolder(tmp_path, train=1, test=1)
    with pytest.raises(DataError, match="no text is left for val"):
        build_texts(root)
    data = build_texts(root, val_fraction=0.0)
    with pytest.raises(UserError, match="do not fill one batch"):
        data.loader("train", 8, device=CPU)
    with pytest.raises(UserError, match="unknown split 'dev'"):
        data.loader("dev", 8, device=CPU)


@pytest.mark.parametrize("text", ["", "... !? --", "🙂 🙃"])
def test_texts_without_a_word(tmp_path, text):
    for file in write_textfolder(tmp_path).rglob("train/*/*.txt"):
        file.write_text(text, encoding="utf-8")
    for _ in range(2):  # also from the cache
        with pytest.raises(DataError, match="training texts of textfolder hold not a single word"):
            build_texts(tmp_path)


def test_no_word_is_frequent_enough(tmp_path):
    root = write_textfolder(tmp_path)
    with pytest.raises(DataError, match=r"no word occurs 9000 times .* use a smaller data\.min_count"):
        build_texts(root, min_count=9000)


def test_one_table_for_all_splits(tmp_path):
    rows = "".join(f"{i},word{i % 3} text,{'yes' if i % 2 else 'no'}\n" for i in range(60))
    (tmp_path / "mine.csv").write_text("id,body,answer\n" + rows)
    data = build_texts(tmp_path, "textcsv", folder="mine.csv", text="body", label="answer", test_fraction=0.2)
    assert data.answers == ["no", "yes"]
    assert sum(len(data.tensors(split)["labels"]) for split in ("train", "val", "test")) == 60
    with pytest.raises(DataError, match="no column 'text'; its columns are 'id', 'body', 'answer'"):
        build_texts(tmp_path, "textcsv", folder="mine.csv")


def test_an_empty_text_is_all_padding(tmp_path):
    root = write_textfolder(tmp_path)
    (root / "textfolder/test/cats/00.txt").write_text("")
    data = build_texts(root)
    assert (data.tensors("test")["words"].sum((1, 2)) == 0).sum() == 1


def test_sources_are_built_by_name():
    assert isinstance(dataset("docstrings").build, partial)
    assert dataset("docstrings").build.func is DocumentData
