"""Attention between words against loops over queries and keys, straight from the equations."""

import math

import pytest
import torch

import foveal
from foveal.attention import RelativeAttention
from foveal.errors import UserError
from foveal.kernels.spatial import fused, plain

SETTINGS = [f"{n:04b}" for n in range(1, 16)]
KINDS = {"encoder": {}, "decoder": {"causal": True}, "cross": {"cross": True}}


def make(terms="1111", kind="encoder", **options):
    torch.manual_seed(0)
    module = RelativeAttention(12, heads=3, terms=terms, **KINDS[kind], **options).double()
    torch.nn.init.normal_(module.proj.bias)
    return module


def inputs(kind="encoder", queries=5, keys=7):
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(2, queries, 12, generator=draw, dtype=torch.float64)
    context = torch.randn(2, keys, 12, generator=draw, dtype=torch.float64) if kind == "cross" else None
    mask = torch.ones(2, keys if kind == "cross" else queries, dtype=torch.bool)
    mask[1, -2:] = False
    return x, context, mask


def code(offset, numbers):
    angles = [offset / 10_000 ** (i / (numbers // 2)) for i in range(numbers // 2)]
    return torch.tensor([*map(math.sin, angles), *map(math.cos, angles)], dtype=torch.float64)


def slow(module, x, context, mask):
    source = x if context is None else context
    e1, e2, e3, e4 = (digit == "1" for digit in module.terms)
    parts = list(module.inputs.weight.split(12))
    value = parts.pop()
    key = parts.pop() if e1 or e3 else None
    query = module.query.weight if module.query is not None else (parts.pop() if e1 or e2 else None)
    rows = []
    for b in range(len(x)):
        for q in range(x.shape[1]):
            heads = []
            for m in range(3):
                own = slice(4 * m, 4 * m + 4)
                z = None if query is None else query[own] @ x[b, q]
                energies = []
                for k in range(source.shape[1]):
                    hidden = not mask[b, k] or (module.causal and k > q)
                    content = None if key is None else key[own] @ source[b, k]
                    position = None
                    if module.position is not None:
                        position = module.position.weight[own] @ code(q - k, module.position.in_features)
                    energy = torch.zeros((), dtype=torch.float64)
                    energy = energy + (z @ content if e1 else 0) + (z @ position if e2 else 0)
                    energy = energy + (module.key_bias[m] @ content if e3 else 0)
                    energy = energy + (module.position_bias[m] @ position if e4 else 0)
                    energies.append(energy / 2 if not hidden else torch.tensor(-math.inf, dtype=torch.float64))
                weights = torch.stack(energies).softmax(0)
                heads.append(sum(w * (value[own] @ s) for w, s in zip(weights, source[b], strict=True)))
            rows.append(module.proj(torch.cat(heads)))
    return torch.stack(rows).unflatten(0, x.shape[:2])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("terms", SETTINGS)
def test_it_is_the_equations(terms, kind):
    module, (x, context, mask) = make(terms, kind), inputs(kind, 3, 4)
    expected = slow(module, x, context, mask)
    result = module(x, context, mask)
    torch.testing.assert_close(result, expected)
    parameters = list(module.parameters())
    weight = torch.randn_like(result)
    gradients = (torch.autograd.grad((out * weight).sum(), parameters) for out in (result, expected))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("terms", ["0100", "0001", "1111"])
def test_long_sentences_have_columns_for_waves(terms, kind):
    """Where there are more keys than numbers in a code; equal in value and gradient to the reference."""
    module, (x, context, mask) = make(terms, kind, position_channels=4), inputs(kind, 7, 9)
    expected = slow(module, x, context, mask)
    query, key, value = module.project(x, context)
    factors = module.factors(query, key, value, mask, x.shape[1])
    assert factors.across is None
    sides = fused.columns(factors, value[:, None])
    assert sides[0].shape[-1] <= 16
    torch.testing.assert_close(plain.attend(factors, value[:, None]), fused.attend(factors, value[:, None]))
    result = module(x, context, mask)
    torch.testing.assert_close(result, expected)
    for one, other in zip(
        torch.autograd.grad(result.sum(), module.position.weight),
        torch.autograd.grad(expected.sum(), module.position.weight),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("terms", ["1111", "0110", "0011", "1000", "0001"])
@pytest.mark.parametrize("kind", ["decoder", "cross"])
def test_one_position_after_the_other(terms, kind):
    module, (x, context, mask) = make(terms, kind), inputs(kind)
    with torch.no_grad():
        expected = module(x, context, mask if kind == "cross" else None)
        keys = 7 if kind == "cross" else 6
        table = module.positions(6, keys) if module.position is not None else None
        cache = torch.zeros(module.slots, 2, 6, 12, dtype=torch.float64)
        steps = []
        for t in range(5):
            if kind == "cross":
                memory = module.project(None, context)[1:]
                steps.append(module.step_to(x[:, t, None], torch.tensor([t]), memory, mask, table)[:, 0])
            else:
                steps.append(module.step(x[:, t], torch.tensor([t]), cache, table))
    torch.testing.assert_close(torch.stack(steps, 1), expected)


@pytest.mark.parametrize("terms", SETTINGS)
def test_the_future_is_not_seen(terms):
    module, (x, _, _) = make(terms, "decoder"), inputs()
    other = x.clone()
    other[:, 3:] = 9
    torch.testing.assert_close(module(x)[:, :3], module(other)[:, :3])
    if terms != "0001":  # which looks at no content but sums it up
        assert not torch.allclose(module(x)[:, 3:], module(other)[:, 3:])


@pytest.mark.parametrize("kind", ["encoder", "cross"])
def test_padding_is_not_seen(kind):
    module, (x, context, mask) = make("1111", kind), inputs(kind)
    spoilt = x.clone() if context is None else context.clone()
    spoilt[1, -2:] = 1e3
    kept = module(x, context, mask)
    changed = module(spoilt, None, mask) if context is None else module(x, spoilt, mask)
    torch.testing.assert_close(kept[1, : x.shape[1] - 2], changed[1, : x.shape[1] - 2], atol=1e-9, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_it_starts_as_wide_as_the_attention_of_pytorch(kind):
    """That is √2 less than by their own size; with more, training is slower."""
    torch.manual_seed(0)
    module = RelativeAttention(96, heads=4, **KINDS[kind])
    widest = torch.nn.MultiheadAttention(96, 4).in_proj_weight.abs().max()
    weights = [*module.inputs.weight.split(96), *([] if module.query is None else [module.query.weight])]
    assert len(weights) == 3
    for weight in weights:
        torch.testing.assert_close(weight.abs().max(), widest, rtol=0.01, atol=0)


def test_gradients():
    module, (x, context, mask) = make("1111", "cross"), inputs("cross", 2, 3)
    x.requires_grad_()
    context.requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: module(a, b, mask), (x, context))


def test_what_is_recorded():
    module, (x, _, mask) = make("1011", "decoder"), inputs()
    with foveal.watch(torch.nn.Sequential(module)) as seen:
        module(x, mask=mask)
    record = seen["0"]
    assert record.shape == (2, 3, 5, 5)
    assert list(record.parts) == ["E1", "E3", "E4"]
    assert not record.values.triu(1).any()
    torch.testing.assert_close(record.values.sum(-1), torch.ones(2, 3, 5, dtype=torch.float64))
    assert not record.values[1, :, :, 3:].any()
    torch.testing.assert_close(record.rows([2])[:, :, 0], record.values[:, :, 2])


def test_half_precision_and_dropout():
    module, (x, _, mask) = make(dropout=0.5).float(), inputs()
    with torch.autocast("cpu", torch.bfloat16):
        out = module.eval()(x.float(), mask=mask)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), module(x.float(), mask=mask), atol=0.05, rtol=0.05)
    assert not torch.allclose(module.train()(x.float()), module(x.float()))


@pytest.mark.slow
def test_it_compiles():
    module, (x, context, mask) = make("1111", "cross").float(), inputs("cross")
    x, context = x.float(), context.float()
    compiled = torch.compile(module, fullgraph=True)
    torch.testing.assert_close(compiled(x, context, mask), module(x, context, mask))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: RelativeAttention(12, heads=5), "does not divide 12"),
        (lambda: RelativeAttention(12, heads=2.5), "heads=2.5: expected a whole number"),
        (lambda: RelativeAttention(12, heads=3, terms="0000"), "turn at least one on"),
        (lambda: RelativeAttention(12, heads=3, position_channels=5), "even number"),
        (lambda: RelativeAttention(12, heads=3, cross=True, causal=True), "cannot be causal"),
        (lambda: make()(torch.zeros(2, 3, 5)), r"\(N, T, 12\)"),
        (lambda: make()(torch.zeros(2, 3, 12), torch.zeros(2, 3, 12)), "cross=False"),
        (lambda: make(kind="cross")(torch.zeros(2, 3, 12)), "cross=True"),
        (lambda: make()(torch.zeros(2, 3, 12), mask=torch.ones(2, 4, dtype=torch.bool)), r"bool \(2, 3\)"),
    ],
)
def test_wrong_use(build, message):
    with pytest.raises(UserError, match=message):
        build()
