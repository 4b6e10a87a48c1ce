"""Spatial attention against a loop over every pair of positions."""

import itertools
import math
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode

import foveal
from foveal.attention import SpatialAttention
from foveal.errors import UserError
from foveal.kernels.aw.plain import differentiable_twice
from foveal.kernels.spatial import fused, plain
from foveal.kernels.spatial.columns import columns

SETTINGS = ["".join(digits) for digits in itertools.product("01", repeat=4)][1:]
each_setting = pytest.mark.parametrize("terms", SETTINGS)


def make(channels=8, *, dtype=torch.float64, seed=0, gamma=0.7, **options):
    """A module in which every number matters."""
    torch.manual_seed(seed)
    module = SpatialAttention(channels, **({"heads": 2} | options)).to(dtype)
    nn.init.normal_(module.proj.bias)
    nn.init.constant_(module.gamma, gamma)
    return module


def maps(n=2, channels=8, size=(5, 4), dtype=torch.float64, seed=1):
    return torch.randn(n, channels, *size, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def slow_code(offset, channels, dtype):
    """Code of one offset along one axis, C/2 numbers."""
    quarter = channels // 4
    angles = [offset / 1000 ** (4 / channels * i) for i in range(quarter)]
    return torch.tensor([math.sin(a) for a in angles] + [math.cos(a) for a in angles], dtype=dtype)


def slow_energies(module, x, sample, head, query, key):
    """The four terms of one head for one pair of positions (y, x) in pixels of the map."""
    d = module.head_channels
    part = slice(head * d, (head + 1) * d)
    z, content = x[sample, :, query[0], query[1]], x[sample, :, key[0], key[1]]
    offset = [module.position_magnitude * (q - k) for q, k in zip(query, key, strict=True)]
    u_z = None if module.query is None else module.query.weight[part] @ z
    v_x = None if module.key is None else module.key.weight[part] @ content
    position = None
    if module.position_x is not None:
        along_y = module.position_y.weight[part] @ slow_code(offset[0], module.channels, x.dtype)
        along_x = module.position_x.weight[part] @ slow_code(offset[1], module.channels, x.dtype)
        position = (along_x + along_y) / math.sqrt(2)
    energies = []
    if module.terms[0] == "1":
        energies.append(u_z @ v_x)
    if module.terms[1] == "1":
        energies.append(u_z @ position)
    if module.terms[2] == "1":
        energies.append(module.key_bias[part] @ v_x)
    if module.terms[3] == "1":
        energies.append(module.position_bias[part] @ position)
    return energies


def slow_weights(module, x, term=None):
    """Weights, (B, M, N, N'), and the positions of the keys."""
    n, _, height, width = x.shape
    queries = list(itertools.product(range(0, height, module.q_stride), range(0, width, module.q_stride)))
    keys = list(itertools.product(range(0, height, module.kv_stride), range(0, width, module.kv_stride)))
    result = torch.zeros(n, module.heads, len(queries), len(keys), dtype=x.dtype)
    for b, head, (i, query), (j, key) in itertools.product(
        range(n), range(module.heads), enumerate(queries), enumerate(keys)
    ):
        energies = slow_energies(module, x, b, head, query, key)
        energy = sum(energies) if term is None else energies[term]
        reach = module.spatial_range
        if reach >= 0 and max(abs(query[0] - key[0]), abs(query[1] - key[1])) > reach:
            energy = torch.tensor(-torch.inf, dtype=x.dtype)
        result[b, head, i, j] = energy * module.scale
    return result.softmax(-1), keys


@torch.no_grad()
def slow(module, x):
    """The module by its equation, one pair after the other."""
    weights, keys = slow_weights(module, x)
    contents = torch.stack([x[:, :, y, z] for y, z in keys], 1)  # (B, N', C)
    values = (contents @ module.value.weight.T).unflatten(-1, (module.heads, -1))
    gathered = torch.einsum("bmqk,bkmd->bqmd", weights, values).flatten(2)
    out = gathered @ module.proj.weight.T + module.proj.bias
    size = [-(-side // module.q_stride) for side in x.shape[2:]]
    out = out.mT.unflatten(2, size)
    if module.q_stride > 1:
        out = nn.functional.interpolate(out, x.shape[2:], mode="bilinear", align_corners=False)
    return x + module.gamma * out


@each_setting
def test_equals_a_loop_over_pairs(terms):
    module, x = make(terms=terms), maps(1)
    torch.testing.assert_close(module(x), slow(module, x))
    assert not torch.allclose(module(x), x, atol=1e-3)


@pytest.mark.parametrize(
    ("size", "options"),
    [
        ((3, 6), {"kv_stride": 1}),
        ((5, 3), {"kv_stride": 3, "q_stride": 2}),
        ((1, 5), {}),
        ((1, 1), {}),
        ((2, 1), {"kv_stride": 4}),  # smaller than the stride: one key
        ((4, 5), {"spatial_range": 1}),
        ((5, 4), {"spatial_range": 2, "kv_stride": 1}),
        ((4, 4), {"spatial_range": 0, "kv_stride": 2, "q_stride": 2}),
        ((3, 4), {"position_magnitude": 0.3, "scale": True}),
        ((3, 4), {"scale": True, "spatial_range": 2}),
        ((3, 4), {"heads": 3}),  # does not divide 8: heads of 2 channels
        ((3, 4), {"heads": 1}),
    ],
)
@pytest.mark.parametrize("terms", ["1111", "0010", "0101"])
def test_options_and_odd_sizes(terms, size, options):
    module, x = make(terms=terms, **options), maps(2, size=size)
    torch.testing.assert_close(module(x), slow(module, x))


@each_setting
@pytest.mark.parametrize("options", [{}, {"spatial_range": 3, "scale": True}])
def test_one_product_equals_the_energies_in_value_and_gradient(terms, options):
    module, x = make(12, terms=terms, heads=3, **options), maps(2, 12, (7, 9)).requires_grad_()
    channels_last = x.permute(0, 2, 3, 1)
    factors, values = module.project(channels_last, channels_last[:, ::2, ::2])
    results = []
    for attend in (plain.attend, fused.attend):
        out = attend(factors, values)
        leaves = [x, *(p for name, p in module.named_parameters() if name.split(".")[0] not in ("proj", "gamma"))]
        results.append([out, *torch.autograd.grad(out.square().sum(), leaves, retain_graph=True)])
    torch.testing.assert_close(results[1], results[0])


@each_setting
@pytest.mark.parametrize("size", [(7, 9), (1, 6), (2, 1)])
def test_columns_written_once_equal_those_of_operators(terms, size):
    """Compilers and second derivatives get operators, everybody else one node with a backward of its own."""
    module, x = make(12, terms=terms, heads=3), maps(2, 12, size).requires_grad_()
    channels_last = x.permute(0, 2, 3, 1)
    factors, values = module.project(channels_last, channels_last[:, ::2, ::2])
    leaves = [x, *(p for name, p in module.named_parameters() if name.split(".")[0] not in ("proj", "gamma"))]
    results = []
    for context in (nullcontext, differentiable_twice):
        with context():
            parts = columns(factors, values)
        assert ("Columns" in type(parts[0].grad_fn).__name__) == (context is nullcontext)
        total = sum(part.sin().sum() for part in parts)
        gradients = torch.autograd.grad(total, leaves, retain_graph=True, allow_unused=True)
        results.append([*parts, *(torch.zeros(()) if g is None else g for g in gradients)])
    torch.testing.assert_close(results[0], results[1])


def test_values_as_narrow_as_they_are():
    module, x = make(12, heads=3), maps(2, 12, (7, 9)).permute(0, 2, 3, 1)
    factors, values = module.project(x, x[:, ::2, ::2])
    torch.testing.assert_close(fused.attend(factors, values, widen=False), fused.attend(factors, values))


def test_the_columns_of_a_large_map_fit_flash_attention():
    module = SpatialAttention(256).to("meta")
    x = torch.empty(1, 97, 97, 256, device="meta")
    q, k, v = columns(*module.project(x, x[:, ::2, ::2]))
    assert (q.shape, k.shape, v.shape) == ((1, 8, 9409, 128), (1, 8, 2401, 128), (1, 8, 2401, 128))


class Largest(TorchDispatchMode):
    """The number of elements of the largest tensor that any operator returns."""

    def __init__(self):
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, torch.Tensor):
                self.numel = max(self.numel, tensor.numel())
        return out


@pytest.mark.parametrize("options", [{}, {"spatial_range": 9}])
@pytest.mark.parametrize("terms", ["1111", "0100", "0001", "0010", "0110"])
def test_nothing_has_a_number_for_every_pair(terms, options):
    module, x = make(terms=terms, dtype=torch.float32, **options), maps(1, size=(48, 40), dtype=torch.float32)
    with Largest() as largest:
        module(x.requires_grad_()).sum().backward()
    pairs = 48 * 40 * 24 * 20
    assert x.numel() <= largest.numel < pairs / 2


def test_terms_add_up():
    module, x = make(), maps().permute(0, 2, 3, 1)
    together = plain.energies(module.project(x, x[:, ::2, ::2])[0])
    for i, name in enumerate(("E1", "E2", "E3", "E4")):
        alone = make(terms="".join("01"[i == j] for j in range(4)))
        alone.load_state_dict(module.state_dict(), strict=False)
        energy = plain.energies(alone.project(x, x[:, ::2, ::2])[0])
        torch.testing.assert_close(energy, {name: together[name]})


def test_saliency_alone_equals_the_general_form():
    module, x = make(12, terms="0010", heads=3), maps(2, 12, (7, 9))
    fast = module(x)
    module.spatial_range = 100  # the whole map, but the fast path is for no range only
    torch.testing.assert_close(module(x), fast)


@each_setting
def test_a_range_as_large_as_the_map_is_none(terms):
    module, x = make(terms=terms), maps(size=(6, 5))
    expected = module(x)
    module.spatial_range = 5
    torch.testing.assert_close(module(x), expected)


@pytest.mark.parametrize(
    "terms", [s if s in ("1111", "0010", "0101") else pytest.param(s, marks=pytest.mark.slow) for s in SETTINGS]
)
def test_gradients(terms):
    module, x = make(4, terms=terms, kv_stride=1), maps(1, 4, (2, 3)).requires_grad_()
    names = [name for name, _ in module.named_parameters()]

    def run(x, *values):
        return functional_call(module, dict(zip(names, values, strict=True)), (x,))

    values = [p.detach().clone().requires_grad_() for p in module.parameters()]
    assert torch.autograd.gradcheck(run, (x, *values))


def test_second_derivatives():
    module, x = make(4, kv_stride=1), maps(1, 4, (2, 3)).requires_grad_()
    with differentiable_twice():
        assert torch.autograd.gradgradcheck(module, (x,))


def test_starts_as_the_identity_and_then_learns():
    module, x = make(gamma=0.0), maps()
    torch.testing.assert_close(module(x), x, rtol=0, atol=0)
    module(x).square().sum().backward()
    assert module.gamma.grad.abs() > 0
    assert all(p.grad.abs().max() == 0 for name, p in module.named_parameters() if name != "gamma")
    nn.init.constant_(module.gamma, 0.1)
    module.zero_grad()
    module(x).square().sum().backward()
    assert all(p.grad.abs().max() > 0 for p in module.parameters())


@each_setting
@pytest.mark.parametrize("channels", [256, 512])
def test_parameters(terms, channels):
    b1, b2, b3, b4 = (int(digit) for digit in terms)
    expected = channels**2 * ((b1 | b2) + (b1 | b3) + (b2 | b4) + 2) + channels * (b3 + b4 + 1) + 1
    with torch.device("meta"):
        assert sum(p.numel() for p in SpatialAttention(channels, terms=terms).parameters()) == expected


@pytest.mark.parametrize(("terms", "count"), [("1111", 5_907_465), ("0010", 3_545_097), ("0011", 4_727_817)])
def test_parameters_of_a_resnet50(terms, count):
    widths = 6 * [256] + 3 * [512]
    with torch.device("meta"):
        modules = [SpatialAttention(channels, terms=terms) for channels in widths]
    assert sum(p.numel() for module in modules for p in module.parameters()) == count


def test_keys():
    assert list(SpatialAttention(8).state_dict()) == [
        "key_bias",
        "position_bias",
        "gamma",
        "query.weight",
        "key.weight",
        "value.weight",
        "position_x.weight",
        "position_y.weight",
        "proj.weight",
        "proj.bias",
    ]
    assert [name for name, _ in SpatialAttention(8, terms="0010").named_children()] == ["key", "value", "proj"]


def test_initial_values():
    torch.manual_seed(0)
    module = SpatialAttention(256)
    bound = 1 / math.sqrt(2 * 32)
    for bias in (module.key_bias, module.position_bias):
        assert bound * 0.95 < bias.abs().max() <= bound
    limit = math.sqrt(3 / 256)  # Kaiming-uniform, fan-in, a=1
    assert limit * 0.99 < module.query.weight.abs().max() <= limit
    assert module.gamma.ndim == 0  # no weight decay: optimisers of foveal spare what has fewer than two dimensions


@pytest.mark.parametrize("terms", ["1111", "0010", "0110"])
def test_the_layout_stays(terms):
    module, x = make(terms=terms), maps()
    expected = module(x)
    assert expected.is_contiguous()
    out = module(x.contiguous(memory_format=torch.channels_last))
    assert out.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("terms", ["1111", "0010", "0110", "0001"])
def test_half_precision_is_as_exact_as_energies_in_it(terms):
    """Biases in the columns lose no more than energies in bfloat16 do."""
    torch.manual_seed(0)
    errors = torch.zeros(2)
    for _ in range(4):  # of one module the difference is chance
        module, x = SpatialAttention(64, terms=terms, heads=4), torch.randn(1, 33, 29, 64)

        def run(attend, module=module, x=x):
            return attend(*module.project(x, x[:, ::2, ::2])).float()

        with torch.no_grad():
            exact = run(plain.attend)
            with torch.autocast("cpu", torch.bfloat16):
                results = torch.stack([run(fused.attend), run(plain.attend)])
        errors += (results - exact).flatten(1).square().mean(1).sqrt() / exact.square().mean().sqrt()
    error, limit = (errors / 4).tolist()
    assert error < 1.1 * limit
    assert error < 0.02


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_keeps_the_dtype_of_the_maps(dtype):
    module, x = make(dtype=torch.float32), maps(dtype=torch.float32)
    with torch.autocast("cpu", dtype):
        assert module(x).dtype == torch.float32
        assert module(x.to(dtype)).dtype == dtype
        module(x).sum().backward()
    assert all(p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in module.parameters())
    assert module.to(dtype)(x.to(dtype)).dtype == dtype


def test_tables_made_in_inference_mode_serve_training():
    module, x = make(channels=4), maps(channels=4, size=(11, 3))
    with torch.inference_mode():
        expected = module(x)
    out = module(x)
    out.sum().backward()
    torch.testing.assert_close(out, expected.clone())
    assert all(parameter.grad is not None for parameter in module.parameters())


@pytest.mark.slow
@pytest.mark.parametrize("terms", ["1111", "0010"])
def test_compiled_equals_eager(terms):
    torch.compiler.reset()
    module, x = make(terms=terms), maps()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), module(x))


@pytest.mark.slow
def test_exported_with_any_batch():
    module, x = make(), maps()
    shapes = {"x": {0: torch.export.Dim("n", min=1, max=64)}}
    exported = torch.export.export(module, (x,), dynamic_shapes=shapes).module()
    for inputs in (x, maps(5)):
        torch.testing.assert_close(exported(inputs), module(inputs))


# Records ----------------------------------------------------------------------------------------------------------


def test_records_are_lazy_rows_of_each_term():
    module, x = make(), maps(2, size=(5, 4))
    with foveal.watch(module) as seen:
        module(x)
    record = seen[""]
    assert (record.kind, tuple(record.shape)) == ("pairwise", (2, 2, 20, 6))
    rows = record.rows([3, 17])
    torch.testing.assert_close(rows, slow_weights(module, x)[0][:, :, [3, 17]])
    assert "not computed yet" in repr(record)
    assert list(record.parts) == ["E1", "E2", "E3", "E4"]
    for i, part in enumerate(record.parts.values()):
        expected = slow_weights(module, x, term=i)[0]
        torch.testing.assert_close(part.rows([3, 17], heads=[1]), expected[:, [1]][:, :, [3, 17]])
        torch.testing.assert_close(part.values, expected)
    torch.testing.assert_close(record.values[:, :, [3, 17]], rows)
    record.values.square().sum().backward()
    assert module.query.weight.grad.abs().max() > 0


def test_maps_of_a_record():
    module, x = make(spatial_range=1), maps(1, size=(5, 4))
    with foveal.watch(module) as seen:
        module(x)
    near = seen[""].map_at((3, 2))  # x = 3, y = 2: query 2 · 4 + 3
    assert near.shape == (1, 2, 3, 2)
    torch.testing.assert_close(near.flatten(2), seen[""].rows([11])[:, :, 0])
    assert (near.sum((2, 3)) - 1).abs().max() < 1e-6
    assert near[0, 0].nonzero().tolist() == [[1, 1]]  # the only key at most one pixel away


def test_saliency_has_a_record_too():
    module, x = make(terms="0010"), maps(2)
    with foveal.watch(module) as seen:
        module(x)
    expected = slow_weights(module, x)[0]
    torch.testing.assert_close(seen[""].values, expected)
    torch.testing.assert_close(seen[""].parts["E3"].rows([0]), expected[:, :, :1])


@pytest.mark.slow
def test_records_of_a_compiled_module():
    torch.compiler.reset()
    module, x = make(), maps()
    with foveal.watch(module) as expected:
        module(x)
    with foveal.watch(module) as seen:
        torch.compile(module, backend="aot_eager", fullgraph=True)(x)
    for name, part in expected[""].parts.items():
        torch.testing.assert_close(seen[""].parts[name].rows([3, 5]), part.rows([3, 5]))


# Bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"terms": "0000"}, "turn at least one on"),
        ({"terms": "111"}, "expected four digits"),
        ({"terms": "0120"}, "expected four digits"),
        ({"terms": 110}, "in YAML with quotes"),
        ({"heads": 9}, "expected from 1 to the 8 channels"),
        ({"heads": 0}, "heads=0: expected a whole number of at least 1"),
        ({"heads": 2.5}, "heads=2.5: expected a whole number"),
        ({"heads": True}, "heads=True: expected a whole number"),
        ({"kv_stride": 0}, "kv_stride=0: expected a whole number of at least 1"),
        ({"kv_stride": 1.5}, "kv_stride=1.5: expected a whole number"),
        ({"q_stride": 0}, "q_stride=0: expected"),
        ({"spatial_range": -2}, "spatial_range=-2: expected a whole number of at least 0, or -1 for the whole map"),
        ({"spatial_range": 1.5}, "spatial_range=1.5: expected a whole number"),
        ({"position_magnitude": "x"}, "position_magnitude='x': expected a finite number"),
        ({"position_magnitude": float("nan")}, "expected a finite number"),
        ({"spatial_range": 1, "kv_stride": 3}, "expected at least 2, or a smaller kv_stride"),
        ({"start": "papr"}, "did you mean 'paper'"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(UserError, match=message):
        SpatialAttention(8, **options)


def test_terms_that_yaml_reads_as_a_number():
    """``terms: 1011`` without quotes can mean nothing else; ``0110`` is the number 72 there, which is refused."""
    assert SpatialAttention(8, terms=1011).terms == "1011"
    with pytest.raises(UserError, match="in YAML with quotes"):
        SpatialAttention(8, terms=72)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.rand(2, 4, 5, 5), r"expected maps \(N, 8, H, W\), got \(2, 4, 5, 5\)"),
        (torch.rand(2, 8, 0, 5), r"\(2, 8, 0, 5\) have no positions"),
        (torch.ones(2, 8, 3, 5, dtype=torch.int64), r"expected floating-point numbers, got torch\.int64"),
    ],
)
@pytest.mark.parametrize("terms", ["1111", "0010"])
def test_bad_maps(x, message, terms):
    with pytest.raises(UserError, match=message):
        SpatialAttention(8, terms=terms)(x)


@pytest.mark.parametrize("terms", ["1111", "0110", "0011", "0010", "0001"])
def test_a_batch_of_nothing(terms):
    module, x = make(terms=terms), maps()[:0].requires_grad_()
    module(x).sum().backward()
    assert x.grad.shape == x.shape
    assert all(parameter.grad.eq(0).all() for parameter in module.parameters())


def test_macs_of_saliency_do_not_grow_with_pairs():
    alone, full = (SpatialAttention(16, terms=terms) for terms in ("0010", "1111"))
    keys, n, c = 6, 20, 16  # a 5×4 map
    assert alone.macs(5, 4) == (2 * keys + 1) * c * c + 2 * keys * c
    positions = n * (3 + 2) + 5 * 3 + 4 * 2
    assert full.macs(5, 4) == (2 * n + 2 * keys) * c * c + (positions + 2 * n * keys + keys) * c
