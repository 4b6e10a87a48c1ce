"""Parallel text, cut into subwords, numbered and cached: what the task ``translate`` trains on."""

from __future__ import annotations

import shutil
import warnings
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from foveal.data.batches import epoch_seed
from foveal.data.cache import cached_folder
from foveal.data.place import Place
from foveal.data.problems import Problem, Progress, collected, collecting
from foveal.data.registry import Entry, register_data
from foveal.data.splits import SPLITS
from foveal.data.text.parallel_lines import Pairs, ParallelCorpus
from foveal.data.text.subwords import SPECIAL, Subwords, cleaned
from foveal.data.text.token_batches import Sentences, TokenBatches
from foveal.errors import DataError, UserError, unknown

VERSION = 1  # of cutting and numbering; part of the cache key
BLOCK = 20_000  # sentences that are numbered together


@dataclass(frozen=True)
class ParallelOptions:
    """The ``data`` section of a recipe. ``train.batch`` and ``train.eval_batch`` are numbers of tokens on either side.

    Attributes:
        folder: folder of the files, absolute or relative to the data folder; null: where the dataset unpacks to.
        source: language to translate from, as in the names of the files.
        target: language to translate into.
        test: which of several test sets, such as ``2016_flickr`` or ``tst2014``; null: the official one.
        vocabulary: greatest number of subwords; both languages share them.
        lowercase: convert all text to lower case.
        longest: pairs with more tokens than this on either side are left out of training.
        encoding: encoding of the files.
        val_fraction: part of the source sentences used for validation, if the dataset has no validation split.
        test_fraction: part of them used for testing, if the dataset has no test split.
        seed: seed of the random splits; independent of the training seed.
    """

    folder: str | None = None
    source: str = "en"
    target: str = "de"
    test: str | None = None
    vocabulary: int = 10_000
    lowercase: bool = False
    longest: int = 250
    encoding: str = "utf-8"
    val_fraction: float = 0.01
    test_fraction: float = 0.01
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("vocabulary", len(SPECIAL) + 1), ("longest", 1)):
            if getattr(self, name) < least:
                raise UserError(f"data.{name}={getattr(self, name)}: expected at least {least}")
        for name in ("val_fraction", "test_fraction"):
            if not 0 < getattr(self, name) < 0.5:
                raise UserError(f"data.{name}={getattr(self, name)}: expected more than 0 and less than 0.5")
        if self.source == self.target:
            raise UserError(f"data.source and data.target are both {self.source}; expected two languages")
        try:
            "x".encode(self.encoding)
        except (LookupError, UnicodeError) as error:
            raise UserError(f"data.encoding={self.encoding}: no text encoding of that name") from error


@dataclass(frozen=True)
class ParallelFormat:
    """How one corpus of parallel text is read.

    Attributes:
        name: of the dataset.
        title: what people call it.
        read: ``read(folder, options)``; an embedded corpus has no folder.
        place: where its files are; None for an embedded corpus.
        own_files: whether the texts are the user's own, so that the dataset is called after their folder.
    """

    name: str
    title: str
    read: Callable[[Path, ParallelOptions], ParallelCorpus]
    place: Place | None = None
    own_files: bool = False

    def folder(self, options: ParallelOptions, root: Path | None) -> Path:
        """Where the files are."""
        return Path() if self.place is None else self.place.find(root, options.folder, name=self.name)


def register_parallel(form: ParallelFormat, summary: str) -> Entry:
    """Make a corpus known by its format."""
    build, check = partial(ParallelData, form), partial(check_parallel, form)
    return register_data(Entry(form.name, summary, ParallelOptions, build, form.place, check))


def check_parallel(
    form: ParallelFormat, options: ParallelOptions, root: Path | None, progress: Progress
) -> Iterator[Problem]:
    """Read all pairs of a corpus and yield what is wrong with them."""
    with collecting() as problems, collected():
        corpus = form.read(form.folder(options, root), options)
        for split, read in corpus.splits.items():
            with collected():
                for _ in progress(read(), description=f"reading {split} pairs", total=None):
                    pass
    yield from problems


class ParallelData:
    """A corpus of parallel text, ready to be trained on.

    Attributes:
        subwords: the vocabulary of both languages.
    """

    def __init__(self, form: ParallelFormat, options: ParallelOptions, root: Path | None) -> None:
        self.format, self.options, self.root = form, options, root
        self.name, self.embedded = form.name, form.place is None
        folder = form.folder(options, root)
        self.title = folder.resolve().name if form.own_files else form.title
        self._splits, self._texts, self.subwords = self._encoded(form.read(folder, options))
        self._held: dict[str, dict[str, dict[str, Tensor]]] = {split: {} for split in SPLITS}

    def _encoded(
        self, corpus: ParallelCorpus
    ) -> tuple[dict[str, tuple[Sentences, Sentences]], dict[str, list[str]], Subwords]:
        """Sentences of all splits by way of the disk cache, the translations to test with, and the vocabulary."""
        o = self.options
        splits = complete_pairs(corpus.splits, o)
        key: dict[str, object] = {f.name: getattr(o, f.name) for f in fields(o) if f.name not in ("folder", "longest")}
        key |= {"name": self.name, "version": VERSION, "files": corpus.fingerprint}
        make = partial(_write, splits, o)
        for attempt in range(2):
            with cached_folder(self.name, key, make) as folder:
                try:
                    subwords = Subwords.load((folder / "subwords.json").read_text(encoding="utf-8"), o.lowercase)
                    sentences = {split: _read(folder, split, len(subwords)) for split in splits}
                    texts = {split: _read_texts(folder, split) for split in splits if split != "train"}
                    return sentences, texts, subwords
                except (OSError, ValueError) as error:
                    if isinstance(error, UserError) and not isinstance(error, DataError):
                        raise
                    if attempt:
                        raise DataError(f"the cache {folder} is damaged ({error}); delete it") from error
                    warnings.warn(f"{folder} is damaged ({error}); making it again", stacklevel=4)
                    shutil.rmtree(folder, ignore_errors=True)
        raise AssertionError("the loop returns or raises")

    def count(self, split: str) -> int:
        """Number of pairs of a split."""
        return len(self._sides(split)[0].ends)

    def _sides(self, split: str) -> tuple[Sentences, Sentences]:
        if split not in SPLITS:
            raise unknown("split", split, SPLITS)
        return self._splits[split]

    def references(self, split: str) -> list[str]:
        """The true translations of ``val`` or ``test``, as texts."""
        return self._texts[split]

    def describe(self) -> str:
        """One line on what the data is."""
        o, count = self.options, [f"{self.count(split):,}" for split in SPLITS]
        letters = " in small letters" if o.lowercase else ""
        test = f", test {o.test}" if o.test else ""
        return (
            f"{self.format.title}: {' / '.join(count)} pairs of sentences{letters}, {o.source} to {o.target}{test}; "
            f"{len(self.subwords):,} subwords"
        )

    def about(self) -> dict[str, Any]:
        """The languages, the vocabulary, and how many tokens the longest sentence has that is trained on."""
        lengths = self._sides("train")[0].lengths
        return {
            "source": self.options.source,
            "target": self.options.target,
            "lowercase": self.options.lowercase,
            "subwords": self.subwords.dump(),
            "longest": int(lengths[lengths <= self.options.longest].max(initial=0)),
        }

    def loader(
        self,
        split: str,
        batch: int,
        *,
        epoch: int = 0,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
        device: torch.device,
        masks: bool = False,
    ) -> TokenBatches:
        """Batches of ``split`` for one epoch, on ``device``, of at most ``batch`` tokens on either side.

        They hold source int64 (N, S), each with its end, target int64 (N, T), with beginning and end, both padded with
        0, and index int64 (N,).
        """
        if masks:
            raise UserError(f"data.name={self.name} holds texts, which have no masks; leave out what needs them")
        source, target = self._sides(split)
        shuffle = epoch_seed(seed, epoch) if split == "train" else None
        return TokenBatches(
            source,
            target,
            batch,
            shuffle=shuffle,
            rank=rank,
            world=world,
            longest=self.options.longest,
            device=device,
            held=self._held[split],
        )


def complete_pairs(splits: dict[str, Callable[[], Pairs]], options: ParallelOptions) -> dict[str, Callable[[], Pairs]]:
    """All three splits; pairs with the same source sentence are in the same one where a split is not official."""
    shares = {
        "test": 0.0 if "test" in splits else options.test_fraction,
        "val": 0.0 if "val" in splits else options.val_fraction,
    }
    complete = dict(splits)
    for split in ("train", *(split for split, share in shares.items() if share)):
        complete[split] = partial(_part, splits["train"], split, shares["test"], shares["val"], options.seed)
    return complete


def _part(read: Callable[[], Pairs], part: str, test: float, val: float, seed: int) -> Pairs:
    """Those pairs that fall to ``part``, which depends on the source sentence and the seed alone."""
    for source, target in read():
        draw = zlib.crc32(f"{seed} {cleaned(source, True)}".encode()) / 2**32
        if part == ("test" if draw < test else "val" if draw < test + val else "train"):
            yield source, target


def _write(splits: dict[str, Callable[[], Pairs]], options: ParallelOptions, folder: Path) -> None:
    """Learn subwords from the training pairs, and write the numbers of all sentences and the texts to test with."""
    subwords = Subwords.train(lambda: chain.from_iterable(splits["train"]()), options.vocabulary, options.lowercase)
    (folder / "subwords.json").write_text(subwords.dump(), encoding="utf-8")
    for split, read in splits.items():
        pairs, count = read(), 0
        parts: list[list[np.ndarray[Any, Any]]] = [[], []]
        lengths: list[list[int]] = [[], []]
        texts: list[str] = []
        while block := list(islice(pairs, BLOCK)):
            count += len(block)
            for side, sentences in enumerate(zip(*block, strict=True)):
                rows = subwords.encode(sentences)
                parts[side].append(np.fromiter(chain.from_iterable(rows), np.int32))
                lengths[side] += map(len, rows)
            if split != "train":
                texts += [cleaned(target, options.lowercase) for _, target in block]
        if not count:
            raise DataError(f"no pair of sentences is left for {split}; are the files empty?")
        for side, name in enumerate(("source", "target")):
            np.save(folder / f"{split}-{name}.npy", np.concatenate(parts[side]))
            np.save(folder / f"{split}-{name}-ends.npy", np.cumsum(lengths[side], dtype=np.int64))
        if split != "train":
            (folder / f"{split}-texts.txt").write_text("\n".join(texts), encoding="utf-8")


def _read(folder: Path, split: str, vocabulary: int) -> tuple[Sentences, Sentences]:
    sides = []
    for name in ("source", "target"):
        files = (folder / f"{split}-{name}.npy", folder / f"{split}-{name}-ends.npy")
        sentences = Sentences(*(np.load(file, allow_pickle=False) for file in files))
        sentences.check(vocabulary)
        sides.append(sentences)
    if len(sides[0].ends) != len(sides[1].ends):
        raise ValueError("its arrays do not belong together")
    return sides[0], sides[1]


def _read_texts(folder: Path, split: str) -> list[str]:
    return (folder / f"{split}-texts.txt").read_text(encoding="utf-8").split("\n")
