"""Deformable convolution of sequences against a loop and against a plain convolution."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import foveal
from foveal.attention import DeformConv1d
from foveal.errors import UserError


def make(causal=False, moved=True, kernel=3):
    torch.manual_seed(0)
    module = DeformConv1d(4, kernel=kernel, causal=causal).double()
    if moved:
        nn.init.normal_(module.offset.weight, std=0.5)
        nn.init.normal_(module.offset.bias)
    return module


X = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@torch.no_grad()
def slow(module, x):
    out = torch.zeros_like(x)

    def at(b, place):
        low = math.floor(place)
        value = torch.zeros(4, dtype=x.dtype)
        for step, share in ((0, 1 - (place - low)), (1, place - low)):
            if 0 <= low + step < x.shape[1]:
                value += share * x[b, low + step]
        return value

    for b in range(len(x)):
        for q in range(x.shape[1]):
            taps = [q + k - module.left for k in range(module.kernel)]
            offsets = module.offset(torch.cat([at(b, p) for p in taps]))
            places = [p + float(o) for p, o in zip(taps, offsets, strict=True)]
            places = [min(p, q) for p in places] if module.causal else places
            out[b, q] = module.weight(torch.cat([at(b, p) for p in places]))
    return out


@pytest.mark.parametrize(("causal", "kernel"), [(False, 3), (True, 3), (True, 2), (False, 1)])
def test_it_is_the_equation(causal, kernel):
    module = make(causal, kernel=kernel)
    torch.testing.assert_close(module(X), slow(module, X))


def test_it_starts_as_a_convolution():
    module = make(moved=False)
    weight = module.weight.weight.unflatten(1, (3, 4)).permute(0, 2, 1)
    torch.testing.assert_close(module(X), F.conv1d(X.mT, weight, module.weight.bias, padding=1).mT)


def test_the_future_is_not_seen():
    module, other = make(causal=True), X.clone()
    other[:, 3:] = 7
    torch.testing.assert_close(module(X)[:, :3], module(other)[:, :3])


def test_padding_is_not_seen():
    module, other, mask = make(), X.clone(), torch.ones(2, 6, dtype=torch.bool)
    mask[:, 4:] = False
    other[:, 4:] = 7
    torch.testing.assert_close(module(X, mask)[:, :4], module(other, mask)[:, :4])
    torch.testing.assert_close(module(X, mask)[:, :4], module(X[:, :4])[:, :4])


def test_one_position_after_the_other():
    module, cache = make(causal=True), torch.zeros(1, 2, 8, 4, dtype=torch.float64)
    with torch.no_grad():
        steps = [module.step(X[:, t], torch.tensor([t]), cache) for t in range(6)]
        torch.testing.assert_close(torch.stack(steps, 1), module(X))


def test_gradients_and_points():
    module = make()
    assert torch.autograd.gradcheck(module, X[:1, :3].clone().requires_grad_())
    with foveal.watch(nn.Sequential(module)) as seen:
        module(X)
    assert seen["0"].values.shape == (2, 1, 3, 1, 6, 2)  # as of a map of one row


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: DeformConv1d(4, kernel=2), "odd"),
        (lambda: DeformConv1d(4, kernel=1.5), "kernel=1.5: expected a whole number"),
        (lambda: DeformConv1d(0), "channels=0: expected a whole number of at least 1"),
        (lambda: DeformConv1d(4)(torch.zeros(1, 0, 4)), r"\(1, 0, 4\) have no positions"),
        (lambda: DeformConv1d(4)(torch.zeros(2, 4)), r"\(N, T, 4\)"),
        (lambda: DeformConv1d(4)(torch.zeros(1, 2, 4), torch.ones(1, 2)), "mask must be bool"),
    ],
)
def test_wrong_use(build, message):
    with pytest.raises(UserError, match=message):
        build()
