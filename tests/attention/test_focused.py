"""Focused attention against loops, and the center-mass loss on attention that foveal did not build."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F

import foveal
from foveal.attention import FocusedAttention
from foveal.errors import UserError
from foveal.supervise import center_mass, center_mass_loss, word_pairs


def slow(module, features, mask):
    """Aggregated features and mean logits of one graph, entity by entity and head by head."""
    count, channels = features.shape
    d, heads = module.key_channels, module.heads
    key, query = (features @ side.weight.detach().T for side in (module.key, module.query))
    out, logits = torch.zeros_like(features), torch.zeros(count, count, dtype=features.dtype)
    slice_ = channels // heads
    for h in range(heads):
        for m in range(count):
            if not mask[m]:
                continue
            affinity = {
                n: float(key[m, h * d : (h + 1) * d] @ query[n, h * d : (h + 1) * d]) / math.sqrt(d)
                for n in range(count)
                if mask[n]
            }
            total = sum(math.exp(w) for w in affinity.values())
            for n, w in affinity.items():
                part = slice(h * slice_, (h + 1) * slice_)
                out[m, part] += math.exp(w) / total * features[n, part]
                logits[m, n] += w / heads
    return out, logits


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("masked", [False, True])
def test_equal_to_loops(heads, masked):
    torch.manual_seed(0)
    module = FocusedAttention(6, key_channels=5, heads=heads).double()
    features = torch.randn(3, 7, 6, dtype=torch.float64)
    mask = torch.rand(3, 7) < 0.7 if masked else torch.ones(3, 7, dtype=torch.bool)
    out, logits = module(features, mask if masked else None)
    without, none = module(features, mask if masked else None, need_logits=False)
    assert none is None
    torch.testing.assert_close(without, out)
    for b in range(3):
        expected, expected_logits = slow(module, features[b].detach(), mask[b])
        torch.testing.assert_close(out[b], expected)
        both = mask[b][:, None] & mask[b]
        torch.testing.assert_close(logits[b][both], expected_logits[both])
        assert (logits[b][~both] == -math.inf).all()


def test_padding_changes_nothing():
    torch.manual_seed(0)
    module = FocusedAttention(8, key_channels=4)
    features = torch.randn(2, 5, 8)
    padded = torch.cat([features, 9 * torch.randn(2, 3, 8)], 1)
    mask = torch.arange(8).expand(2, 8) < 5
    (out, logits), (wide, wide_logits) = module(features), module(padded, mask)
    torch.testing.assert_close(wide[:, :5], out)
    torch.testing.assert_close(wide_logits[:, :5, :5], logits)
    assert wide[:, 5:].abs().sum() == 0


@pytest.mark.parametrize("need_logits", [True, False])
def test_any_batch_shape(need_logits):
    module = FocusedAttention(8, heads=2)
    features, mask = torch.randn(2, 3, 5, 8), torch.rand(2, 3, 5) < 0.7
    out, logits = module(features, mask, need_logits=need_logits)
    flat, flat_logits = module(features.flatten(0, 1), mask.flatten(0, 1))
    torch.testing.assert_close(out.flatten(0, 1), flat)
    if need_logits:
        torch.testing.assert_close(logits.flatten(0, 1), flat_logits)
    one, _ = module(features[0, 0])
    assert one.shape == (5, 8)


@pytest.mark.parametrize("need_logits", [True, False])
def test_nothing_but_padding_has_finite_gradients(need_logits):
    module = FocusedAttention(8, key_channels=4)
    features = torch.randn(2, 5, 8, requires_grad=True)
    mask = torch.zeros(2, 5, dtype=torch.bool)
    mask[0, 0] = True  # one word attends to itself
    out, logits = module(features, mask, need_logits=need_logits)
    torch.testing.assert_close(out[0, 0], features[0, 0])
    assert out[1].abs().sum() == 0
    loss = out.sum()
    if logits is not None:
        loss = loss + center_mass_loss(logits, torch.ones(2, 5, 5, dtype=torch.bool), mask)
    loss.backward()
    assert features.grad.isfinite().all()
    assert module.key.weight.grad.isfinite().all()


@pytest.mark.parametrize("heads", [1, 2])
def test_watched(heads):
    model = torch.nn.Sequential(FocusedAttention(8, heads=heads))
    mask = torch.tensor([[True, True, True, False]])
    with foveal.watch(model) as seen:
        model[0](torch.randn(1, 4, 8), mask)
    record = seen["0"]
    assert record.kind == "pairwise"
    assert record.normalised
    assert record.values.shape == ((1, 4, 4) if heads == 1 else (1, heads, 4, 4))
    rows = record.values.sum(-1)
    torch.testing.assert_close(rows, mask.float().expand_as(rows))
    assert record.values.requires_grad
    with foveal.watch(model) as seen:
        model[0](torch.randn(1, 4, 8), mask, need_logits=False)
    assert "0" in seen


def test_sides_give_the_supervised_logits_without_the_matrix():
    torch.manual_seed(0)
    module = FocusedAttention(12, key_channels=5, heads=3)
    features, target = torch.randn(2, 9, 12), torch.rand(2, 9, 9) < 0.3
    mask = torch.rand(2, 9) < 0.8
    _, logits = module(features, mask)
    torch.testing.assert_close(
        center_mass(module.sides(features), target, mask, scale=module.scale), center_mass(logits, target)
    )


def test_the_loss_needs_no_mask_where_the_logits_are_masked():
    torch.manual_seed(0)
    module = FocusedAttention(12)
    mask = torch.rand(4, 9) < 0.6
    _, logits = module(torch.randn(4, 9, 12), mask)
    target = torch.rand(4, 9, 9) < 0.4
    torch.testing.assert_close(center_mass_loss(logits, target), center_mass_loss(logits, target, mask))


def test_gradient():
    module = FocusedAttention(4, key_channels=3, heads=2).double()
    mask = torch.tensor([[True, True, False], [True, True, True]])
    features = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    target = torch.ones(3, 3, dtype=torch.bool)

    def out(features):
        aggregated, logits = module(features, mask)
        return aggregated, center_mass_loss(logits, target)

    assert torch.autograd.gradcheck(out, features)


def test_mixed_precision():
    torch.manual_seed(0)
    module = FocusedAttention(16)
    features, mask = torch.randn(2, 20, 16), torch.rand(2, 20) < 0.8
    plain, logits = module(features, mask)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed, mixed_logits = module(features, mask)
    assert mixed_logits.dtype == torch.float32
    torch.testing.assert_close(mixed.float(), plain, atol=3e-2, rtol=3e-2)
    torch.testing.assert_close(mixed_logits, logits, atol=5e-2, rtol=5e-2)


def test_copies_and_state():
    module = FocusedAttention(16, heads=2)
    assert list(module.state_dict()) == ["key.weight", "query.weight"]
    twin = copy.deepcopy(module)
    features = torch.randn(1, 5, 16)
    torch.testing.assert_close(twin(features)[0], module(features)[0])


def test_compiled():
    module = FocusedAttention(8)
    features, mask = torch.randn(2, 5, 8), torch.rand(2, 5) < 0.7
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(features, mask), module(features, mask))


@pytest.mark.parametrize(
    ("options", "features", "mask", "message"),
    [
        ({"heads": 3}, None, None, "heads that divide"),
        ({"key_channels": 0}, None, None, "at least 1"),
        ({}, torch.zeros(2, 5, 7), None, r"features must be \(..., N, 8\), got \(2, 5, 7\)"),
        ({}, torch.zeros(8), None, "features must be"),
        ({}, torch.zeros(2, 5, 8), torch.ones(2, 5), "mask must be bool"),
        ({}, torch.zeros(2, 5, 8), torch.ones(2, 4, dtype=torch.bool), r"mask must be bool \(2, 5\)"),
    ],
)
def test_what_cannot_be_used(options, features, mask, message):
    with pytest.raises(UserError, match=message):
        FocusedAttention(8, **options)(features, mask)


# Attention that is there already -------------------------------------------


def descend(model, loss, steps=40):
    """Loss before and after a few steps on ``model``."""
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    values = []
    for _ in range(steps):
        value = loss()
        optimiser.zero_grad()
        value.backward()
        optimiser.step()
        values.append(value.item())
    return values[0], values[-1]


def test_on_torch_multihead_attention():
    torch.manual_seed(0)
    attention = torch.nn.MultiheadAttention(16, num_heads=4, batch_first=True)
    words, tags = torch.randn(3, 7, 16), torch.randint(1, 6, (3, 7))
    mask = torch.arange(7) < torch.tensor([[7], [5], [1]])
    tags[~mask] = 0

    def sides():
        q, k, _ = F.linear(words, attention.in_proj_weight, attention.in_proj_bias).chunk(3, -1)
        return tuple(side.unflatten(-1, (4, -1)).transpose(1, 2) for side in (q, k))  # (B, heads, N, d)

    q, k = sides()
    _, weights = attention(words, words, words, key_padding_mask=~mask, average_attn_weights=False)
    logits = (q @ k.mT / 2).masked_fill(~mask[:, None, None, :], -math.inf)
    torch.testing.assert_close(logits.softmax(-1), weights)  # they are what the module attends by

    target = word_pairs(tags)[:, None]
    before, after = descend(attention, lambda: center_mass_loss(sides(), target, mask[:, None]))
    assert after < 0.5 * before


@pytest.mark.slow
def test_on_a_hugging_face_encoder_layer():
    transformers = pytest.importorskip("transformers", reason="shows the loss on a Hugging Face layer: transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_attention_heads=4,
        num_hidden_layers=1,
        intermediate_size=32,
        attention_probs_dropout_prob=0.0,
        hidden_dropout_prob=0.0,
        attn_implementation="eager",
    )
    model = transformers.BertModel(config)
    layer = model.encoder.layer[0].attention.self
    kept = {}
    for name in ("query", "key"):
        getattr(layer, name).register_forward_hook(lambda _, __, out, name=name: kept.update({name: out}))
    words, mask = torch.randint(0, 50, (2, 6)), torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    tags = torch.randint(1, 6, (2, 6)).masked_fill(~mask, 0)
    target = word_pairs(tags)[:, None]

    def sides():
        return tuple(kept[name].unflatten(-1, (4, -1)).transpose(1, 2) for name in ("query", "key"))

    seen = model(words, attention_mask=mask.long(), output_attentions=True).attentions[0]
    q, k = sides()
    logits = (q @ k.mT / 2).masked_fill(~mask[:, None, None, :], -math.inf)
    torch.testing.assert_close(logits.softmax(-1), seen)

    def loss():
        model(words, attention_mask=mask.long())
        return center_mass_loss(sides(), target, mask[:, None])

    before, after = descend(model, loss)
    assert after < 0.5 * before
