"""A kernel that Triton has compiled is launched again without its wrappers; Triton is pretended."""

import sys
from types import SimpleNamespace

import pytest
import torch

from foveal import compat
from foveal.kernels.triton_launch import compiled_launch


class Launcher:
    """Triton's launcher, pretended: with tensor descriptors its function is wrapped in one that expands them."""

    global_scratch_size = profile_scratch_size = 0
    launch_cooperative_grid, launch_pdl = False, True

    def __init__(self, calls, wrapped):
        def launcher(*arguments):
            calls.append(arguments)

        self.launch = (lambda *arguments: launcher("wrapped", *arguments)) if wrapped else launcher


class Descriptor:
    """A tensor descriptor, pretended."""

    def __init__(self):
        self.base, self.shape = None, [4, 8]


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_compiled_kernel_is_launched_without_the_wrappers_of_triton(wrapped, monkeypatch):
    calls, expanded = [], []

    def expand(descriptor, about):
        expanded.append((descriptor.base.data_ptr(), about))
        return [f"map of {descriptor.base.data_ptr()}", *descriptor.shape]

    driver = SimpleNamespace(_BASE_ARGS_FORMAT="iiiKKppOOOOOO", make_tensordesc_arg=expand)
    monkeypatch.setitem(sys.modules, "triton.backends.nvidia.driver", driver)
    monkeypatch.setattr(compat, "raw_stream", lambda device: f"stream of {device}")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    metadata = SimpleNamespace(tensordesc_meta=["about"] if wrapped else None)
    compiled = SimpleNamespace(run=Launcher(calls, wrapped), metadata=metadata, function=7, packed_metadata="packed")
    descriptors = [Descriptor() if wrapped else None, None]
    launch = compiled_launch(compiled, (5, 6, 1), descriptors, (9, "tf32"))
    for address in (16, 32, 16):
        launch([address, 64])
    head = 5, 6, 1, "stream of 3", 7, False, True, None, None, "packed", None, None, None
    first = [[f"map of {address}", 4, 8] if wrapped else [address] for address in (16, 32, 16)]
    assert calls == [(*head, *arguments, 64, 9, "tf32") for arguments in first]
    assert expanded == ([(16, "about"), (32, "about")] if wrapped else [])  # kept by address


def test_another_launcher_is_called_as_triton_does(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton.backends.nvidia.driver", SimpleNamespace(_BASE_ARGS_FORMAT="other"))
    calls = []
    launch = compiled_launch({(1, 1, 1): lambda *arguments: calls.append(arguments)}, (1, 1, 1), [None], (2,))
    launch([16])
    assert calls == [(16, 2)]
    assert compiled_launch(None, (1, 1, 1), [None], ()) is None  # in the interpreter
