"""Records of pairwise attention: chosen rows, computed only when somebody asks."""

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import foveal
from foveal.attention import Attends, AttentionRecord, DotProduct, FocusedAttention, LazyValues
from foveal.errors import UserError


class LargestTensor(TorchDispatchMode):
    """Remembers the number of elements of the largest tensor that any operation returned."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        self.elements = max([self.elements, *(x.numel() for x in tree_leaves(out) if isinstance(x, Tensor))])
        return out


class Counted:
    """Lazy values that count how often they are computed."""

    def __init__(self, values):
        self.computed, self._values = [], values

    @property
    def shape(self):
        return self._values.shape

    def whole(self):
        self.computed.append("whole")
        return self._values

    def rows(self, queries, heads):
        self.computed.append("rows")
        values = self._values if heads is None else self._values[..., heads, :, :]
        return values[..., queries, :]


class Noting(Attends):
    """Notes what it is built with."""

    kind = "pairwise"

    def __init__(self, lazy):
        super().__init__()
        self.lazy = lazy

    def forward(self, x):
        self.note(self.lazy)
        return x


def record(values, kind="pairwise"):
    return AttentionRecord("site", kind, values, True)


def test_a_lazy_record_computes_at_the_first_use_and_keeps_it():
    lazy = Counted(torch.rand(2, 4, 4))
    assert isinstance(lazy, LazyValues)
    module = Noting(lazy)
    module(torch.zeros(1))
    assert module.noted is None
    with foveal.watch(module) as seen:
        module(torch.zeros(1))
        assert seen[""].shape == (2, 4, 4)
        assert "(2, 4, 4)" in repr(seen)
        assert "not computed" in repr(seen[""])
    assert lazy.computed == []
    assert seen[""].values is seen[""].values
    assert lazy.computed == ["whole"]
    assert "not computed" not in repr(seen[""])


def test_rows_of_a_lazy_record_do_not_compute_the_whole():
    values = torch.rand(2, 3, 5, 5)
    lazy = Counted(values)
    lazily = record(lazy)
    torch.testing.assert_close(lazily.rows([0, 4]), values[:, :, [0, 4]])
    assert lazy.computed == ["rows"]
    whole = lazily.values
    torch.testing.assert_close(lazily.rows([1]), whole[:, :, [1]])
    assert lazy.computed == ["rows", "whole"]  # what is there is indexed


@pytest.mark.parametrize("wrap", [lambda values: values, Counted], ids=["eager", "lazy"])
@pytest.mark.parametrize("queries", [[0, 3], [-1], [], torch.tensor([2, 2]), (1,), range(4)])
def test_rows_are_those_of_the_whole(wrap, queries):
    values = torch.rand(2, 3, 4, 6)
    chosen = torch.as_tensor(queries, dtype=torch.long)
    torch.testing.assert_close(record(wrap(values)).rows(queries), values[:, :, chosen])
    torch.testing.assert_close(record(wrap(values)).rows(queries, heads=[2, 0]), values[:, [2, 0]][:, :, chosen])
    torch.testing.assert_close(record(wrap(values[:, 0])).rows(queries), values[:, 0, chosen])


@pytest.mark.parametrize(
    ("kind", "shape", "arguments", "message"),
    [
        ("spatial", (2, 4, 4), {"queries": [0]}, r"site is spatial attention, which has no rows; use \.values"),
        ("channel", (2, 4), {"queries": [0]}, r"use \.values"),
        ("pairwise", (2, 4, 4), {"queries": [4]}, r"queries of site must be from 0 to 3, got \[4\]"),
        ("pairwise", (2, 4, 4), {"queries": [-5]}, r"queries of site must be from 0 to 3"),
        ("pairwise", (2, 4, 4), {"queries": [0.5]}, "queries must be a list of whole numbers"),
        ("pairwise", (2, 4, 4), {"queries": 1}, "queries must be a list of whole numbers"),
        ("pairwise", (2, 4, 4), {"queries": [0], "heads": [0]}, "site has no heads.*leave heads out"),
        ("pairwise", (2, 3, 4, 4), {"queries": [0], "heads": [3]}, r"heads of site must be from 0 to 2, got \[3\]"),
    ],
)
def test_rows_that_do_not_exist(kind, shape, arguments, message):
    with pytest.raises(UserError, match=message):
        record(torch.rand(shape), kind).rows(**arguments)


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("need_logits", [False, True])
def test_focused_attention(heads, masked, need_logits):
    """Rows and the whole, with the gradient of the weights that the features are aggregated with."""
    torch.manual_seed(0)
    module = FocusedAttention(6, key_channels=4, heads=heads).double()
    features = torch.randn(2, 5, 6, dtype=torch.float64)
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2]) if masked else None
    with foveal.watch(module) as seen:
        aggregated, _ = module(features, mask, need_logits=need_logits)
    weights = seen[""].values
    gathered = (weights if heads > 1 else weights[:, None]) @ features.unflatten(-1, (heads, -1)).transpose(1, 2)
    torch.testing.assert_close(gathered.transpose(1, 2).flatten(2), aggregated)
    with foveal.watch(module) as again:
        module(features, mask, need_logits=need_logits)
    rows = again[""].rows([4, 0])
    torch.testing.assert_close(rows, weights[..., [4, 0], :])
    probe = torch.randn_like(rows)
    parameters = list(module.parameters())
    ours = torch.autograd.grad((rows * probe).sum(), parameters)
    theirs = torch.autograd.grad((weights[..., [4, 0], :] * probe).sum(), parameters)
    assert all(gradient.abs().sum() > 0 for gradient in ours)
    torch.testing.assert_close(ours, theirs)


def test_rows_never_build_the_whole_matrix():
    count = 2048
    module = FocusedAttention(8, key_channels=4)
    features = torch.randn(1, count, 8)
    with foveal.watch(module) as seen:
        module(features, torch.ones(1, count, dtype=torch.bool), need_logits=False)
    with LargestTensor() as largest:
        rows = seen[""].rows([0, count - 1])
        loss = foveal.supervise.center_mass_loss(seen[""], torch.arange(count)[None] % 5, related="different")
        (rows.square().sum() + loss).backward()
    assert rows.shape == (1, 2, count)
    assert largest.elements <= 16 * count
    with LargestTensor() as largest:
        seen[""].values  # noqa: B018
    assert largest.elements == count**2


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_lazy_in_a_compiled_model(heads, backend):
    """Queries and keys leave the graph; the rest is computed outside, with the same gradients."""
    torch.compiler.reset()
    torch.manual_seed(0)
    module = FocusedAttention(6, key_channels=4, heads=heads)
    features, mask = torch.randn(2, 5, 6), torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    compiled = torch.compile(module, fullgraph=True, backend=backend)
    compiled(features, mask, need_logits=False)  # before anybody watches
    results = []
    for call in (module, compiled):
        module.zero_grad()
        with foveal.watch(call) as seen:
            call(features, mask, need_logits=False)
        assert isinstance(seen[""].noted, DotProduct)
        rows = seen[""].rows([1, 3])
        rows.square().sum().backward()
        results.append((rows.detach(), module.key.weight.grad.clone(), seen[""].values.detach()))
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
def test_a_copy_of_a_module_with_a_lazy_record(clone):
    module = nn.Sequential(FocusedAttention(6))
    features = torch.randn(1, 4, 6)
    with foveal.watch(module) as seen:
        module[0](features)
        twin = clone(module)
        assert twin[0].noted is None
        assert twin[0].watchers == 0
    assert seen["0"].values.shape == (1, 4, 4)
    assert module[0].noted is None
