"""Private API of PyTorch works as expected, and what remains without it is correct."""

import sys

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.utils.flop_counter import FlopCounterMode

from foveal import compat


def test_what_is_active_is_seen():
    assert not compat.transforms_active()
    assert not compat.dispatch_mode_active()
    assert not compat.forward_mode_active()
    assert not compat.saved_tensor_hooks_active()
    assert compat.function_modes() == 0
    seen = torch.vmap(lambda x: x + compat.transforms_active())(torch.zeros(2))
    assert seen.tolist() == [1, 1]
    with FlopCounterMode(display=False):
        assert compat.dispatch_mode_active()
    with forward_ad.dual_level():
        assert compat.forward_mode_active()
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
        assert compat.saved_tensor_hooks_active()
    with torch.overrides.BaseTorchFunctionMode():
        assert compat.function_modes() == 1


class Exporting(nn.Module):
    """Adds one while it is being exported."""

    def forward(self, x):
        return x + 1 if compat.exporting() else x


def test_exporting_is_told_from_compiling():
    torch.compiler.reset()
    module, x = Exporting(), torch.zeros(2)
    assert module(x).sum() == 0
    assert torch.compile(module, backend="aot_eager", fullgraph=True)(x).sum() == 0
    for strict in (True, False):
        assert torch.export.export(module, (x,), strict=strict).module()(x).sum() == 2
    assert torch.compile(module, backend="aot_eager", fullgraph=True)(x).sum() == 0  # the flag is back


def test_without_the_flag_the_public_answer_counts(monkeypatch):
    monkeypatch.delattr(torch.compiler, "_is_exporting_flag")
    monkeypatch.setattr(torch.compiler, "is_exporting", lambda: "public")
    assert compat.exporting() == "public"


class Subclass(nn.ReLU):
    """A class of its own."""


def test_a_module_that_only_computes():
    relu = nn.ReLU()
    assert compat.only_computes(relu, nn.ReLU)
    assert not compat.only_computes(relu, nn.Sigmoid)
    assert not compat.only_computes(Subclass(), nn.ReLU)
    for register in ("forward_hook", "forward_pre_hook", "full_backward_hook", "full_backward_pre_hook"):
        handle = getattr(relu, f"register_{register}")(lambda *arguments: None)
        assert not compat.only_computes(relu, nn.ReLU), register
        handle.remove()
        handle = getattr(nn.modules.module, f"register_module_{register}")(lambda *arguments: None)
        assert not compat.only_computes(relu, nn.ReLU), register
        handle.remove()
    assert compat.only_computes(relu, nn.ReLU)
    relu.forward = lambda x: x
    assert not compat.only_computes(relu, nn.ReLU)
    compiled = nn.ReLU()
    compiled.compile()
    assert not compat.only_computes(compiled, nn.ReLU)


def test_without_the_private_names_the_answers_are_on_the_safe_side(monkeypatch):
    for name in ("_transforms_active", "_dispatch_modes", "_function_modes", "_saved_tensor_hooks", "_will_run"):
        monkeypatch.setattr(compat, name, None)
    monkeypatch.delattr(forward_ad, "_current_level")
    assert compat.transforms_active()
    assert compat.dispatch_mode_active()
    assert compat.forward_mode_active()
    assert compat.saved_tensor_hooks_active()
    assert compat.gradient_will_run(None)
    assert compat.function_modes() == 0
    monkeypatch.setattr(compat, "_clear_workspaces", None)
    compat.clear_cublas_workspaces()


@pytest.mark.parametrize("private", [True, False])
def test_storage(private, monkeypatch):
    if not private:
        monkeypatch.setattr(compat, "_has_storage", None)
    assert compat.has_storage(torch.zeros(2))
    sparse = torch.zeros(2, 2).to_sparse()
    assert not compat.has_storage(sparse)


@pytest.mark.parametrize("private", [True, False])
def test_batch_norm(private, monkeypatch):
    if not private:
        monkeypatch.setattr(compat, "_batch_norm_impl", None)
    torch.manual_seed(0)
    x, grad = torch.randn(2, 4, 3, 5, 5, dtype=torch.float64)
    weight, bias = torch.randn(2, 3, dtype=torch.float64)
    leaves = [t.clone().requires_grad_() for t in (x, weight, bias)]
    statistics = [torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)]
    expected_statistics = [t.clone() for t in statistics]
    out, mean, inverse_std, workspace, implementation = compat.batch_norm_forward(
        x, weight, bias, *statistics, 0.1, 1e-5
    )
    expected = nn.functional.batch_norm(leaves[0], *expected_statistics, *leaves[1:], training=True)
    torch.testing.assert_close(out, expected.detach())
    torch.testing.assert_close(statistics, expected_statistics)
    torch.testing.assert_close(mean, x.mean((0, 2, 3)))
    gradients = compat.batch_norm_backward(
        grad, x, weight, mean, inverse_std, workspace, implementation, 1e-5, [True, True, True]
    )
    torch.testing.assert_close(tuple(gradients), torch.autograd.grad(expected, leaves, grad))


def test_compiled_modules():
    model = nn.Sequential(nn.ReLU(), nn.Sequential(nn.ReLU()))
    inner = model[1]
    model[1] = torch.compile(inner)
    compiled = torch.compile(model)
    assert compat.compiled_original(compiled) is model
    assert compat.compiled_original(model[1]) is inner
    assert compat.compiled_original(model) is None
    assert {compat.plain_name(name) for name, _ in compiled.named_modules()} == {"", "0", "1", "1.0"}
    assert not compat.is_compiled_in_place(model)
    model.compile()
    assert compat.is_compiled_in_place(model)


def test_norms_of_all_kinds():
    norms = [nn.BatchNorm1d(2), nn.BatchNorm2d(2), nn.SyncBatchNorm(2)]
    assert all(isinstance(norm, compat.BATCH_NORM) for norm in norms)
    assert isinstance(nn.InstanceNorm2d(2), compat.INSTANCE_NORM)
    assert not isinstance(nn.GroupNorm(1, 2), (*compat.BATCH_NORM, *compat.INSTANCE_NORM))
    assert "forward" in compat.CONV_FORWARD


def test_a_constant_result_is_marked_as_torch_marks_it(monkeypatch):
    marked = torch.compiler.assume_constant_result(lambda: 1)
    monkeypatch.delitem(sys.modules, "torch._dynamo")
    assert vars(compat.constant_result(lambda: 1)) == vars(marked) != {}


def test_a_running_backward_pass_is_seen():
    seen = []
    x = torch.ones(2, requires_grad=True)
    y = x * 2
    y.register_hook(lambda _: seen.append(compat.backward_running()))
    assert not compat.backward_running()
    y.sum().backward()
    assert seen == [True]
    assert not compat.backward_running()
