"""Choosing among launches, and launching on the right GPU; the GPU is a pretended one."""

import threading
from contextlib import contextmanager, nullcontext

import pytest
import torch

from foveal.kernels import support, tune


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    """A device that can be waited for and does not record."""
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "some GPU")
    monkeypatch.setenv("FOVEAL_CACHE", str(tmp_path))
    monkeypatch.setattr(tune, "_milliseconds", lambda launch: launch())
    monkeypatch.setattr(tune, "_chosen", {})
    return torch.device("cuda", 0)


def test_the_fastest_is_measured_once_for_a_key(gpu):
    listed = []

    def candidates():
        listed.append(None)
        return [3.0, 1.0, 2.0]

    assert [tune.fastest("a", candidates, float, gpu) for _ in range(3)] == [1.0] * 3
    assert len(listed) == 1
    assert tune.fastest("b", lambda: [5.0], float, gpu) == 5.0


def measured(monkeypatch, gpu, candidates=(3.0, 1.0, 2.0), key="a"):
    """What another process would choose, and how many candidates it would try."""
    tried = []
    monkeypatch.setattr(tune, "_chosen", {})
    return tune.fastest(key, lambda: list(candidates), lambda c: tried.append(c) or c, gpu), len(set(tried))


def test_choices_are_remembered(gpu, monkeypatch, tmp_path):
    assert measured(monkeypatch, gpu) == (1.0, 3)
    assert measured(monkeypatch, gpu) == (1.0, 0)
    assert measured(monkeypatch, gpu, (5.0, 4.0)) == (4.0, 2)  # other candidates
    assert measured(monkeypatch, gpu, key="b") == (1.0, 3)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "another")
    assert measured(monkeypatch, gpu) == (1.0, 3)
    assert len(list((tmp_path / "launches").iterdir())) == 4


@pytest.mark.parametrize("damage", ["", "x", "99", "\x00"])
def test_a_damaged_choice_is_made_again(gpu, monkeypatch, tmp_path, damage):
    measured(monkeypatch, gpu)
    (file,) = (tmp_path / "launches").iterdir()
    file.write_text(damage)
    assert measured(monkeypatch, gpu) == (1.0, 3)
    assert measured(monkeypatch, gpu) == (1.0, 0)


def test_without_a_place_to_remember_it_is_measured_every_time(gpu, monkeypatch, tmp_path):
    (tmp_path / "launches").write_text("in the way")
    assert [measured(monkeypatch, gpu) for _ in range(2)] == [(1.0, 3)] * 2


def test_while_a_graph_is_recorded_only_what_is_known_is_used(gpu, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert measured(monkeypatch, gpu) == (3.0, 0)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    measured(monkeypatch, gpu)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert measured(monkeypatch, gpu) == (1.0, 0)


def test_without_a_gpu_the_first_is_taken():
    assert tune.fastest("c", lambda: [3.0, 1.0], float, torch.device("cpu")) == 3.0


def test_candidates_that_choose_themselves_run_one_by_one(gpu):
    """While one records a graph, another must not even wait for the device."""
    running, most, lock = set(), [], threading.Lock()

    def launch(candidate):
        with lock:
            running.add(candidate)
            most.append(len(running))
        tune.fastest(("inner", candidate), lambda: [1.0, 2.0], float, gpu, threads=1)
        with lock:
            running.discard(candidate)
        return candidate

    assert tune.fastest("outer", lambda: [2.0, 1.0, 3.0], launch, gpu, threads=1) == 1.0
    assert max(most) == 1


def test_kernels_are_launched_on_the_gpu_of_their_tensor(monkeypatch):
    happened = []

    @contextmanager
    def device_of(x):
        happened.append(f"to the GPU of {x}")
        yield
        happened.append("back")

    monkeypatch.setattr(torch.cuda, "device_of", device_of)
    launch = support.on_its_device(lambda x, y, *, z: happened.append(f"launch {y} {z}") or y)
    assert launch("x", 1, z=2) == 1
    assert happened == ["to the GPU of x", "launch 1 2", "back"]


def test_a_tensor_of_the_cpu_needs_no_gpu():
    assert support.on_its_device(torch.numel)(torch.zeros(3)) == 3
