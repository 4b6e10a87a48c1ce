"""Batches of sentence pairs by their number of tokens, and of similar length, so that little is padding."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from foveal.data.batches import Batch
from foveal.data.text.subwords import BEGIN, END, PAD
from foveal.errors import DataError

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Sentences:
    """Many sentences in one row of tokens.

    Attributes:
        tokens: int (total,), all sentences one after the other, without beginnings and ends.
        ends: int64 (N,), where each ends.
    """

    tokens: Array
    ends: Array

    @property
    def lengths(self) -> Array:
        """Number of tokens of each, int64 (N,)."""
        return np.diff(self.ends, prepend=0)

    def check(self, vocabulary: int) -> None:
        """Raise for what cannot be sentences of such a vocabulary."""
        total = int(self.ends[-1]) if len(self.ends) else 0
        if total != len(self.tokens) or (len(self.ends) and int(self.lengths.min()) < 0):
            raise ValueError("its arrays do not belong together")
        if total and int(self.tokens.max()) >= vocabulary:
            raise ValueError("it holds tokens that the vocabulary lacks")


class TokenBatches:
    """Batches of one epoch and process.

    Args:
        source, target: the sentences; pair n is sentence n of both.
        tokens: most tokens of a batch on either side, with beginnings, ends and padding; one pair that has more is a
            batch by itself.
        shuffle: seed of this epoch; None for all pairs in order of their length.
        rank, world: this process and the number of processes; process r takes every world-th batch. In training all
            have the same number of them. Batches are smaller where there would be fewer of them than processes.
        longest: pairs with a longer side are left out of training.
        device: where batches are put together; the sentences are copied there once, see ``held``.
        held: keeps the copies.

    The batches are cut by length alone, so their number is the same in every epoch. Which pairs of equal length are in
    which batch, and the order of the batches, are random.
    """

    def __init__(
        self,
        source: Sentences,
        target: Sentences,
        tokens: int,
        *,
        shuffle: int | None = None,
        rank: int = 0,
        world: int = 1,
        longest: int | None = None,
        device: torch.device,
        held: dict[str, dict[str, Tensor]],
    ) -> None:
        self.device, self.held, self.sides = device, held, {"source": source, "target": target}
        lengths = np.stack([source.lengths + 1, target.lengths + 1])  # with an end, or a beginning
        self.lengths = lengths
        random = np.random.default_rng(shuffle)
        ties: Array = np.arange(lengths.shape[1])
        if shuffle is not None:
            ties = random.permutation(ties)
        order = np.lexsort((ties, lengths[0], lengths[1]))
        if longest is not None and shuffle is not None:
            order = order[lengths.max(0)[order] <= longest + 1]
        if not len(order):
            raise DataError("no pair of sentences is left; use a larger data.longest, or add some")
        if len(order) < world:
            raise DataError(f"{len(order)} pairs of sentences are too few for {world} processes; add some")
        batches = np.split(order, cuts(lengths.max(0)[order], tokens))
        while len(batches) < world:
            largest = max(range(len(batches)), key=lambda i: len(batches[i]))
            batches[largest : largest + 1] = np.array_split(batches[largest], 2)
        if shuffle is not None:
            batches = [batches[i] for i in random.permutation(len(batches))]
            batches = batches[: len(batches) // world * world]
        self.batches = batches[rank::world]

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Batch]:
        index = torch.from_numpy(np.concatenate(self.batches)).to(self.device)  # one copy for the whole epoch
        begin = 0
        for batch in self.batches:
            chosen = index[begin : begin + len(batch)]
            begin += len(batch)
            longest = self.lengths[:, batch].max(1)
            source = self._padded("source", chosen, int(longest[0]))
            target = self._padded("target", chosen, int(longest[1]))
            first = torch.full_like(target[:, :1], BEGIN)
            yield {"source": source, "target": torch.cat([first, target], 1), "index": chosen}

    def _padded(self, side: str, chosen: Tensor, length: int) -> Tensor:
        """Sentences with their ends and padding, int64 (N, length)."""
        key = f"{side} {self.device}"
        if key not in self.held:
            sentences = self.sides[side]
            arrays = {"tokens": np.append(sentences.tokens, PAD), "ends": np.insert(sentences.ends, 0, 0)}
            self.held[key] = {name: torch.from_numpy(array).to(self.device) for name, array in arrays.items()}
        tokens, ends = self.held[key]["tokens"], self.held[key]["ends"]
        first, last = ends[chosen, None], ends[chosen + 1, None]
        place = first + torch.arange(length, device=self.device)
        padded = tokens[place.clamp_max(len(tokens) - 1)].long()
        return padded.masked_fill(place >= last, PAD).masked_fill(place == last, END)


def cuts(lengths: Array, tokens: int) -> list[int]:
    """Where rows of samples, sorted so that lengths rise or nearly so, are cut into batches of at most ``tokens``.

    >>> cuts(np.array([2, 2, 2, 3, 5]), 6)
    [3, 4]
    """
    where, begin, longest = [], 0, 0
    for i, length in enumerate(lengths.tolist()):
        longest = max(longest, length)
        if i > begin and (i + 1 - begin) * longest > tokens:
            where.append(i)
            begin, longest = i, length
    return where
