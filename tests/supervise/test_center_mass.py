"""Center-mass and its loss, against sums written straight from the equations."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import foveal
from foveal.attention import AttentionRecord, DotProduct, FocusedAttention
from foveal.errors import UserError
from foveal.supervise import center_mass, center_mass_loss


def slow_mass(logits, target, mask, over):
    """M of one graph by loops: a number, or a number for each row that has a labelled pair; None without any."""
    count = len(logits)
    real = [i for i in range(count) if mask is None or mask[i]]
    exp = {(m, n): math.exp(logits[m, n]) for m in real for n in real}
    labelled = [(m, n) for m, n in exp if m != n and target[m, n]]
    if not labelled:
        return None
    if over == "matrix":
        return sum(exp[p] for p in labelled) / sum(exp.values())
    rows = sorted({m for m, _ in labelled})
    return [sum(exp[p] for p in labelled if p[0] == m) / sum(exp[m, n] for n in real) for m in rows]


def slow_loss(mass, shape, r):
    x = 1 - mass
    if shape == "focal":
        return -(x**r) * math.log(mass)
    if shape == "l2":
        return x * x
    return x * x if abs(x) < 0.5 else abs(x) - 0.25


def slow_batch(logits, target, mask, over, shape, r):
    losses = []
    for i in range(len(logits)):
        mass = slow_mass(logits[i], target[i], None if mask is None else mask[i], over)
        if mass is not None:
            row_losses = [slow_loss(m, shape, r) for m in (mass if over == "row" else [mass])]
            losses.append(sum(row_losses) / len(row_losses))
    return sum(losses) / len(losses) if losses else 0.0


def graphs(batch=4, count=6, seed=0, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(batch, count, count, generator=g, dtype=dtype)
    target = torch.rand(batch, count, count, generator=g) < 0.3
    mask = torch.rand(batch, count, generator=g) < 0.8
    return logits, target, mask


SHAPES = [("focal", r) for r in (0.0, 0.5, 1.0, 2.0, 3.0, 4.0)] + [("l2", 2.0), ("smooth_l1", 2.0)]


@pytest.mark.parametrize("over", ["matrix", "row"])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("shape", "r"), SHAPES)
def test_the_loss_is_that_of_the_equations(over, masked, shape, r):
    logits, target, mask = graphs()
    mask = mask if masked else None
    expected = slow_batch(logits, target, mask, over, shape, r)
    actual = center_mass_loss(logits, target, mask, over, shape, r)
    assert actual.item() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("over", ["matrix", "row"])
def test_center_mass_of_each_graph(over):
    logits, target, mask = graphs(seed=1)
    actual = center_mass(logits, target, mask, over)
    assert actual.shape == (4,)
    for i, value in enumerate(actual.tolist()):
        mass = slow_mass(logits[i], target[i], mask[i], over)
        mass = sum(mass) / len(mass) if over == "row" else mass
        assert value == pytest.approx(mass, rel=1e-9)


@pytest.mark.parametrize("over", ["matrix", "row"])
@pytest.mark.parametrize(("shape", "r"), SHAPES)
def test_gradient(over, shape, r):
    logits, target, mask = graphs(batch=3, count=4, seed=2)
    mask[:, 0] = True
    target[2] = False
    logits.requires_grad_()
    assert torch.autograd.gradcheck(lambda w: center_mass_loss(w, target, mask, over, shape, r), logits)


def test_the_derivative_by_the_mass():
    """dL/dM = r (1 − M)^(r−1) log M − (1 − M)^r / M, by way of one logit: M = sigmoid(w) of two pairs."""
    target = torch.tensor([[False, True], [False, False]])
    for r in (0.0, 1.0, 2.0, 3.5):
        w = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
        logits = torch.full((2, 2), -torch.inf, dtype=torch.float64)
        logits[0, 0] = 0
        logits[0, 1] = w
        center_mass_loss(logits, target, r=r).backward()
        m = torch.sigmoid(w.detach())
        by_mass = r * (1 - m) ** (r - 1) * m.log() - (1 - m) ** r / m
        assert by_mass < 0
        torch.testing.assert_close(w.grad, by_mass * m * (1 - m))


def test_constant_logits_give_the_share_of_labelled_pairs():
    _, target, _ = graphs(batch=5, count=7)
    target = target & ~torch.eye(7, dtype=torch.bool)
    for constant in (-40.0, 0.0, 1000.0):
        actual = center_mass(torch.full((5, 7, 7), constant), target)
        torch.testing.assert_close(actual, target.sum((1, 2)) / 49)


def test_the_softmaxes_sum_to_one():
    """The masses of some pairs and of all others leave just that of the diagonal, which is in neither."""
    logits, target, _ = graphs(batch=3, count=5)
    on_diagonal = logits.flatten(1).softmax(1).view_as(logits).diagonal(dim1=1, dim2=2).sum(1)
    torch.testing.assert_close(center_mass(logits, target) + center_mass(logits, ~target), 1 - on_diagonal)
    rows = logits.softmax(2).diagonal(dim1=1, dim2=2).mean(1)
    every = torch.ones_like(target)
    torch.testing.assert_close(center_mass(logits, every, over="row"), 1 - rows)


@pytest.mark.parametrize("over", ["matrix", "row"])
def test_padding_changes_nothing(over):
    logits, target, _ = graphs(batch=3, count=5)
    larger = torch.full((3, 9, 9), 50.0, dtype=torch.float64)
    larger[:, :5, :5] = logits
    labelled = torch.ones(3, 9, 9, dtype=torch.bool)
    labelled[:, :5, :5] = target
    mask = torch.arange(9).expand(3, 9) < 5
    torch.testing.assert_close(center_mass(larger, labelled, mask, over), center_mass(logits, target, over=over))
    torch.testing.assert_close(
        center_mass_loss(larger, labelled, mask, over), center_mass_loss(logits, target, over=over)
    )


def test_minus_infinity_is_padding_too():
    logits, target, mask = graphs()
    both = mask[:, :, None] & mask[:, None, :]
    hidden = logits.masked_fill(~both, -torch.inf).requires_grad_()
    actual = center_mass_loss(hidden, target)
    torch.testing.assert_close(actual, center_mass_loss(logits, target, mask))
    actual.backward()
    assert hidden.grad.isfinite().all()


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 6), st.integers(0, 10_000), st.sampled_from(["matrix", "row"]))
def test_the_order_of_entities_does_not_matter(count, seed, over):
    logits, target, mask = graphs(2, count, seed)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    moved = center_mass(logits[:, order][..., order], target[:, order][..., order], mask[:, order], over)
    actual = center_mass(logits, target, mask, over)
    torch.testing.assert_close(moved, actual)
    assert ((actual >= 0) & (actual <= 1)).all()


@pytest.mark.parametrize("over", ["matrix", "row"])
def test_graphs_without_a_labelled_pair_are_skipped(over):
    logits, target, mask = graphs()
    alone = center_mass_loss(logits[:1], target[:1], mask[:1], over)
    target[1:3] = False  # nothing labelled
    mask[3] = False  # nothing but padding
    logits.requires_grad_()
    loss = center_mass_loss(logits, target, mask, over)
    torch.testing.assert_close(loss, alone)
    assert center_mass(logits, target, mask, over)[1:].tolist() == [0, 0, 0]
    loss.backward()
    assert logits.grad[0].abs().sum() > 0
    assert logits.grad[1:].abs().sum() == 0


@pytest.mark.parametrize("over", ["matrix", "row"])
@pytest.mark.parametrize("light", [False, True])
def test_a_batch_without_any_labelled_pair_costs_nothing(over, light):
    q, k = torch.randn(2, 3, 4, 5, requires_grad=True)
    logits = (q, k) if light else q @ k.mT
    loss = center_mass_loss(logits, torch.zeros(3, 4, 4, dtype=torch.bool), torch.zeros(3, 4, dtype=torch.bool), over)
    assert loss.item() == 0
    loss.backward()


def test_one_word_has_no_pair():
    assert center_mass_loss(torch.zeros(2, 1, 1), torch.ones(2, 1, 1, dtype=torch.bool)).item() == 0


@pytest.mark.parametrize("over", ["matrix", "row"])
def test_the_diagonal_of_the_target_is_ignored(over):
    logits, target, mask = graphs()
    with_diagonal = target | torch.eye(6, dtype=torch.bool)
    without = target & ~torch.eye(6, dtype=torch.bool)
    assert center_mass_loss(logits, with_diagonal, mask, over) == center_mass_loss(logits, without, mask, over)


def test_any_batch_shape_and_targets_that_broadcast():
    g = torch.Generator().manual_seed(3)
    logits = torch.randn(2, 3, 4, 5, 5, generator=g)
    target = torch.rand(2, 1, 4, 5, 5, generator=g) < 0.4
    mask = torch.rand(4, 5, generator=g) < 0.9
    actual = center_mass(logits, target, mask)
    assert actual.shape == (2, 3, 4)
    whole = center_mass(
        logits.reshape(24, 5, 5),
        target.expand(2, 3, 4, 5, 5).reshape(24, 5, 5),
        mask.expand(2, 3, 4, 5).reshape(24, 5),
    )
    torch.testing.assert_close(actual.flatten(), whole)
    assert center_mass(logits[0, 0, 0], target[0, 0, 0]).shape == ()


def test_the_loss_alone_drives_the_mass_to_one():
    g = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, 8, 4, generator=g).requires_grad_() for _ in range(2))
    target = torch.zeros(8, 8, dtype=torch.bool)
    target[:4, 4:] = True
    optimiser = torch.optim.Adam([q, k], lr=0.1)
    masses = []
    for _ in range(150):
        loss = center_mass_loss((q, k), target)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        masses.append(center_mass((q, k), target).item())
    assert masses[0] < 0.4
    assert masses[-1] > 0.97


def test_smooth_l1_is_continuous_where_its_pieces_meet():
    """M = 1/2: two pairs of equal weight, one of them labelled."""
    target = torch.tensor([[False, True], [False, False]])
    losses, slopes = [], []
    for w in (-1e-7, 1e-7):
        weight = torch.tensor(w, dtype=torch.float64, requires_grad=True)
        logits = torch.full((2, 2), -torch.inf, dtype=torch.float64)
        logits[0, 0], logits[0, 1] = 0, weight
        loss = center_mass_loss(logits, target, shape="smooth_l1")
        loss.backward()
        losses.append(loss.item())
        slopes.append(weight.grad.item())
    assert losses[0] == pytest.approx(0.25, abs=1e-6)
    assert losses[1] == pytest.approx(0.25, abs=1e-6)
    assert slopes[0] == pytest.approx(slopes[1], abs=1e-6)


@pytest.mark.parametrize(("shape", "r"), SHAPES)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_extreme_logits_stay_finite(shape, r, sign):
    """All mass on the labelled pair, or so little that M is 0 in float32."""
    logits = torch.zeros(1, 3, 3)
    logits[0, 0, 1] = sign * 500
    logits.requires_grad_()
    target = torch.zeros(3, 3, dtype=torch.bool)
    target[0, 1] = True
    loss = center_mass_loss(logits, target, shape=shape, r=r)
    loss.backward()
    assert loss.isfinite()
    assert logits.grad.isfinite().all()
    if sign > 0:
        assert loss.item() == pytest.approx(0, abs=1e-6)
    elif shape == "focal":
        assert loss.item() == pytest.approx(500 + math.log(8), rel=1e-6)
        assert logits.grad[0, 0, 1].item() == pytest.approx(-1, rel=1e-5)  # it still learns


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_widened(dtype):
    logits, target, mask = graphs(count=30, dtype=torch.float32)
    narrow = logits.to(dtype).requires_grad_()
    actual = center_mass_loss(narrow, target, mask)
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual, center_mass_loss(narrow.detach().float(), target, mask))
    actual.backward()
    assert narrow.grad.dtype == dtype
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = center_mass_loss(logits, target, mask)
    torch.testing.assert_close(inside, center_mass_loss(logits, target, mask))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_of_q_and_k(dtype):
    g = torch.Generator().manual_seed(0)
    q, k = (torch.randn(2, 40, 16, generator=g) for _ in range(2))
    target = torch.rand(2, 40, 40, generator=g) < 0.2
    narrow = [q.to(dtype).requires_grad_(), k.to(dtype).requires_grad_()]
    wide = [x.detach().float().requires_grad_() for x in narrow]
    for sides in (narrow, wide):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = center_mass_loss(tuple(sides), target)
        assert loss.dtype == torch.float32
        loss.backward()
    for a, b in zip(narrow, wide, strict=True):
        assert a.grad.dtype == dtype
        torch.testing.assert_close(a.grad, b.grad.to(dtype))


def test_compiled():
    logits, target, mask = graphs(dtype=torch.float32)
    compiled = torch.compile(center_mass_loss, fullgraph=True, backend="aot_eager")
    logits.requires_grad_()
    actual, plain = compiled(logits, target, mask), center_mass_loss(logits, target, mask)
    torch.testing.assert_close(actual, plain)
    torch.testing.assert_close(torch.autograd.grad(actual, logits), torch.autograd.grad(plain, logits))
    q, k = (torch.randn(4, 6, 3, requires_grad=True) for _ in range(2))
    actual, plain = compiled((q, k), target, mask), center_mass_loss((q, k), target, mask)
    torch.testing.assert_close(actual, plain)
    torch.testing.assert_close(torch.autograd.grad(actual, (q, k)), torch.autograd.grad(plain, (q, k)))


SQUARE, PAIRS = torch.zeros(2, 5, 5), torch.zeros(2, 5, 5, dtype=torch.bool)


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        ((torch.zeros(5), PAIRS), r"logits must be \(..., N, N\), .* got \(5,\)"),
        ((torch.zeros(2, 5, 4), PAIRS), r"logits must be \(..., N, N\)"),
        ((torch.zeros(2, 0, 0), PAIRS), r"logits must be \(..., N, N\)"),
        ((SQUARE.int(), PAIRS), "floating point"),
        ((SQUARE, PAIRS.float()), "target must be bool"),
        ((SQUARE, PAIRS.long()), r"target > 0.*related='different'"),
        ((SQUARE, PAIRS[:, :4]), r"target \(2, 4, 5\) does not fit the logits; expected \(2, 5, 5\)"),
        ((SQUARE, PAIRS[0, 0]), r"target \(5,\) does not fit"),
        ((SQUARE, None), "target must be a torch.Tensor, got NoneType"),
        ((SQUARE, PAIRS.numpy()), "target must be a torch.Tensor, got ndarray"),
        ((SQUARE, PAIRS.expand(3, 2, 5, 5)), "does not fit"),
        ((SQUARE, torch.zeros(3, 5, 5, dtype=torch.bool)), "does not fit"),
        ((SQUARE, PAIRS, torch.ones(2, 5)), "mask must be bool"),
        ((SQUARE, PAIRS, torch.ones(2, 4, dtype=torch.bool)), r"mask \(2, 4\) does not fit"),
        ((SQUARE, PAIRS, None, "rows"), "did you mean 'row'"),
        ((SQUARE, PAIRS, None, "row", "focus"), "did you mean 'focal'"),
        ((SQUARE, PAIRS, None, "row", "focal", -1.0), "at least 0"),
        ((SQUARE, PAIRS, None, "row", "focal", math.nan), "at least 0"),
        (((SQUARE,), PAIRS), r"a pair \(q, k\)"),
        (((SQUARE, SQUARE[..., :3]), PAIRS), "of one shape"),
        (((SQUARE[..., :0], SQUARE[..., :0]), PAIRS), "of one shape"),
    ],
)
def test_what_cannot_be_used(arguments, hint):
    with pytest.raises(UserError, match=hint):
        center_mass_loss(*arguments)


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"related": "diferent"}, "did you mean 'different'"),
        ({"related": [[True]]}, "related must be a torch.Tensor, got list"),
        ({"related": torch.ones(3, 3)}, "bool table"),
        ({"related": torch.ones(3, 2, dtype=torch.bool)}, "bool table"),
        ({"related": torch.ones(7, 3, 3, dtype=torch.bool)}, r"related \(7, 3, 3\) does not fit"),
        ({"related": "same", "scale": 2.0}, "scaled already"),
    ],
)
def test_labels_that_cannot_be_used(options, hint):
    with pytest.raises(UserError, match=hint):
        center_mass_loss(SQUARE, torch.zeros(2, 5, dtype=torch.int64), **options)
    with pytest.raises(UserError, match="integer label"):
        center_mass_loss(SQUARE, torch.zeros(2, 5), related="same")
    with pytest.raises(UserError, match=r"target \(2, 4\) does not fit"):
        center_mass_loss(SQUARE, torch.zeros(2, 4, dtype=torch.int64), related="same")


# Records ------------------------------------------------------------------------------------------------------------


def pairwise_record(values):
    return AttentionRecord("blocks.3.attn", "pairwise", values, True)


@pytest.mark.parametrize("over", ["matrix", "row"])
@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("masked", [False, True])
def test_a_watched_module_is_supervised_as_its_logits_are(over, heads, masked):
    torch.manual_seed(0)
    module = FocusedAttention(6, key_channels=4, heads=heads).double()
    features = torch.randn(3, 6, 6, dtype=torch.float64)
    _, target, mask = graphs(batch=3)
    mask = mask if masked else None
    with foveal.watch(module) as seen:
        _, logits = module(features, mask)
    record = seen[""]
    torch.testing.assert_close(center_mass(record, target, over=over), center_mass(logits, target, mask, over))
    losses = center_mass_loss(record, target, over=over), center_mass_loss(logits, target, mask, over)
    torch.testing.assert_close(*losses)
    parameters = list(module.parameters())
    gradients = [torch.autograd.grad(loss, parameters, retain_graph=True) for loss in losses]
    torch.testing.assert_close(*gradients)
    assert gradients[0][0].abs().sum() > 0


@pytest.mark.parametrize("over", ["matrix", "row"])
def test_heads_of_a_record_are_graphs_of_their_own(over):
    """Over which target, labels, table and mask broadcast, whether or not they have a dimension for them."""
    g = torch.Generator().manual_seed(0)
    q, k = (torch.randn(2, 3, 6, 4, generator=g, dtype=torch.float64) for _ in range(2))
    _, target, mask = graphs(batch=2)
    record = pairwise_record(DotProduct(q, k, heads=True, scale=0.3))
    expected = center_mass((q, k), target[:, None], mask[:, None], over, scale=0.3)
    assert expected.shape == (2, 3)
    torch.testing.assert_close(center_mass(record, target, mask, over), expected)
    torch.testing.assert_close(center_mass(record, target[:, None], mask[:, None], over), expected)
    shared, own = center_mass(record, target[0], None, over), center_mass(record, target, None, over)
    torch.testing.assert_close(shared[0], own[0])
    labels, table = torch.randint(-1, 3, (2, 6), generator=g), torch.rand(2, 3, 3, generator=g) < 0.5
    for related, wide in (("different", "different"), (table, table[:, None])):
        expected = center_mass((q, k), labels[:, None], mask[:, None], over, related=wide, scale=0.3)
        torch.testing.assert_close(center_mass(record, labels, mask, over, related=related), expected)


def test_the_masks_of_a_record_and_of_a_call_are_combined():
    g = torch.Generator().manual_seed(0)
    q, k = (torch.randn(2, 6, 4, generator=g) for _ in range(2))
    _, target, mask = graphs(batch=2)
    other = torch.tensor([[True] * 5 + [False]] * 2)
    actual = center_mass(pairwise_record(DotProduct(q, k, mask)), target, other)
    torch.testing.assert_close(actual, center_mass((q, k), target, mask & other))


@pytest.mark.parametrize("heads", [(), (3,)])
def test_weights_after_the_softmax_tell_the_mass_of_rows(heads):
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(2, *heads, 6, 6, generator=g, dtype=torch.float64)
    _, target, mask = graphs(batch=2)
    keys = mask if not heads else mask[:, None]
    weights = logits.masked_fill(~keys[..., None, :], -torch.inf).softmax(-1).requires_grad_()
    wide = target if not heads else target[:, None]
    expected = center_mass(logits, wide, keys, over="row")
    torch.testing.assert_close(center_mass(pairwise_record(weights), target, mask, over="row"), expected)
    center_mass_loss(pairwise_record(weights), target, mask, over="row").backward()
    assert weights.grad.isfinite().all()
    assert weights.grad.abs().sum() > 0


Q = torch.zeros(1, 4, 2)


@pytest.mark.parametrize(
    ("record", "options", "message"),
    [
        (AttentionRecord("gate", "spatial", torch.ones(1, 4, 4), True), {}, "gate is spatial attention"),
        (pairwise_record(torch.ones(1, 4, 4) / 4), {}, r"use over='row', or note a foveal\.attention\.DotProduct"),
        (pairwise_record(DotProduct(Q, Q)), {"scale": 0.5}, "leave it out"),
        (pairwise_record(DotProduct(Q, Q[:, :3])), {}, "between the same entities"),
    ],
)
def test_records_without_a_center_mass(record, options, message):
    with pytest.raises(UserError, match=message):
        center_mass_loss(record, torch.ones(1, 4, 4, dtype=torch.bool), **options)
