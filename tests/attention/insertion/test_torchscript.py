"""TorchScript: one clear line that says what to use instead."""

import pytest
import torch
from torch import nn

import foveal
from foveal.attention import AWConv2d
from foveal.errors import UserError

ADVICE = r"use torch\.export, or torch\.onnx\.export\(\.\.\., dynamo=True\)"
X = torch.rand(2, 3, 9, 9)


def attended(mechanism):
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)).eval()
    foveal.insert(model, mechanism, at="0")
    return model


@pytest.mark.parametrize("mechanism", ["aw", "se", "cbam"])
def test_scripting(mechanism):
    with pytest.raises(UserError, match=ADVICE):
        torch.jit.script(attended(mechanism))


@pytest.mark.parametrize("model", [attended("aw"), nn.Sequential(AWConv2d(3, 8, 3)).eval()])
def test_tracing(model):
    with pytest.raises(UserError, match=ADVICE):
        torch.jit.trace(model, X)


def test_the_legacy_export(tmp_path):
    with pytest.raises(UserError, match=ADVICE):
        torch.onnx.export(attended("aw"), (X,), tmp_path / "model.onnx", dynamo=False)


@pytest.mark.parametrize("mechanism", ["se", "cbam"])
def test_gates_are_traced_for_any_batch(mechanism):
    model = attended(mechanism)
    traced = torch.jit.trace(model, X)
    other = torch.rand(5, 3, 9, 9)
    torch.testing.assert_close(traced(other), model(other))
