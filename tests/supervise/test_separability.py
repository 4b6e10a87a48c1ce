from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from foveal.errors import UserError
from foveal.supervise import attention_mask, confusing_class, consistency, separability

seeds = st.integers(0, 2**31)


def maps(seed: int, n: int = 5, h: int = 4, w: int = 6) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return tuple(torch.rand(n, h, w, generator=draw, dtype=torch.float64) ** 3 for _ in range(2))


def slow_mask(a: Tensor, sigma: float, omega: float) -> Tensor:
    peak = max(a.flatten().tolist())
    out = torch.zeros_like(a)
    for i, j in itertools.product(range(a.shape[0]), range(a.shape[1])):
        out[i, j] = 1 / (1 + math.exp(-omega * (a[i, j].item() / peak - sigma)))
    return out


def slow_separability(target: Tensor, confuser: Tensor, sigma: float = 0.55, omega: float = 100.0) -> float:
    losses = []
    for t, c in zip(target, confuser, strict=True):
        mask, shared, total = slow_mask(t, sigma, omega), 0.0, 0.0
        for i, j in itertools.product(range(t.shape[0]), range(t.shape[1])):
            shared += min(t[i, j].item(), c[i, j].item()) * mask[i, j].item()
            total += t[i, j].item() + c[i, j].item()
        losses.append(2 * shared / total)
    return sum(losses) / len(losses)


@given(seeds, st.floats(0.2, 0.8), st.sampled_from([5.0, 30.0, 100.0]))
def test_separability_equals_the_equation(seed: int, sigma: float, omega: float) -> None:
    target, confuser = maps(seed)
    actual = separability(target, confuser, sigma=sigma, omega=omega)
    assert actual.item() == pytest.approx(slow_separability(target, confuser, sigma, omega), rel=1e-9)


@given(seeds, st.floats(0.2, 0.8))
def test_consistency_equals_the_equation(seed: int, sigma: float) -> None:
    inner, last = maps(seed)
    expected = 0.0
    for one, other in zip(inner, last, strict=True):
        mask = slow_mask(other, sigma, 20.0)
        expected += (0.7 - (one * mask).sum().item() / one.sum().item()) / len(inner)
    assert consistency(inner, last, theta=0.7, sigma=sigma, omega=20.0).item() == pytest.approx(expected, rel=1e-9)
    own = consistency(inner, last, theta=0.7, sigma=sigma, omega=20.0, source="inner")
    assert own.item() == pytest.approx(consistency(inner, inner, theta=0.7, sigma=sigma, omega=20.0).item())


def test_the_mask_is_brought_to_the_inner_size_bilinearly() -> None:
    inner, last = maps(0, h=8, w=6)[0], maps(1, h=4, w=3)[1]
    mask = attention_mask(last)
    large = torch.nn.functional.interpolate(mask[:, None], (8, 6), mode="bilinear", align_corners=False)[:, 0]
    expected = (0.8 - (inner * large).sum((1, 2)) / inner.sum((1, 2))).mean()
    torch.testing.assert_close(consistency(inner, last), expected)


def test_disjoint_identical_and_contained() -> None:
    target = torch.zeros(1, 4, 4)
    target[:, :2] = torch.rand(2, 4) + 1
    assert separability(target, target.flip(1)) == 0
    mask = attention_mask(target)
    torch.testing.assert_close(separability(target, target), (target * mask).sum() / target.sum())
    assert separability(torch.ones(1, 3, 3), torch.ones(1, 3, 3)).item() == pytest.approx(1)
    region = torch.zeros(1, 4, 4)
    region[:, 1:3, 1:3] = 1
    assert consistency(region * 5, region).item() == pytest.approx(0.8 - 1)
    assert consistency(region * 5, region, hinge=True) == 0
    assert consistency(1 - region, region).item() == pytest.approx(0.8)


@given(seeds, st.sampled_from([7.0, 1e-12, 3e-7, 1e9]))
def test_scaling_both_maps_changes_neither_value_nor_direction(seed: int, factor: float) -> None:
    target, confuser = maps(seed)
    for loss in (separability, consistency):
        one, other = (t.clone().requires_grad_() for t in (target, confuser))
        torch.testing.assert_close(loss(target * factor, confuser * factor), loss(one, other).detach())
        loss(one * factor, other * factor).backward()
        scaled = one.grad.clone()
        one.grad = None
        loss(one, other).backward()
        torch.testing.assert_close(scaled, one.grad)


@given(seeds, st.integers(0, 4))
def test_degenerate_maps_are_skipped(seed: int, which: int) -> None:
    target, confuser = maps(seed)
    rest = [i for i in range(5) if i != which]
    for value in (0.0, math.nan, math.inf):
        bad = target.clone()
        bad[which] = value
        bad.requires_grad_()
        for loss in (separability, consistency):
            actual = loss(bad, confuser)
            torch.testing.assert_close(actual, loss(target[rest], confuser[rest]))
            (gradient,) = torch.autograd.grad(actual, bad)
            assert gradient.isfinite().all()
            assert not gradient[which].any()
    everything = torch.zeros_like(target, requires_grad=True)
    for loss in (separability, consistency):
        actual = loss(everything, confuser)
        assert actual == 0
        actual.backward()
        assert not everything.grad.any()
    assert separability(target, torch.zeros_like(target)) == 0  # a class that attends to nothing confuses nobody


def test_several_true_classes_are_averaged_for_each_image_first() -> None:
    target, confuser = maps(3, n=6)
    target, confuser = target.view(2, 3, 4, 6).clone(), confuser.view(2, 3, 4, 6)
    target[0, 1:] = 0
    expected = (separability(target[0, :1], confuser[0, :1]) + separability(target[1], confuser[1])) / 2
    torch.testing.assert_close(separability(target, confuser), expected)


@pytest.mark.parametrize("options", [{}, {"normalise": True}, {"mask_gradient": True, "omega": 3.0}])
def test_gradients_are_those_of_finite_differences(options: dict) -> None:
    target, confuser = (t.requires_grad_() for t in maps(4, n=2))
    if "mask_gradient" not in options:  # with a constant mask, differences must keep it constant too
        options = {**options, "omega": 1e-9}
    else:  # the maximum is a constant: keep it away from what is varied
        fixed = torch.zeros_like(target)
        fixed[:, 0, 0] = 1

        def loss(t: Tensor, c: Tensor) -> Tensor:
            return separability(torch.where(fixed.bool(), 2.0, t), c, **options)

        assert torch.autograd.gradcheck(loss, (target, confuser))
        return
    assert torch.autograd.gradcheck(lambda t, c: separability(t, c, **options), (target, confuser))


def test_a_normalised_loss_cannot_fall_by_scaling_a_map() -> None:
    target, confuser = (t.requires_grad_() for t in maps(5))
    separability(target, confuser, normalise=True).backward()
    for entry in (target, confuser):
        torch.testing.assert_close((entry * entry.grad).sum((1, 2)), torch.zeros(5, dtype=torch.float64))
    plain = confuser.grad = None
    plain = confuser.detach().requires_grad_()
    separability(target, plain).backward()
    assert ((plain * plain.grad).sum((1, 2)).abs() > 1e-4).all()


def test_which_maps_give_way() -> None:
    """Without the true class's gradient in the minimum and the denominator's, the loss moves the confuser alone."""
    target, confuser = (t.requires_grad_() for t in maps(6))
    confuser = confuser.detach().clone()
    confuser[:, 0] = target[:, 0].detach() / 2  # smaller there, and larger elsewhere
    confuser[:, 1:] = target[:, 1:].detach() * 2
    confuser.requires_grad_()

    def gradients(**options: bool) -> tuple[Tensor | None, Tensor]:
        loss = separability(target, confuser, sigma=0.01, **options)
        of_target, of_confuser = torch.autograd.grad(loss, (target, confuser), allow_unused=True)
        return of_target, of_confuser

    of_target, of_confuser = gradients(true_gradient=False, sum_gradient=False)
    assert of_target is None
    assert (of_confuser[:, 0] > 0).all()  # lowered where it is the smaller one
    assert (of_confuser[:, 1:] == 0).all()
    of_target, of_confuser = gradients(sum_gradient=False)
    assert (of_target[:, 1:] > 0).all()  # the paper's loss also lowers the true class's map
    assert (of_target[:, 0] == 0).all()
    of_target, _ = gradients(true_gradient=False)
    assert (of_target < 0).all()  # by the denominator it is only raised
    values = {separability(target, confuser, true_gradient=t, sum_gradient=s).item() for t in (0, 1) for s in (0, 1)}
    assert len(values) == 1


def test_the_mask_is_a_constant_unless_told_otherwise() -> None:
    attention = maps(6)[0].requires_grad_()
    assert not attention_mask(attention).requires_grad
    attention_mask(attention, omega=5.0, gradient=True).sum().backward()
    assert attention.grad.abs().sum() > 0
    assert not attention_mask(torch.zeros(2, 3, 3)).isnan().any()


def slow_confuser(logits: Tensor, target: Tensor) -> list[int]:
    """From the top two: the second if the first is the true one."""
    best = logits.topk(2).indices
    return [int(b[1] if b[0] == t else b[0]) for b, t in zip(best, target, strict=True)]


@given(seeds)
def test_confuser_is_the_best_of_the_others(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    logits, target = torch.randn(6, 5, generator=draw), torch.randint(0, 5, (6,), generator=draw)
    actual, has = confusing_class(logits, target)
    assert actual.tolist() == slow_confuser(logits, target)
    assert has.all()


@given(seeds, st.sampled_from([0.0, -math.inf, math.inf, math.nan]))
def test_confuser_is_never_true_also_on_ties(seed: int, value: float) -> None:
    draw = torch.Generator().manual_seed(seed)
    target = torch.randint(0, 4, (8,), generator=draw)
    assert (confusing_class(torch.full((8, 4), value), target)[0] != target).all()
    labels = torch.rand(8, 4, generator=draw) < 0.5
    actual, has = confusing_class(torch.full((8, 4), value), labels)
    assert not labels[has].gather(1, actual[has, None]).any()
    assert has.tolist() == (~labels.all(1)).tolist()


def test_unknown_labels_are_neither_true_nor_confusing() -> None:
    logits = torch.tensor([[9.0, 5.0, 1.0]]).repeat(2, 1)
    labels = torch.tensor([[0.0, 1.0, 0.0], [0.0, 1.0, 0.0]])
    valid = torch.tensor([[False, True, True], [False, True, False]])
    actual, has = confusing_class(logits, labels, valid)
    assert actual[0] == 2
    assert has.tolist() == [True, False]
    assert confusing_class(logits, torch.tensor([-100, 0]))[1].tolist() == [False, True]


def test_half_precision_maps_are_summed_in_float32() -> None:
    target, confuser = (t.float().half() * 1000 for t in maps(7, h=40, w=40))
    actual = separability(target.float(), confuser.float())
    torch.testing.assert_close(separability(target, confuser), actual)
    torch.testing.assert_close(consistency(target, confuser), consistency(target.float(), confuser.float()))


def test_bad_input_says_what_to_do() -> None:
    with pytest.raises(UserError, match=r"first map must be \(N, H, W\) or \(N, P, H, W\), got shape \(4, 4\)"):
        separability(torch.rand(4, 4), torch.rand(4, 4))
    with pytest.raises(UserError, match=r"different shapes, \(2, 4, 4\) and \(2, 8, 8\)"):
        separability(torch.rand(2, 4, 4), torch.rand(2, 8, 8))
    with pytest.raises(UserError, match="different shapes"):
        consistency(torch.rand(2, 4, 4), torch.rand(3, 4, 4))
    with pytest.raises(UserError, match="unknown source 'first'"):
        consistency(torch.rand(2, 4, 4), torch.rand(2, 4, 4), source="first")


def test_a_vanished_confuser_map_has_a_gradient_of_ordinary_size():
    target, confuser = torch.rand(2, 4, 4), torch.zeros(2, 4, 4, requires_grad=True)
    (gradient,) = torch.autograd.grad(separability(target, confuser, normalise=True), confuser)
    assert gradient.abs().max() < 10
