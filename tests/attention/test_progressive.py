import math

import pytest
import torch
from torch import nn
from torch.func import functional_call

from foveal.attention import ProgressiveGate
from foveal.attention.progressive import spatial_softmax
from foveal.errors import UserError

SIZES = [(1, 1), (5, 5), (6, 9), (1, 7), (11, 4)]


def make(channels=4, *, seed=0, **options):
    """A gate whose every parameter matters: biases are not zero."""
    torch.manual_seed(seed)
    gate = ProgressiveGate(channels, **({"queries": 6, "hidden": 5} | options))
    for parameter in gate.parameters():
        nn.init.normal_(parameter)
    return gate


def inputs(n=3, channels=4, size=(6, 9), dtype=torch.float32, seed=1):
    torch.manual_seed(seed)
    return torch.randn(n, channels, *size, dtype=dtype), torch.randint(0, 6, (n,))


def slow_scores(gate, features, query):
    """The equation, one position at a time."""
    weight, k = gate.features.weight, gate.features.kernel_size[0]
    n, _, height, width = features.shape
    scores = features.new_zeros(n, height, width)
    for b in range(n):
        for i in range(height):
            for j in range(width):
                a = gate.features.bias + gate.query.weight[query[b]]
                for di in range(k):
                    for dj in range(k):
                        y, x = i + di - k // 2, j + dj - k // 2
                        if 0 <= y < height and 0 <= x < width:
                            a = a + weight[:, :, di, dj] @ features[b, :, y, x]
                scores[b, i, j] = gate.score.weight.flatten() @ a.clamp(min=0) + gate.score.bias[0]
    return scores


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("context", "last"), [(1, False), (3, False), (5, False), (3, True)])
def test_equals_the_equation_at_any_size(size, context, last):
    gate = make(context=context, last=last).double()
    features, query = inputs(2, size=size, dtype=torch.float64)
    scores = slow_scores(gate, features, query)
    if last:
        exponent = (scores - scores.amax((1, 2), keepdim=True)).exp()
        alpha = exponent / exponent.sum((1, 2), keepdim=True)
    else:
        alpha = 1 / (1 + (-scores).exp())
    torch.testing.assert_close(gate.scores(features, query)[:, 0], scores)
    torch.testing.assert_close(gate.attend(features, query)[:, 0], alpha)
    expected = torch.stack([features[:, c] * alpha for c in range(4)], 1)
    torch.testing.assert_close(gate(features, query), expected)


def test_batch_norm_stands_between_sum_and_relu():
    gate = make(norm=True, context=3).eval()
    gate.norm.running_mean.normal_()
    gate.norm.running_var.uniform_(0.5, 2.0)
    features, query = inputs()
    fused = nn.functional.conv2d(features, gate.features.weight, gate.features.bias, padding=1)
    fused = fused + gate.query.weight[query][:, :, None, None]
    scale = gate.norm.weight / (gate.norm.running_var + gate.norm.eps).sqrt()
    fused = (fused - gate.norm.running_mean[:, None, None]) * scale[:, None, None] + gate.norm.bias[:, None, None]
    expected = nn.functional.conv2d(fused.relu(), gate.score.weight, gate.score.bias)
    torch.testing.assert_close(gate.scores(features, query), expected, atol=1e-5, rtol=1e-5)


def test_batch_norm_is_off_unless_asked_for():
    assert not any(isinstance(m, nn.BatchNorm2d) for m in make().modules())


@pytest.mark.parametrize("last", [False, True])
def test_gradients(last):
    gate = make(2, hidden=3, context=3, last=last).double()
    features, query = inputs(2, channels=2, size=(3, 4), dtype=torch.float64)
    names = [name for name, _ in gate.named_parameters()]

    def run(features, *values):
        return functional_call(gate, dict(zip(names, values, strict=True)), (features, query))

    values = [p.detach().requires_grad_() for p in gate.parameters()]
    assert torch.autograd.gradcheck(run, (features.requires_grad_(), *values))


@pytest.mark.parametrize("size", SIZES)
def test_ranges(size):
    features, query = inputs(size=size)
    inner = make(last=False).attend(features, query)
    last = make(last=True).attend(features, query)
    assert inner.shape == last.shape == (3, 1, *size)
    assert ((inner > 0) & (inner < 1)).all()
    assert (last >= 0).all()
    torch.testing.assert_close(last.sum((1, 2, 3)), torch.ones(3))


def test_inner_gates_are_independent_sigmoids():
    """A softmax before the last gate would scale features by 1/(H·W)."""
    total = make(last=False).attend(*inputs(size=(20, 20))).sum((1, 2, 3))
    assert (total > 10).all()


def test_spatial_softmax_survives_large_scores():
    alpha = spatial_softmax(torch.tensor([[[[1e4, 0.0], [-1e4, 1e4]]]]))
    torch.testing.assert_close(alpha, torch.tensor([[[[0.5, 0.0], [0.0, 0.5]]]]))


def changed_scores(gate, at=(4, 4)):
    """Positions whose score a change of the pixel ``at`` moves."""
    features, query = inputs(1, size=(9, 9))
    before = gate.scores(features, query)[0, 0]
    features[0, :, at[0], at[1]] += 3.0
    moved = (gate.scores(features, query)[0, 0] - before).abs() > 1e-6
    return {tuple(p) for p in moved.nonzero().tolist()}


def test_context_sees_one_pixel_away():
    gate = make(context=3, hidden=32)
    assert changed_scores(gate) == {(i, j) for i in (3, 4, 5) for j in (3, 4, 5)}
    assert changed_scores(gate, (0, 8)) == {(0, 7), (0, 8), (1, 7), (1, 8)}


def test_without_context_a_position_sees_only_itself():
    assert changed_scores(make(context=1, hidden=32)) == {(4, 4)}


def test_the_last_gate_never_uses_context():
    gate = make(context=3, last=True, hidden=32)
    assert gate.features.kernel_size == (1, 1)
    assert changed_scores(gate) == {(4, 4)}


def test_the_query_decides():
    gate, (features, _) = make(), inputs(2)
    features = features[:1].expand(2, -1, -1, -1)
    one, other = gate.attend(features, torch.tensor([1, 4]))
    assert (one - other).abs().max() > 0.01
    same, again = gate.attend(features, torch.tensor([4, 4]))
    torch.testing.assert_close(same, again)


def test_a_one_hot_query_vector_is_a_query_class():
    by_class = make(queries=6)
    by_vector = make(queries=None, query_channels=6)
    state = by_class.state_dict()
    by_vector.load_state_dict(state | {"query.weight": state["query.weight"].T})
    features, query = inputs()
    vectors = nn.functional.one_hot(query, 6).float()
    torch.testing.assert_close(by_vector(features, vectors), by_class(features, query))


def test_an_open_gate_leaves_the_features_as_they_are():
    gate, (features, query) = make(), inputs()
    nn.init.zeros_(gate.score.weight)
    nn.init.constant_(gate.score.bias, 40.0)
    torch.testing.assert_close(gate(features, query), features, rtol=0, atol=0)


def test_an_indifferent_last_gate_averages():
    gate, (features, query) = make(last=True), inputs()
    nn.init.zeros_(gate.score.weight)
    torch.testing.assert_close(gate(features, query).sum((2, 3)), features.mean((2, 3)))


def test_initialisation_is_glorot_with_zero_biases():
    torch.manual_seed(0)
    gate = ProgressiveGate(32, queries=10, hidden=32, context=3)
    fans = {"features": 32 * 9 + 32 * 9, "query": 10 + 32, "score": 32 + 1}
    for name, fan in fans.items():
        weight, bound = getattr(gate, name).weight, math.sqrt(6 / fan)
        assert 0.9 * bound < weight.abs().max() <= bound
    assert gate.features.bias.count_nonzero() == gate.score.bias.count_nonzero() == 0


def test_state_dict_keys():
    keys = {"features.weight", "features.bias", "query.weight", "score.weight", "score.bias"}
    assert set(make().state_dict()) == set(make(queries=None, query_channels=7).state_dict()) == keys


@pytest.mark.parametrize("last", [False, True])
def test_bfloat16_autocast(last):
    gate, (features, query) = make(last=last), inputs()
    exact = gate(features, query)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = gate(features, query)
        low = gate(features.bfloat16(), query)
    assert mixed.dtype == torch.float32
    assert low.dtype == torch.bfloat16
    torch.testing.assert_close(mixed, exact, atol=0.05, rtol=0.05)
    torch.testing.assert_close(low.float(), exact, atol=0.08, rtol=0.08)
    mixed.sum().backward()
    assert all(p.grad.isfinite().all() for p in gate.parameters())


def test_channels_last():
    gate, (features, query) = make(), inputs()
    expected = gate(features, query)
    gate = gate.to(memory_format=torch.channels_last)
    out = gate(features.contiguous(memory_format=torch.channels_last), query)
    assert out.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("last", [False, True])
def test_compiled_equals_eager(last):
    torch.compiler.reset()
    gate, (features, query) = make(last=last), inputs()
    weights = torch.randn_like(features)
    compiled = torch.compile(gate, fullgraph=True, backend="aot_eager")
    results = []
    for call in (gate, compiled):
        gate.zero_grad()
        x = features.clone().requires_grad_()
        out = call(x, query)
        (out * weights).sum().backward()
        results.append([out.detach(), x.grad, *(p.grad.clone() for p in gate.parameters())])
    torch.testing.assert_close(results[1], results[0])


def test_export_with_free_sizes():
    gate, (features, query) = make().eval(), inputs()
    n, h, w = (torch.export.Dim(name, min=2, max=64) for name in "nhw")
    shapes = {"features": {0: n, 2: h, 3: w}, "query": {0: n}}
    exported = torch.export.export(gate, (features, query), dynamic_shapes=shapes).module()
    torch.testing.assert_close(exported(features, query), gate(features, query))
    other, asked = inputs(5, size=(4, 13), seed=7)
    torch.testing.assert_close(exported(other, asked), gate(other, asked))


@pytest.mark.parametrize("options", [{}, {"queries": 3, "query_channels": 4}])
def test_exactly_one_kind_of_query(options):
    with pytest.raises(UserError, match=r"exactly one of queries .* and query_channels"):
        ProgressiveGate(4, **options)


@pytest.mark.parametrize("context", [2, 0, -1])
def test_context_must_be_odd(context):
    with pytest.raises(UserError, match=f"odd number of positions, got {context}"):
        ProgressiveGate(4, queries=3, context=context)


def test_repr_tells_the_last_gate():
    assert "last=True" in repr(make(last=True))


@pytest.mark.parametrize(
    ("query", "advice"), [([0, 10], "between 0 and 9"), ([-1, 0], "between 0 and 9"), ([0.5, 1.0], "class numbers")]
)
def test_a_query_that_does_not_exist(query, advice):
    with pytest.raises(UserError, match=advice):
        ProgressiveGate(4, queries=10)(torch.rand(2, 4, 5, 5), torch.tensor(query))


def test_a_query_that_is_no_tensor():
    with pytest.raises(UserError, match=r"query must be a torch\.Tensor, got list"):
        make()(torch.rand(2, 4, 5, 5), [1, 2])
