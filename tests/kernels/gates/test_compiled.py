"""Gates as operators of a compiled graph equal the plain modules: value, gradients and running statistics."""

import copy
from collections import Counter

import pytest
import torch
from torch import nn

from foveal.attention import CBAM, SqueezeExcite
from foveal.kernels.gates import fused

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture
def available(monkeypatch):
    """Switches the kernels on or off."""
    torch.compiler.reset()

    def switch(on):
        monkeypatch.setattr(fused, "fused_available", lambda device: on)

    switch(True)
    return switch


def network(gate):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), gate, nn.Conv2d(16, 4, 1)).to(DEVICE)
    for parameter in model[1].parameters():
        nn.init.normal_(parameter, std=0.5)
    return model


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    "make",
    [
        lambda: CBAM(16, reduction=4, start="identity"),
        lambda: CBAM(16, reduction=4, pools=("max",)),
        lambda: CBAM(16, reduction=4, spatial=False),
        lambda: SqueezeExcite(16, reduction=4),
        lambda: SqueezeExcite(16, reduction=4, start="identity"),
    ],
    ids=["cbam", "one pool", "no spatial gate", "se", "se, identity"],
)
def test_compiled_equals_the_modules(make, layout, available):
    model = network(make()).to(memory_format=layout)
    twin = copy.deepcopy(model)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=False)
    for n in (3, 2):
        x = torch.randn(n, 3, 6, 5, device=DEVICE).to(memory_format=layout)
        available(True)
        actual = compiled(x)
        available(False)
        expected = twin(x)
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
        assert actual.stride() == expected.stride()
        g = torch.randn_like(expected)
        actual.backward(g)
        expected.backward(g)
        for (name, one), other in zip(model.named_parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-3, msg=lambda m, name=name: name + m)
        for (name, one), other in zip(model.named_buffers(), twin.buffers(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5, msg=lambda m, name=name: f"{name}: {m}")
    available(True)
    with torch.no_grad():
        torch.testing.assert_close(compiled.eval()(x), twin.eval()(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("spatial", [False, True])
def test_half_precision_is_rounded_once_and_keeps_its_layout(spatial, layout, available):
    torch.manual_seed(0)
    gate = CBAM(16, reduction=4, spatial=spatial, start="identity").to(DEVICE)
    for parameter in gate.parameters():
        nn.init.normal_(parameter, std=0.5)
    x = torch.randn(3, 16, 6, 5, device=DEVICE).to(torch.bfloat16).to(memory_format=layout).requires_grad_()
    g = torch.randn(x.shape, device=DEVICE).to(torch.bfloat16).to(memory_format=layout)
    with torch.autocast(DEVICE, torch.bfloat16):
        out = torch.compile(gate, backend="aot_eager", fullgraph=True)(x)
    (dx,) = torch.autograd.grad(out, x, g)
    assert out.dtype == dx.dtype == torch.bfloat16
    assert out.stride() == dx.stride() == x.stride()
    exact, values = copy.deepcopy(gate).double(), x.detach().double().requires_grad_()
    available(False)
    expected = exact(values)
    (gradient,) = torch.autograd.grad(expected, values, g.double())
    torch.testing.assert_close(out.double(), expected, rtol=2**-8, atol=1e-3)
    of_kernel = spatial and DEVICE == "cpu"  # Triton's interpreter cuts digits off
    torch.testing.assert_close(dx.double(), gradient, rtol=2**-7 if of_kernel else 2**-8, atol=2e-3)


@pytest.mark.parametrize(
    ("make", "training", "count"),
    [
        (lambda: CBAM(16, reduction=4), True, 1),
        (lambda: CBAM(16, reduction=4), False, 0),
        (lambda: CBAM(16, reduction=4, spatial=False), True, 1),
        (lambda: SqueezeExcite(16, reduction=4), True, 1),
        (lambda: SqueezeExcite(16, reduction=4), False, 0),
    ],
    ids=["cbam", "cbam, inference", "no spatial gate", "se", "se, inference"],
)
def test_what_is_left_to_the_compiler(make, training, count, available):
    seen = Counter()

    def backend(module, inputs):
        seen.update(str(node.target) for node in module.graph.nodes if node.op == "call_function")
        return module.forward

    model = network(make()).train(training)
    torch.compile(model, backend=backend, fullgraph=True)(torch.randn(2, 3, 6, 5, device=DEVICE))
    assert seen["foveal.gates.default"] == count
