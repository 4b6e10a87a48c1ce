"""Every Triton kernel becomes code for a Hopper GPU with the types it is launched with; no GPU is needed for that.

The interpreter, in which the other tests run without a GPU, converts types where Triton's compiler refuses them.
"""

import sys
from types import SimpleNamespace

import pytest
import torch
import triton
import triton.language as tl
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime import driver
from triton.runtime.jit import JITFunction, KernelInterface

from foveal.kernels import conv_pool, copies, prepared, triton_launch
from foveal.kernels.aw import branch, branch_launch, depthwise, pointwise, pointwise_kernels, weight_grad  # noqa: F401
from foveal.kernels.aw import launch as aw
from foveal.kernels.aw.geometry import Geometry, channels_last
from foveal.kernels.center_mass import launch as center_mass
from foveal.kernels.deform import launch as deform
from foveal.kernels.deform.plain import Geometry as DeformGeometry
from foveal.kernels.dynamic import fused as dynamic
from foveal.kernels.dynamic import triton_kernels as dynamic_kernels
from foveal.kernels.gates import launch as gates
from foveal.kernels.second_order import batch_norm_triton

TARGET = GPUTarget("cuda", 90, 32)
HALF, SINGLE = torch.bfloat16, torch.float32


def _language():
    """Modules of Triton's language, and classes in them."""
    modules = [module for name, module in list(sys.modules.items()) if name.startswith("triton.language")]
    return modules + [value for module in modules for value in vars(module).values() if isinstance(value, type)]


# Before any kernel is interpreted: the interpreter replaces functions of the language, and leaves some replaced.
ORIGINAL = [(space, dict(vars(space))) for space in _language()]


def _intermediate(src, target, options):
    """The first stage of ``triton.compile``, which finds all errors of types; the others take ten times as long."""
    backend, context = make_backend(target), ir.context()
    options = backend.parse_options(options)
    ir.load_dialects(context)
    backend.load_dialects(context)
    functions, modules = backend.get_codegen_implementation(options), backend.get_module_map()
    module = src.make_ir(target, options, functions, modules, context)
    assert "f64" not in str(module)  # some number is outside the range of float32
    return True


class _Compiled(JITFunction):
    """A kernel that is compiled at its launch, and not launched."""

    known: set

    def create_binder(self):
        binder = super().create_binder()
        self.compile = _intermediate
        return binder

    def __getitem__(self, grid):
        self.known.add((self.fn.__module__, self.fn.__name__))
        return lambda *args, **options: self.warmup(*args, grid=grid, **options)


@pytest.fixture
def compiled(monkeypatch):
    """All kernels, also those of Triton's language, are compiled; yields names of those that were launched."""
    for space, before in ORIGINAL:
        for name, value in before.items():
            if vars(space)[name] is not value:
                monkeypatch.setattr(space, name, value)
    kernels, known = {}, set()
    for name, module in list(sys.modules.items()):
        if name.startswith(("triton.language", "foveal.kernels")):
            for attribute, value in list(vars(module).items()):
                if isinstance(value, KernelInterface):
                    kernel = kernels.setdefault(value.fn, _Compiled(value.fn))
                    kernel.known = known
                    monkeypatch.setattr(module, attribute, kernel)
    gpu = {
        "get_current_device": lambda: 0,
        "get_current_stream": lambda device: 0,
        "get_current_target": lambda: TARGET,
    }
    monkeypatch.setattr(type(driver), "active", SimpleNamespace(**gpu))
    monkeypatch.setattr(prepared, "_ready", {})
    monkeypatch.setattr(prepared, "DIRECT", False)
    return known


def _every_kernel_of(room):
    """Module and name of the kernels in a package or module; helpers begin with an underscore."""
    for name, module in list(sys.modules.items()):
        if name == room or name.startswith(f"{room}."):
            for attribute, value in vars(module).items():
                if isinstance(value, KernelInterface) and value.fn.__module__ == name and attribute[0] != "_":
                    yield name, attribute


@pytest.mark.parametrize(
    ("rule", "dtype", "count", "masked"),
    [
        ("different", HALF, 128, False),
        ("different", torch.float16, 128, True),
        ("different", SINGLE, 100, True),
        ("same", HALF, 100, True),
        ("table", SINGLE, 128, False),
        ("pairs", HALF, 128, False),
    ],
)
def test_center_mass(compiled, rule, dtype, count, masked):
    q, k = (torch.zeros(2, count, 48, dtype=dtype) for _ in range(2))
    target = torch.zeros(2, count, count, dtype=torch.bool) if rule == "pairs" else torch.zeros(2, count).long()
    valid = torch.ones(2, count, dtype=torch.bool) if masked else None
    table = torch.ones(2, 5, 5, dtype=torch.bool) if rule == "table" else None
    inputs = center_mass.prepare(q, k, valid, target, torch.arange(2), table, rule)
    rows = center_mass.row_sums(q, inputs, masked, rule, 0.5)
    center_mass.gradients(q, inputs, *rows, *rows, rule, 0.5)
    sums = center_mass.graph_sums(q, inputs, masked, rule, 0.5)
    for shape in ("focal", "l2", "smooth_l1"):
        _, rates = center_mass.mean_loss(*sums, shape, 2.0)
    center_mass.gradients(q, inputs, *rates, *sums, rule, 0.5, torch.ones(()))
    assert compiled.issuperset(_every_kernel_of("foveal.kernels.center_mass"))


@pytest.mark.parametrize(
    ("spatial", "blend", "pools", "size", "training", "last", "dtype"),
    [
        (False, False, (True, False), 14, False, False, HALF),
        (False, True, (True, True), 14, False, True, SINGLE),
        (True, False, (True, True), 14, True, True, HALF),
        (True, True, (False, True), 5, False, False, HALF),
    ],
)
def test_gates(compiled, spatial, blend, pools, size, training, last, dtype):
    """Of parts of a map the maximum needs a kernel for the perceptron."""
    x = torch.zeros(2, 64, size, size, dtype=dtype)
    x = channels_last(x) if last else x
    parameters = [torch.zeros(size) for size in ((4, 64), 4, (64, 4), 64)] + [torch.tensor(0.5) if blend else None]
    parameters += [torch.zeros(size) for size in ((1, 2, 7, 7), 1, 1)] if spatial else [None] * 3
    norm = gates.Norm(torch.zeros(1), torch.ones(1), torch.tensor(0), 0.1, 1e-5, training) if spatial else None
    _, kept = gates.forward(x, parameters, gates.Pools(*pools), norm)
    squeezed = size < 14 or not pools[1]
    gate = {"pool", "multiply"} | ({"perceptron"} if not squeezed else {"excite"} if spatial else set())
    assert {name for module, name in compiled if module.endswith("channel_kernels")} == gate
    assert gates.gates(x, parameters, gates.Pools(*pools), norm)[0].shape == kept.state.shape
    gates.backward(x, x, parameters, gates.Pools(*pools), kept, training, True)
    wanted = set(_every_kernel_of("foveal.kernels.gates.gradient_kernels"))
    if spatial:
        wanted |= set(_every_kernel_of("foveal.kernels.gates.spatial_kernels"))
        wanted -= set() if training else {("foveal.kernels.gates.spatial_kernels", "norm")}
    assert compiled.issuperset(wanted)


@pytest.mark.parametrize(("groups", "dtype", "stride"), [(1, HALF, 1), (8, HALF, 2), (64, HALF, 1), (1, SINGLE, 1)])
def test_aw(compiled, monkeypatch, groups, dtype, stride):
    """All forms of the weight gradient, and tiles within a sample and across samples."""

    def one_of_each_kind(key, candidates, launch, threads=8):
        kinds = {option if isinstance(option, str) else option.box[0] > 1: option for option in candidates()}
        return [launch(option) for option in kinds.values()][-1]

    for module in (aw, weight_grad, depthwise):
        monkeypatch.setattr(module, "run", one_of_each_kind)
    sizes = (3, 3, stride, (1, 1), (1, 1), groups, dtype, torch.device("cpu"), dtype == SINGLE)
    geometry = Geometry(64, 64, 8, 8, 64, *sizes)
    x, scale = (channels_last(torch.zeros(64, 64, size, size, dtype=dtype)) for size in (8, 3))
    g = channels_last(torch.zeros(64, 64, geometry.oh, geometry.ow, dtype=dtype))
    weight = torch.zeros(64, 64 // groups, 3, 3, dtype=dtype)
    depth = depthwise.is_depthwise(geometry)
    plan = depthwise.Plan(geometry) if depth else aw.Plan(geometry)
    if not depth:
        plan.hopper = plan.weights.hopper = True
    for bias in (None, torch.zeros(64)):
        plan.forward(x, weight, scale, bias)
    plan.weights(g, x, weight, scale, (SINGLE, dtype))
    plan.input_grad(g, weight, scale)
    kernels = ("depthwise_kernels",) if depth else ("triton_kernels", "gradient_kernels")
    for module in kernels:
        assert compiled.issuperset(_every_kernel_of(f"foveal.kernels.aw.{module}"))


@pytest.mark.parametrize(
    ("blend", "batch", "dtype"),
    [(True, True, HALF), (False, True, SINGLE), (False, False, SINGLE), (True, False, HALF)],
)
def test_branch_of_aw(compiled, blend, batch, dtype):
    parameters = [torch.zeros(size) for size in ((16, 64, 1, 1), 16, 16, (64, 16, 1, 1), 64, 64)]
    amount = torch.tensor(0.5) if blend else None
    norms = [
        branch.Norm(torch.zeros(width), torch.ones(width), torch.tensor(0), batch, 0.1, 1e-5) for width in (16, 64)
    ]
    of = branch.Branch((3, 3), blend, *norms, dtype)
    x = channels_last(torch.zeros(4, 64, 8, 8, dtype=dtype))
    multiplier, kept = branch_launch.forward(x, branch.Parameters(*parameters, amount), of)
    _, cells = branch_launch.backward(multiplier, branch.Parameters(*parameters, amount), kept, of, x.shape)
    branch_launch.pool_grad(cells, x, (3, 3))
    assert compiled.issuperset(_every_kernel_of(f"foveal.kernels.aw.{'branch' if batch else 'eval'}_kernels"))
    assert compiled.issuperset(_every_kernel_of("foveal.kernels.aw.branch_gradient_kernels"))


@pytest.mark.parametrize("dtype", [HALF, SINGLE])
def test_pointwise_aw(compiled, dtype):
    parameters = [torch.zeros(size) for size in ((16, 64, 1, 1), 16, 16, (96, 16, 1, 1), 96, 96)]
    norms = [branch.Norm(torch.zeros(width), torch.ones(width), torch.tensor(0), True, 0.1, 1e-5) for width in (16, 96)]
    of = branch.Branch((1, 1), True, *norms, dtype)
    y, multiplier = (channels_last(torch.zeros(4, 96, size, size, dtype=dtype)) for size in (8, 1))
    x = channels_last(torch.zeros(4, 64, 8, 8, dtype=dtype))
    _, kept = branch_launch.forward(x, branch.Parameters(*parameters, None), of)
    pointwise._backward(y, y, multiplier, kept, *parameters, None, of, x.shape)
    assert compiled.issuperset(_every_kernel_of("foveal.kernels.aw.pointwise_kernels"))
    assert ("foveal.kernels.aw.pointwise_kernels", "scale_grad") in compiled


@pytest.mark.parametrize(("size", "last", "dtype"), [(4, False, SINGLE), (70, True, HALF), (70, False, HALF)])
def test_second_order(compiled, size, last, dtype):
    x, weight = torch.zeros(1, 8, size, size, dtype=dtype), torch.zeros(8)
    batch_norm_triton.second_order(channels_last(x) if last else x, x, x, weight, weight, weight, last)
    kernels = {name for _, name in compiled}
    assert kernels == ({"_results"} if size == 4 else {"_sums", "_results"})


@pytest.mark.parametrize("dtype", [HALF, SINGLE])
def test_conv_pool(compiled, dtype):
    x, weight = channels_last(torch.zeros(2, 3, 16, 16, dtype=dtype)), torch.zeros(32, 3, 3, 3, dtype=dtype)
    out, corner = conv_pool.conv_pool_op._init_fn(x, weight)  # calling the operator imports a compiler, for seconds
    conv_pool.conv_pool_weight_grad._init_fn(x, out, corner)
    assert {name for _, name in compiled} == {"_forward", "_backward"}


@pytest.mark.parametrize("dtype", [HALF, SINGLE])
def test_copies(compiled, dtype):
    copies.sum_parts(torch.zeros(3, 40), dtype)
    copies.padded(channels_last(torch.zeros(2, 8, 5, 5, dtype=dtype)), 6, 8)
    copies.packed(torch.zeros(32, 8, 3, 3), dtype, 4, 2)
    assert compiled.issuperset(_every_kernel_of("foveal.kernels.copy_kernels"))


@pytest.mark.parametrize(("modulated", "dtype"), [(True, HALF), (False, SINGLE)])
def test_deform(compiled, modulated, dtype):
    deform._prepared.cache_clear()
    geometry = DeformGeometry((3, 3), (1, 1), (1, 1), (1, 1), 2)
    x, offset = torch.zeros(2, 32, 6, 6, dtype=dtype), torch.zeros(2, 36, 6, 6, dtype=dtype)
    modulation = torch.zeros(2, 18, 6, 6, dtype=dtype) if modulated else None
    weight = torch.zeros(16, 32, 3, 3, dtype=dtype)
    out = deform.forward(x, offset, modulation, weight, geometry)
    deform.backward(out, x, offset, modulation, weight, geometry)
    deform._prepared.cache_clear()
    assert compiled.issuperset(_every_kernel_of("foveal.kernels.deform"))


@pytest.mark.parametrize("dtype", [HALF, SINGLE])
def test_dynamic(compiled, dtype):
    dynamic._prepared.cache_clear()
    x, weights = torch.zeros(2, 32, 6, 6, dtype=dtype), torch.zeros(2, 4, 9, 6, 6, dtype=dtype)
    dynamic._forward(x, weights, (3, 3), (1, 1))
    dynamic._backward(x, x, weights, (3, 3), (1, 1))
    dynamic._prepared.cache_clear()
    assert compiled.issuperset(_every_kernel_of(dynamic_kernels.__name__))


def _sums(tensor, out, nothing, count, one, number, large, flag, side: tl.constexpr):
    value = tl.sum(tensor.load([0, 0]).to(tl.float32)) + count + one + number + large + flag
    tl.store(out + count + side, value)


def test_parameters_that_the_driver_is_given_are_those_of_the_code(compiled, monkeypatch):
    """Of a kernel with all kinds of arguments, with the Triton that is installed; see foveal.kernels.triton_launch."""
    kinds = ["tensordesc<bf16[8, 16]>", "*fp32", "constexpr", "i32", "constexpr", "fp32", "i64", "i1", "constexpr"]
    kernel = JITFunction(_sums)
    source = ASTSource(kernel, dict(zip(kernel.arg_names, kinds, strict=True)), {(2,): None, (4,): 1, (8,): 4})
    result = triton.compile(source, target=TARGET, options={"num_warps": 4})
    monkeypatch.setattr(triton_launch, "_expanded", lambda descriptor, about: [descriptor, 64, 32, 32, 1])
    monkeypatch.setattr(triton_launch, "_content", lambda tensor_map: bytes(128))
    known = SimpleNamespace(
        run=SimpleNamespace(global_scratch_size=0), metadata=result.metadata, src=source, asm=result.asm, function=5,
    )  # fmt: skip
    arguments = (7, 1, 0.5, 1 << 40, True, 4)
    found = triton_launch.driver_kernel(known, (1, 1, 1), ["descriptor", None, None], arguments)
    assert found is not None
    assert (found.threads, found.shared) == (128, result.metadata.shared)
    sizes = [128, 4, 4, 8, 8, 8, 4, 4, 8, 1]  # a map with sizes and strides, an address, numbers
    assert [triton_launch._size(parameter) for parameter in found.parameters[:10]] == sizes
    assert set(found.parameters[10:]) == {bytes(8)}
    assert found.parameters[5] == 1
    assert triton_launch.driver_kernel(known, (1, 1, 1), ["descriptor", None, None], arguments[:-1]) is None
