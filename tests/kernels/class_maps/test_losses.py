"""Fused losses on class attention maps equal the plain ones in value and gradient."""

from __future__ import annotations

import pytest
import torch

from foveal.attention.class_maps.cam import class_maps, weighted_map
from foveal.kernels.class_maps import launch, losses
from foveal.kernels.class_maps.losses import Layer, Options, Problem
from foveal.supervise.separability import consistencies, mean, separabilities

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LOW = torch.bfloat16 if DEVICE == "cuda" else torch.float16  # the interpreter computes in NumPy, without bfloat16
INNER, LAST = (6, 4, 6), (10, 2, 3)
ALL = (True, True, True)


@pytest.fixture(autouse=True)
def available(monkeypatch):
    monkeypatch.setattr(losses, "fused_available", lambda device: True)


def options(terms=ALL, **changes):
    usual = {"theta": 0.8, "sigma": 0.55, "omega": 10.0, "own": False, "hinge": False, "positive": True}
    return Options(terms, **(usual | changes))


def layer(shape, n=3, k=2, dtype=torch.float32, layout=torch.contiguous_format, seed=0):
    """Features as after a ReLU, and gradients of both signs."""
    torch.manual_seed(seed)
    features = torch.randn(n, *shape).relu()
    gradients = [0.1 * torch.randn(n, *shape) for _ in range(k)]

    def made(t):
        return t.to(DEVICE, dtype).contiguous(memory_format=layout)

    return Layer(made(features).requires_grad_(), [made(g) for g in gradients])


def problem(shapes=(INNER, LAST), n=3, p=1, *, rivals=1, counts=None, confusers=None, dtype=torch.float32,
            layout=torch.contiguous_format, **changes):  # fmt: skip
    layers = [layer(shape, n, p + rivals, dtype, layout, seed) for seed, shape in enumerate(shapes)]
    counts = torch.ones(n, p) if counts is None else torch.tensor(counts)
    confusers = torch.ones(n) if confusers is None else torch.tensor(confusers)
    return Problem(layers, counts.bool().to(DEVICE), confusers.bool().to(DEVICE), options(**changes), plain=None)


def terms_of(maps, problem):
    """The losses of the terms there are, from maps (N, K, H, W), with the functions of ``foveal.supervise``."""
    o, counts = problem.options, problem.counts
    masking = {"sigma": o.sigma, "omega": o.omega, "mask_gradient": False}
    found = []
    for term, m in zip(o.terms[:2], (maps[0], maps[-1]), strict=True):
        if term:
            loss, usable = separabilities(m[:, :-1], m[:, -1:], normalise=False, **masking)
            found.append(mean(loss, usable & counts & problem.confusers[:, None]))
    if o.terms[2]:
        p = counts.shape[1]
        source = "inner" if o.own else "last"
        loss, usable = consistencies(maps[0][:, :p], maps[-1][:, :p], o.theta, source=source, hinge=o.hinge, **masking)
        found.append(mean(loss, usable & counts))
    return found


def plain(problem):
    kind = "channel" if problem.options.positive else "gradcam"
    traced = {str(i): (layer.features, layer.gradients) for i, layer in enumerate(problem.layers)}
    maps = list(class_maps(traced, kind).values())
    return [m.detach() for m in maps], terms_of(maps, problem)


def gradients(found, problem):
    """Of a sum in which every loss has a weight of its own."""
    features = [layer.features for layer in problem.layers]
    total = sum(weight * loss for weight, loss in zip((1.0, 0.5, -2.0), found, strict=False))
    return torch.autograd.grad(total, features, allow_unused=True, materialize_grads=True)


def assert_same(problem, rtol=1e-4, atol=1e-6):
    assert losses.fused_losses_available(problem.layers)
    maps, theirs = plain(problem)
    ours = losses.fused_losses(problem)
    assert "_Losses" in ours[0].grad_fn.name()
    torch.testing.assert_close(problem.maps, maps, rtol=rtol, atol=atol, equal_nan=True)
    torch.testing.assert_close(list(ours), theirs, rtol=rtol, atol=atol)
    for a, b, entry in zip(gradients(ours, problem), gradients(theirs, problem), problem.layers, strict=True):
        assert a.dtype == entry.features.dtype
        torch.testing.assert_close(a, b, rtol=max(rtol, 1e-3), atol=max(atol, 1e-3 * float(b.abs().max())))
    return theirs


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("p", [1, 3])
def test_equals_the_plain_form(p, layout):
    found = assert_same(problem(p=p, layout=layout))
    assert min(map(abs, found)) > 0.01


@pytest.mark.parametrize(
    "changes", [{"positive": False}, {"own": True}, {"hinge": True, "theta": 0.4}, {"omega": 100.0}]
)
def test_options(changes):
    found = assert_same(problem(p=2, **changes))
    assert any(abs(a - b) > 1e-3 for a, b in zip(found, plain(problem(p=2))[1], strict=True))


@pytest.mark.parametrize(
    "terms",
    [(True, False, False), (False, True, False), (False, False, True), (True, False, True), (False, True, True)],
)
def test_some_terms(terms):
    rivals = int(terms[0] or terms[1])  # consistency alone needs no confuser
    assert_same(problem(p=2, terms=terms, rivals=rivals))


@pytest.mark.parametrize(
    ("shape", "terms", "own"),
    [(LAST, (False, True, False), False), (INNER, (True, False, False), False), (INNER, (True, False, True), True)],
)
def test_one_layer(shape, terms, own):
    assert_same(problem((shape,), terms=terms, own=own))


@pytest.mark.parametrize(
    "shapes",
    [
        ((3, 1, 5), (4, 1, 2)),
        ((3, 5, 1), (4, 3, 1)),
        ((17, 7, 7), (5, 7, 7)),
        ((4, 3, 4), (4, 5, 7)),
        ((1, 9, 8), (33, 4, 3)),
    ],
)
def test_odd_sizes(shapes):
    assert_same(problem(shapes, n=2))


def test_several_tiles(monkeypatch):
    monkeypatch.setattr(launch, "ELEMENTS", 64)
    monkeypatch.setattr(launch, "IMAGES", 2)
    launch._tile.cache_clear()
    try:
        assert_same(problem(((21, 4, 6), (35, 2, 3)), n=5, layout=torch.channels_last))
    finally:
        launch._tile.cache_clear()


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_half_precision(layout):
    case = problem(dtype=LOW, layout=layout)
    assert_same(case, rtol=2e-3, atol=1e-5)
    ours = losses.fused_losses(case)
    assert all(loss.dtype == torch.float32 for loss in ours)


def test_gradients_that_are_wider_than_features():
    case = problem(dtype=torch.float16)
    case.layers = [Layer(entry.features, [g.float() for g in entry.gradients]) for entry in case.layers]
    assert_same(case, rtol=2e-3, atol=1e-5)


def test_what_does_not_count():
    case = problem(n=4, p=2, counts=[[1, 1], [1, 0], [0, 0], [0, 1]], confusers=[1, 0, 1, 1])
    found = assert_same(case)
    other = problem(n=4, p=2)
    assert all(abs(a - b) > 1e-4 for a, b in zip(found, plain(other)[1], strict=True))
    nothing = assert_same(problem(n=2, counts=[[0], [0]], confusers=[0, 0]))
    assert [loss.item() for loss in nothing] == [0, 0, 0]


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # of NumPy, which the interpreter uses
def test_maps_that_are_zero_or_not_finite():
    case = problem(n=6, p=2)
    inner, last = case.layers
    with torch.no_grad():
        inner.gradients[0][0] = 0.0  # no map of a true class
        last.gradients[2][1] = -1.0  # none of the confuser
        inner.gradients[1][2, 3, 1, 1] = torch.nan
        last.gradients[0][3, 1, 0, 0] = torch.inf
        inner.features[4, 2, 1, 1] = torch.nan
        last.features[5, 2, 1, 1] = torch.inf
    found = assert_same(case)
    assert all(loss.isfinite() for loss in found)
    assert all(g.isfinite().all() for g in gradients(losses.fused_losses(case), case))


def test_equal_maps_share_the_gradient():
    case = problem(n=2)
    case.layers = [Layer(entry.features, [entry.gradients[0]] * 2) for entry in case.layers]
    found = assert_same(case)
    assert found[0] > 0.1


def test_maps_of_any_scale():
    """Gradients of scores may be tiny or large."""
    reference = plain(problem())[1]
    for scale in (1e-20, 1e15):
        case = problem()
        case.layers = [Layer(entry.features, [scale * g for g in entry.gradients]) for entry in case.layers]
        torch.testing.assert_close(list(losses.fused_losses(case)), reference, rtol=1e-4, atol=1e-5)


def test_memory_that_is_not_dense():
    case = problem(n=2)
    inner, last = case.layers
    wide = torch.stack([inner.features.detach()] * 2, -1).requires_grad_()
    tokens = torch.cat([torch.ones_like(last.features[:, :, :1, 0]), last.features.flatten(2)], 2).mT.contiguous()
    tokens = tokens.detach().requires_grad_()
    turned = inner.gradients[0].mT.contiguous().mT, inner.gradients[1].mT.contiguous().mT
    found = []
    for fuse in (True, False):
        grid = tokens[:, 1:].unflatten(1, LAST[1:]).movedim(-1, 1)
        case.layers = [Layer(wide[..., 0], list(turned)), Layer(grid, last.gradients)]
        ours = losses.fused_losses(case) if fuse else plain(case)[1]
        found.append([*ours, *torch.autograd.grad(sum(ours), [wide, tokens])])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-6)


def test_only_what_is_used_and_needed_gets_a_gradient():
    case = problem()
    ours, theirs = losses.fused_losses(case), plain(case)[1]
    for i in range(3):
        pairs = [
            torch.autograd.grad(
                found[i], [entry.features for entry in case.layers], retain_graph=True, allow_unused=True
            )
            for found in (ours, theirs)
        ]
        torch.testing.assert_close(*pairs, rtol=1e-3, atol=1e-6)
    case.layers = [Layer(case.layers[0].features.detach(), case.layers[0].gradients), case.layers[1]]
    total = sum(losses.fused_losses(case))
    assert torch.autograd.grad(total, case.layers[1].features)[0].abs().sum() > 0


def test_second_derivatives():
    found = []
    for fuse in (True, False):
        case = problem()

        def again(features, weights, case=case):
            maps = [weighted_map(f, w).movedim(0, 1) for f, w in zip(features, weights, strict=True)]
            return terms_of(maps, case)

        case.plain = again
        ours = losses.fused_losses(case) if fuse else plain(case)[1]
        features = [entry.features for entry in case.layers]
        first = torch.autograd.grad(sum(ours), features, create_graph=True)
        norm = sum(g.square().sum() for g in first)
        found.append([norm, *torch.autograd.grad(norm, features)])
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-6)
    assert found[0][1].abs().sum() > 0


def test_what_needs_plain_operators():
    case = problem()
    assert losses.fused_losses_available(case.layers)
    entry = case.layers[0]
    assert not losses.fused_losses_available([Layer(entry.features, [g.requires_grad_() for g in entry.gradients])])
    assert not losses.fused_losses_available([layer(INNER, dtype=torch.float64)])
    assert not losses.fused_losses_available([layer((1, 65, 64))])
