"""Batches of one epoch: an order of the samples, and a function that gathers those of one batch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler, default_collate

from foveal.errors import DataError, UserError

Batch = dict[str, Tensor]
Gather = Callable[[Tensor], Batch]
"""Makes a batch of the samples with these numbers, int64 (N,)."""

CPU = torch.device("cpu")


def epoch_seed(seed: int, epoch: int) -> int:
    """Seed of the order of one training epoch."""
    return seed * 100_003 + epoch


class EpochBatches(Sampler[Tensor]):
    """The numbers of the samples in each batch of one epoch and process.

    Args:
        count: how many samples there are.
        batch: samples per batch and process; fewer in an order of few samples, so that every process has some.
        shuffle: seed of this epoch's order, whose incomplete last batch is dropped; None for the order of the samples,
            each of them exactly once.
        rank, world: this process and the number of processes. Process r takes the r-th piece of every global batch, so
            that ``world`` processes see at each step what one process with a ``world`` times larger batch would see.

    >>> [[batch.tolist() for batch in EpochBatches(7, 2, rank=rank, world=2)] for rank in range(2)]
    [[[0, 1], [4, 5]], [[2, 3], [6]]]
    >>> [[batch.tolist() for batch in EpochBatches(4, 8, rank=rank, world=2)] for rank in range(2)]
    [[[0, 1]], [[2, 3]]]
    """

    def __init__(self, count: int, batch: int, shuffle: int | None = None, rank: int = 0, world: int = 1) -> None:
        if shuffle is None:
            batch = min(batch, max(1, count // world))  # so that no process is left without a batch
        self.count, self.batch, self.shuffle, self.rank, self.world = count, batch, shuffle, rank, world
        if shuffle is not None and count < batch * world:
            raise UserError(
                f"{count} training samples do not fill one batch of {batch} × {world} process(es); use a smaller "
                "train.batch"
            )

    def __len__(self) -> int:
        full, rest = divmod(self.count, self.batch * self.world)
        return full + (self.shuffle is None and rest > self.rank * self.batch)

    def __iter__(self) -> Iterator[Tensor]:
        return self.on(CPU)

    def on(self, device: torch.device) -> Iterator[Tensor]:
        """The same on ``device``: the whole order is copied once, because a copy at every step would make it wait."""
        order = torch.arange(self.count)
        if self.shuffle is not None:
            order = torch.randperm(self.count, generator=torch.Generator().manual_seed(self.shuffle))
        order = order.to(device)
        for step in range(len(self)):
            begin = (step * self.world + self.rank) * self.batch
            yield order[begin : begin + self.batch]


class Batches:
    """Batches of one epoch.

    Args:
        order: which samples are in each batch.
        gather: makes a batch.
        device: where the training is. Without ``workers`` that is where ``gather`` gets its numbers.
        workers: processes that call ``gather`` on the CPU, 0 for this one; batches that go to a GPU are then in pinned
            memory. None if the samples lie on the device already, so that gathering is indexing.
    """

    def __init__(
        self, order: EpochBatches, gather: Gather, device: torch.device, *, workers: int | None = None
    ) -> None:
        self.order, self.gather, self.device, self.workers = order, gather, device, workers

    def __len__(self) -> int:
        return len(self.order)

    def __iter__(self) -> Iterator[Batch]:
        if self.workers is None:
            return map(self.gather, self.order.on(self.device))
        return self._read(self.workers)

    def _read(self, workers: int) -> Iterator[Batch]:
        try:
            yield from self.dataloader(workers)
            return
        except DataError as error:
            message = str(error).strip().split("\n")[-1]  # without the traceback of a worker
            # The traceback holds the DataLoader's iterator, and a reference cycle holds the traceback. Without it the
            # workers end now. Otherwise a process that is forked later would end them, and may hang over it.
            error.__traceback__ = None
        raise DataError(message.removeprefix("foveal.errors.DataError: "))

    def dataloader(self, workers: int) -> DataLoader[Batch]:
        """A DataLoader whose ``workers`` gather whole batches."""
        return DataLoader(
            _Gathered(self.gather),
            batch_size=None,  # the sampler gives whole batches
            sampler=self.order,
            num_workers=workers,
            # A spawned process, such as one of `foveal reproduce --jobs`, would spawn these too, and each would import
            # everything anew, one after the other.
            multiprocessing_context="fork" if workers and sys.platform == "linux" else None,
            pin_memory=self.device.type == "cuda",
            generator=torch.Generator(),  # of the workers' seeds; the training's own random numbers stay as they are
        )


class _Gathered(Dataset[Batch]):
    """What the DataLoader calls a dataset: its items are whole batches."""

    def __init__(self, gather: Gather) -> None:
        self.gather = gather

    def __getitem__(self, index: Any) -> Batch:
        return self.gather(index)


class Collated:
    """Gathers the samples of a dataset one by one, and stacks what they hold."""

    def __init__(self, data: Dataset[dict[str, Any]]) -> None:
        self.data = data

    def __call__(self, index: Tensor) -> Batch:
        """The samples with these numbers as one batch."""
        return default_collate([self.data[n] for n in index.tolist()])
