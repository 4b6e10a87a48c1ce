"""Kernels are compiled in threads before the function that launches them runs; the kernel is a pretended one."""

import threading
from types import SimpleNamespace

import pytest
import torch

from foveal.kernels import ahead, prepared
from foveal.kernels.ahead import compile_ahead
from foveal.kernels.prepared import Prepared


class Kernel:
    """A kernel decorated with ``triton.jit``: two tensors, a number that is looked at, one that is not, a constant."""

    do_not_specialize = ("M",)
    params = tuple(SimpleNamespace(name=name, is_constexpr=name == "BLOCK") for name in ("a", "b", "N", "M", "BLOCK"))

    def __init__(self):
        self.compiled, self.launched, self.go = [], [], threading.Event()

    def warmup(self, *arguments, grid, **options):
        assert self.go.wait(10)
        assert threading.current_thread() is not threading.main_thread()
        assert all(tensor.data_ptr() == 0 for tensor in arguments[:2])
        self.compiled.append((*arguments[2:], grid, options))

    def __getitem__(self, grid):
        def launch(*arguments, **options):
            self.launched.append(len(self.compiled))

        return launch


@pytest.fixture
def kernel(monkeypatch):
    monkeypatch.setattr(ahead, "_compiled", {})
    monkeypatch.setattr(ahead, "_begun", set())
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device", lambda index: threading.Lock())
    monkeypatch.setattr(prepared, "DIRECT", False)
    return Kernel()


def launches(kernel, *sizes):
    a, b = torch.zeros(16), torch.zeros(16)
    for rest in sizes:
        Prepared(kernel, (1, 1), (None, None), rest, {"num_warps": 4})(a, b)
    return "result"


def test_nothing_is_launched_and_everything_compiled_once(kernel):
    kernel.go.set()
    alike = (32, 5, 64), (48, 7, 64)  # both numbers are multiples of 16; the other is not looked at
    assert compile_ahead(launches, kernel, *alike, (33, 5, 64), (32, 5, 128)) == "result"
    for future in ahead._compiled.values():
        future.result()
    assert kernel.launched == []
    assert sorted(call[:3] for call in kernel.compiled) == [(32, 5, 64), (32, 5, 128), (33, 5, 64)]
    assert kernel.compiled[0][3:] == ((1, 1, 1), {"num_warps": 4})


def test_a_launch_waits_for_its_kernel(kernel):
    compile_ahead(launches, kernel, (32, 5, 64))
    threading.Timer(0.2, kernel.go.set).start()
    launches(kernel, (32, 6, 64))
    assert kernel.launched == [1]


def test_what_fails_to_compile_fails_at_its_launch(kernel):
    def warmup(*arguments, **options):
        raise ValueError("no")

    kernel.warmup = warmup
    compile_ahead(launches, kernel, (32, 5, 64))
    launches(kernel, (32, 5, 64))
    assert kernel.launched == [0]


def test_it_ends_with_an_error(kernel):
    with pytest.raises(ZeroDivisionError):
        compile_ahead(lambda: 1 / 0)
    assert not ahead.collecting()
