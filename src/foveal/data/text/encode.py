"""Texts to arrays of word numbers and tags, in one pass over a corpus of any size.

Several processes split and tag the documents, which are written to disk as they come. Words are first numbered in the
order in which they appear. After the last one the vocabulary is chosen by how often each word occurs in training, and
the numbers are replaced, block by block. Only one block and the list of words are in memory at a time.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from foveal.data.text.reading import Texts
from foveal.data.text.tagging import find_tagger
from foveal.data.text.tokens import is_word, sentences, tokens
from foveal.supervise.targets import Tag

PAD, UNKNOWN = 0, 1
SPECIAL = ("", "<unknown>")  # the words of the first numbers
BLOCK = 256  # documents that are prepared together
FEW = 2_000  # documents for which it is not worth starting processes

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Form:
    """How a document is cut.

    Attributes:
        sentences: greatest number of sentences with at least one word.
        words: greatest number of words of a sentence.
        tagger: see :func:`foveal.data.text.tagging.find_tagger`; ``none`` marks every word as ``X``.
        language: of the texts.
    """

    sentences: int = 15
    words: int = 30
    tagger: str = "pattern"
    language: str = "en"


Prepared = list[tuple[list[str], bytes]]
"""Sentences of one document: their words in small letters, and the tag of each."""


def prepare(text: str, form: Form) -> Prepared:
    r"""Split, tag and cut one document; punctuation helps to tag and is dropped, so tags stay with their words.

    >>> prepare("Hello, World! ... 42", Form(tagger="none"))
    [(['hello', 'world'], b'\x0b\x0b'), (['42'], b'\x0b')]
    """
    tag = None if form.tagger == "none" else find_tagger(form.tagger, form.language)
    document: Prepared = []
    for sentence in sentences(text):
        parts = tokens(sentence)
        words = [i for i, token in enumerate(parts) if is_word(token)][: form.words]
        if not words:
            continue
        parts = parts[: words[-1] + 2]  # with the punctuation mark after the last word
        tags = [Tag.X] * len(parts) if tag is None else tag(parts)
        document.append(([parts[i].lower() for i in words], bytes(tags[i] for i in words)))
        if len(document) == form.sentences:
            break
    return document


def _prepare_block(texts: list[str], form: Form) -> list[Prepared]:
    return [prepare(text, form) for text in texts]


def prepared(texts: Texts, form: Form, processes: int | None = None) -> Iterator[tuple[list[Prepared], list[int]]]:
    """Blocks of prepared documents with their labels, in order.

    Args:
        texts: with labels.
        form: how they are cut.
        processes: how many; None for as many as there are processors, up to 8, and 1 for a few texts.
    """
    if form.tagger != "none":
        find_tagger(form.tagger, form.language)  # loaded once, before processes are forked
    blocks = _blocks(texts)
    first = list(itertools.islice(blocks, FEW // BLOCK))
    count = min(8, os.cpu_count() or 1) if processes is None else processes
    few = len(first) < FEW // BLOCK
    # Processes that are not forked would import the user's script again: there this one does it all.
    if count < 2 or (few and processes is None) or sys.platform in ("win32", "darwin"):
        for block, labels in itertools.chain(first, blocks):
            yield _prepare_block(block, form), labels
        return
    waiting: deque[tuple[Future[list[Prepared]], list[int]]] = deque()
    with ProcessPoolExecutor(count, multiprocessing.get_context("fork")) as pool:
        for block, labels in itertools.chain(first, blocks):
            waiting.append((pool.submit(_prepare_block, block, form), labels))
            if len(waiting) > 2 * count:  # read no further ahead
                future, done = waiting.popleft()
                yield future.result(), done
        for future, done in waiting:
            yield future.result(), done


def _blocks(texts: Texts) -> Iterator[tuple[list[str], list[int]]]:
    while block := list(itertools.islice(texts, BLOCK)):
        yield [text for text, _ in block], [label for _, label in block]


def encode(
    splits: dict[str, Callable[[], Texts]],
    form: Form,
    folder: Path,
    *,
    vocabulary: int,
    min_count: int,
    processes: int | None = None,
    progress: Callable[[str, Iterable[Any]], Iterable[Any]] | None = None,
) -> None:
    """Write ``SPLIT-words.npy``, ``SPLIT-tags.npy`` and ``SPLIT-labels.npy`` of every split, and ``vocabulary.txt``.

    Args:
        splits: functions that read the texts; the vocabulary is that of ``train``.
        form: how documents are cut.
        folder: where to.
        vocabulary: greatest number of words, the most frequent; others are unknown.
        min_count: a word that occurs less often in training is unknown.
        processes: as in :func:`prepared`.
        progress: wraps the blocks of a split, for a progress bar.

    The arrays are int32 (N, S, W) and uint8 (N, S, W), zero where there is no word, and int32 (N,).
    """
    numbers: dict[str, int] = {}
    counts = np.zeros(0, np.int64)
    documents: dict[str, int] = {}
    for split, read in splits.items():
        blocks: Iterable[tuple[list[Prepared], list[int]]] = prepared(read(), form, processes)
        blocks = blocks if progress is None else progress(split, blocks)
        documents[split], occurrences = _write_raw(blocks, form, folder / split, numbers)
        if split == "train":
            counts = occurrences
    words = list(numbers)
    order = [i for i in np.argsort(-counts, kind="stable") if counts[i] >= min_count][:vocabulary]
    final = np.full(len(words), UNKNOWN, np.int32)
    final[order] = np.arange(len(order), dtype=np.int32) + len(SPECIAL)
    for split, count in documents.items():
        _write_final(folder / split, count, form, final)
    kept = "\n".join(words[i] for i in order)
    (folder / "vocabulary.txt").write_text(kept, encoding="utf-8")


def _write_raw(
    blocks: Iterable[tuple[list[Prepared], list[int]]], form: Form, path: Path, numbers: dict[str, int]
) -> tuple[int, Array]:
    """Write a split with words numbered by first appearance, from 1 on.

    Returns:
        The number of documents, and how often each word occurs.
    """
    counts = np.zeros(len(numbers), np.int64)
    total = 0
    with ExitStack() as stack:
        files = [stack.enter_context(open(f"{path}-{kind}.raw", "wb")) for kind in ("words", "tags", "labels")]
        for documents, labels in blocks:
            words = np.zeros((len(documents), form.sentences, form.words), np.int32)
            tags = np.zeros(words.shape, np.uint8)
            for d, document in enumerate(documents):
                for s, (sentence, marks) in enumerate(document):
                    words[d, s, : len(sentence)] = [numbers.setdefault(word, len(numbers)) + 1 for word in sentence]
                    tags[d, s, : len(sentence)] = list(marks)
            occurrences = np.bincount(words.ravel(), minlength=len(numbers) + 1)[1:]
            occurrences[: len(counts)] += counts
            counts = occurrences
            total += len(documents)
            arrays: tuple[Array, ...] = (words, tags, np.array(labels, np.int32))
            for file, array in zip(files, arrays, strict=True):
                file.write(array.tobytes())
    return total, counts


def _write_final(path: Path, count: int, form: Form, final: Array) -> None:
    """Turn the raw files of a split into .npy files with the final numbers of words."""
    shape = (count, form.sentences, form.words)
    with_pad = np.concatenate([np.array([PAD], np.int32), final])
    kinds: list[tuple[str, tuple[int, ...], type]] = [
        ("words", shape, np.int32),
        ("tags", shape, np.uint8),
        ("labels", (count,), np.int32),
    ]
    for kind, size, dtype in kinds:
        raw = Path(f"{path}-{kind}.raw")
        out = np.lib.format.open_memmap(f"{path}-{kind}.npy", "w+", dtype, size)
        if count:
            values = np.memmap(raw, dtype, "r", shape=size)
            for begin in range(0, count, 4096):
                block = values[begin : begin + 4096]
                out[begin : begin + 4096] = with_pad[block] if kind == "words" else block
            del values
        out.flush()
        raw.unlink()


def read_split(folder: Path, split: str) -> dict[str, Array]:
    """The arrays of a split, mapped from disk and not read yet."""
    names = ("words", "tags", "labels")
    return {name: np.load(folder / f"{split}-{name}.npy", mmap_mode="r", allow_pickle=False) for name in names}


def read_vocabulary(folder: Path) -> list[str]:
    """All words by number, the special ones first."""
    text = (folder / "vocabulary.txt").read_text(encoding="utf-8")
    return [*SPECIAL, *text.split("\n")] if text else list(SPECIAL)


def numbered(documents: list[Prepared], vocabulary: list[str], form: Form) -> tuple[Array, Array]:
    """Words int64 (N, S, W) and tags uint8 (N, S, W) of prepared documents."""
    number = {word: i for i, word in enumerate(vocabulary) if i >= len(SPECIAL)}
    words = np.zeros((len(documents), form.sentences, form.words), np.int64)
    tags = np.zeros(words.shape, np.uint8)
    for d, document in enumerate(documents):
        for s, (sentence, marks) in enumerate(document):
            words[d, s, : len(sentence)] = [number.get(word, UNKNOWN) for word in sentence]
            tags[d, s, : len(sentence)] = list(marks)
    return words, tags
