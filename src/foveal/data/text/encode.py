"""Texts to arrays of word numbers and tags, in one pass over a corpus of any size.

Documents are split and tagged by several processes and written to disk as they come. Words are numbered in the order in
which they appear; when all have been seen, the vocabulary is chosen by how often each occurs in training and the
numbers are replaced, block by block. Nothing but one block and the list of words is ever held in memory.
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
SPECIAL = ("", "<unknown>")  # what the first numbers stand for
TOGETHER = 256  # documents a block
FEW = 2_000  # documents for which it is not worth starting processes

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Form:
    """How a document is cut.

    Attributes:
        sentences: at most so many sentences with at least one word.
        words: at most so many words of each.
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
    found: Prepared = []
    for sentence in sentences(text):
        every = tokens(sentence)
        places = [i for i, token in enumerate(every) if is_word(token)][: form.words]
        if not places:
            continue
        every = every[: places[-1] + 2]  # and the mark after the last word
        tags = [Tag.X] * len(every) if tag is None else tag(every)
        found.append(([every[i].lower() for i in places], bytes(tags[i] for i in places)))
        if len(found) == form.sentences:
            break
    return found


def _prepare_block(texts: list[str], form: Form) -> list[Prepared]:
    return [prepare(text, form) for text in texts]


def prepared(texts: Texts, form: Form, processes: int | None = None) -> Iterator[tuple[list[Prepared], list[int]]]:
    """Blocks of prepared documents with their labels, in order.

    Args:
        texts: with labels.
        form: how they are cut.
        processes: how many work on it; None for as many as there are processors, up to 8, and 1 for a few texts.
    """
    if form.tagger != "none":
        find_tagger(form.tagger, form.language)  # loaded once, before processes are forked
    blocks = _blocks(texts)
    first = list(itertools.islice(blocks, FEW // TOGETHER))
    wanted = min(8, os.cpu_count() or 1) if processes is None else processes
    few = len(first) < FEW // TOGETHER
    # Where processes cannot be forked they would have to import the user's script again: one does it all.
    if wanted < 2 or (few and processes is None) or sys.platform in ("win32", "darwin"):
        for block, labels in itertools.chain(first, blocks):
            yield _prepare_block(block, form), labels
        return
    waiting: deque[tuple[Future[list[Prepared]], list[int]]] = deque()
    with ProcessPoolExecutor(wanted, multiprocessing.get_context("fork")) as pool:
        for block, labels in itertools.chain(first, blocks):
            waiting.append((pool.submit(_prepare_block, block, form), labels))
            if len(waiting) > 2 * wanted:  # read no further ahead
                future, done = waiting.popleft()
                yield future.result(), done
        for future, done in waiting:
            yield future.result(), done


def _blocks(texts: Texts) -> Iterator[tuple[list[str], list[int]]]:
    while block := list(itertools.islice(texts, TOGETHER)):
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
        vocabulary: at most so many words, the most frequent; others are unknown.
        min_count: a word that occurs less often in training is unknown.
        processes: as in :func:`prepared`.
        progress: wraps the blocks of a split, for a progress bar.

    The arrays are int32 (N, S, W) and uint8 (N, S, W), zero where there is no word, and int32 (N,).
    """
    numbers: dict[str, int] = {}
    counts = np.zeros(0, np.int64)
    shapes = {}
    for split, read in splits.items():
        blocks: Iterable[tuple[list[Prepared], list[int]]] = prepared(read(), form, processes)
        blocks = blocks if progress is None else progress(split, blocks)
        seen = _write_raw(blocks, form, folder / split, numbers)
        shapes[split] = seen[0]
        if split == "train":
            counts = seen[1]
    words = list(numbers)
    order = [i for i in np.argsort(-counts, kind="stable") if counts[i] >= min_count][:vocabulary]
    final = np.full(len(words), UNKNOWN, np.int32)
    final[order] = np.arange(len(order), dtype=np.int32) + len(SPECIAL)
    for split, count in shapes.items():
        _write_final(folder / split, count, form, final)
    kept = "\n".join(words[i] for i in order)
    (folder / "vocabulary.txt").write_text(kept, encoding="utf-8")


def _write_raw(
    blocks: Iterable[tuple[list[Prepared], list[int]]], form: Form, path: Path, numbers: dict[str, int]
) -> tuple[int, Array]:
    """Write a split with words numbered by first appearance, from 1 on; returns documents and occurrences."""
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
            here = np.bincount(words.ravel(), minlength=len(numbers) + 1)[1:]
            here[: len(counts)] += counts
            counts = here
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
            given = np.memmap(raw, dtype, "r", shape=size)
            for begin in range(0, count, 4096):
                block = given[begin : begin + 4096]
                out[begin : begin + 4096] = with_pad[block] if kind == "words" else block
            del given
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
    place = {word: i for i, word in enumerate(vocabulary) if i >= len(SPECIAL)}
    words = np.zeros((len(documents), form.sentences, form.words), np.int64)
    tags = np.zeros(words.shape, np.uint8)
    for d, document in enumerate(documents):
        for s, (sentence, marks) in enumerate(document):
            words[d, s, : len(sentence)] = [place.get(word, UNKNOWN) for word in sentence]
            tags[d, s, : len(sentence)] = list(marks)
    return words, tags
