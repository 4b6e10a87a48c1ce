"""The center-mass loss in a few launches, against the loss made of operators."""

import sys

import pytest
import torch

from foveal.errors import UserError
from foveal.kernels.center_mass import launch
from foveal.kernels.center_mass.loss import graph_loss
from foveal.supervise import center_mass_loss
from foveal.supervise.center_mass import _pairs

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LOSSES = [("focal", 2.0), ("focal", 0.0), ("focal", 0.5), ("l2", 2.0), ("smooth_l1", 2.0)]


@pytest.fixture(autouse=True)
def _one_tile(monkeypatch):
    monkeypatch.setattr(launch, "TILES", ((32, 32, 4, 1),))


def value_and_gradients(loss, *leaves):
    return loss.detach(), *torch.autograd.grad(loss, leaves)


@pytest.mark.parametrize(("count", "masked", "scale"), [(19, False, 0.6), (32, False, 0.6), (19, True, 0.6)])
@pytest.mark.parametrize(("shape", "r"), LOSSES)
def test_equals_the_operators(shape, r, count, masked, scale):
    """Also for a graph of whole tiles, all of it valid, which needs no mask."""
    _equals_the_operators(shape, r, count, masked, scale)


@pytest.mark.parametrize("scale", [-0.6, 0.0])
def test_scales_that_are_not_positive(scale):
    _equals_the_operators("focal", 2.0, 32, False, scale)


def _equals_the_operators(shape, r, count, masked, scale):
    g = torch.Generator().manual_seed(0)
    q, k = (torch.randn(5, count, 8, generator=g).to(DEVICE).requires_grad_() for _ in range(2))
    labels = torch.randint(-1, 3, (5, count), generator=g).to(DEVICE)
    labels[1] = -1  # no labelled pair
    labels[3] += 10**9  # apart from each other by less than float32 can tell
    valid = (torch.rand(5, count, generator=g) < 0.8).to(DEVICE) if masked else None
    if valid is not None:
        valid[2] = False
    expected = center_mass_loss(q @ k.mT * scale, _pair_mask(labels), valid, shape=shape, r=r)
    pairs = _pairs(labels, "different", torch.Size([5]), count, q.device)
    actual = graph_loss(q, k, valid, pairs, scale, shape, r)
    torch.testing.assert_close(
        value_and_gradients(3 * actual, q, k), value_and_gradients(3 * expected, q, k), atol=1e-5, rtol=1e-4
    )


@pytest.mark.parametrize(("shape", "r"), LOSSES)
@pytest.mark.parametrize("log_mass", [0.0, 1e-6, -1e-7, -1e-3, -0.0299, -0.0301, -0.7, -30.0, -200.0])
def test_loss_and_slope_near_the_ends(shape, r, log_mass):
    """A mass of one and of almost nothing; rounding may leave log M above zero."""
    labelled = torch.tensor([log_mass, -torch.inf], device=DEVICE)
    everything = torch.zeros(2, device=DEVICE)
    loss, rates = launch.mean_loss(labelled, everything, shape, r)
    x = torch.tensor(log_mass, dtype=torch.float64, requires_grad=True)
    clamped = x.clamp_max(0)
    rest = -torch.expm1(clamped)
    match shape:
        case "focal":
            expected = -rest.clamp_min(torch.finfo(torch.float32).tiny).pow(r) * clamped
        case "l2":
            expected = rest.square()
        case "smooth_l1":
            expected = torch.where(rest < 0.5, rest.square(), rest - 0.25)
    slope = torch.autograd.grad(expected, x)[0] * (log_mass < 0)  # at zero, versions of PyTorch differ
    torch.testing.assert_close(loss.double().cpu(), expected.detach(), atol=1e-12, rtol=1e-5)
    torch.testing.assert_close(rates[0].double().cpu(), torch.stack([slope, slope * 0]), atol=1e-12, rtol=1e-5)
    assert torch.equal(rates[1], -rates[0])


def test_no_graph_has_a_labelled_pair():
    q, k = (torch.randn(3, 7, 4, device=DEVICE).requires_grad_() for _ in range(2))
    pairs = _pairs(torch.zeros(3, 7, dtype=torch.int64, device=DEVICE), "different", torch.Size([3]), 7, q.device)
    loss, *gradients = value_and_gradients(graph_loss(q, k, None, pairs, 1.0, "focal", 2.0), q, k)
    assert loss == 0
    assert all((gradient == 0).all() for gradient in gradients)


def test_more_graphs_than_one_block():
    g = torch.Generator().manual_seed(0)
    labelled = -torch.rand(2500, generator=g).to(DEVICE)
    labelled[::3] = -torch.inf
    loss, rates = launch.mean_loss(labelled, torch.zeros_like(labelled), "l2", 2.0)
    has = ~labelled.isneginf()
    torch.testing.assert_close(loss, torch.expm1(labelled[has]).square().mean())
    assert torch.equal(rates[0] != 0, has)


def test_the_loss_of_users_takes_it(monkeypatch):
    """As on a GPU: heads share a target, and q and k are views of one projection."""
    projected = torch.randn(2, 9, 3, 2, 8, device=DEVICE).requires_grad_()  # batch, entities, heads, side, width
    labels = torch.randint(0, 3, (2, 1, 9), device=DEVICE)
    results = []
    for fused in (False, True):
        monkeypatch.setattr(
            sys.modules["foveal.supervise.center_mass"], "fused_loss_available", lambda q, k, fused=fused: fused
        )
        q, k = projected.permute(3, 0, 2, 1, 4)
        results.append(value_and_gradients(center_mass_loss((q, k), labels, related="same"), projected))
    torch.testing.assert_close(*results, atol=1e-5, rtol=1e-4)


def test_second_derivatives_are_refused():
    q, k = (torch.randn(1, 5, 4, device=DEVICE).requires_grad_() for _ in range(2))
    pairs = _pairs(torch.arange(5, device=DEVICE)[None], "different", torch.Size([1]), 5, q.device)
    with pytest.raises(UserError, match="give it the logits"):
        torch.autograd.grad(graph_loss(q, k, None, pairs, 1.0, "l2", 2.0), q, create_graph=True)


def _pair_mask(labels):
    known = (labels >= 0)[:, :, None] & (labels >= 0)[:, None, :]
    return known & (labels[:, :, None] != labels[:, None, :])
