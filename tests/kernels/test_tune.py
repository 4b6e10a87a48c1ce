"""Choosing among launches, and launching on the right GPU; the GPU is a pretended one."""

import threading
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from foveal.kernels import support, tune


@pytest.fixture
def gpu(monkeypatch):
    """A device that can be waited for and does not record."""
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
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


@pytest.mark.parametrize(("index", "switched"), [(0, []), (1, [1])])
def test_kernels_are_launched_on_the_gpu_of_their_tensor(monkeypatch, index, switched):
    entered = []
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device", lambda device: entered.append(device.index) or nullcontext())
    x = SimpleNamespace(is_cuda=True, device=SimpleNamespace(index=index))
    assert support.on_its_device(lambda x, y, *, z: (y, z))(x, 1, z=2) == (1, 2)
    assert entered == switched


def test_a_tensor_of_the_cpu_needs_no_gpu():
    assert support.on_its_device(torch.numel)(torch.zeros(3)) == 3
