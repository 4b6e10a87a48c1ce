"""A function is run twice; afterwards its launches and allocations are repeated with other tensors."""

import ctypes

import pytest
import torch

from foveal.kernels import copies, parts, tape
from foveal.kernels.prepared import launch
from foveal.kernels.tape import do_not_record, empty, empty_like, empty_strided, taped


def values(address, count):
    return torch.frombuffer((ctypes.c_float * count).from_address(address), dtype=torch.float32)


class Add:
    """A pretended kernel: out = a + b + constant, of float32, where b may be None; by address when launched again."""

    def __getitem__(self, grid):
        def first(a, b, out, count, constant, **options):
            self.run(*(None if t is None else t.data_ptr() for t in (a, b, out)), count, constant)
            return self.Compiled(self.run)

        return first

    class Compiled:
        def __init__(self, run):
            self.run = run

        def __getitem__(self, grid):
            return self.run

    def run(self, a, b, out, count, constant):
        values(out, count)[:] = values(a, count) + (0 if b is None else values(b, count)) + constant


ADD = Add()


def add(a, b, out, constant=0.0):
    launch(ADD, (1,), (a, b, out), (64, constant), num_warps=1)


DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def _no_tapes(monkeypatch):
    monkeypatch.setattr(tape, "_tapes", {})


def repeated(function, tensors, calls=5):
    """Results of several calls with tensors that ``tensors()`` makes, and how often the function ran."""
    ran, results = [], []

    def counted(*arguments):
        ran.append(1)
        return function(*arguments)

    for _ in range(calls):
        inputs = tensors()
        results.append((inputs, taped("key", counted, inputs)))
    return results, len(ran)


def sums(a, b):
    """a + b + 3 by way of temporary memory and a part of a buffer, and a + 1 in channels last."""
    between = empty((64,), torch.float32, a.device)
    _, (_, part) = parts.parts((5, 64), a.device)
    add(a, b, between, 1.0)
    add(between, None, part, 2.0)
    out, other = empty_like(a), empty_strided((1, 8, 2, 4), (64, 1, 32, 8), torch.float32, a.device)
    add(part, None, out)
    add(a, None, other.permute(0, 2, 3, 1), 1.0)
    return out, None, other


def test_asked_for_before_the_options_are_made():
    tensors = torch.randn(64), torch.randn(64)
    found = [tape.repeated("key", tensors)]
    for _ in range(3):
        expected = taped("key", sums, tensors)
        found.append(tape.repeated("key", tensors))
    assert found[:2] == [None, None]  # the second call records
    for results in found[2:]:
        torch.testing.assert_close(results[0], expected[0])
        assert results[1] is None
    assert tape.repeated("key", (None, *tensors)) is None


def test_values_with_other_tensors():
    results, ran = repeated(sums, lambda: (torch.randn(64), torch.randn(64)))
    assert ran == 2
    for (a, b), (out, nothing, other) in results:
        torch.testing.assert_close(out, a + b + 3)
        torch.testing.assert_close(other.permute(0, 2, 3, 1).reshape(-1), a + 1)
        assert other.is_contiguous(memory_format=torch.channels_last)
        assert nothing is None
    assert len({out.data_ptr() for _, (out, _, _) in results}) == 5


def test_a_tensor_that_is_none():
    def double(a, b):
        out = empty_like(a)
        add(a, b, out)
        return (out,)

    results, ran = repeated(double, lambda: (torch.randn(64), None))
    assert ran == 2
    for (a, _), (out,) in results:
        torch.testing.assert_close(out, a)


def test_what_is_in_the_input_is_changed():
    def increase(a):
        add(a, None, a, 1.0)
        return ()

    results, ran = repeated(increase, lambda: (torch.zeros(64),))
    assert ran == 2
    assert all(a.eq(1).all() for (a,), _ in results)


@pytest.mark.parametrize("reason", ["said so", "not aligned", "overlapping", "an input returned"])
def test_what_is_not_repeated_is_run(reason):
    def function(a, b):
        if reason == "said so":
            do_not_record()
        out = empty_like(a)
        add(a, b, out)
        return (a if reason == "an input returned" else out,)

    def tensors():
        memory = torch.randn(200)
        first = {"not aligned": memory[1:65], "overlapping": memory[:64]}.get(reason, torch.randn(64))
        return first, memory[32:96] if reason == "overlapping" else torch.randn(64)

    results, ran = repeated(function, tensors)
    assert ran == 5
    if reason != "an input returned":
        for (a, b), (out,) in results:
            torch.testing.assert_close(out, a + b)


def test_only_the_call_that_is_not_aligned_is_run():
    memory = torch.randn(200)
    starts = iter((0, 64, 4, 1, 8))
    results, ran = repeated(sums, lambda: (memory[(i := next(starts)) : i + 64], torch.randn(64)))
    assert ran == 3
    for (a, b), (out, _, _) in results:
        torch.testing.assert_close(out, a + b + 3)


def test_keys_have_tapes_of_their_own_and_can_be_forgotten():
    def shifted(a, constant):
        out = empty_like(a)
        add(a, None, out, constant)
        return (out,)

    for constant in (1.0, 2.0) * 4:
        a = torch.randn(64)
        (out,) = taped(constant, shifted, (a,), constant)
        torch.testing.assert_close(out, a + constant)
    assert all(isinstance(tape._tapes[constant], tape.Tape) for constant in (1.0, 2.0))
    tape.forget()
    assert not tape._tapes


@pytest.mark.parametrize("capturing", [True, False])
def test_there_is_an_end_to_tapes_but_none_goes_during_a_capture(capturing, monkeypatch):
    monkeypatch.setattr(tape, "MOST", 3)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing)
    for key in range(4):
        a, b = torch.randn(2, 64)
        out, *_ = taped(key, sums, (a, b))
        torch.testing.assert_close(out, a + b + 3)
    assert list(tape._tapes) == ([0, 1, 2] if capturing else [3])


def test_a_failure_ends_the_recording():
    def function(a, fail):
        if fail:
            raise ValueError("no")
        return sums(a, a.clone())

    a = torch.randn(64)
    taped("key", function, (a,), False)
    with pytest.raises(ValueError, match="no"):
        taped("key", function, (a,), True)
    assert tape._state.recording is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 5), (7, 300), (33, 4, 3, 2)])
def test_sum_of_parts(shape, dtype):
    each = torch.randn(shape, device=DEVICE)
    torch.testing.assert_close(copies.sum_parts(each, dtype), each.sum(0).to(dtype))


def test_padding():
    x = torch.randn(2, 3, 5, 4, device=DEVICE).to(memory_format=torch.channels_last)
    torch.testing.assert_close(copies.padded(x, 6, 8), torch.nn.functional.pad(x, (0, 4, 0, 1)))
    assert copies.padded(x, 5, 4) is x


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(("groups", "together"), [(1, 1), (4, 2), (5, 2)])
def test_packed_weights_are_those_of_a_dense_convolution(groups, together, last):
    into, out = 4, 8
    weight = torch.randn(groups * out, into, 3, 2, device=DEVICE)
    weight = weight.to(memory_format=torch.channels_last) if last else weight
    packed = copies.packed(weight, torch.float16, groups, together)
    expected = torch.zeros(-(-groups // together) * together * out, 6, together * into, device=DEVICE)
    for group in range(groups):
        rows, first = slice(group * out, (group + 1) * out), group % together * into
        expected[rows, :, first : first + into] = weight[rows].flatten(2).transpose(1, 2)
    torch.testing.assert_close(packed.float(), expected.half().float())
