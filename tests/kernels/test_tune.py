"""Choosing among launches, and launching on the right GPU; the GPU is a pretended one."""

import json
import threading
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest
import torch
from triton.runtime.errors import OutOfResources

from foveal.kernels import support, tune


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    """A device that can be waited for and does not record."""
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "some GPU")
    monkeypatch.setattr(tune, "capability", lambda device: (9, 0))
    monkeypatch.setenv("FOVEAL_CACHE", str(tmp_path))
    monkeypatch.setattr(tune, "SHIPPED", tmp_path / "shipped.json")
    monkeypatch.setattr(tune, "_milliseconds", lambda launch: launch())
    monkeypatch.setattr(tune, "_chosen", {})
    tune._choices.cache_clear()
    yield torch.device("cuda", 0)
    tune._choices.cache_clear()


def launched(monkeypatch, gpu, candidates=(3.0, 1.0, 2.0), kernel="a", shape="64x7x7", batch=16, unfit=()):
    """What another process would choose, and how many candidates it would launch; a launch takes that long."""
    tried = []
    monkeypatch.setattr(tune, "_chosen", {})

    def launch(candidate):
        tried.append(candidate)
        if candidate in unfit:
            raise OutOfResources(2, 1, "shared memory")
        return candidate

    return tune.run(tune.Key(kernel, shape, batch, gpu), lambda: list(candidates), launch), len(set(tried))


def test_nothing_is_measured_unless_asked(gpu, monkeypatch, tmp_path):
    assert launched(monkeypatch, gpu) == (3.0, 1)
    assert not any(tmp_path.iterdir())


def test_candidates_that_do_not_fit_are_skipped(gpu, monkeypatch):
    assert launched(monkeypatch, gpu, unfit=[3.0]) == (1.0, 2)
    with pytest.raises(RuntimeError, match=r"no launch of a \(64x7x7, batch 16\) fits some GPU"):
        launched(monkeypatch, gpu, unfit=[1.0, 2.0, 3.0])


def test_candidates_are_listed_once(gpu):
    listed = []
    key = tune.Key("a", "b", 1, gpu)
    for _ in range(3):
        assert tune.run(key, lambda: listed.append(None) or [3.0, 1.0], float) == 3.0
    assert len(listed) == 1


def test_a_search_finds_the_fastest_and_remembers_it(gpu, monkeypatch, tmp_path):
    assert launched(monkeypatch, gpu) == (3.0, 1)
    with tune.searching() as search:
        assert launched(monkeypatch, gpu, unfit=[4.0], candidates=(3.0, 1.0, 4.0)) == (1.0, 3)
    assert list(search.times.values()) == [(3.0, 1.0)]
    tune.write_table(tune.user_table(), search.table)
    assert launched(monkeypatch, gpu) == (1.0, 1)
    assert launched(monkeypatch, gpu, kernel="b") == (3.0, 1)
    assert launched(monkeypatch, gpu, shape="64x8x8") == (3.0, 1)
    assert launched(monkeypatch, gpu, candidates=(3.0, 2.0)) == (3.0, 1)  # it is no candidate any more
    assert launched(monkeypatch, gpu, unfit=[1.0]) == (3.0, 2)


def test_a_table_is_for_a_gpu_and_its_relatives(gpu, monkeypatch):
    with tune.searching() as search:
        launched(monkeypatch, gpu)
    tune.write_table(tune.SHIPPED, search.table)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "another")
    assert launched(monkeypatch, gpu) == (1.0, 1)
    monkeypatch.setattr(tune, "capability", lambda device: (8, 0))
    assert launched(monkeypatch, gpu) == (3.0, 1)


def test_similar_batches_share_a_choice(gpu, monkeypatch):
    for batch, candidates in ((16, (3.0, 1.0, 2.0)), (64, (3.0, 2.0))):
        with tune.searching() as search:
            launched(monkeypatch, gpu, candidates, batch=batch)
        tune.write_table(tune.SHIPPED, search.table)
    expected = {4: 3.0, 8: 1.0, 16: 1.0, 24: 1.0, 40: 2.0, 64: 2.0, 128: 2.0, 256: 3.0}
    assert {batch: launched(monkeypatch, gpu, batch=batch)[0] for batch in expected} == expected


def test_what_the_user_measured_comes_first(gpu, monkeypatch):
    for path, candidates in ((tune.SHIPPED, (3.0, 2.0)), (tune.user_table(), (3.0, 1.0))):
        with tune.searching() as search:
            launched(monkeypatch, gpu, candidates)
        tune.write_table(path, search.table)
    assert launched(monkeypatch, gpu) == (1.0, 1)
    assert launched(monkeypatch, gpu, unfit=[1.0]) == (2.0, 2)


@pytest.mark.parametrize(
    "damage", ["", "x", "[]", "{}", '{"some GPU": 1}', '{"some GPU": {"choices": {"a 64x7x7": {"16": 1}}}}']
)
def test_a_damaged_table_is_ignored(gpu, monkeypatch, damage):
    tune.user_table().write_text(damage)
    assert launched(monkeypatch, gpu) == (3.0, 1)


def test_the_table_of_the_package_is_sound():
    """Every entry would be used."""
    table = json.loads(tune.SHIPPED.read_text(encoding="utf-8"))
    assert tune._read_table(tune.SHIPPED) == table


def test_nothing_is_measured_while_a_graph_is_recorded(gpu, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with tune.searching() as search:
        assert launched(monkeypatch, gpu) == (3.0, 1)
    assert not search.table


def test_without_a_gpu_the_first_is_taken():
    key = tune.Key("c", "d", 1, torch.device("cpu"))
    assert tune.run(key, lambda: [3.0, 1.0], float) == 3.0
    assert key not in tune._chosen


def test_candidates_that_choose_themselves_run_one_by_one(gpu):
    """While one records a graph, another must not even wait for the device."""
    running, most, lock = set(), [], threading.Lock()

    def launch(candidate):
        with lock:
            running.add(candidate)
            most.append(len(running))
        tune.run(tune.Key("inner", str(candidate), 1, gpu), lambda: [1.0, 2.0], float, threads=1)
        with lock:
            running.discard(candidate)
        return candidate

    with tune.searching():
        assert tune.run(tune.Key("outer", "", 1, gpu), lambda: [2.0, 1.0, 3.0], launch, threads=1) == 1.0
    assert max(most) == 1


def test_kernels_are_launched_on_the_gpu_of_their_tensor(monkeypatch):
    happened = []

    @contextmanager
    def device_of(x):
        happened.append(f"to GPU {x.get_device()}")
        yield
        happened.append("back")

    monkeypatch.setattr(torch.cuda, "device_of", device_of)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    launch = support.on_its_device(lambda x, y, *, z: happened.append(f"launch {y} {z}") or y)
    assert launch(SimpleNamespace(is_cuda=True, get_device=lambda: 1), 1, z=2) == 1
    assert launch(SimpleNamespace(is_cuda=True, get_device=lambda: 0), 3, z=4) == 3
    assert happened == ["to GPU 1", "launch 1 2", "back", "launch 3 4"]


def test_a_tensor_of_the_cpu_needs_no_gpu():
    assert support.on_its_device(torch.numel)(torch.zeros(3)) == 3
