"""Labelled documents as batches of word numbers and tags: what the task ``document`` trains on."""

from __future__ import annotations

import shutil
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from foveal.data._random import uniform
from foveal.data.batches import EpochBatches, epoch_seed
from foveal.data.cache import cached_folder
from foveal.data.corpora import STRIPPED, Corpus, Texts, decoded
from foveal.data.encode import SPECIAL, Array, Form, encode, read_split, read_vocabulary
from foveal.data.glove import read_glove
from foveal.errors import DataError, UserError, unknown

SPLITS = ("train", "val", "test")
VERSION = 1  # of splitting and numbering; part of the cache key
LARGE = 2 << 30  # bytes of word numbers from which a split is read from disk batch by batch


@dataclass(frozen=True)
class TextOptions:
    """The ``data`` section of a recipe.

    Attributes:
        folder: where the files are, below the data folder or absolute; by default where the dataset unpacks to.
        sentences: at most so many sentences of a document; the others are cut off.
        words: at most so many words of a sentence.
        vocabulary: at most so many different words, the most frequent of the training texts.
        min_count: a word that occurs less often in training is unknown.
        embeddings: a file of word vectors such as ``glove.6B.100d.txt``, below the data folder or absolute; random
            vectors if null.
        tagger: ``pattern`` (English), ``spacy:MODEL``, ``module:function``, or ``none`` for no part-of-speech tags.
        language: of the texts, as a two-letter code.
        encoding: of the files; UTF-8 if null, Latin-1 for 20 Newsgroups.
        strip: any of ``headers footers quotes``, cut from newsgroup texts as scikit-learn does (``20news`` only).
        per_class: only so many training texts of each class, drawn at random (``yahoo-answers``, ``ag-news``,
            ``textcsv``); 5000 and 70000 are Yahoo-mini and Yahoo-half.
        text: column of the texts, several as ``title+body`` (``textcsv`` only).
        label: column of the labels (``textcsv`` only).
        val_fraction: share of the training texts that the best epoch is chosen by, where no such split is official;
            0 to choose by the test texts.
        test_fraction: share that is tested on, where no such split is official.
        seed: of the random splits; independent of the training seed.
        processes: how many split and tag the texts; by default as many as there are processors, up to 8.
        stream: read batches from disk instead of holding all in memory; by default only what is very large.
    """

    folder: str | None = None
    sentences: int = 15
    words: int = 30
    vocabulary: int = 20_000
    min_count: int = 2
    embeddings: str | None = None
    tagger: str = "pattern"
    language: str = "en"
    encoding: str | None = None
    strip: str = ""
    per_class: int | None = None
    text: str = "text"
    label: str = "label"
    val_fraction: float = 0.1
    test_fraction: float = 0.1
    seed: int = 0
    processes: int | None = None
    stream: bool | None = None

    def __post_init__(self) -> None:
        for name in ("sentences", "words", "vocabulary", "min_count"):
            if getattr(self, name) < 1:
                raise UserError(f"data.{name}={getattr(self, name)}: expected at least 1")
        for name in ("val_fraction", "test_fraction"):
            if not 0 <= getattr(self, name) < 1:
                raise UserError(f"data.{name}={getattr(self, name)}: expected at least 0 and below 1")
        for name in self.strip.split():
            if name not in STRIPPED:
                raise unknown("part of a newsgroup text", name, STRIPPED)
        if self.encoding is not None:
            try:
                b"x".decode(self.encoding, errors="replace")
            except (LookupError, ValueError) as error:
                raise UserError(
                    f"data.encoding={self.encoding}: no text encoding of that name; use one such as utf-8 or latin-1"
                ) from error

    @property
    def form(self) -> Form:
        """How a document is cut."""
        return Form(self.sentences, self.words, self.tagger, self.language)


@dataclass(frozen=True)
class TextFormat:
    """How the texts of one corpus are read, and new ones like them.

    Attributes:
        name: of the dataset.
        title: as people call it.
        read: ``read(place, options, encoding)``, texts as they are in the files; an embedded corpus has no place.
        places: where it may be, below the data folder.
        how: where to get it.
        only: options that belong to this corpus alone.
        encoding: of the files, unless the options say otherwise.
        clean: ``clean(text, options)`` makes of a text in the files what is to be learnt from.
    """

    name: str
    title: str
    read: Callable[[Path, TextOptions, str], Corpus]
    places: tuple[str, ...] = ()
    how: str = ""
    only: tuple[str, ...] = ()
    encoding: str = "utf-8"
    clean: Callable[[str, TextOptions], str] = lambda text, _: text

    def corpus(self, place: Path, options: TextOptions) -> Corpus:
        """The whole corpus, its texts cleaned."""
        found = self.read(place, options, options.encoding or self.encoding)
        return replace(
            found, splits={split: partial(self._cleaned, texts, options) for split, texts in found.splits.items()}
        )

    def _cleaned(self, texts: Callable[[], Texts], options: TextOptions) -> Texts:
        return ((self.clean(text, options), label) for text, label in texts())

    def text(self, given: str | bytes, options: TextOptions) -> str:
        """A new text, or the content of a file, as the corpus has its own."""
        if isinstance(given, bytes):
            given = decoded(given, options.encoding or self.encoding)
        return self.clean(given, options)


_SPECIAL = ("strip", "per_class", "text", "label")


class DocumentData:
    """A corpus, split, tagged, numbered and cached, ready to be trained on.

    Attributes:
        vocabulary: words by number; 0 is padding and 1 is any unknown word.
    """

    queries: list[str] = []  # noqa: RUF012
    multilabel = False

    def __init__(self, form: TextFormat, options: TextOptions, root: Path | None) -> None:
        self.format, self.options, self.root = form, options, root
        self.name, self.embedded = form.name, not form.places
        for name in _SPECIAL:
            if name not in form.only and getattr(options, name) != getattr(TextOptions, name):
                raise UserError(f"data.{name} has no meaning for {form.name}; leave it out")
        corpus = form.corpus(self._place(), options)
        self.answers = corpus.answers
        self._splits, self.vocabulary = self._encoded(corpus)
        self._held: dict[tuple[str, str], dict[str, Tensor]] = {}
        self._vectors: Tensor | None = None

    def _place(self) -> Path:
        """Where the files are."""
        form = self.format
        if self.embedded:
            return Path()
        if self.options.folder is not None:
            given = Path(self.options.folder).expanduser()
            candidates = [given] if given.is_absolute() or self.root is None else [self.root / given, given]
        elif self.root is None:
            raise DataError(
                f"{form.title} needs its files: set FOVEAL_DATA (or --data) to a folder that holds {form.places[0]}. "
                f"To get them: {form.how}"
            )
        else:
            candidates = [self.root / place for place in form.places]
        for place in candidates:
            if place.exists():
                return place
        raise DataError(f"{candidates[0]} is missing; {form.how}")

    def _encoded(self, corpus: Corpus) -> tuple[dict[str, dict[str, Array]], list[str]]:
        """The arrays of all splits by way of the disk cache, and the vocabulary."""
        o = self.options
        splits = complete(corpus.splits, o.val_fraction, o.test_fraction, o.seed)
        tagger = [o.tagger, _version("textblob")] if o.tagger == "pattern" else [o.tagger]
        elsewhere = ("folder", "embeddings", "tagger", "processes", "stream")
        key: dict[str, object] = {f.name: getattr(o, f.name) for f in fields(o) if f.name not in elsewhere}
        key |= {"name": self.name, "version": VERSION, "tagger": tagger, "files": corpus.fingerprint}

        def make(folder: Path) -> None:
            encode(
                splits,
                o.form,
                folder,
                vocabulary=o.vocabulary,
                min_count=o.min_count,
                processes=o.processes,
                progress=_progress(self.name) if sys.stderr.isatty() else None,
            )

        for attempt in range(2):
            with cached_folder(self.name, key, make) as folder:
                try:
                    found = {split: read_split(folder, split) for split in splits}
                    words = read_vocabulary(folder)
                    _check(found, len(words), len(self.answers))
                    self._check_words(found["train"], words)
                    return {split: self._in_memory(arrays) for split, arrays in found.items()}, words
                except DataError:
                    raise
                except (OSError, ValueError) as error:
                    if attempt:
                        raise DataError(f"the cache {folder} is damaged ({error}); delete it") from error
                    warnings.warn(f"{folder} is damaged ({error}); making it again", stacklevel=4)
                    shutil.rmtree(folder, ignore_errors=True)
        raise AssertionError("the loop returns or raises")

    def _check_words(self, train: dict[str, Array], vocabulary: list[str]) -> None:
        """Complain of texts from which nothing can be learnt."""
        if len(vocabulary) > len(SPECIAL):
            return
        if not np.any(train["words"]):
            raise DataError(f"the training texts of {self.name} hold not a single word; is data.encoding right?")
        raise DataError(
            f"no word occurs {self.options.min_count} times in the training texts of {self.name}; use a smaller "
            "data.min_count"
        )

    def _in_memory(self, arrays: dict[str, Array]) -> dict[str, Array]:
        """Arrays that are read from disk once, unless they are to be streamed."""
        stream = self.options.stream
        if arrays["words"].nbytes > LARGE if stream is None else stream:
            return arrays
        return {name: np.array(array) for name, array in arrays.items()}

    def _arrays(self, split: str) -> dict[str, Array]:
        if split not in SPLITS:
            raise UserError(f"unknown split {split!r}; expected one of {', '.join(SPLITS)}")
        return self._splits[split] if split in self._splits else self._splits["test"]

    def count(self, split: str) -> int:
        """How many texts a split has."""
        return len(self._arrays(split)["labels"])

    def describe(self) -> str:
        """One line on what the data is."""
        o, count = self.options, {split: self.count(split) for split in SPLITS}
        same = "" if "val" in self._splits else " (validation and test are the same texts)"
        parts = [
            f"{self.format.title}: {count['train']:,} / {count['val']:,} / {count['test']:,} texts{same} of "
            f"{len(self.answers)} classes",
            f"up to {o.sentences} sentences of {o.words} words",
            f"{len(self.vocabulary):,} different words",
            f"tags by {o.tagger}" if o.tagger != "none" else "no tags",
        ]
        if o.strip:
            parts.append(f"without {', '.join(o.strip.split())}")
        if o.embeddings:
            parts.append(f"vectors from {Path(o.embeddings).name}")
        return "; ".join(parts)

    def embeddings(self) -> Tensor | None:
        """Vectors (V, d) that training starts from, or None for random ones."""
        if self.options.embeddings is None:
            return None
        if self._vectors is None:
            given = Path(self.options.embeddings).expanduser()
            inside = given if self.root is None or given.is_file() else self.root / given
            self._vectors, _ = read_glove(inside, self.vocabulary)
        return self._vectors

    def tensors(self, split: str, device: torch.device | str = "cpu") -> dict[str, Tensor]:
        """The whole split on ``device``: words int32 (N, S, W), tags uint8 (N, S, W) and labels int32 (N,)."""
        key = (split, str(device))
        if key not in self._held:
            arrays = self._arrays(split).items()
            self._held[key] = {name: torch.from_numpy(array).to(device) for name, array in arrays}
        return self._held[key]

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
    ) -> DocumentLoader:
        """Batches of ``split`` for one epoch, on ``device``."""
        arrays = self._arrays(split)
        order = EpochBatches(
            self.count(split), batch, epoch_seed(seed, epoch) if split == "train" else None, rank, world
        )
        if isinstance(arrays["words"], np.memmap):
            return DocumentLoader(order, partial(_from_disk, arrays, device))
        return DocumentLoader(order, partial(_from_memory, self.tensors(split, device)))


Gathered = Iterator[dict[str, Tensor]]


class DocumentLoader:
    """Batches of one epoch: words int64 (N, S, W), tags int64 (N, S, W), label int64 (N,) and index int64 (N,)."""

    def __init__(self, order: EpochBatches, gather: Callable[[EpochBatches], Gathered]) -> None:
        self.order, self.gather = order, gather

    def __len__(self) -> int:
        return len(self.order)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        for found in self.gather(self.order):
            yield {"label" if name == "labels" else name: values.long() for name, values in found.items()}


def _from_memory(held: dict[str, Tensor], order: EpochBatches) -> Gathered:
    """Batches by indexing alone: the order of the whole epoch is brought to the device at once."""
    batches = list(order)
    places = torch.tensor([i for batch in batches for i in batch]).to(held["words"].device)
    for place in places.split([len(batch) for batch in batches]):
        yield {name: tensor[place] for name, tensor in held.items()} | {"index": place}


def _from_disk(arrays: dict[str, Array], device: torch.device, order: EpochBatches) -> Gathered:
    for index in order:
        found = {name: torch.from_numpy(array[index]) for name, array in arrays.items()}
        found["index"] = torch.tensor(index)
        yield {name: tensor.to(device, non_blocking=True) for name, tensor in found.items()}


def complete(
    splits: dict[str, Callable[[], Texts]], val_fraction: float, test_fraction: float, seed: int
) -> dict[str, Callable[[], Texts]]:
    """Training, validation and test texts from whichever splits are official; without ``val`` the test texts serve."""
    done = dict(splits)
    cut = {"test": 0.0 if "test" in done else test_fraction, "val": 0.0 if "val" in done else val_fraction}
    if "test" not in done and not test_fraction:
        raise UserError("data.test_fraction=0 leaves nothing to test on: no test texts are official")
    if any(cut.values()):
        for split in ("train", *(split for split, share in cut.items() if share)):
            done[split] = partial(_part, splits["train"], split, cut["test"], cut["val"], seed)
    return done


def _part(texts: Callable[[], Texts], part: str, test: float, val: float, seed: int) -> Texts:
    """Those texts that fall to ``part``; which depends on their number and the seed alone."""
    block = 1 << 14
    for i, (text, label) in enumerate(texts()):
        if i % block == 0:
            draws = uniform(seed, 0, torch.arange(i, i + block)).tolist()
        draw = draws[i % block]
        if part == ("test" if draw < test else "val" if draw < test + val else "train"):
            yield text, label


def _check(found: dict[str, dict[str, Array]], words: int, classes: int) -> None:
    """Complain of arrays that cannot be right."""
    for split, arrays in found.items():
        if not len(arrays["labels"]):
            raise DataError(f"no text is left for {split}; use other fractions or add texts")
        if len({len(array) for array in arrays.values()}) > 1 or int(arrays["labels"].max()) >= classes:
            raise ValueError("its arrays do not belong together")
        if arrays["words"].nbytes <= LARGE and int(arrays["words"].max()) >= words:
            raise ValueError("it holds words that the vocabulary lacks")


def _progress(name: str) -> Callable[[str, Iterable[Any]], Iterable[Any]]:
    def wrap(split: str, blocks: Iterable[Any]) -> Iterator[Any]:
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (SpinnerColumn(), "{task.description}", TextColumn("{task.completed:,} texts"), TimeElapsedColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            job = bar.add_task(f"splitting and tagging {name} {split}", total=None)
            for block in blocks:
                yield block
                bar.advance(job, len(block[1]))

    return wrap


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
