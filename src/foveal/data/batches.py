"""Which samples make up each batch, and reading them in worker processes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from foveal.errors import DataError, UserError


def epoch_seed(seed: int, epoch: int) -> int:
    """Seed of the order of one training epoch."""
    return seed * 100_003 + epoch


class EpochBatches(Sampler[list[int]]):
    """Which samples are in each batch of one epoch and process.

    Args:
        count: how many samples there are.
        batch: samples a batch and process.
        shuffle: seed of this epoch's order, whose incomplete last batch is dropped; None for the order of the samples,
            each of them exactly once.
        rank, world: this process and the number of processes. Process r takes the r-th piece of every global batch, so
            that ``world`` processes see at each step what one process with a ``world`` times larger batch would see.

    >>> [list(EpochBatches(7, 2, rank=rank, world=2)) for rank in range(2)]
    [[[0, 1], [4, 5]], [[2, 3], [6]]]
    """

    def __init__(self, count: int, batch: int, shuffle: int | None = None, rank: int = 0, world: int = 1) -> None:
        self.count, self.batch, self.shuffle, self.rank, self.world = count, batch, shuffle, rank, world
        if shuffle is not None and count < batch * world:
            raise UserError(f"{count} training samples do not fill one batch of {batch} × {world} process(es)")

    def __len__(self) -> int:
        whole, rest = divmod(self.count, self.batch * self.world)
        return whole + (self.shuffle is None and rest > self.rank * self.batch)

    def __iter__(self) -> Iterator[list[int]]:
        return (numbers.tolist() for numbers in self.on(torch.device("cpu")))

    def on(self, device: torch.device) -> Iterator[Tensor]:
        """The same numbers as tensors; they go to ``device`` once, for a copy at every step would make it wait."""
        order = torch.arange(self.count)
        if self.shuffle is not None:
            order = torch.randperm(self.count, generator=torch.Generator().manual_seed(self.shuffle))
        order = order.to(device)
        for step in range(len(self)):
            begin = (step * self.world + self.rank) * self.batch
            yield order[begin : begin + self.batch]


class Batches(DataLoader[dict[str, Any]]):
    """A DataLoader whose workers report a damaged image in one line, not in a traceback of their own."""

    def __iter__(self) -> Any:
        try:
            yield from super().__iter__()
        except DataError as error:
            raise DataError(str(error).strip().split("\n")[-1].removeprefix("foveal.errors.DataError: ")) from error


def read_batches(
    data: Dataset[dict[str, Any]],
    batch: int,
    *,
    shuffle: int | None,
    rank: int,
    world: int,
    workers: int,
    device: torch.device,
    collate: Callable[[list[Any]], Any] | None = None,
) -> Batches:
    """Batches of one epoch that ``workers`` processes read, in pinned memory if they go to a GPU.

    Args:
        data: has a length and gives one sample by number.
        batch: as in :class:`EpochBatches`.
        shuffle: the same.
        rank: the same.
        world: the same.
        workers: processes that read samples; 0 to read them in this one.
        device: where the batches will go; they are not moved here.
        collate: makes a batch of samples; None to stack what they hold.
    """
    return Batches(
        data,
        batch_sampler=EpochBatches(len(data), batch, shuffle, rank, world),  # type: ignore[arg-type]
        num_workers=workers,
        # Processes that were spawned, such as those of `foveal reproduce --jobs`, would spawn these too, and each would
        # import everything anew, one after the other.
        multiprocessing_context="fork" if workers and sys.platform == "linux" else None,
        collate_fn=collate,
        pin_memory=device.type == "cuda",
        generator=torch.Generator(),  # of the workers' seeds; the training's own numbers stay as they are
    )
