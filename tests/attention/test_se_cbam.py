from collections import Counter

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch.func import functional_call

import foveal
from foveal.attention import CBAM, SqueezeExcite
from foveal.errors import UserError

VARIANTS = {
    "both": {},
    "max pool": {"pools": ("avg", "max"), "spatial": False},
    "spatial": {"pools": ("avg",), "spatial": True},
    "max alone": {"pools": ["max"], "spatial": False},
}
GATES = {"se": (SqueezeExcite, {})} | {f"cbam {name}": (CBAM, options) for name, options in VARIANTS.items()}


def make(name, channels=6, *, dtype=torch.float64, seed=0, **options):
    """A gate in eval mode in which every number matters."""
    torch.manual_seed(seed)
    cls, variant = GATES[name]
    gate = cls(channels, **({"reduction": 2} | variant | options)).to(dtype).eval()
    for parameter in gate.parameters():
        nn.init.normal_(parameter)
    if getattr(gate, "spatial", None) is not None:
        nn.init.normal_(gate.spatial.norm.running_mean)
        nn.init.uniform_(gate.spatial.norm.running_var, 0.5, 2.0)
    return gate


def features(n=2, channels=6, size=(5, 8), dtype=torch.float64, seed=1):
    torch.manual_seed(seed)
    return torch.randn(n, channels, *size, dtype=dtype)


def slow_channel(gate, x, pools):
    """One number a sample and channel."""
    values = torch.zeros(x.shape[:2], dtype=x.dtype)
    for n in range(len(x)):
        score = 0
        for pool in pools:
            pooled = torch.stack([c.sum() / c.numel() if pool == "avg" else c.max() for c in x[n]])
            hidden = (gate.squeeze.weight @ pooled + gate.squeeze.bias).clamp(min=0)
            score = score + gate.excite.weight @ hidden + gate.excite.bias
        values[n] = 1 / (1 + (-score).exp())
    return values


def slow_spatial(gate, x):
    """One number a sample and position."""
    n, _, height, width = x.shape
    weight, norm = gate.conv.weight[0], gate.norm
    k = weight.shape[-1]
    values = torch.zeros(n, height, width, dtype=x.dtype)
    for b in range(n):
        for i in range(height):
            for j in range(width):
                score = 0
                for di in range(k):
                    for dj in range(k):
                        y, z = i + di - k // 2, j + dj - k // 2
                        if 0 <= y < height and 0 <= z < width:
                            score = score + weight[0, di, dj] * x[b, :, y, z].max()
                            score = score + weight[1, di, dj] * x[b, :, y, z].sum() / x.shape[1]
                score = (score - norm.running_mean[0]) / (norm.running_var[0] + norm.eps).sqrt()
                values[b, i, j] = 1 / (1 + (-(score * norm.weight[0] + norm.bias[0])).exp())
    return values


def slow(name, gate, x):
    if name == "se":
        return x * slow_channel(gate, x, ["avg"])[:, :, None, None]
    attended = x * slow_channel(gate.channel, x, gate.channel.pools)[:, :, None, None]
    return attended if gate.spatial is None else attended * slow_spatial(gate.spatial, attended)[:, None]


@pytest.mark.parametrize("size", [(5, 8), (1, 1), (1, 9), (9, 3)])
@pytest.mark.parametrize("name", GATES)
def test_equals_the_equation_at_any_size(name, size):
    gate, x = make(name), features(size=size)
    torch.testing.assert_close(gate(x), slow(name, gate, x))


@pytest.mark.parametrize("name", GATES)
@pytest.mark.parametrize("start", ["paper", "identity"])
def test_gradients(name, start):
    gate, x = make(name, 2, start=start), features(2, channels=2, size=(2, 3))
    names = [name for name, _ in gate.named_parameters()]

    def run(x, *values):
        return functional_call(gate, dict(zip(names, values, strict=True)), (x,))

    values = [p.detach().requires_grad_() for p in gate.parameters()]
    assert torch.autograd.gradcheck(run, (x.requires_grad_(), *values))


@pytest.mark.parametrize("name", GATES)
def test_the_identity_is_a_blend_that_starts_at_the_input(name):
    torch.manual_seed(0)
    cls, variant = GATES[name]
    gate, x = cls(6, start="identity", **variant).double(), features()
    torch.testing.assert_close(gate(x), x, rtol=0, atol=0)
    gate(x).square().sum().backward()
    assert gate.blend.amount.grad.abs() > 0
    gate = make(name, start="identity")
    for amount in (0.0, 0.25, 1.0):
        nn.init.constant_(gate.blend.amount, amount)
        torch.testing.assert_close(gate(x), (1 - amount) * x + amount * slow(name, gate, x))


def test_cbam_notes_both_gates():
    gate, x = make("cbam both"), features()
    with foveal.watch(gate) as seen:
        out = gate(x)
    assert {site: (r.kind, tuple(r.values.shape)) for site, r in seen.items()} == {
        "channel": ("channel", (2, 6)),
        "spatial": ("spatial", (2, 5, 8)),
    }
    channel, spatial = seen["channel"].values, seen["spatial"].values
    torch.testing.assert_close(out, x * channel[:, :, None, None] * spatial[:, None])


@pytest.mark.parametrize("channels", [64, 256, 8])
def test_parameters(channels):
    hidden = max(1, channels // 16)
    perceptron = 2 * channels * hidden + hidden + channels
    for gate, count in [
        (SqueezeExcite(channels), perceptron),
        (CBAM(channels), perceptron + 100),
        (CBAM(channels, spatial=False), perceptron),
        (CBAM(channels, pools=("avg",)), perceptron + 100),
        (SqueezeExcite(channels, start="identity"), perceptron + 1),
    ]:
        assert sum(p.numel() for p in gate.parameters()) == count


@pytest.mark.parametrize("name", GATES)
def test_eval_mode_knows_no_batch(name):
    gate, x = make(name), features(4)
    together, order = gate(x), torch.tensor([2, 0, 3, 1])
    torch.testing.assert_close(gate(x[order]), together[order])
    torch.testing.assert_close(torch.cat([gate(x[i : i + 1]) for i in range(4)]), together)


@pytest.mark.parametrize("name", GATES)
def test_bfloat16_autocast(name):
    gate, x = make(name, dtype=torch.float32), features(dtype=torch.float32)
    exact = gate(x)
    with torch.autocast("cpu", torch.bfloat16):
        mixed, low = gate(x), gate(x.bfloat16())
    assert (mixed.dtype, low.dtype) == (torch.float32, torch.bfloat16)
    torch.testing.assert_close(mixed, exact, atol=0.08, rtol=0.08)
    torch.testing.assert_close(low.float(), exact, atol=0.15, rtol=0.15)
    mixed.sum().backward()
    assert all(p.grad.isfinite().all() for p in gate.parameters())


@pytest.mark.parametrize("name", GATES)
def test_compiled_under_autocast_the_perceptron_is_not_rounded(name):
    gate, x = make(name, dtype=torch.float32), features(dtype=torch.float32)
    operators = Counter()

    def count(module, inputs):
        operators.update(str(node.target) for node in module.graph.nodes if node.op == "call_function")
        return make_boxed_func(module.forward)

    compiled = torch.compile(gate, backend=aot_autograd(fw_compiler=count))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        out = compiled(x.bfloat16())
    torch.testing.assert_close(out.float(), gate(x.bfloat16().float()), atol=0.05, rtol=0.05)
    assert operators["aten.addmm.default"] == 2
    convolutions = 0 if gate_is_flat(gate) else 3  # its input and weight are rounded, and its output for the norm
    assert operators["aten._to_copy.default"] <= 3 + convolutions


def test_compiled_a_layer_of_another_kind_keeps_its_numbers():
    class Quantised(nn.Linear):
        def __init__(self, inside, outside):
            super().__init__(inside, outside, bias=False)
            self.weight = nn.Parameter(torch.randint(-9, 9, (outside, inside), dtype=torch.int8), requires_grad=False)

        def forward(self, x):
            return x @ (self.weight.T.to(x.dtype) / 10)

    gate, x = make("se", dtype=torch.float32), features(dtype=torch.float32)
    gate.squeeze = Quantised(6, 3)
    torch.testing.assert_close(torch.compile(gate, backend="aot_eager")(x), gate(x))


def gate_is_flat(gate):
    return getattr(gate, "spatial", None) is None


@pytest.mark.parametrize("name", GATES)
def test_channels_last_stays(name):
    gate, x = make(name, start="identity"), features()
    out = gate(x.contiguous(memory_format=torch.channels_last))
    assert out.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(out, gate(x))


def test_one_pooling_may_be_a_bare_name():
    assert CBAM(8, pools="max").channel.pools == ("max",)


def test_the_spatial_gate_starts_as_in_the_authors_code():
    torch.manual_seed(0)
    gates = [CBAM(8, start="paper").spatial for _ in range(40)]
    assert all((gate.norm.weight == 0).all() for gate in gates)
    deviation = torch.cat([gate.conv.weight.flatten() for gate in gates]).std().item()
    assert deviation == pytest.approx((2 / 49) ** 0.5, rel=0.05)  # He's, fan out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pools": ()}, "pools is empty"),
        ({"pools": "maks"}, "unknown pooling 'maks'; known: avg, max"),
        ({"pools": ("avg", "maks")}, "unknown pooling 'maks'; known: avg, max"),
        ({"channels": 0}, "0 channels: expected at least 1"),
        ({"reduction": 0}, "reduction=0: expected at least 1"),
        ({"start": "identiti"}, "unknown start 'identiti'; did you mean 'identity'"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(UserError, match=message):
        CBAM(**({"channels": 8} | options))
