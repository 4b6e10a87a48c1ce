"""The perceptron of a channel gate as one operator equals the modules, and is what compiled inference calls."""

import copy
from collections import Counter

import pytest
import torch
from torch import nn

from foveal.attention import CBAM, SqueezeExcite
from foveal.kernels.gates import (
    fused,
    perceptron,  # noqa: F401  (registers the operator)
    plain,
)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("pools", [("avg",), ("max",), ("avg", "max")])
@pytest.mark.parametrize(("n", "c", "d"), [(3, 16, 4), (17, 200, 20), (1, 5, 1), (16, 64, 16)])
def test_equals_the_layers(n, c, d, pools, dtype):
    torch.manual_seed(0)
    squeeze, excite = nn.Linear(c, d, device=DEVICE), nn.Linear(d, c, device=DEVICE)
    pooled = {pool: torch.randn(n, c, device=DEVICE).to(dtype) for pool in pools}
    with torch.no_grad():
        logits = sum(excite(torch.relu(squeeze(values.float()))) for values in pooled.values())
        parameters = squeeze.weight, squeeze.bias, excite.weight, excite.bias
        for _ in range(3):  # run, recorded, repeated
            gate = torch.ops.foveal.gate_perceptron.default(pooled.get("avg"), pooled.get("max"), *parameters)
            assert gate.dtype == torch.float32
            torch.testing.assert_close(gate, torch.sigmoid(logits), rtol=1e-5, atol=1e-5)


def test_the_operator_is_registered_properly():
    tensors = [torch.randn(*shape, device=DEVICE) for shape in ((2, 6), (2, 6), (3, 6), (3,), (6, 3), (6,))]
    checks = ("test_schema", "test_faketensor")
    actual = torch.library.opcheck(torch.ops.foveal.gate_perceptron.default, tuple(tensors), test_utils=checks)
    assert actual == dict.fromkeys(checks, "SUCCESS")


@pytest.mark.parametrize(
    "make",
    [
        lambda: SqueezeExcite(16, reduction=4),
        lambda: SqueezeExcite(16, reduction=4, start="identity"),
        lambda: CBAM(16, reduction=4),
        lambda: CBAM(16, reduction=4, pools=("max",), spatial=False),
    ],
    ids=["se", "se, identity", "cbam", "one pool"],
)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_compiled_inference(make, mode, monkeypatch):
    torch.compiler.reset()
    for module in (fused, plain):
        monkeypatch.setattr(module, "fused_available", lambda device: torch.compiler.is_compiling())
    seen = Counter()

    def backend(module, inputs):
        seen.update(str(node.target) for node in module.graph.nodes if node.op == "call_function")
        return module.forward

    torch.manual_seed(0)
    gate = make().to(DEVICE).eval()
    for parameter in gate.parameters():
        nn.init.normal_(parameter, std=0.5)
    twin, x = copy.deepcopy(gate), torch.randn(2, 16, 6, 5, device=DEVICE)
    with mode():
        actual = torch.compile(gate, backend=backend, fullgraph=True)(x)
        torch.testing.assert_close(actual, twin(x), rtol=1e-5, atol=1e-5)
    assert seen["foveal.gate_perceptron.default"] == (mode is not torch.enable_grad)
