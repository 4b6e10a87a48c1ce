"""The attention of modules that do not know foveal, against a softmax written out."""

import copy
import pickle
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.bias import causal_lower_right
from torch.utils.checkpoint import checkpoint

import foveal
from foveal.attention import DotProduct, FocusedAttention, SqueezeExcite
from foveal.errors import UnknownNameError, UserError
from foveal.supervise import center_mass, center_mass_loss


def naive(q, k, scale, mask=None):
    """Softmax over keys, one row at a time."""
    groups = q.shape[1] // k.shape[1]
    weights = q.new_zeros(*q.shape[:-1], k.shape[-2])
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            for i in range(q.shape[2]):
                logits = torch.stack([scale * q[b, h, i] @ key for key in k[b, h // groups]])
                if mask is not None:
                    row = mask.expand(weights.shape)[b, h, i]
                    logits = logits.masked_fill(~row, -torch.inf) if row.dtype == torch.bool else logits + row
                weights[b, h, i] = logits.softmax(0)
    return weights


class Attention(nn.Module):
    """Heads of 4 channels, by one call of PyTorch's function or step by step."""

    def __init__(self, channels=8, fused=True, key_heads=None, **options):
        super().__init__()
        self.heads, self.key_heads, self.fused, self.options = channels // 4, key_heads or channels // 4, fused, options
        self.q = nn.Linear(channels, channels)
        self.kv = nn.Linear(channels, 8 * self.key_heads)
        self.drop, self.softmax = nn.Dropout(0.5), nn.Softmax(-1)

    def sides(self, x, context=None):
        q = self.q(x).unflatten(-1, (self.heads, 4)).transpose(1, 2)
        k, v = self.kv(x if context is None else context).unflatten(-1, (2, self.key_heads, 4)).permute(2, 0, 3, 1, 4)
        return q, k, v

    def forward(self, x, context=None):
        q, k, v = self.sides(x, context)
        if self.fused:
            dropout = 0.5 if self.training else 0.0
            out = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, **self.options)
        else:
            out = self.drop(self.softmax(q @ k.transpose(-2, -1) / 2)) @ v
        return out.transpose(1, 2).flatten(2)


class Block(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.attn = Attention(**options)
        self.mlp = nn.Linear(8, 8)

    def forward(self, x):
        return x + self.mlp(self.attn(x))


class Net(nn.Module):
    def __init__(self, depth=2, **options):
        super().__init__()
        self.blocks = nn.Sequential(*(Block(**options) for _ in range(depth)))

    def forward(self, x):
        return self.blocks(x)


@pytest.fixture
def x():
    torch.manual_seed(0)
    return torch.randn(2, 5, 8)


MASK = torch.rand(2, 1, 5, 5, generator=torch.Generator().manual_seed(1)) > 0.3
MASK |= torch.eye(5, dtype=torch.bool)
LOWER = torch.ones(5, 5, dtype=torch.bool).tril()


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    ("options", "scale", "mask"),
    [
        ({}, 0.5, None),
        ({"scale": 0.3}, 0.3, None),
        ({"is_causal": True}, 0.5, LOWER),
        ({"attn_mask": causal_lower_right(5, 5)}, 0.5, LOWER),
        ({"attn_mask": MASK}, 0.5, MASK),
        ({"attn_mask": MASK[0, 0]}, 0.5, MASK[0, 0]),
        ({"attn_mask": MASK.float().log()}, 0.5, MASK.float().log()),
        ({"attn_mask": torch.arange(25.0).view(5, 5)}, 0.5, torch.arange(25.0).view(5, 5)),
        ({"key_heads": 1, "enable_gqa": True}, 0.5, None),
        ({"fused": False}, 0.5, None),
    ],
)
def test_weights_equal_the_equation(options, scale, mask, training, x):
    torch.manual_seed(0)
    module = Attention(**options).train(training)
    plain = module.eval()(x)
    with foveal.watch(module.train(training)) as seen:
        out = module(x)
    record, (q, k, v) = seen[""], module.sides(x)
    assert (record.kind, record.normalised, tuple(record.shape)) == ("pairwise", True, (2, 2, 5, 5))
    rows = record.rows([4, 0], heads=[1])
    expected = naive(q, k, scale, mask)
    torch.testing.assert_close(rows, expected[:, [1]][:, :, [4, 0]])
    torch.testing.assert_close(record.values, expected)
    gathered = record.values @ v.repeat_interleave(2 // v.shape[1], 1)
    torch.testing.assert_close(gathered.transpose(1, 2).flatten(2), plain)  # without dropout
    if not training:
        assert torch.equal(out, plain)


def test_cross_attention_and_rows_without_keys(x):
    context = torch.randn(2, 3, 8)
    module = Attention(attn_mask=torch.tensor([[True, False, True]] * 4 + [[False] * 3]))
    with foveal.watch(module) as seen:
        out = module.eval()(x, context)
    values = seen[""].values
    assert values.shape == (2, 2, 5, 3)
    assert (values[:, :, 4] == 0).all()
    assert (values[..., 1] == 0).all()
    gathered = (values @ module.sides(x, context)[2]).transpose(1, 2).flatten(2)
    torch.testing.assert_close(gathered, out.nan_to_num())
    values.square().sum().backward()
    assert module.q.weight.grad.isfinite().all()
    with pytest.raises(UserError, match="between the same entities"):
        center_mass(seen[""], torch.ones(5, 5, dtype=torch.bool))


@pytest.mark.parametrize("shape", [(5, 4), (3, 5, 4), (2, 3, 5, 4), (2, 3, 6, 5, 4)])
def test_any_number_of_dimensions(shape):
    class Plain(nn.Module):
        def forward(self, q):
            return F.scaled_dot_product_attention(q, key=2 * q, value=q)

    q, module = torch.randn(shape), Plain()
    with foveal.watch(module) as seen:
        module(q)
    expected = (q @ (2 * q).mT / 2).softmax(-1)
    torch.testing.assert_close(seen[""].values, expected[None] if q.ndim == 2 else expected)


@pytest.mark.parametrize("over", ["matrix", "row"])
@pytest.mark.parametrize("options", [{}, {"fused": False}, {"is_causal": True}, {"attn_mask": MASK}, {"key_heads": 1}])
def test_a_record_is_supervised_as_its_logits_are(options, over, x):
    options = options | ({"enable_gqa": True} if "key_heads" in options else {})
    module = Attention(**options).double().eval()
    x = x.double()
    target = torch.rand(2, 5, 5) > 0.5
    valid = torch.tensor([[True] * 5, [True] * 4 + [False]])
    with foveal.watch(module) as seen:
        module(x)
    q, k, _ = module.sides(x)
    logits = q @ k.repeat_interleave(2 // k.shape[1], 1).mT / 2
    allowed = {"is_causal": LOWER, "attn_mask": MASK}
    for name in options.keys() & allowed:
        logits = logits.masked_fill(~allowed[name], -torch.inf)
    expected = center_mass_loss(logits, target[:, None], valid[:, None], over)
    actual = center_mass_loss(seen[""], target, valid, over)
    torch.testing.assert_close(actual, expected)
    gradients = [torch.autograd.grad(loss, [module.q.weight, module.kv.weight]) for loss in (actual, expected)]
    assert gradients[0][0].abs().sum() > 0
    torch.testing.assert_close(*gradients)


def test_sites_are_the_innermost_modules(x):
    model = Net(fused=False)
    with foveal.watch(model) as seen:
        model(x)
    assert list(seen) == ["blocks.0.attn", "blocks.1.attn"]  # not their nn.Softmax, not the blocks
    with foveal.watch(model, at="blocks.1.*") as seen:
        model(x)
    assert list(seen) == ["blocks.1.attn"]
    with pytest.raises(UnknownNameError, match=r"did you mean 'blocks\.0\.attn'"):
        foveal.watch(model, at="block.0.attn")
    with (
        pytest.warns(UserWarning, match=r"attention was computed at blocks\.0\.attn"),
        foveal.watch(model, at="") as seen,
    ):
        model(x)
    with pytest.raises(KeyError, match=r"computed at blocks\.0\.attn"):
        seen[""]


def test_several_calls_of_one_run(x):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.times = 3

        def forward(self, x):
            for i in range(self.times):
                x = F.scaled_dot_product_attention(x, x, x, scale=float(i))
            return x

    model = Twice()
    with foveal.watch(model) as seen:
        model(x)
        assert list(seen) == ["", "#2", "#3"]
        torch.testing.assert_close(seen[""].values, torch.full((2, 5, 5), 0.2))
        model.times = 2
        model(x[:1])
    assert {site: record.shape[0] for site, record in seen.items()} == {"": 1, "#2": 1}


def test_models_that_compute_no_attention(x):
    class Convolve(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x):
            return self.layer(x).softmax(-1) * x

    model = Convolve()
    with (
        pytest.warns(UserWarning, match="nothing to watch: Convolve computed no attention"),
        foveal.watch(model) as seen,
    ):
        model(x)
    assert not seen
    with pytest.raises(KeyError, match="watch sees foveal's mechanisms"):
        seen["layer"]
    with foveal.watch(model) as seen:  # it did not run: nothing to say
        pass


def test_attention_that_is_not_between_tokens(x):
    class Channels(nn.Module):
        def forward(self, x):  # as in XCiT
            q = x.unflatten(-1, (2, 4)).permute(0, 2, 3, 1)
            return F.scaled_dot_product_attention(q, q, q)

    class OverTokens(nn.Module):
        def forward(self, x):  # as in CoaT
            return x @ (x.softmax(1).mT @ x)

    for module, reason in ((Channels(), "between channels"), (OverTokens(), "softmax is over dimension 1")):
        with pytest.warns(UserWarning, match=reason), foveal.watch(module) as seen:
            module(x)
        with pytest.raises(KeyError, match=reason):
            seen[""]


class Mixed(nn.Module):
    """Heads that are mixed after the softmax, as in CaiT, or values before the weights, as in LeViT."""

    def __init__(self, form):
        super().__init__()
        self.form, self.mix = form, nn.Linear(2, 2)

    def forward(self, x):
        q = x.unflatten(-1, (2, 4)).transpose(1, 2)
        weights = (q @ q.mT).softmax(-1)
        if self.form == "mixed":
            self.weights = self.mix(weights.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
            return F.dropout(self.weights, 0.5) @ q
        self.weights = weights
        if self.form == "transposed":
            return q.mT @ weights.transpose(-2, -1)
        if self.form == "bmm":
            return torch.bmm(weights.view(-1, 5, 5), q.reshape(-1, 5, 4))
        if self.form == "einsum":
            return torch.einsum("bhij,bhjc->bhic", weights, q)
        self.weights = weights * 2
        return torch.matmul(self.weights.to(torch.float64), q.double())


@pytest.mark.parametrize("form", ["mixed", "transposed", "bmm", "einsum", "scaled"])
def test_forms_of_the_product(form, x):
    module = Mixed(form)
    with foveal.watch(module) as seen:
        module(x)
    torch.testing.assert_close(seen[""].values, module.weights)
    assert seen[""].normalised == (form not in ("mixed", "scaled"))


def test_negative_weights_have_no_center_mass(x):
    module = Mixed("mixed")
    nn.init.constant_(module.mix.weight, -1.0)
    with foveal.watch(module) as seen:
        module(x)
    with pytest.raises(UserError, match="negative weights"):
        center_mass(seen[""], torch.ones(5, 5, dtype=torch.bool), over="row")


def test_nothing_is_computed_before_it_is_asked_for(x):
    model = Net()
    with foveal.watch(model) as seen:
        model(x)
    for record in seen.values():
        assert isinstance(record.noted, DotProduct)
        assert record.noted._whole is None
        assert "not computed yet" in repr(record)


def test_gradients_of_the_output_stay(x):
    model = Net(fused=False).eval()
    gradients = []
    for watched in (False, True):
        model.zero_grad()
        with foveal.watch(model if watched else FocusedAttention(4)):
            model(x).square().sum().backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    assert all(map(torch.equal, *gradients))


# Around the forward pass ------------------------------------------------------------------------------------------


def test_hooks_go_when_the_block_ends(x):
    model = Net()
    with foveal.watch(model) as seen:
        model(x)
    with pytest.raises(RuntimeError), foveal.watch(model):
        model(torch.zeros(2, 5, 7))  # wrong size: the forward fails
    assert list(seen) == ["blocks.0.attn", "blocks.1.attn"]
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    with foveal.watch(model) as seen:
        with pytest.raises(RuntimeError):
            model(torch.zeros(2, 5, 7))
        model(x)
    assert list(seen) == ["blocks.0.attn", "blocks.1.attn"]


def test_two_watches(x):
    model = Net()
    with foveal.watch(model) as outer, foveal.watch(model, at="blocks.0.attn") as inner:
        model(x)
        with pytest.raises(UserError, match="open already"), outer:
            pass
    assert list(outer) == ["blocks.0.attn", "blocks.1.attn"]
    assert list(inner) == ["blocks.0.attn"]
    torch.testing.assert_close(inner["blocks.0.attn"].values, outer["blocks.0.attn"].values)


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_of_a_watched_model_is_not_watched(clone, x):
    model = Net()
    with foveal.watch(model) as seen:
        model(x)
        clone(model)(x[:1])
    assert seen["blocks.1.attn"].shape[0] == 2


def test_threads_see_their_own_forward(x):
    model = Net()
    other = []

    def work():
        with foveal.watch(model) as seen:
            model(x[:1])
        other.append(seen)

    with foveal.watch(model) as seen:
        model(x)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert seen["blocks.0.attn"].shape[0] == 2
    assert other[0]["blocks.0.attn"].shape[0] == 1


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("fused", [False, True])
def test_checkpointed_blocks_are_recorded_once(reentrant, fused, x):
    class Checkpointed(Net):
        def forward(self, x):
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=reentrant)
            return x

    model = Checkpointed(fused=fused).eval()
    x.requires_grad_()
    with foveal.watch(model) as seen:
        out = model(x)
        before = seen["blocks.0.attn"]
        out.sum().backward(retain_graph=True)
        assert seen["blocks.0.attn"].noted is before.noted
    assert list(seen) == ["blocks.0.attn", "blocks.1.attn"]
    assert out.shape == x.shape
    if not reentrant:
        model.zero_grad()
        seen["blocks.1.attn"].values.square().sum().backward()
        assert model.blocks[0].attn.q.weight.grad.abs().sum() > 0


def test_autocast_and_inference_mode(x):
    model = Net().eval()
    with torch.inference_mode(), foveal.watch(model) as plain:
        model(x)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16), foveal.watch(model) as seen:
        model(x)
    weights = seen["blocks.1.attn"].values
    assert weights.dtype == torch.float32
    torch.testing.assert_close(weights, plain["blocks.1.attn"].values, atol=2e-2, rtol=0)


def test_transforms_of_torch_func_are_not_recorded(x):
    model = Net().eval()
    with pytest.warns(UserWarning, match=r"torch\.func"), foveal.watch(model):
        out = torch.vmap(model)(x[None])
    torch.testing.assert_close(out[0], model(x))


@pytest.mark.parametrize("in_place", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_compiled_models_run_in_eager_mode(in_place, x):
    torch.compiler.reset()
    model = Net().eval()
    expected = model(x)
    compiled = model if in_place else torch.compile(model, backend="aot_eager", fullgraph=True)
    if in_place:
        model.compile(backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), expected)
    for _ in range(2):
        with foveal.watch(compiled) as seen:
            torch.testing.assert_close(compiled(x), expected)
        assert list(seen) == ["blocks.0.attn", "blocks.1.attn"]
        torch.testing.assert_close(compiled(x), expected)


def test_export_while_watched(x):
    model = Net().eval()
    with foveal.watch(model):
        exported = torch.export.export(model, (x,)).module()
        model(x)
    torch.testing.assert_close(exported(x), model(x))


def test_beside_mechanisms_of_foveal(x):
    class Both(Net):
        def __init__(self):
            super().__init__(depth=1)
            self.focus = FocusedAttention(8)
            self.gate = SqueezeExcite(8, reduction=2)

        def forward(self, x):
            x, _ = self.focus(self.blocks(x), need_logits=False)
            return self.gate(x.mT[..., None])

    model = Both().eval()
    with foveal.watch(model) as seen:
        expected = model(x)
    assert {site: record.kind for site, record in seen.items()} == {
        "blocks.0.attn": "pairwise",
        "focus": "pairwise",
        "gate": "channel",
    }
    torch.compiler.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    compiled(x)
    with foveal.watch(compiled) as again:  # foveal's own are recorded in compiled code too; it stays compiled
        torch.testing.assert_close(compiled(x), expected)
    assert list(again) == ["focus", "gate"]
    torch.testing.assert_close(again["focus"].values, seen["focus"].values)
