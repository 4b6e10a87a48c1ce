"""Labelled documents as batches of word numbers and tags: what the task ``document`` trains on."""

from __future__ import annotations

import shutil
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, fields
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from foveal.data.batches import CPU, Batch, Batches, EpochBatches, epoch_seed
from foveal.data.cache import cached_folder
from foveal.data.formats.glove import read_glove
from foveal.data.problems import Problem, Progress, collected, collecting, note
from foveal.data.registry import Entry, datasets, register_data
from foveal.data.splits import SPLITS, complete_streams
from foveal.data.text.encode import SPECIAL, Array, encode, read_split, read_vocabulary
from foveal.data.text.format import TextFormat, TextOptions
from foveal.data.text.reading import Corpus
from foveal.errors import DataError, UserError, unknown

__all__ = ["DocumentData", "TextFormat", "TextOptions", "register_texts", "text_format"]

VERSION = 1  # of splitting and numbering; part of the cache key
LARGE = 2 << 30  # bytes of word numbers from which a split is read from disk batch by batch

_formats: dict[str, TextFormat] = {}


def register_texts(form: TextFormat, summary: str) -> Entry:
    """Make a corpus known by its format."""
    _formats[form.name] = form
    build, check = partial(DocumentData, form), partial(check_texts, form)
    return register_data(Entry(form.name, summary, TextOptions, build, form.place, check))


def check_texts(form: TextFormat, options: TextOptions, root: Path | None, progress: Progress) -> Iterator[Problem]:
    """Read all texts of a corpus and yield what is wrong with them."""
    form.check_options(options)
    corpus: Corpus | None = None
    with collecting() as problems, collected():
        folder = Path() if form.place is None else form.place.find(root, options.folder, name=form.name)
        corpus = form.corpus(folder, options)
    yield from problems
    for split, read in corpus.splits.items() if corpus is not None else ():
        with collecting() as problems, collected():
            count = words = 0
            for text, _ in progress(read(), description=f"reading {split} texts", total=None):
                count += 1
                words += any(letter.isalnum() for letter in text)
            if words < count:
                note(f"{folder}: {count - words} of {count} {split} texts hold no word; is data.encoding right?")
        yield from problems


def text_format(name: str) -> TextFormat:
    """How texts of the dataset called ``name`` are read; those of a dataset that has no format, like plain files."""
    datasets()  # every format registers itself
    return _formats.get(name, _formats["textfolder"])


class DocumentData:
    """A corpus, split, tagged, numbered and cached, ready to be trained on.

    Attributes:
        answers: names of the classes.
        vocabulary: words by number; 0 is padding and 1 is any unknown word.
    """

    multilabel = False

    def __init__(self, form: TextFormat, options: TextOptions, root: Path | None) -> None:
        self.format, self.options, self.root = form, options, root
        self.name, self.embedded = form.name, form.place is None
        form.check_options(options)
        self.folder = Path() if form.place is None else form.place.find(root, options.folder, name=form.name)
        self.title = self.folder.resolve().name if form.own_files else form.title
        corpus = form.corpus(self.folder, options)
        self.answers = corpus.answers
        self._splits, self.vocabulary = self._encoded(corpus)
        self._on_device: dict[tuple[str, str], dict[str, Tensor]] = {}
        self._vectors: Tensor | None = None

    def _encoded(self, corpus: Corpus) -> tuple[dict[str, dict[str, Array]], list[str]]:
        """The arrays of all splits by way of the disk cache, and the vocabulary."""
        o = self.options
        splits = complete_streams(corpus.splits, o.val_fraction, o.test_fraction, o.seed)
        tagger = [o.tagger, _version("textblob")] if o.tagger == "pattern" else [o.tagger]
        no_matter = ("folder", "embeddings", "tagger", "processes", "stream")
        key: dict[str, object] = {f.name: getattr(o, f.name) for f in fields(o) if f.name not in no_matter}
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
                    arrays = {split: read_split(folder, split) for split in splits}
                    words = read_vocabulary(folder)
                    _check_arrays(arrays, len(words), len(self.answers))
                    self._check_words(arrays["train"], words)
                    return {split: self._in_memory(values) for split, values in arrays.items()}, words
                except DataError:
                    raise
                except (OSError, ValueError) as error:
                    if attempt:
                        raise DataError(f"the cache {folder} is damaged ({error}); delete it") from error
                    warnings.warn(f"{folder} is damaged ({error}); making it again", stacklevel=4)
                    shutil.rmtree(folder, ignore_errors=True)
        raise AssertionError("the loop returns or raises")

    def _check_words(self, train: dict[str, Array], vocabulary: list[str]) -> None:
        """Raise if nothing can be learnt from the training texts."""
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
            raise unknown("split", split, SPLITS)
        return self._splits[split] if split in self._splits else self._splits["test"]

    def count(self, split: str) -> int:
        """Number of texts of a split."""
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

    def about(self) -> dict[str, Any]:
        """Names of the classes, the vocabulary, and how a text is cut."""
        return {
            "answers": self.answers,
            "multilabel": False,
            "vocabulary": self.vocabulary,
            "form": asdict(self.options.form),
            "question": "Which class does this text belong to?",
            "asked": f"their class (one of {len(self.answers)})",
        }

    def embeddings(self) -> Tensor | None:
        """Vectors (V, d) that training starts from, or None for random ones."""
        if self.options.embeddings is None:
            return None
        if self._vectors is None:
            path = Path(self.options.embeddings).expanduser()
            path = path if self.root is None or path.is_file() else self.root / path
            self._vectors, _ = read_glove(path, self.vocabulary)
        return self._vectors

    def tensors(self, split: str, device: torch.device | str = "cpu") -> dict[str, Tensor]:
        """The whole split on ``device``: words int32 (N, S, W), tags uint8 (N, S, W) and labels int32 (N,)."""
        key = (split, str(device))
        if key not in self._on_device:
            arrays = self._arrays(split).items()
            self._on_device[key] = {name: torch.from_numpy(array).to(device) for name, array in arrays}
        return self._on_device[key]

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
    ) -> Batches:
        """Batches of ``split`` for one epoch, on ``device``.

        They hold words int64 (N, S, W), tags int64 (N, S, W), label int64 (N,) and index int64 (N,).
        """
        if masks:
            raise UserError(f"data.name={self.name} holds texts, which have no masks; leave out what needs them")
        arrays = self._arrays(split)
        shuffle = epoch_seed(seed, epoch) if split == "train" else None
        order = EpochBatches(self.count(split), batch, shuffle, rank, world)
        if isinstance(arrays["words"], np.memmap):
            return Batches(order, partial(_from_disk, arrays, device), CPU)
        return Batches(order, partial(_from_memory, self.tensors(split, device)), device)


def _from_memory(tensors: dict[str, Tensor], index: Tensor) -> Batch:
    batch = {_key(name): values[index].long() for name, values in tensors.items()}
    return batch | {"index": index}


def _from_disk(arrays: dict[str, Array], device: torch.device, index: Tensor) -> Batch:
    batch = {_key(name): torch.from_numpy(array[index.numpy()]) for name, array in arrays.items()} | {"index": index}
    return {name: values.to(device, non_blocking=True).long() for name, values in batch.items()}


def _key(name: str) -> str:
    """The name of an array in a batch, which has one label a sample."""
    return "label" if name == "labels" else name


def _check_arrays(splits: dict[str, dict[str, Array]], words: int, classes: int) -> None:
    """Raise for arrays that cannot be right."""
    for split, arrays in splits.items():
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
