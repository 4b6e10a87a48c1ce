"""Parallel text as batches: subwords, splits, lengths, cache."""

import itertools
import random

import numpy as np
import pytest
import torch
from small_files import write_all

from foveal.data.embedded.number_words import english, german, numbers
from foveal.data.registry import dataset
from foveal.data.text.parallel import ParallelOptions, complete_pairs
from foveal.data.text.subwords import BEGIN, END, PAD, UNKNOWN, Subwords
from foveal.data.text.token_batches import Sentences, TokenBatches
from foveal.errors import DataError, UserError

CPU = torch.device("cpu")


def some(lengths, first=4):
    tokens = [np.full(n, first + i, np.int32) for i, n in enumerate(lengths)]
    return Sentences(np.concatenate(tokens), np.cumsum(lengths))


def batches(source, target, tokens, **options):
    return TokenBatches(some(source), some(target, 100), tokens, device=CPU, held={}, **options)


def test_batches_have_ends_and_padding():
    batch = next(iter(batches([2, 3], [3, 1], 100)))
    assert batch["index"].tolist() == [1, 0]  # by the length of the target
    assert batch["source"].tolist() == [[5, 5, 5, END], [4, 4, END, PAD]]
    assert batch["target"].tolist() == [[BEGIN, 101, END, PAD, PAD], [BEGIN, 100, 100, 100, END]]


def test_batches_are_full_and_complete():
    draw = np.random.default_rng(0)
    source, target = draw.integers(1, 20, 500), draw.integers(1, 20, 500)
    for shuffle in (None, 1, 2):
        loader = batches(source, target, 200, shuffle=shuffle)
        seen = [batch["index"] for batch in loader]
        assert torch.cat(seen).sort().values.tolist() == list(range(500))
        sizes = [max(b["source"].numel(), b["target"].numel() - len(b["target"])) for b in loader]
        assert max(sizes) <= 200
        assert np.mean(sizes) > 150
        assert len(loader) == len(batches(source, target, 200))
    first, second = ([b["index"].tolist() for b in batches(source, target, 200, shuffle=s)] for s in (1, 2))
    assert first != second


def test_processes_share_the_batches():
    lengths = [3] * 11
    whole = [b["index"].tolist() for b in batches(lengths, lengths, 8, shuffle=0)]
    parts = [[b["index"].tolist() for b in batches(lengths, lengths, 8, shuffle=0, rank=r, world=2)] for r in (0, 1)]
    assert len(parts[0]) == len(parts[1]) == 3
    assert [batch for both in zip(*parts, strict=True) for batch in both] == whole
    tests = [b["index"].tolist() for r in (0, 1) for b in batches(lengths, lengths, 8, rank=r, world=2)]
    assert sorted(itertools.chain(*tests)) == list(range(11))


@pytest.mark.parametrize("shuffle", [None, 0])
def test_no_process_is_left_without_a_batch(shuffle):
    parts = [list(batches([3] * 9, [3] * 9, 100, shuffle=shuffle, rank=rank, world=4)) for rank in range(4)]
    assert [len(part) for part in parts] == [1] * 4
    assert sorted(n for (batch,) in parts for n in batch["index"].tolist()) == list(range(9))
    with pytest.raises(DataError, match="2 pairs of sentences are too few for 4 processes"):
        batches([3, 3], [3, 3], 100, shuffle=shuffle, world=4)


def test_batches_for_many_processes_are_not_larger():
    """Short sentences stay apart from a long one."""
    lengths = [2] * 50 + [90]
    sizes = [b["source"].numel() for r in range(4) for b in batches(lengths, lengths, 200, rank=r, world=4)]
    assert len(sizes) == 4
    assert max(sizes) <= 200


def test_long_sentences_are_left_out_of_training_only():
    def seen(**options):
        return sorted(n for b in batches([2, 9, 3], [2, 2, 3], 100, longest=5, **options) for n in b["index"].tolist())

    assert seen(shuffle=0) == [0, 2]
    assert seen() == [0, 1, 2]
    with pytest.raises(DataError, match=r"data\.longest"):
        batches([9], [9], 100, longest=5, shuffle=0)
    assert len(next(iter(batches([9, 9], [9, 9], 4)))["index"]) == 1  # longer than a batch: alone


def test_subwords():
    subwords = Subwords.train(lambda: ["A man rides a horse.", "Ein Mann reitet."] * 5, 60)
    rows = subwords.encode(["A man, Ein  reitet.", "", "</s> 日"])
    assert subwords.decode(rows)[0] == "A man Ein reitet."  # it has never seen a comma
    assert rows[1] == []
    assert END not in rows[2]
    assert UNKNOWN in rows[2]
    again = Subwords.load(subwords.dump())
    assert again.encode(["A man"]) == subwords.encode(["A man"])
    assert len(again) == len(subwords) <= 60
    assert subwords.decode([[*rows[0], END, 20, 21]]) == subwords.decode(rows[:1])
    assert Subwords.train(lambda: ["ÄB"] * 3, 20, lowercase=True).decode(
        Subwords.train(lambda: ["ÄB"] * 3, 20, lowercase=True).encode(["Äb"])
    ) == ["äb"]
    with pytest.raises(DataError, match="no vocabulary"):
        Subwords.load("{}")


def test_a_vocabulary_of_many_characters_is_the_same_again():
    draw = random.Random(0)
    words = ["".join(chr(0x4E00 + draw.randrange(3000)) for _ in range(3)) for _ in range(2000)]
    first, second = (Subwords.train(lambda: [*["low lower lowest"] * 50, *words], 1100) for _ in range(2))
    assert first.dump() == second.dump()
    assert first.decode(first.encode(["lower low"])) == ["lower low"]


def test_pairs_of_one_sentence_stay_together():
    pairs = [(f"sentence {i // 3}", f"Satz {i}") for i in range(900)]
    options = ParallelOptions(val_fraction=0.1, test_fraction=0.2)
    splits = complete_pairs({"train": lambda: iter(pairs)}, options)
    parts = {split: list(read()) for split, read in splits.items()}
    assert sorted(itertools.chain(*parts.values())) == sorted(pairs)
    sources = {split: {source for source, _ in part} for split, part in parts.items()}
    assert not sources["train"] & sources["test"]
    assert not sources["train"] & sources["val"]
    assert 120 < len(parts["test"]) < 240
    official = complete_pairs({"train": lambda: iter(pairs), "val": lambda: iter(pairs[:2])}, options)
    assert list(official["val"]()) == pairs[:2]


def test_number_words():
    parts = numbers(0)
    assert {split: len(values) for split, values in parts.items()} == {"train": 12_000, "val": 500, "test": 1_000}
    assert len(set(itertools.chain(*parts.values()))) == 13_500
    assert english(999_999) == "nine hundred and ninety-nine thousand nine hundred and ninety-nine"
    assert german(21_101) == "einundzwanzigtausendeinhunderteins"
    assert len({german(n) for n in range(3000)}) == len({english(n) for n in range(3000)}) == 3000
    with pytest.raises(UserError, match="en and de alone"):
        dataset("number-words").build(ParallelOptions(source="fr"), None)


def test_the_cache_is_mended(tmp_path, cache):
    write_all(tmp_path, {f"{s}.{e}": f"{s} {e} a\n{s} b\n" for s in ("train", "val", "test") for e in ("en", "de")})
    build, options = dataset("parallel").build, ParallelOptions(folder=str(tmp_path), vocabulary=60)
    first = build(options, None)
    (folder,) = [path for path in cache.glob("parallel*") if path.is_dir()]
    np.save(folder / "train-source.npy", np.full(9, 70, np.int32))
    with pytest.warns(UserWarning, match="making it again"):
        second = build(options, None)
    assert first.about() == second.about()
    assert second.references("test") == ["test de a", "test b"]
    assert "2 / 2 / 2 pairs of sentences, en to de" in second.describe()
    with pytest.raises(UserError, match="no masks"):
        second.loader("train", 10, device=CPU, masks=True)
