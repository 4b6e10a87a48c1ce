"""Layers that are repeated from tapes equal those whose functions run every time, with other tensors and weights.

Without a GPU, launches of Triton's interpreter are repeated here from the addresses alone, as tapes do on one.
"""

import copy
import ctypes

import pytest
import torch
from torch import nn

from foveal.attention import CBAM, AWConv2d, SqueezeExcite
from foveal.kernels import tape
from foveal.kernels.aw import branch
from foveal.kernels.aw import fused as aw
from foveal.kernels.gates import fused as gates
from foveal.kernels.parts import Part
from foveal.kernels.prepared import Prepared
from foveal.kernels.tape import Tape, note_launch

LAYERS = {
    "aw 3×3": lambda: AWConv2d(8, 16, 3, padding=1, reduction=4),
    "aw 3×3, stride, bias": lambda: AWConv2d(8, 16, 3, stride=2, reduction=4, start="identity"),
    "aw 1×1": lambda: AWConv2d(8, 16, 1, reduction=4),
    "depthwise aw": lambda: AWConv2d(8, 8, 3, padding=1, groups=8, reduction=4),
    "se": lambda: SqueezeExcite(8, reduction=2),
    "cbam": lambda: CBAM(8, reduction=2),
    "cbam, no spatial gate": lambda: CBAM(8, reduction=2, spatial=False),
}


def at_address(address, like):
    """What has the shape, strides and dtype of ``like`` at an address."""
    if address is None:
        return None
    steps = sum((size - 1) * stride for size, stride in zip(like.shape, like.stride(), strict=True))
    memory = (ctypes.c_uint8 * ((steps + 1) * like.element_size())).from_address(address)
    return torch.frombuffer(memory, dtype=like.dtype).as_strided(like.shape, like.stride())


@pytest.fixture
def repeated(monkeypatch):
    """Fused forms on a CPU, whose launches can be repeated; returns how often a tape ran."""
    calls = []

    def call(self, *tensors):
        views = [tensor.view() if isinstance(tensor, Part) else tensor for tensor in tensors]

        def run(arguments):
            self.kernel[self.grid](*self._arguments(arguments)[1], *self.rest, **self.options)

        def again(addresses):
            run([at_address(*pair) for pair in zip(addresses, views, strict=True)])

        note_launch(again, [None if view is None else view.data_ptr() for view in views])
        run(views)

    replay = Tape.__call__
    monkeypatch.setattr(Prepared, "__call__", call)
    monkeypatch.setattr(Tape, "__call__", lambda self, tensors: calls.append(1) or replay(self, tensors))
    monkeypatch.setattr(tape, "_tapes", {})
    for module in (aw, branch, gates):
        monkeypatch.setattr(module, "fused_available", lambda device: True)
    return calls


def steps(layer, training, count=4):
    """Outputs, gradients and buffers of a copy of the layer in some steps, each with other images and weights."""
    layer, results = copy.deepcopy(layer).train(training), []
    optimiser = torch.optim.SGD(layer.parameters(), 0.05)
    for step in range(count):
        torch.manual_seed(step)
        x = torch.randn(3, 8, 5, 4).to(memory_format=torch.channels_last).requires_grad_()
        out = layer(x)
        optimiser.zero_grad()
        out.backward(torch.randn(out.shape))
        results += [out.detach().clone(), x.grad, *(parameter.grad.clone() for parameter in layer.parameters())]
        optimiser.step()
    return [*results, *layer.buffers()]


@pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU all tests of kernels repeat tapes")
@pytest.mark.parametrize("training", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", LAYERS)
def test_equals_the_function(name, training, repeated):
    torch.manual_seed(0)
    layer = LAYERS[name]()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    actual = steps(layer, training)
    count = len(repeated)
    assert count >= 4  # forward and backward of the third and fourth step
    tape.forget()
    with pytest.MonkeyPatch.context() as patch:
        for module in (aw, branch, gates):
            patch.setattr(module, "fused_available", lambda device: False)
        expected = steps(layer, training)
    assert len(repeated) == count
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-3)
