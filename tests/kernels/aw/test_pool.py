"""Pooling as a matrix product, against PyTorch's own."""

import pytest
import torch
import torch.nn.functional as F

from foveal.kernels.aw import pool
from foveal.kernels.aw.pool import average_by_product


@pytest.mark.parametrize("sides", [(56, 56), (7, 7), (3, 3), (2, 5), (1, 1), (10, 4)])
@pytest.mark.parametrize("size", [(3, 3), (1, 1), (5, 2)])
def test_equals_adaptive_pooling(sides, size):
    x = torch.randn(2, 5, *sides, dtype=torch.float64, requires_grad=True)
    actual, expected = average_by_product(x, size), F.adaptive_avg_pool2d(x, size)
    torch.testing.assert_close(actual, expected)
    into = torch.randn_like(expected)
    torch.testing.assert_close(torch.autograd.grad(actual, x, into), torch.autograd.grad(expected, x, into))


@pytest.mark.parametrize(("dtype", "error"), [(torch.bfloat16, 2**-8), (torch.float16, 2**-10)])
@pytest.mark.parametrize("level", [0.01, 60.0])
def test_half_precision_neither_overflows_nor_loses_more_than_one_rounding(dtype, error, level):
    x = (level * (1 + 0.1 * torch.randn(2, 8, 112, 112))).to(dtype)
    expected = F.adaptive_avg_pool2d(x.float(), (3, 3))
    actual = average_by_product(x, (3, 3))
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual, expected, atol=0, rtol=error)


def test_windows_of_many_sizes_are_not_all_kept(monkeypatch):
    monkeypatch.setattr(pool, "MOST_CACHED", 3)
    monkeypatch.setattr(pool, "_cache", {})
    for side in (4, 5, 6, 7, 8):
        average_by_product(torch.randn(1, 2, side, side), (3, 3))
    assert [key[0] for key in pool._cache] == [6, 7, 8]


def test_windows_are_kept_for_training_too():
    pool._cache.clear()
    x = torch.randn(2, 4, 9, 9, requires_grad=True)
    with torch.inference_mode():
        average_by_product(x, (3, 3))
    assert len(pool._cache) == 1
    average_by_product(x, (3, 3)).sum().backward()
    assert len(pool._cache) == 1
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        average_by_product(torch.empty(2, 4, 12, 12), (3, 3))
    assert len(pool._cache) == 1


def test_compiles():
    x = torch.randn(2, 4, 9, 9)
    compiled = torch.compile(average_by_product, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, (3, 3)), F.adaptive_avg_pool2d(x, (3, 3)))
