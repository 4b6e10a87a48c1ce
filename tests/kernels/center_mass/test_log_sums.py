"""The log-sums of a matrix that is never stored, against the matrix."""

import sys

import pytest
import torch

from foveal.kernels.center_mass import launch, log_sums
from foveal.kernels.center_mass.log_sums import reference, row_log_sums
from foveal.kernels.center_mass.pairs import LabelledPairs
from foveal.supervise import center_mass, center_mass_loss, semantic_table, word_pairs


@pytest.fixture(params=[7, 60, 1 << 20])
def _block_sizes(request, monkeypatch):
    """A row at a time, a few rows at a time, all graphs at once."""
    monkeypatch.setattr(log_sums, "ELEMENTS", request.param)


def sides(batch=3, count=11, width=4, seed=0, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(batch, count, width, generator=g, dtype=dtype) for _ in range(2))
    valid = torch.rand(batch, count, generator=g) < 0.8
    valid[-1] = False  # nothing but padding
    labels = torch.randint(-1, 4, (batch, count), generator=g)
    return q, k, valid, labels


def rules(labels):
    batch, count = labels.shape
    g = torch.Generator().manual_seed(5)
    owner = torch.arange(batch)
    yield LabelledPairs("pairs", torch.rand(batch, count, count, generator=g) < 0.3, owner)
    yield LabelledPairs("pairs", torch.rand(1, count, count, generator=g) < 0.3, torch.zeros(batch, dtype=torch.int64))
    yield LabelledPairs("different", labels, owner)
    yield LabelledPairs("same", labels, owner)
    yield LabelledPairs("table", labels, owner, torch.rand(batch, 3, 3, generator=g) < 0.5)


@pytest.mark.usefixtures("_block_sizes")
@pytest.mark.parametrize("rule", range(5))
def test_equal_to_the_whole_matrix(rule):
    q, k, valid, labels = sides()
    pairs = list(rules(labels))[rule]
    q.requires_grad_()
    k.requires_grad_()
    actual, expected = row_log_sums(q, k, valid, pairs, 0.7), reference(q, k, valid, pairs, 0.7)
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b)
    weight = torch.randn(2, *actual[0].shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    gradients = []
    for sums in (actual, expected):
        # Minus infinity has no gradient.
        total = sum((s.masked_fill(s.isneginf(), 0) * w).sum() for s, w in zip(sums, weight, strict=True))
        gradients.append([g.nan_to_num() for g in torch.autograd.grad(total, (q, k))])
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("rule", range(5))
def test_gradient(rule, monkeypatch):
    monkeypatch.setattr(log_sums, "ELEMENTS", 10)
    q, k, _, labels = sides(2, 5, 3)
    pairs = list(rules(labels.clamp_min(0)))[rule]
    valid = torch.ones(2, 5, dtype=torch.bool)

    def finite(q, k):
        return [x.masked_fill(x.isneginf(), 0) for x in row_log_sums(q, k, valid, pairs, 0.7)]

    assert torch.autograd.gradcheck(finite, (q.requires_grad_(), k.requires_grad_()))


@pytest.mark.parametrize("rule", range(5))
@pytest.mark.parametrize(
    ("count", "width", "dtype"),
    [
        (11, 4, torch.float32),
        pytest.param(70, 20, torch.float32, marks=pytest.mark.slow),
        (64, 16, torch.float32),
        (37, 16, torch.float16),
    ],
)
def test_fused_equals_the_plain_form(rule, count, width, dtype, monkeypatch):
    """The Triton kernels, in the interpreter where there is no GPU: odd sizes, padding, graphs without a pair."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    monkeypatch.setattr(launch, "TILES", ((32, 32, 4, 1),))
    q, k, valid, labels = (x.to(device) for x in sides(3, count, width, dtype=torch.float32))
    q[~valid] = k[~valid] = torch.nan  # padding may hold anything
    pairs = list(rules(labels.cpu()))[rule]
    table = None if pairs.table is None else pairs.table.to(device)
    inputs = (q.to(dtype), k.to(dtype), valid, pairs.target.to(device), pairs.owner.to(device), table, pairs.rule, 0.7)
    actual, expected = launch.forward(*inputs), log_sums._forward(*inputs)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)
    grads = torch.randn(2, *q.shape[:2], generator=torch.Generator().manual_seed(1)).to(device)
    actual, expected = (side.backward(*grads, *expected, *inputs) for side in (launch, _Plain))
    torch.testing.assert_close(actual, expected, **({} if dtype == torch.float32 else {"atol": 1e-3, "rtol": 1e-3}))


@pytest.mark.parametrize("rule", range(5))
def test_fused_sums_of_whole_graphs(rule, monkeypatch):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    monkeypatch.setattr(launch, "TILES", ((32, 32, 4, 1),))
    q, k, valid, labels = sides(3, 37, 20, dtype=torch.float32)
    pairs = list(rules(labels))[rule]
    q, k = q.requires_grad_(), k.requires_grad_()
    expected = torch.stack(reference(q, k, valid, pairs, 0.7)).logsumexp(2)
    inputs = [q, k, valid, pairs.target, pairs.owner, pairs.table]
    inputs = [x if x is None else x.detach().to(device) for x in inputs] + [pairs.rule, 0.7]
    actual = launch.forward_whole(*inputs)
    torch.testing.assert_close(torch.stack(actual).cpu(), expected.detach(), atol=1e-5, rtol=1e-5)
    assert expected.isneginf().any()  # a graph without pairs has no gradient
    grads = torch.tensor([[0.7, -1.3, 0.4], [0.2, 0.9, -0.8]])
    total = (expected.masked_fill(expected.isneginf(), 0) * grads).sum()
    gradients = [x.nan_to_num() for x in torch.autograd.grad(total, (q, k))]
    actual = launch.backward(*grads.to(device), *actual, *inputs)
    torch.testing.assert_close([x.cpu() for x in actual], gradients, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("rule", [2, 3])
@pytest.mark.parametrize("whole", [False, True], ids=["rows", "graphs"])
@pytest.mark.parametrize("case", ["weak labelled pairs", "all weaker than padding"])
def test_fused_beyond_the_range_of_exponentials(case, whole, rule, monkeypatch):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    monkeypatch.setattr(launch, "TILES", ((32, 32, 4, 1),))
    q, k, valid, labels = sides(3, 37, 4, dtype=torch.float32)
    labels = labels.clamp_min(0) % 2
    valid[0, :8] = False
    if case == "weak labelled pairs":  # by 150 each way
        sign = 1 - 2 * labels[:2].float() if rule != 3 else torch.tensor([1.0, -1.0]).repeat(2, 19)[:, :37]
        q[:2, :, 0], k[:2, :, 0] = 15 * sign, 10 * sign
    else:
        q[:2, :, 0], k[:2, :, 0] = 15, -10
    if rule == 3 and case == "weak labelled pairs":  # the same label, and nobody like one's own kind
        labels[:2] = torch.arange(37) // 2
    pairs = list(rules(labels))[rule]
    inputs = [q, k, valid, pairs.target, pairs.owner, pairs.table]
    inputs = [x if x is None else x.to(device) for x in inputs] + [pairs.rule, 1.0]
    rows = log_sums._forward(
        *(x.double() if x is not None and x.is_floating_point() else x for x in inputs[:6]), *inputs[6:]
    )
    actual = (launch.forward_whole if whole else launch.forward)(*inputs)
    expected = [x.logsumexp(1) for x in rows] if whole else list(rows)
    torch.testing.assert_close(list(actual), [x.float() for x in expected], atol=1e-4, rtol=1e-5)
    doubtful = launch._far(*expected)
    assert doubtful.any()
    grads = torch.randn(2, *expected[0].shape, generator=torch.Generator().manual_seed(1)).to(device)
    # The gradient of a graph's log-sum is that of its rows', each with its share of the sum.
    shares = [
        (r - e[:, None]).exp().nan_to_num() * i[:, None] if whole else i
        for r, e, i in zip(rows, expected, grads, strict=True)
    ]
    gradients = log_sums._backward(*shares, *rows, q.double().to(device), k.double().to(device), *inputs[2:])
    gradients = [x.float() for x in gradients]
    actual = launch.backward(*grads, *(x.float() for x in expected), *inputs)
    torch.testing.assert_close(list(actual), gradients, atol=1e-3, rtol=1e-3)


def test_the_loss_takes_the_fused_sums_where_they_are(monkeypatch):
    """As on a GPU: the loss and its gradients are those of the other way."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    q, k, valid, labels = (x.to(device) for x in sides(3, 37, 20, dtype=torch.float32))
    actual = []
    for fused in (False, True):
        monkeypatch.setattr(sys.modules["foveal.supervise.center_mass"], "fused", lambda q, k, fused=fused: fused)
        if fused:
            monkeypatch.setattr(launch, "TILES", ((32, 32, 4, 1),))
            monkeypatch.setattr(torch.ops.foveal, "row_log_sums_backward", launch.backward)
        sides_ = [x.detach().requires_grad_() for x in (q, k)]
        loss = center_mass_loss(tuple(sides_), labels, valid, related="different")
        actual.append((loss.detach(), torch.autograd.grad(loss, sides_)))
    torch.testing.assert_close(*actual, atol=1e-5, rtol=1e-4)


class _Plain:
    backward = staticmethod(log_sums._backward)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("rule", range(5))
@pytest.mark.parametrize("count", [512, 515])
def test_every_tile_on_a_gpu(rule, dtype, count):
    """No tile is wrong, in any of several tries: a race would show."""
    q, k, valid, labels = (x.cuda() for x in sides(3, count, 64, dtype=torch.float32))
    pairs = list(rules(labels.cpu()))[rule]
    table = None if pairs.table is None else pairs.table.cuda()
    inputs = (q.to(dtype), k.to(dtype), valid, pairs.target.cuda(), pairs.owner.cuda(), table, pairs.rule, 0.125)
    sums = log_sums._forward(*inputs)
    grads = torch.randn(2, *q.shape[:2], device="cuda")
    expected = [*sums, *log_sums._backward(*grads, *sums, *inputs)]
    for tile in launch.tiles(inputs[0]):
        for _ in range(4):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(launch, "TILES", (tile,))
                patch.setattr("foveal.kernels.tune._chosen", {})
                try:
                    actual = [*launch.forward(*inputs), *launch.backward(*grads, *sums, *inputs)]
                except RuntimeError as error:
                    assert "fits" in str(error)  # noqa: PT017
                    break
            for a, b in zip(actual, expected, strict=True):
                finite = b.isfinite()
                assert torch.equal(finite, a.isfinite())
                apart = (a - b)[finite].float().norm() / b[finite].float().norm()
                assert apart < (1e-4 if dtype == torch.float32 else 1e-2), (tile, float(apart))


def test_padding_may_hold_anything():
    """Also numbers so large that their exponentials overflow."""
    q, k, valid, labels = sides(2, 6, 4, dtype=torch.float32)
    valid = torch.tensor([[True] * 4 + [False] * 2] * 2)
    actual = []
    for rubbish in (0.0, 40.0, torch.nan):
        inputs = [torch.where(valid[:, :, None], 3 * x, rubbish).requires_grad_() for x in (q, k)]
        loss = center_mass_loss(tuple(inputs), labels, valid, related="different")
        actual.append((loss.detach(), torch.autograd.grad(loss, inputs)))
    for other in actual[1:]:
        torch.testing.assert_close(other, actual[0])


@pytest.mark.slow
def test_gradients_of_turned_tensors_have_the_strides_that_the_compiler_expects():
    q, k, valid, labels = sides(2, 5, 3, dtype=torch.float32)
    q, k = (x.mT.contiguous().mT.requires_grad_() for x in (q, k))
    arguments = (q, k, valid, labels, torch.arange(2), None, "different", 0.5)
    actual = torch.library.opcheck(torch.ops.foveal.row_log_sums.default, arguments)
    assert set(actual.values()) == {"SUCCESS"}


def test_the_operators_are_well_formed():
    q, k, valid, labels = sides(2, 5, 3, dtype=torch.float32)
    arguments = (q.requires_grad_(), k.requires_grad_(), valid, labels, torch.arange(2), None, "different", 0.5)
    actual = torch.library.opcheck(torch.ops.foveal.row_log_sums.default, arguments)
    assert set(actual.values()) == {"SUCCESS"}


@pytest.mark.usefixtures("_block_sizes")
@pytest.mark.parametrize("over", ["matrix", "row"])
@pytest.mark.parametrize("heads", [None, 3])
def test_the_loss_equals_that_of_the_logits(over, heads):
    """Values and gradients; a target shared by heads, with masks and graphs without pairs."""
    g = torch.Generator().manual_seed(0)
    shape = (4, 9, 5) if heads is None else (4, heads, 9, 5)
    q, k = (torch.randn(shape, generator=g, dtype=torch.float64).requires_grad_() for _ in range(2))
    target = torch.rand(4, 9, 9, generator=g) < 0.3
    target[1] = False
    mask = torch.rand(4, 9, generator=g) < 0.7
    if heads is not None:
        target, mask = target[:, None], mask[:, None]
    light = center_mass_loss((q, k), target, mask, over)
    plain = center_mass_loss(q @ k.mT / 5**0.5, target, mask, over)
    torch.testing.assert_close(light, plain)
    torch.testing.assert_close(torch.autograd.grad(light, (q, k)), torch.autograd.grad(plain, (q, k)))
    torch.testing.assert_close(
        center_mass((q, k), target, mask, over, scale=0.3), center_mass(0.3 * q @ k.mT, target, mask, over)
    )


@pytest.mark.parametrize("kind", ["semantic", "same_category", "different_category"])
def test_labels_instead_of_pairs(kind):
    """What word_pairs marks, by way of each word's tag."""
    g = torch.Generator().manual_seed(0)
    tags = torch.randint(0, 13, (6, 8), generator=g)
    logits = torch.randn(6, 8, 8, generator=g)
    related = {"semantic": semantic_table(), "same_category": "same", "different_category": "different"}[kind]
    labels = tags if kind == "semantic" else tags - 1  # padding is a label without pairs
    expected = center_mass(logits, word_pairs(tags, kind=kind))
    assert (expected > 0).any()
    torch.testing.assert_close(center_mass(logits, labels, related=related), expected)


def test_a_label_beyond_the_table_is_in_no_pair():
    table = torch.ones(2, 2, dtype=torch.bool)
    actual = center_mass(torch.zeros(3, 3), torch.tensor([0, 1, 7]), related=table)
    assert actual.item() == pytest.approx(2 / 9)


def test_memory_grows_with_the_entities_and_not_with_their_pairs():
    """No tensor of the forward or backward pass is larger than one piece."""
    sizes = []

    class Largest(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            out = function(*args, **(kwargs or {}))
            sizes.extend(x.numel() for x in torch.utils._pytree.tree_leaves(out) if isinstance(x, torch.Tensor))
            return out

    count = 4096
    assert count * count == 16 * log_sums.ELEMENTS
    q, k = (torch.randn(1, count, 8) for _ in range(2))
    inputs = (q, k, torch.ones(1, count, dtype=torch.bool), torch.randint(0, 5, (1, count)), torch.arange(1), None)
    with Largest():  # the mode does not see into an operator, only into the functions it is made of
        sums = log_sums._forward(*inputs, "different", 0.5)
        log_sums._backward(*sums, *sums, *inputs, "different", 0.5)
        assert max(sizes) == log_sums.ELEMENTS


def test_the_benchmark_runs(tmp_path, monkeypatch, capsys):
    import csv
    import runpy
    import sys
    from pathlib import Path

    script = Path(__file__).resolve().parents[3] / "benchmarks" / "center_mass.py"
    out = tmp_path / "out.csv"
    options = ["--entities", "24", "40", "--plain-up-to", "1200", "--widths", "8", "--heads", "2", "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", [str(script), *options, "--seconds", "0", "--csv", str(out)])
    runpy.run_path(str(script), run_name="__main__")
    with open(out, newline="") as file:
        rows = [(row["form"], int(row["entities"])) for row in csv.DictReader(file)]
    assert rows == [("attention", 24), ("light", 24), ("plain", 24), ("attention", 40), ("light", 40)]
    assert "differs from plain by" in capsys.readouterr().out
