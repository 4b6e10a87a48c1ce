import pytest

from foveal.data.batches import EpochBatches


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
