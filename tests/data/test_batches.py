"""Orders of samples, and batches gathered from them."""

import gc
import multiprocessing
import os
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from foveal.data.batches import Batches, Collated, EpochBatches, epoch_seed
from foveal.errors import DataError, UserError

CPU = torch.device("cpu")


class Squares(torch.utils.data.Dataset):
    """A dataset in which every seventh sample may be damaged."""

    def __init__(self, damaged=False):
        self.damaged = damaged

    def __getitem__(self, n):
        if self.damaged and n % 7 == 6:
            raise DataError(f"sample {n} is damaged; get it again")
        return {"x": torch.tensor([n, n * n]), "index": n}


class Processes(torch.utils.data.Dataset):
    """A dataset whose samples are the process that reads them."""

    def __getitem__(self, n):
        return {"process": os.getpid()}


def values(loader):
    return [{key: tensor.tolist() for key, tensor in batch.items()} for batch in loader]


@pytest.mark.parametrize("count", [1, 5, 6, 7, 11, 12, 13])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_evaluation_covers_every_sample_once(count, world):
    parts = [EpochBatches(count, 2, rank=rank, world=world) for rank in range(world)]
    assert all(len(list(part)) == len(part) for part in parts)
    assert sorted(n for part in parts for batch in part for n in batch.tolist()) == list(range(count))


@pytest.mark.parametrize("count", [6, 7, 11, 12, 13])
def test_training_takes_whole_global_batches(count):
    parts = [EpochBatches(count, 2, shuffle=0, rank=rank, world=3) for rank in range(3)]
    seen = [n for part in parts for batch in part for n in batch.tolist()]
    assert {len(part) for part in parts} == {count // 6}
    assert len(seen) == len(set(seen)) == count // 6 * 6


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(1, 60),
    batch=st.integers(1, 5),
    world=st.integers(1, 4),
    shuffle=st.none() | st.integers(0, 10**9),
)
def test_processes_together_see_what_one_with_a_larger_batch_sees(count, batch, world, shuffle):
    if shuffle is not None and count < batch * world:
        with pytest.raises(UserError, match=r"use a smaller train\.batch"):
            EpochBatches(count, batch, shuffle, 0, world)
        return
    if shuffle is None and count < batch * world:
        return  # smaller batches, so that every process has one: the next test
    alone = [index.tolist() for index in EpochBatches(count, batch * world, shuffle)]
    parts = [[index.tolist() for index in EpochBatches(count, batch, shuffle, rank, world)] for rank in range(world)]
    assert [len(part) for part in parts] == [len(EpochBatches(count, batch, shuffle, r, world)) for r in range(world)]
    together = [[n for part in parts if step < len(part) for n in part[step]] for step in range(len(alone))]
    assert together == alone


@given(count=st.integers(1, 30), batch=st.integers(1, 8), world=st.integers(1, 4))
def test_no_process_is_without_a_batch_of_few_samples(count, batch, world):
    parts = [[index.tolist() for index in EpochBatches(count, batch, rank=rank, world=world)] for rank in range(world)]
    assert sum(map(bool, parts)) == min(count, world)
    assert sorted(n for part in parts for index in part for n in index) == list(range(count))


def test_the_order_is_that_of_the_seed():
    """What training sees for a seed and an epoch must not change: results would no longer be reproduced."""
    expected = torch.randperm(10, generator=torch.Generator().manual_seed(3 * 100_003 + 2)).tolist()
    assert epoch_seed(3, 2) == 3 * 100_003 + 2
    assert [n for index in EpochBatches(10, 2, epoch_seed(3, 2)) for n in index.tolist()] == expected


@pytest.mark.parametrize("workers", [None, 0, 2])
def test_gathered_here_or_by_workers(workers):
    batches = Batches(EpochBatches(5, 2), Collated(Squares()), CPU, workers=workers)
    assert len(batches) == 3
    expected = [
        {"x": [[0, 0], [1, 1]], "index": [0, 1]},
        {"x": [[2, 4], [3, 9]], "index": [2, 3]},
        {"x": [[4, 16]], "index": [4]},
    ]
    assert values(batches) == values(batches) == expected  # as often as one likes


@pytest.mark.parametrize(("workers", "readers"), [(None, 1), (0, 1), (2, 2)])
def test_workers_are_processes(workers, readers):
    batches = Batches(EpochBatches(8, 2), Collated(Processes()), CPU, workers=workers)
    processes = {process for batch in batches for process in batch["process"].tolist()}
    assert len(processes) == readers
    assert (os.getpid() in processes) == (not workers)


@pytest.mark.parametrize("workers", [None, 0, 1])
def test_a_damaged_sample_is_one_line(workers):
    batches = Batches(EpochBatches(8, 2), Collated(Squares(damaged=True)), CPU, workers=workers)
    gc.disable()
    try:
        with pytest.raises(DataError, match=r"^sample 6 is damaged; get it again$"):
            list(batches)
        assert not multiprocessing.active_children()  # also without garbage collection
    finally:
        gc.enable()


def test_what_workers_need_can_be_sent_to_them():
    gather = pickle.loads(pickle.dumps(Collated(Squares())))
    assert gather(torch.tensor([3]))["x"].tolist() == [[3, 9]]


def test_global_random_numbers_stay_as_they_are():
    before = torch.get_rng_state()
    for workers in (None, 0, 1):
        list(Batches(EpochBatches(5, 2, 7), Collated(Squares()), CPU, workers=workers))
    assert torch.equal(torch.get_rng_state(), before)
