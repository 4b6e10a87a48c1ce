"""The plain form as compiled code sees it."""

import copy
from unittest import mock

import pytest
import torch
from torch import nn

from foveal.attention import CBAM
from foveal.kernels.gates import fused, plain

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (plain._LargestPosition.apply, lambda x: x.flatten(2).max(2).values),
        (plain._LargestChannel.apply, lambda x: x.max(1, keepdim=True).values),
    ],
)
def test_maxima_by_comparison_are_those_of_pytorch(ours, theirs):
    """With many ties."""
    torch.manual_seed(0)
    x = torch.randint(0, 3, (3, 4, 2, 5)).double().requires_grad_()
    g = torch.randn_like(theirs(x))
    torch.testing.assert_close(ours(x), theirs(x), rtol=0, atol=0)
    torch.testing.assert_close(torch.autograd.grad(ours(x), x, g), torch.autograd.grad(theirs(x), x, g), rtol=0, atol=0)


@pytest.mark.parametrize("amount", [None, 0.0, 0.3])
@pytest.mark.parametrize("compiling", [True, False])
def test_blends(amount, compiling):
    torch.manual_seed(0)
    x, channel, spatial = torch.randn(2, 3, 4, 5), torch.rand(2, 3), torch.rand(2, 4, 5)
    amount = None if amount is None else torch.tensor(amount)
    attended = x * channel[:, :, None, None]
    expected = attended * spatial[:, None]
    if amount is not None:
        expected = x + amount * (expected - x)
    with mock.patch("torch.compiler.is_compiling", return_value=compiling):
        actual = plain.blend(x, attended, channel, spatial, amount)
    torch.testing.assert_close(actual, expected)
    if amount == 0:
        assert torch.equal(actual, x)


@pytest.mark.slow
@pytest.mark.parametrize("start", ["paper", "identity"])
def test_compiled(start, monkeypatch):
    """No scatter; result and gradients of the plain form."""
    from torch._dynamo.backends.common import aot_autograd

    targets = []

    def keep(module, inputs):
        targets.append([str(node.target) for node in module.graph.nodes])
        return module

    monkeypatch.setattr(fused, "fused_available", lambda device: False)
    torch.manual_seed(0)
    gate = CBAM(6, start=start).to(DEVICE)
    for parameter in gate.parameters():
        nn.init.normal_(parameter)
    twin, torch._dynamo.config.recompile_limit = copy.deepcopy(gate), 64
    compiled = torch.compile(gate, fullgraph=True, backend=aot_autograd(fw_compiler=keep))
    image = torch.randn(2, 6, 4, 5, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    x, y = (image.clone().requires_grad_() for _ in range(2))
    actual, expected = compiled(x), twin(y)
    torch.testing.assert_close(actual, expected)
    actual.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(x.grad, y.grad, rtol=1e-4, atol=1e-4)
    for ours, theirs in zip(gate.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-4 * float(theirs.grad.abs().max()))
    names = [name for graph in targets for name in graph]
    assert not any("scatter" in name for name in names)
