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
    repeats = 3 if DEVICE == "cuda" else 1  # the third of a shape is repeated from a tape
    for n, training in ((3, True),) * repeats + ((2, True), (2, False)):
        for module in (model, twin):
            module.train(training).zero_grad()
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
    cut = DEVICE == "cpu"  # by Triton's interpreter
    torch.testing.assert_close(dx.double(), gradient, rtol=2**-7 if cut else 2**-8, atol=2e-3)


@pytest.mark.parametrize(
    ("make", "training"),
    [
        (lambda: CBAM(16, reduction=4), True),
        (lambda: CBAM(16, reduction=4), False),
        (lambda: CBAM(16, reduction=4, spatial=False), True),
        (lambda: SqueezeExcite(16, reduction=4), True),
        (lambda: SqueezeExcite(16, reduction=4), False),
    ],
    ids=["cbam", "cbam, inference", "no spatial gate", "se", "se, inference"],
)
def test_the_compiler_gets_an_operator(make, training, available):
    seen = Counter()

    def backend(module, inputs):
        seen.update(str(node.target) for node in module.graph.nodes if node.op == "call_function")
        return module.forward

    model = network(make()).train(training)
    torch.compile(model, backend=backend, fullgraph=True)(torch.randn(2, 3, 6, 5, device=DEVICE))
    assert seen["foveal.gates.default"] == 1


def plain_and_compiled(function, inputs, available, backend="aot_eager"):
    """What a function gives without operators, and compiled with them."""
    available(False)
    expected = function(*inputs)
    torch.compiler.reset()
    available(True)
    return expected, torch.compile(function, backend=backend, fullgraph=True)(*inputs)


def test_forward_mode_sees_the_gate(available):
    gate = network(SqueezeExcite(16, reduction=4)).eval().requires_grad_(False)[1]
    inputs = torch.randn(2, 2, 16, 3, 3, device=DEVICE).unbind()
    with torch.no_grad():
        expected, actual = plain_and_compiled(lambda x, v: torch.func.jvp(gate, (x,), (v,))[1], inputs, available)
    torch.testing.assert_close(actual, expected)


def test_transforms_see_the_gate(available):
    gate = network(SqueezeExcite(16, reduction=4))[1]
    inputs = (torch.randn(2, 16, 3, 3, device=DEVICE),)
    gradient = torch.func.grad(lambda x: gate(x).square().sum())
    expected, actual = plain_and_compiled(gradient, inputs, available)
    torch.testing.assert_close(actual, expected)


class Other(torch.Tensor):
    """As a quantised weight, which is more than its numbers."""


def test_a_weight_of_another_class_is_left_to_pytorch(available):
    gate, x = network(SqueezeExcite(16, reduction=4)).eval()[1], torch.randn(2, 16, 3, 3, device=DEVICE)
    parameters = [gate.squeeze.weight, gate.squeeze.bias, gate.excite.weight, gate.excite.bias, None]
    assert fused._fusable(x, parameters)
    parameters[0] = nn.Parameter(parameters[0].detach().as_subclass(Other))
    assert not fused._fusable(x, parameters)


@pytest.mark.parametrize("odd", ["no bias", "broadcast"])
def test_other_layers_are_computed_by_pytorch(odd, available):
    gate = network(SqueezeExcite(16, reduction=4)).eval().requires_grad_(False)[1]
    if odd == "no bias":
        gate.squeeze.bias = None
    else:
        gate.excite = nn.Linear(4, 1, device=DEVICE)
    with torch.no_grad():
        expected, actual = plain_and_compiled(gate, (torch.randn(2, 16, 3, 3, device=DEVICE),), available)
    torch.testing.assert_close(actual, expected)


def test_half_precision_throughout(available):
    gate = network(CBAM(16, reduction=4)).eval().requires_grad_(False)[1].to(torch.bfloat16)
    x = torch.randn(2, 16, 3, 3, device=DEVICE, dtype=torch.bfloat16)
    with torch.no_grad():
        expected, actual = plain_and_compiled(gate, (x,), available)
    torch.testing.assert_close(actual, expected, rtol=2**-6, atol=2**-6)


@pytest.mark.parametrize("training", [True, False])
def test_a_second_derivative_is_refused(training, available):
    gate = network(CBAM(16, reduction=4)).train(training)[1]
    compiled = torch.compile(gate, backend="eager", fullgraph=True)
    x = torch.randn(2, 16, 3, 3, device=DEVICE, requires_grad=True)
    (first,) = torch.autograd.grad(compiled(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match=r"once_differentiable|does not require grad"):
        first.square().sum().backward()
