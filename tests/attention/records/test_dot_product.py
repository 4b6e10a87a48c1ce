"""Attention kept as queries and keys, against PyTorch's scaled dot product."""

import pytest
import torch
import torch.nn.functional as F

from foveal.attention import DotProduct


def sides(shape=(2, 3, 5, 4), keys=None, dtype=torch.float64):
    g = torch.Generator().manual_seed(0)
    q = torch.randn(shape, generator=g, dtype=dtype)
    return q, torch.randn((*shape[:-2], keys or shape[-2], shape[-1]), generator=g, dtype=dtype)


@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("keys", [5, 7])
def test_equals_the_scaled_dot_product_of_pytorch(scale, keys):
    q, k = sides(keys=keys)
    weights = DotProduct(q, k, scale=scale, heads=True).whole()
    unit = torch.eye(keys, dtype=q.dtype).expand(2, 3, keys, keys)
    torch.testing.assert_close(weights, F.scaled_dot_product_attention(q, k, unit, scale=scale))


@pytest.mark.parametrize("heads", [True, False])
def test_padding(heads):
    q, k = sides((2, 3, 5, 4) if heads else (2, 5, 4))
    valid = torch.tensor([[True, True, False, True, False], [False] * 5])
    weights = DotProduct(q, k, valid, heads=heads).whole()
    mask = valid[:, None] if heads else valid
    total = weights.sum(-1)
    torch.testing.assert_close(total, mask.expand(total.shape).to(total))
    assert (weights.masked_select(~mask[..., None, :].expand_as(weights)) == 0).all()
    short = DotProduct(q[..., [0, 1, 3], :], k[..., [0, 1, 3], :], heads=heads).whole()
    torch.testing.assert_close(weights[0][..., [0, 1, 3], :][..., [0, 1, 3]], short[0])


def test_rows_are_those_of_the_whole_with_padding_and_heads():
    q, k = sides()
    valid = torch.tensor([[True, True, False, True, True], [True] * 5])
    queries, heads = torch.tensor([4, 2]), torch.tensor([2, 0])
    attention = DotProduct(q, k, valid, heads=True)
    rows = attention.rows(queries, heads)
    assert rows.shape == (2, 2, 2, 5)
    torch.testing.assert_close(rows, attention.whole()[:, heads][:, :, queries])


def test_half_precision_has_a_softmax_in_float32():
    q, k = sides(dtype=torch.float32)
    weights = DotProduct(q.bfloat16(), k.bfloat16(), heads=True).whole()
    assert weights.dtype == torch.float32
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3, 5))


def test_the_affinities_of_the_heads_mean():
    q, k = sides()
    separate = DotProduct(q, k, scale=0.5, heads=True)
    assert separate.affinities() == (q, k, 0.5)
    rows, columns, scale = DotProduct(q, k, scale=0.5, heads=True, mean_heads=True).affinities()
    torch.testing.assert_close(scale * rows @ columns.mT, (0.5 * q @ k.mT).mean(1))


def test_gradients():
    q, k = (side.requires_grad_() for side in sides((1, 4, 3)))
    valid = torch.tensor([[True, True, True, False]])
    assert torch.autograd.gradcheck(lambda q, k: DotProduct(q, k, valid).whole(), (q, k))
    assert torch.autograd.gradcheck(lambda q, k: DotProduct(q, k, valid).rows(torch.tensor([2, 3]), None), (q, k))
