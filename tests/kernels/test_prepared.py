"""A prepared kernel: the first launch goes through Triton, later ones do not; the kernel is a pretended one."""

import pytest
import torch

from foveal.kernels import parts, prepared
from foveal.kernels.prepared import Prepared


class Compiled:
    """What Triton returns from a launch."""

    def __init__(self, calls):
        self.calls = calls

    def __getitem__(self, grid):
        return lambda *arguments: self.calls.append(("again", grid, arguments))


class Kernel:
    """A kernel decorated with ``triton.jit``."""

    def __init__(self, compiled=True):
        self.calls, self.compiled = [], compiled

    def __getitem__(self, grid):
        def launch(*arguments, **options):
            self.calls.append(("first", grid, arguments, options))
            return Compiled(self.calls) if self.compiled else None

        return launch


VIEW = ([4, 8], [8, 1], [2, 8])


def test_later_launches_take_the_compiled_kernel():
    kernel = Kernel()
    launch = Prepared(kernel, (5, 6), (VIEW, None, None), (7, "tf32"), {"num_warps": 4})
    maps, others = [torch.rand(4, 8) for _ in range(3)], [torch.rand(4) for _ in range(3)]
    for x, other in zip(maps, others, strict=True):
        launch(x, None, other)
    (first, grid, arguments, options), *later = kernel.calls
    assert (first, grid, options) == ("first", (5, 6, 1), {"num_warps": 4})
    assert [call[:2] for call in later] == [("again", (5, 6, 1))] * 2
    for x, other, arguments in zip(maps, others, [arguments, *(call[2] for call in later)], strict=True):  # noqa: B020
        descriptor, second, third = arguments[:3]
        assert descriptor.base.data_ptr() == x.data_ptr()
        assert (descriptor.shape, descriptor.strides, descriptor.block_shape) == VIEW
        assert second is None
        assert third is other or third == other.data_ptr()  # the first launch has the tensor
        assert arguments[3:] == (7, "tf32")


def test_an_address_that_is_not_aligned_goes_through_triton():
    """Triton compiles alignment in."""
    kernel, memory = Kernel(), torch.rand(8)
    assert memory.data_ptr() % 16 == 0
    launch = Prepared(kernel, (1,), (None,), (), {})
    for start in (1, 0, 0, 1, 0):
        launch(memory[start : start + 4])
    assert [call[0] for call in kernel.calls] == ["first", "first", "again", "first", "again"]


@pytest.mark.parametrize("off", ["switch", "interpreter"])
def test_every_launch_goes_through_triton(off, monkeypatch):
    if off == "switch":
        monkeypatch.setattr(prepared, "DIRECT", False)
    kernel = Kernel(compiled=off == "switch")
    launch = Prepared(kernel, (1,), (None,), (), {})
    for _ in range(3):
        launch(torch.rand(4))
    assert [call[0] for call in kernel.calls] == ["first"] * 3


def test_a_launch_is_prepared_once_for_the_same_arguments(monkeypatch):
    monkeypatch.setattr(prepared, "_ready", {})
    kernel, x = Kernel(), torch.rand(4)
    for dtype, size in ((torch.float32, 3), (torch.float32, 3), (torch.float64, 3), (torch.float32, 4)):
        prepared.launch(kernel, (2,), (x.to(dtype), None), (size,), num_warps=4)
    assert [call[0] for call in kernel.calls] == ["first", "again", "first", "first"]
    assert kernel.calls[1][2] == (x.data_ptr(), None, 3)


def test_prepared_launches_are_not_all_kept(monkeypatch):
    monkeypatch.setattr(prepared, "_ready", {})
    monkeypatch.setattr(prepared, "MOST", 3)
    for size in range(10):
        prepared.launch(Kernel(), (1,), (torch.rand(4),), (size,))
    assert 1 <= len(prepared._ready) <= 3


def test_parts_of_a_buffer_begin_at_whole_units():
    buffer, several = parts.parts((3, 8, 1, 5), torch.device("cpu"))
    assert all(part.data_ptr() % 16 == 0 for part in several)
    for number, part in enumerate(several):
        part.view().fill_(number)
    assert [part.view().tolist() for part in several] == [[0] * 3, [1] * 8, [2], [3] * 5]
    again, same = parts.parts((3, 8, 1, 5), buffer)
    assert again is buffer
    assert [part.data_ptr() for part in same] == [part.data_ptr() for part in several]


def test_tensors_of_one_allocation():
    buffer, _ = parts.parts((3, 8, 1, 5), torch.device("cpu"))
    several = parts.divided(buffer, (3, 8, 1, 5))
    assert [len(tensor) for tensor in several] == [3, 8, 1, 5]
    assert all(tensor.data_ptr() % 16 == 0 for tensor in several)
    for number, tensor in enumerate(several):
        tensor.fill_(number)
    assert [tensor.unique().tolist() for tensor in several] == [[0], [1], [2], [3]]


def test_a_part_is_passed_by_its_address():
    kernel, (_, (_, part)) = Kernel(), parts.parts((4, 4), torch.device("cpu"))
    launch = Prepared(kernel, (1,), (None,), (), {})
    launch(part)
    launch(part)
    (_, _, (first,), _), (_, _, (second,)) = kernel.calls
    assert torch.equal(first, part.view())
    assert first.data_ptr() == second == part.data_ptr()
