"""The loss of attention on a mask, against a loop over pixels."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

import foveal
from foveal import registry
from foveal.attention import AttentionRecord, ProgressiveGate
from foveal.errors import UserError
from foveal.measure import attention_map, true_positive_strength
from foveal.supervise import mask_loss, register_attention_loss


def example(samples=3, size=(4, 5), seed=0, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    attention = torch.rand(samples, *size, generator=g, dtype=dtype)
    mask = torch.rand(samples, *size, generator=g) < 0.3
    mask[:, 0, 0] = True
    return attention, mask


def slow(attention, mask):
    """The mean of −log share, pixel by pixel; samples without a target or without attention do not count."""
    losses = []
    for alpha, target in zip(attention.tolist(), mask.tolist(), strict=True):
        pixels = list(zip(itertools.chain(*alpha), itertools.chain(*target), strict=True))
        total = sum(value for value, _ in pixels)
        if total > 0 and any(on for _, on in pixels):
            losses.append(-math.log(sum(value for value, on in pixels if on) / total))
    return sum(losses) / len(losses) if losses else 0.0


def test_equals_the_formula():
    attention, mask = example()
    assert mask_loss(attention, mask).item() == pytest.approx(slow(attention, mask), rel=1e-12)


def test_one_sample_is_the_logarithm_of_the_true_positive_strength():
    attention, mask = example(samples=1)
    torch.testing.assert_close(mask_loss(attention, mask), -true_positive_strength(attention, mask).log())


def test_gradient():
    attention, mask = example()
    mask[1] = False
    assert torch.autograd.gradcheck(lambda a: mask_loss(a, mask), attention.requires_grad_())
    small = torch.rand(3, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    assert torch.autograd.gradcheck(lambda a: mask_loss(a, mask), small)
    assert torch.autograd.gradcheck(lambda a: mask_loss(a, mask, grid=(0.5, 2.0)), small)


@pytest.mark.parametrize("grid", [None, (1.5, 3.0)])
def test_maps_of_another_size_are_placed_as_in_attention_map(grid):
    small = torch.rand(2, 3, 3, generator=torch.Generator().manual_seed(0))
    mask = torch.zeros(2, 10, 12, dtype=torch.bool)
    mask[:, 2:5, 1:7] = True
    record = AttentionRecord("gate", "spatial", small, False, grid)
    large = attention_map([record], (10, 12))
    expected = slow(large, mask)
    assert mask_loss(record, mask).item() == pytest.approx(expected, rel=1e-5)
    assert mask_loss(small, mask, grid).item() == pytest.approx(expected, rel=1e-5)
    assert mask_loss(large, mask).item() == pytest.approx(expected, rel=1e-5)


@settings(max_examples=30, deadline=None)
@given(st.floats(1e-30, 1e30), st.integers(0, 2**31))
def test_a_factor_changes_nothing(factor, seed):
    attention, mask = example(seed=seed)
    torch.testing.assert_close(mask_loss(attention * factor, mask), mask_loss(attention, mask))


def test_samples_without_a_target_or_without_attention_do_not_count():
    attention, mask = example(samples=5)
    attention[1] = 0
    attention[3, 0, 0] = torch.nan
    mask[4] = False
    attention = attention.requires_grad_()
    loss = mask_loss(attention, mask)
    torch.testing.assert_close(loss, mask_loss(attention[[0, 2]], mask[[0, 2]]))
    loss.backward()
    assert (attention.grad[[1, 3, 4]] == 0).all()
    assert (attention.grad[[0, 2]] != 0).any()


@pytest.mark.parametrize("case", ["no target", "no attention", "no sample", "a grid beside the image"])
def test_nothing_to_learn_from_is_a_loss_of_zero(case):
    attention, mask = example(samples=0 if case == "no sample" else 2)
    attention = (attention * 0 if case == "no attention" else attention).detach().requires_grad_()
    mask = mask & (case != "no target")
    loss = mask_loss(attention, mask, grid=(100.0, 1.0) if case == "a grid beside the image" else None)
    assert loss.item() == 0
    loss.backward()
    assert (attention.grad == 0).all()


def test_attention_that_misses_its_mask_has_a_finite_loss():
    attention = torch.tensor([[[1.0, 0.0]], [[1.0, 1.0]]], requires_grad=True)
    loss = mask_loss(attention, torch.tensor([[[False, True]]] * 2))
    assert 5 < loss.item() < 20
    loss.backward()
    assert attention.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    attention, mask = example(dtype=torch.float32)
    tiny = (attention * 1e-4).to(dtype)
    loss = mask_loss(tiny, mask)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, mask_loss(tiny.float(), mask))
    expected = mask_loss(attention[:, :2, :2], mask, grid=(0.3, 1.7))
    with torch.autocast("cpu", dtype=dtype):
        torch.testing.assert_close(mask_loss(attention[:, :2, :2], mask, grid=(0.3, 1.7)), expected, rtol=0, atol=0)


def test_compiled():
    torch.compiler.reset()
    attention, mask = example(dtype=torch.float32)
    compiled = torch.compile(mask_loss, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(attention, mask), mask_loss(attention, mask))


def test_it_moves_attention_onto_the_mask():
    torch.manual_seed(0)
    gate = ProgressiveGate(4, queries=2, last=True)
    features, query = torch.randn(4, 4, 6, 6), torch.tensor([0, 1, 0, 1])
    mask = F.one_hot(features[:, 0].flatten(1).argmax(1), 36).bool().view(4, 6, 6)
    optimiser = torch.optim.Adam(gate.parameters(), 0.05)
    losses = []
    for _ in range(40):
        with foveal.watch(gate) as seen:
            gate(features, query)
        loss = mask_loss(seen[""], mask)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0]


MASK = torch.ones(2, 3, 3, dtype=torch.bool)
CHANNEL = AttentionRecord("layer1.attached.se", "channel", torch.rand(2, 3), False)


@pytest.mark.parametrize(
    ("attention", "mask", "message"),
    [
        (torch.rand(2, 1, 3, 3), MASK, r"attention must be floating point \(N, h, w\)"),
        (torch.ones(2, 3, 3, dtype=torch.int64), MASK, "attention must be floating point"),
        (torch.rand(2, 3, 3), MASK.float(), "mask must be bool.*mask > 0"),
        (torch.rand(2, 3, 3), MASK[:1], r"mask must be \(2, H, W\)"),
        (torch.rand(2, 3, 3), MASK[:, 0], r"mask must be \(2, H, W\)"),
        (torch.rand(2, 3, 3) - 1, MASK, "after sigmoid or softmax"),
        (CHANNEL, MASK, r"layer1\.attached\.se is channel attention.*choose spatial sites"),
    ],
)
def test_wrong_inputs(attention, mask, message):
    with pytest.raises(UserError, match=message):
        mask_loss(attention, mask)


# For recipes ---------------------------------------------------------------------------------------------------------


def test_recipes_know_it_by_name():
    attention, mask = example()
    loss = registry.attention_losses.get("mask")
    assert loss.needs_mask
    record = AttentionRecord("gate", "spatial", attention, False)
    torch.testing.assert_close(loss(record, {"mask": mask}), mask_loss(record, mask))
    with pytest.raises(UserError, match="use a dataset that has masks"):
        loss(record, {"image": mask})


def test_a_loss_of_ones_own(monkeypatch):
    monkeypatch.setattr(registry.attention_losses, "_things", dict(registry.attention_losses.items()))

    @register_attention_loss("entropy")
    def entropy(record, batch, scale=1.0):
        return scale * torch.special.entr(record.values).sum((1, 2)).mean()

    assert registry.attention_losses.get("entropy") is entropy
    assert not entropy.needs_mask
    for name in ("", "module:function", 3):
        with pytest.raises(UserError, match="without a colon"):
            register_attention_loss(name)
    with pytest.raises(UserError, match="expected a function of a record and a batch"):
        register_attention_loss("three")(3)


def test_attention_that_is_not_finite_is_told():
    attention, mask = torch.rand(2, 4, 4), torch.ones(2, 4, 4, dtype=torch.bool)
    attention[0] = float("nan")
    with pytest.warns(UserWarning, match="not finite for some samples, which are skipped"):
        assert mask_loss(attention, mask) == 0


def test_a_mask_of_numpy():
    with pytest.raises(UserError, match=r"torch\.as_tensor\(mask\)"):
        mask_loss(torch.rand(1, 4, 4), np.ones((1, 4, 4), dtype=bool))
