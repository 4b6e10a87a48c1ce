"""What the compiler sees of AW-convolutions on an NVIDIA GPU, with fake tensors, so that no GPU is needed."""

import contextlib
import copy
import functools
from collections import Counter

import pytest
import timm
import torch
from functorch.compile import make_boxed_func
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._subclasses.fake_tensor import FakeTensorMode

import foveal
from foveal.attention import aw
from foveal.kernels import support
from foveal.kernels.aw import fused
from foveal.kernels.aw.pool import average_by_product

slow = pytest.mark.slow
fakes = pytest.mark.skipif(torch.__version__ < "2.9", reason="PyTorch 2.8 does not compile for fake inputs")


class Net(nn.Module):
    """Plain convolution, then two that get attention, each with a norm."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.layer1 = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.layer2 = nn.Sequential(nn.Conv2d(16, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU())

    def forward(self, x):
        return self.layer2(self.layer1(self.stem(x))).mean((2, 3))


@pytest.fixture(autouse=True)
def _pretend(monkeypatch):
    """Nothing asks a driver, and a CPU counts as a GPU: PyTorch cannot run a backward pass of fake CUDA tensors."""
    torch.compiler.reset()
    monkeypatch.setattr(support, "capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    if (real := fused.fused_available)(torch.device("cpu")):
        raise AssertionError("the pretence below would hide that fused kernels claim to run on CPUs")
    for module in (fused, aw):
        monkeypatch.setattr(module, "fused_available", torch.compiler.assume_constant_result(lambda device: True))
    assert real(torch.device("cuda", 0))
    monkeypatch.setattr(aw, "average_pool", average_by_product)  # as on a GPU


def fake(model, x, device):
    """The model's parameters and the input without memory, on a device that may not exist."""

    def strip(tensor):
        without = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
        return nn.Parameter(without) if isinstance(tensor, nn.Parameter) else without

    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            tensors.update({name: strip(tensor) for name, tensor in tensors.items() if tensor is not None})
    return strip(x)


def operators(graph):
    return Counter(str(node.target) for node in graph.nodes if node.op == "call_function")


@functools.cache
def graphs(name, attention, size, *, layout=torch.contiguous_format, autocast=False, device="cpu"):
    """Forward and backward graph of a training step as the compiler gets them; on ``cuda`` the forward alone."""
    captured = {}

    def keep(key):
        def compiler(module, inputs):
            captured[key] = module.graph
            return make_boxed_func(module.forward) if device == "cpu" else module.forward

        return compiler

    model = Net() if name == "small" else timm.create_model(name)
    if attention:
        assert foveal.insert(model, "aw").sites
    model, x = model.to(memory_format=layout), torch.zeros(size).to(memory_format=layout)
    backend = keep("forward")
    if device == "cpu":
        backend = aot_autograd(
            fw_compiler=keep("forward"), bw_compiler=keep("backward"), partition_fn=min_cut_rematerialization_partition
        )
    with FakeTensorMode(allow_non_fake_inputs=True):
        x = fake(model, x, device)
        compiled = torch.compile(model, backend=backend, fullgraph=True)
        with torch.autocast(device, torch.bfloat16) if autocast else contextlib.nullcontext():
            out = compiled(x)
        if device == "cpu":
            out.float().sum().backward()
    return captured


def test_the_compiler_sees_the_operator():
    """In every version of PyTorch, one of which says "exporting" to a layer that is compiled."""
    seen = Counter()

    def backend(module, inputs):
        seen.update(operators(module.graph))
        return lambda *arguments: [torch.zeros(2, 32)]

    model = Net()
    assert foveal.insert(model, "aw").sites
    torch.compile(model, backend=backend, fullgraph=True)(torch.zeros(2, 3, 8, 8))
    assert seen["foveal.aw_site.default"] == 2


HALF = {"layout": torch.channels_last, "autocast": True}


@fakes
@pytest.mark.parametrize(
    ("name", "sites", "left", "options"),
    [
        ("small", 2, 1, HALF),
        pytest.param("small", 2, 1, {}, marks=slow),
        pytest.param("small", 2, 1, {"autocast": True}, marks=slow),
        pytest.param("resnet10t", 8, 6, HALF, marks=slow),
    ],
    ids=["channels last, autocast", "plain", "autocast", "resnet10t"],
)
def test_the_compiled_graphs_hold_the_fused_operator(name, sites, left, options):
    captured = graphs(name, True, (4, 3, 32, 32), **options)
    forward, backward = (operators(captured[key]) for key in ("forward", "backward"))
    assert backward["foveal.aw_site_backward.default"] == sites
    assert sum(count for name, count in forward.items() if "aw_site" in name or "auto_functionalized" in name) == sites
    assert forward["aten.convolution.default"] == backward["aten.convolution_backward.default"] == left
    assert not any("foveal" in name for name in forward.keys() - {"foveal.aw_site.default"})


@fakes
@pytest.mark.parametrize(("name", "sites", "left"), [("small", 2, 1), pytest.param("resnet10t", 8, 6, marks=slow)])
def test_on_a_gpu_too(name, sites, left):
    """Where the layer itself asks for the type of device; the graph is the one before differentiation."""
    seen = operators(graphs(name, True, (4, 3, 32, 32), device="cuda", layout=torch.channels_last)["forward"])
    convolutions = Counter("aw_" in name for name in seen.elements() if "conv2d" in name or "aw_" in name)
    assert convolutions == {True: sites, False: left}


def of_memory(node):
    return node.meta["val"].numel() * node.meta["val"].element_size()


def saved_bytes(captured):
    """Memory that the forward graph hands to the backward graph beside the model's own tensors."""
    (output,) = (node for node in captured["forward"].nodes if node.op == "output")
    own = {node for node in captured["forward"].nodes if node.op == "placeholder"}
    wanted = {node.name for node in captured["backward"].nodes if node.op == "placeholder"}
    kept = {node for node in output.args[0] if isinstance(node, torch.fx.Node)} - own
    return sum(of_memory(node) for node in kept if node.name in wanted and hasattr(node.meta["val"], "numel"))


@fakes
@pytest.mark.parametrize(
    ("name", "size"), [("small", (4, 3, 64, 64)), pytest.param("resnet10t", (32, 3, 224, 224), marks=slow)]
)
def test_the_backward_pass_keeps_little_more_memory(name, size):
    plain, attended = (saved_bytes(graphs(name, attention, size, **HALF)) for attention in (False, True))
    assert 0 < attended / plain < 1.1


@fakes
def test_nothing_is_copied_around_the_operator():
    """In channels last, every argument has the layout that the kernels read; so have the gradients."""
    captured, seen = graphs("small", True, (4, 3, 32, 32), **HALF), 0
    for graph in captured.values():
        assert not any("clone" in name for name in operators(graph))
        for node in graph.nodes:
            if "foveal" in str((node.target, *node.args[:1])):  # an operator that updates statistics is wrapped
                maps = [node.kwargs["x"]] if "x" in node.kwargs else node.args[:2]
                for tensor in (arg.meta["val"] for arg in maps):
                    assert tensor.dtype == torch.bfloat16
                    assert tensor.is_contiguous(memory_format=torch.channels_last)
                seen += 1
    assert seen == 4


@pytest.mark.parametrize("training", [True, False])
def test_of_a_pointwise_convolution_the_branch_is_one_operator(training):
    """The compiler does the convolution itself, and no norm or product of the branch."""
    seen = Counter()

    def backend(module, inputs):
        seen.update(operators(module.graph))
        return lambda *arguments: [torch.zeros(2, 32, 8, 8)]

    model = nn.Sequential(nn.Conv2d(3, 16, 1), nn.Conv2d(16, 32, 1, bias=False)).train(training)
    foveal.insert(model, "aw", at="1")
    torch.compile(model, backend=backend, fullgraph=True)(torch.zeros(2, 3, 8, 8))
    assert seen["foveal.aw_branch.default"] == 1
    assert sum("conv2d" in name for name in seen.elements()) == 2
    assert not any("batch_norm" in name or "linear" in name or "matmul" in name for name in seen)


@pytest.mark.parametrize("kernel", [3, 1])
def test_a_hook_inside_the_branch_is_not_lost(kernel):
    model = nn.Sequential(nn.Conv2d(3, 8, kernel)).eval()
    foveal.insert(model, "aw", at="0", start="paper")
    seen = Counter()

    def backend(module, inputs):
        seen.update(operators(module.graph))
        return module.forward

    x = torch.randn(4, 3, 6, 5)
    before = model(x)
    model[0].attached.aw.norm1.register_forward_hook(lambda module, arguments, out: out + 1)
    after = model(x)
    assert not torch.allclose(after, before)
    torch.testing.assert_close(torch.compile(model, backend=backend)(x), after)
    assert not any("aw_site" in name or "aw_branch" in name for name in seen)


def test_a_transform_of_a_compiled_pointwise_convolution():
    model = nn.Sequential(nn.Conv2d(3, 8, 1)).eval()
    foveal.insert(model, "aw", at="0", start="paper")
    gradient = torch.func.grad(lambda x: model(x).square().sum())
    x = torch.randn(2, 3, 4, 4)
    torch.testing.assert_close(torch.compile(gradient, backend="aot_eager", fullgraph=True)(x), gradient(x))


@slow
@pytest.mark.parametrize("kernel", [3, 1])
def test_compiled_equals_eager_at_every_batch_size(kernel, monkeypatch):
    """The operators run, in Triton's interpreter without a GPU: value, gradients, running statistics, and inference."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # the layers around, too
    torch.manual_seed(0)
    last = nn.Conv2d(8, 16, kernel, 2, kernel // 2, bias=False)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), last)
    foveal.insert(model, "aw", at="2", start="paper", reduction=4)
    model = model.to(device)
    twin = copy.deepcopy(model)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=True)
    for size in (2, 3, 5):
        x = torch.randn(size, 3, 8, 6, device=device)
        actual = compiled(x)
        with monkeypatch.context() as plain:
            plain.setattr(fused, "fused_available", lambda device: False)
            expected = twin(x)
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
        g = torch.randn_like(expected)
        for network, out in ((model, actual), (twin, expected)):
            network.zero_grad()
            out.backward(g)
        for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-4)
        for ours, theirs in zip(model.buffers(), twin.buffers(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    model.eval()
    twin.eval()
    with torch.no_grad(), monkeypatch.context() as plain:
        x = torch.randn(4, 3, 8, 6, device=device)
        actual = compiled(x)
        plain.setattr(fused, "fused_available", lambda device: False)
        torch.testing.assert_close(actual, twin(x), rtol=1e-4, atol=1e-5)
