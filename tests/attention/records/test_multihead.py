"""``nn.MultiheadAttention`` in all its forms, against the weights that it returns itself."""

import pytest
import torch
from torch import nn

import foveal

SEQUENCE, KEYS = 5, 6


def masks(kind, batch=2, heads=2):
    g = torch.Generator().manual_seed(0)
    blocked = torch.rand(SEQUENCE, KEYS, generator=g) > 0.6
    blocked[:, 0] = False
    padding = torch.zeros(batch, KEYS, dtype=torch.bool)
    padding[-1, 4:] = True
    per_head = torch.rand(batch * heads, SEQUENCE, KEYS, generator=g)
    return {
        "none": {},
        "bool": {"attn_mask": blocked},
        "float": {"attn_mask": torch.rand(SEQUENCE, KEYS, generator=g)},
        "per head": {"attn_mask": per_head},
        "per head, bool": {"attn_mask": per_head > 0.8},
        "padding": {"key_padding_mask": padding},
        "float padding": {"key_padding_mask": torch.rand(batch, KEYS, generator=g)},
        "both": {"attn_mask": blocked, "key_padding_mask": padding},
    }[kind]


KINDS = ["none", "bool", "float", "per head", "per head, bool", "padding", "float padding", "both"]


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"batch_first": True},
        {"bias": False},
        {"kdim": 6, "vdim": 3},
        {"add_bias_kv": True},
        {"add_zero_attn": True},
        {"add_bias_kv": True, "add_zero_attn": True, "batch_first": True},
        {"dropout": 0.5},
    ],
    ids=str,
)
def test_weights_are_those_it_returns(options, kind, need_weights):
    torch.manual_seed(0)
    module = nn.MultiheadAttention(8, 2, **options).eval()
    query, key = torch.randn(SEQUENCE, 2, 8), torch.randn(KEYS, 2, options.get("kdim", 8))
    value = torch.randn(KEYS, 2, options["vdim"]) if "vdim" in options else key
    if options.get("batch_first"):
        query, key, value = (side.transpose(0, 1) for side in (query, key, value))
    plain, expected = module(query, key, value, average_attn_weights=False, **masks(kind))
    with foveal.watch(module.train()) as seen:
        module(query, key, value, need_weights=need_weights, **masks(kind))
    torch.testing.assert_close(seen[""].values, expected)
    torch.testing.assert_close(seen[""].rows([3, 1], heads=[1]), expected[:, [1]][:, :, [3, 1]])
    with foveal.watch(module.eval()):
        out, _ = module(query, key, value, need_weights=need_weights, **masks(kind))
    torch.testing.assert_close(out, plain)
    seen[""].values.square().sum().backward()
    weight = module.q_proj_weight if "kdim" in options else module.in_proj_weight
    assert weight.grad.abs().sum() > 0


@pytest.mark.parametrize("kind", ["none", "bool", "padding"])
def test_without_a_batch(kind):
    module = nn.MultiheadAttention(8, 2).eval()
    query, key = torch.randn(SEQUENCE, 8), torch.randn(KEYS, 8)
    options = masks(kind, batch=1)
    if "key_padding_mask" in options:
        options["key_padding_mask"] = options["key_padding_mask"][0]
    _, expected = module(query, key, key, average_attn_weights=False, **options)
    with foveal.watch(module) as seen:
        module(query, key, key, need_weights=False, **options)
    torch.testing.assert_close(seen[""].values, expected[None])


@pytest.mark.parametrize("need_weights", [False, True])
def test_the_causal_hint(need_weights):
    module = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    x, mask = torch.randn(2, 5, 8), nn.Transformer.generate_square_subsequent_mask(5)
    with foveal.watch(module) as seen:
        module(x, x, x, attn_mask=mask, is_causal=True, need_weights=need_weights)
    _, expected = module(x, x, x, attn_mask=mask, average_attn_weights=False)
    torch.testing.assert_close(seen[""].values, expected)


def test_the_fast_path_of_an_encoder_is_left_while_it_is_watched():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval()
    x, padding = torch.randn(2, 5, 8), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    with torch.no_grad():
        expected = model(x, src_key_padding_mask=padding)
        with foveal.watch(model) as seen:
            out = model(x, src_key_padding_mask=padding)
    real = ~padding  # the fast path leaves padding at zero
    torch.testing.assert_close(out[real], expected[real])
    assert list(seen) == ["layers.0.self_attn", "layers.1.self_attn"]
    attention = model.layers[0].self_attn
    _, weights = attention(x, x, x, key_padding_mask=padding, average_attn_weights=False)
    torch.testing.assert_close(seen["layers.0.self_attn"].values, weights)
    with torch.no_grad():
        torch.testing.assert_close(model(x, src_key_padding_mask=padding), expected)


def test_a_decoder_has_two_sites_a_layer():
    model = nn.TransformerDecoderLayer(8, 2, 16, batch_first=True).eval()
    x, memory = torch.randn(2, 5, 8), torch.randn(2, 3, 8)
    mask = nn.Transformer.generate_square_subsequent_mask(5)
    with foveal.watch(model) as seen:
        model(x, memory, tgt_mask=mask, tgt_is_causal=True)
    assert {site: tuple(record.shape) for site, record in seen.items()} == {
        "self_attn": (2, 2, 5, 5),
        "multihead_attn": (2, 2, 5, 3),
    }
    assert (seen["self_attn"].values.triu(1) == 0).all()
