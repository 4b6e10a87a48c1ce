"""Tapes that are repeated in C, with a driver that is pretended: its functions compute on the CPU."""

import copy
import ctypes
import gc
import itertools
import shutil
import struct
import sys
import weakref
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import foveal
from foveal import compat
from foveal.kernels import replay, tape, triton_launch
from foveal.kernels.replay import Kernel
from foveal.kernels.tape import empty, empty_like, empty_strided, note_launch, taped

pytestmark = pytest.mark.skipif(not (shutil.which("gcc") or shutil.which("clang")), reason="no C compiler")
COUNT = 64
WORDS = ctypes.POINTER(ctypes.c_uint32)


def values(address, count=COUNT):
    return torch.frombuffer((ctypes.c_float * count).from_address(address), dtype=torch.float32)


class Params(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS."""

    _fields_ = (
        ("function", ctypes.c_void_p), ("sizes", ctypes.c_uint32 * 7),
        *((name, ctypes.POINTER(ctypes.c_void_p)) for name in ("parameters", "extra")),
        ("kernel", ctypes.c_void_p), ("context", ctypes.c_void_p),
    )  # fmt: skip


class Driver:
    """Functions of CUDA. A kernel computes out = a + b + constant; b is read through the map of a tensor."""

    def __init__(self, with_graphs):
        self.launched, self.maps, self.status, self.context = [], [], 0, 1
        self.numbers, self.refused, self.capturing = itertools.count(1000), None, 0
        self.graphs, self.executables = {}, {}  # nodes by number: kernel and parameters
        self.changed = []  # which of the nodes of a graph got other parameters
        pointer, status = ctypes.c_void_p, ctypes.c_int
        kind, params = ctypes.CFUNCTYPE, ctypes.POINTER(Params)
        self.graph_functions = (
            kind(status, ctypes.POINTER(pointer), ctypes.c_uint)(self.create),
            kind(status, ctypes.POINTER(pointer), pointer, ctypes.POINTER(pointer), ctypes.c_size_t, params)(self.add),
            kind(status, ctypes.POINTER(pointer), pointer, ctypes.c_ulonglong)(self.instantiate),
            kind(status, pointer, pointer, params)(self.set),
            kind(status, pointer, pointer)(self.launch_graph),
            kind(status, pointer)(lambda executable: self.executables.pop(executable) is None),
            kind(status, pointer)(lambda graph: self.graphs.pop(graph) is None),
            kind(status, pointer, ctypes.POINTER(ctypes.c_int))(self.is_capturing),
        )
        if not with_graphs:
            self.graph_functions = ()
        self.functions = (
            ctypes.CFUNCTYPE(ctypes.c_int, WORDS, pointer, ctypes.POINTER(pointer), pointer)(self.launch),
            ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_uint64), pointer)(self.replace),
            ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(pointer))(self.current),
        )

    @staticmethod
    def addresses(functions):
        return tuple(ctypes.cast(function, ctypes.c_void_p).value for function in functions)

    def launch(self, config, function, parameters, extra):
        stream = ctypes.cast(config, ctypes.POINTER(ctypes.c_uint64))[4]
        self.run((function, *config[:7]), self.read(parameters), stream)
        return self.status

    def read(self, parameters):
        """The values of a kernel's parameters: three addresses and a constant."""
        a, b, out, constant = parameters[:4]
        assert b % 64 == 0
        addresses = [ctypes.c_uint64.from_address(p).value for p in (a, b, out)]
        return *addresses, ctypes.c_float.from_address(constant).value

    def run(self, kernel, parameters, stream):
        function, *sizes = kernel
        self.launched.append((function, tuple(sizes[:3]), tuple(sizes[3:6]), sizes[6], stream))
        first, second, third, constant = parameters
        values(third)[:] = values(first) + values(second) + constant

    def create(self, graph, flags):
        graph[0] = next(self.numbers)
        self.graphs[graph[0]] = {}
        return self.answer("create")

    def answer(self, name):
        return 2 if self.refused == name else self.status

    def add(self, node, graph, before, count, params):
        nodes = self.graphs[graph]
        assert ([before[0]] if count else []) == list(nodes)[-1:]  # one after the other
        params, node[0] = params.contents, next(self.numbers)
        nodes[node[0]] = [(params.function, *params.sizes), self.read(params.parameters)]
        return self.answer("add")

    def instantiate(self, executable, graph, flags):
        executable[0] = next(self.numbers)
        self.executables[executable[0]] = copy.deepcopy(self.graphs[graph])
        return self.answer("instantiate")

    def set(self, executable, node, params):
        params, known = params.contents, self.executables[executable][node]
        assert known[0] == (params.function, *params.sizes)
        known[1] = self.read(params.parameters)
        self.changed.append(list(self.executables[executable]).index(node))
        return self.answer("set")

    def launch_graph(self, executable, stream):
        if not self.status:
            for kernel, parameters in self.executables[executable].values():
                self.run(kernel, parameters, stream)
        return self.status

    def is_capturing(self, stream, status):
        status[0] = self.capturing
        return 0

    def replace(self, tensor_map, address):
        self.maps.append(address)
        assert tensor_map[1] == 7  # the rest of the map stays
        tensor_map[0] = address
        return self.status

    def current(self, context):
        context[0] = self.context or None
        return 0


@pytest.fixture(params=["graph", "one by one"])
def driver(monkeypatch, request):
    pretended = Driver(request.param == "graph")
    monkeypatch.setattr(tape, "_tapes", {})
    monkeypatch.setattr(replay, "_functions", lambda: pretended.addresses(pretended.functions))
    monkeypatch.setattr(replay, "_graph_functions", lambda: pretended.addresses(pretended.graph_functions))
    monkeypatch.setattr(compat, "raw_stream", lambda device: 123)
    monkeypatch.setattr(
        compat, "empty_on_gpu", lambda size, stride, dtype: torch.empty_strided(size, stride, dtype=dtype)
    )
    assert replay.available()
    return pretended


MAP = struct.pack("QQ", 0, 7) + bytes(112)


def kernel(constant):
    return Kernel(99, (2, 3, 4), 128, 1 << 12, (0, (1, MAP), 2, struct.pack("f", constant), bytes(8)))


def add(a, b, out, constant):
    """What a prepared launch does: launch, and note how to do it again."""
    values(out.data_ptr())[:] = a.reshape(-1) + b.reshape(-1) + constant
    note_launch(lambda addresses: pytest.fail("in Python"), [t.data_ptr() for t in (a, b, out)], kernel(constant))


def sums(a, b):
    """a + b + 1 and 2 a + b + 3, through temporary memory."""
    between, out = empty((COUNT,), torch.float32, a.device), empty_like(a)
    other = empty_strided((1, 8, 2, 4), (64, 1, 32, 8), torch.float32, a.device)
    add(a, b, between, 1.0)
    add(between, a, out, 2.0)
    add(a, b, other, 1.0)
    return out, None, other


def test_values_with_other_tensors(driver):
    for call in range(6):
        a, b = torch.randn(COUNT), torch.randn(COUNT)
        before = len(driver.launched)
        out, nothing, other = taped("key", sums, (a, b))
        assert nothing is None
        assert len(driver.launched) - before == (3 if call > 1 else 0)
        torch.testing.assert_close(out, 2 * a + b + 3)
        torch.testing.assert_close(values(other.data_ptr()), a + b + 1)
        assert (other.shape, other.stride()) == ((1, 8, 2, 4), (64, 1, 32, 8))
    assert set(driver.launched) == {(99, (2, 3, 4), (128, 1, 1), 1 << 12, 123)}


def test_the_address_in_a_map_is_replaced_only_if_it_is_another(driver):
    a, b = torch.randn(COUNT), torch.randn(COUNT)
    for _ in range(5):
        taped("key", sums, (a, b))
    assert driver.maps == [b.data_ptr(), a.data_ptr(), b.data_ptr()]
    taped("key", sums, (a, b.clone()))
    assert len(driver.maps) == 5


@pytest.mark.parametrize("reason", ["not aligned", "no context"])
def test_a_call_that_cannot_be_repeated_runs_the_function(driver, reason):
    ran = []

    def counted(*tensors):
        ran.append(1)
        return sums(*tensors)

    tensors = torch.randn(COUNT), torch.randn(COUNT)
    for _ in range(3):
        taped("key", counted, tensors)
    assert len(ran) == 2
    if reason == "no context":
        driver.context = 0
    else:
        tensors = torch.randn(COUNT + 1)[1:], tensors[1]
    out, *_ = taped("key", counted, tensors)
    assert len(ran) == 3
    torch.testing.assert_close(out, 2 * tensors[0] + tensors[1] + 3)


@pytest.fixture
def graphs(driver):
    if not driver.graph_functions:
        pytest.skip("of graphs")
    yield driver
    gc.collect()
    assert not driver.graphs
    assert not driver.executables


def two_kernels():
    """A program whose first kernel adds its second tensor to the first, and whose second one doubles the second."""
    return replay.program(2, [], 0, [(kernel(1.0), [(0, 0), (1, 0), (0, 0)]), (kernel(2.0), [(1, 0), (1, 0)] * 2)])


def run(program, a, b):
    expected = a + b + 1, 2 * b + 2
    program((a, b), 0)
    torch.testing.assert_close((a, b), expected)


def test_tensors_that_come_again_need_no_change(graphs):
    program, pairs = two_kernels(), torch.randn(10, 2, COUNT).unbind()
    for i in (*range(10), *range(10), 3, 3, 9, 0, 5):
        run(program, *pairs[i])
    assert (len(graphs.graphs), len(graphs.executables), graphs.changed) == (10, 10, [])


def test_only_nodes_with_other_parameters_are_changed(graphs):
    """There is an end to graphs: then the one that was not used for the longest time is changed."""
    program, a, b = two_kernels(), torch.randn(40, COUNT), torch.randn(2, COUNT)
    for i in range(32):
        run(program, a[i], b[0])
    assert (len(graphs.graphs), graphs.changed) == (32, [])
    run(program, a[0], b[0])  # the second is the oldest now
    run(program, a[32], b[0])
    assert (len(graphs.graphs), graphs.changed) == (32, [0])
    run(program, a[0], b[0])
    run(program, a[32], b[0])
    assert graphs.changed == [0]
    run(program, a[1], b[1])
    assert (len(graphs.graphs), graphs.changed) == (32, [0, 0, 1])
    run(program, a[33], b[1])  # both nodes of the fourth
    run(program, a[33], b[1])
    assert graphs.changed == [0, 0, 1, 0, 1]


@pytest.mark.parametrize("what", ["create", "add", "instantiate"])
def test_where_no_graph_can_be_made_kernels_are_launched(graphs, what):
    program, pairs = two_kernels(), torch.randn(4, 2, COUNT).unbind()
    run(program, *pairs[0])
    graphs.refused = what
    run(program, *pairs[1])
    graphs.refused = None
    assert len(graphs.graphs) == len(graphs.executables) == 1
    for i in (2, 0, 2):  # no more of them are tried
        run(program, *pairs[i])
    assert len(graphs.graphs) == 1
    other = two_kernels()
    graphs.refused = what
    for i in range(4):
        run(other, *pairs[i])
    assert len(graphs.graphs) == 1


def test_a_graph_that_cannot_be_changed_goes(graphs):
    program, a, b = two_kernels(), torch.randn(40, COUNT), torch.randn(COUNT)
    for i in (*range(32), 0, 1):  # the third is the oldest now
        run(program, a[i], b)
    graphs.refused = "set"
    run(program, a[33], b)
    graphs.refused = None
    assert len(graphs.graphs) == len(graphs.executables) == 31
    for i in (31, *range(2), *range(3, 31)):  # the last one is where the third was
        run(program, a[i], b)
    assert (len(graphs.graphs), graphs.changed) == (31, [0])
    run(program, a[33], b)
    assert (len(graphs.graphs), graphs.changed) == (32, [0])


def test_graphs_of_all_programs_together_are_limited(graphs):
    many = [(kernel(1.0), [(0, 0), (1, 0), (0, 0)])] * 80
    programs, pairs = [replay.program(2, [], 0, many) for _ in range(5)], torch.zeros(32, 2, COUNT).unbind()
    for i, program in enumerate(programs, 1):
        for a, b in pairs:
            program((a, b), 0)
            assert a[0] == 80 * i
    assert len(graphs.graphs) == 8192 // 80  # the last program has none


def test_a_stream_that_is_captured_gets_launches(driver):
    a, b = torch.randn(COUNT), torch.randn(COUNT)
    for _ in range(3):
        taped("key", sums, (a, b))
    before, made = len(driver.launched), len(driver.graphs)
    driver.capturing = 1
    out, *_ = taped("key", sums, (a.clone(), b))
    torch.testing.assert_close(out, 2 * a + b + 3)
    assert len(driver.launched) == before + 3
    assert made == len(driver.graphs) == bool(driver.graph_functions)
    assert not driver.changed


def test_an_error_of_the_driver_is_raised(driver):
    tensors = torch.randn(COUNT), torch.randn(COUNT)
    for _ in range(3):
        taped("key", sums, tensors)
    driver.status = 700
    with pytest.raises(RuntimeError, match="error 700"):
        taped("key", sums, tensors)
    driver.status = 0
    out, *_ = taped("key", sums, tensors)
    torch.testing.assert_close(out, 2 * tensors[0] + tensors[1] + 3)


def test_wrong_arguments_are_refused(driver, monkeypatch):
    program = replay.program(1, [None], 0, [])
    assert program((None,), 0) == [None]
    for arguments in ((), ((None,),), ((None, None), 0), (3, 0), ((None,), "stream"), ((3,), 0)):
        with pytest.raises((TypeError, ValueError, AttributeError)):
            program(*arguments)
    one = Kernel(1, (1, 1, 1), 32, 0, (0,))
    with pytest.raises(ValueError, match="no tensor"):
        replay.program(1, [], 0, [(one, [(1, 0)])])
    with pytest.raises(ValueError, match="too many"):
        replay.program(1, [], 0, [(one._replace(parameters=(bytes(1 << 16),)), [])])
    monkeypatch.setattr(replay, "_graph_functions", lambda: (1,))
    with pytest.raises(ValueError, match="functions of graphs"):
        replay.program(1, [], 0, [])


def test_nothing_is_kept(driver, monkeypatch):
    allocated, real = [], compat.empty_on_gpu

    def empty(*arguments):
        tensor = real(*arguments)
        allocated.append(weakref.ref(tensor))
        return tensor

    monkeypatch.setattr(compat, "empty_on_gpu", empty)
    tensors = torch.randn(COUNT), torch.randn(COUNT)
    for _ in range(4):
        taped("key", sums, tensors)
    counts = [sys.getrefcount(tensor) for tensor in tensors]
    results = [taped("key", sums, tensors) for _ in range(10)]
    assert len(allocated) == 3 * 12
    assert sum(tensor() is not None for tensor in allocated) == 2 * 10  # not the temporary memory
    del results
    assert not any(tensor() is not None for tensor in allocated)
    assert [sys.getrefcount(tensor) for tensor in tensors] == counts


def test_without_a_driver_or_compiler_there_is_none(monkeypatch):
    monkeypatch.setattr(replay, "_functions", lambda: None)
    assert not replay.available()
    monkeypatch.undo()
    monkeypatch.setattr(replay, "_module", lambda: None)
    assert not replay.available()


# What Triton knows of a kernel ------------------------------------------------------------------------------------


def compiled(signature=None, ptx=None, ctas=1, about=("about",), shared=1000, **flags):
    return SimpleNamespace(
        run=SimpleNamespace(**{"global_scratch_size": 0, "launch_pdl": False} | flags), function=5,
        metadata=SimpleNamespace(tensordesc_meta=about, num_warps=4, num_ctas=ctas, shared=shared),
        src=SimpleNamespace(signature=dict(enumerate(signature or SIGNATURE))),
        asm={"ptx": PTX if ptx is None else ptx},
    )  # fmt: skip


@pytest.fixture(params=["two arguments", "three"])
def expands(request, monkeypatch):
    def expand(descriptor, about):
        return [f"map of {descriptor} {about}", 3, 4, 8, 1]

    def expand_of_three(descriptor, about, base):
        assert base is None
        return expand(descriptor, about)

    expand_known = expand if request.param == "two arguments" else expand_of_three
    monkeypatch.setitem(sys.modules, "triton.backends.nvidia.driver", SimpleNamespace(make_tensordesc_arg=expand_known))
    monkeypatch.setattr(triton_launch, "_content", lambda tensor_map: tensor_map.encode())


SIGNATURE = ["tensordesc<bf16[8, 16]>", "*fp32", "constexpr", "i32", "constexpr", "fp32", "i64", "i1"]
ARGUMENTS = ["d", None, None], (7, 1, 0.5, -3, True)
POINTER = ".param .u64 .ptr .global .align 1 p"
WIDTHS = [f".param .{kind} p" for kind in ("u32", "u32", "u64", "u64")]
PARAMETERS = [".param .align 64 .b8 p[128]", *WIDTHS, POINTER, *(f".param .{k} p" for k in ("u32", "f32", "u64", "u8"))]
PTX = f".visible .entry k_1(\n\t{', '.join([*PARAMETERS, POINTER, POINTER])}\n)\n.reqntid 128\n{{ }}"


def test_parameters_of_a_kernel(expands):
    owner = compiled()
    kernel = triton_launch.driver_kernel(owner, (2, 1, 1), *ARGUMENTS)
    pack = struct.pack
    about_the_map = pack("i", 3), pack("i", 4), pack("q", 8), pack("q", 1)
    rest = pack("i", 7), pack("f", 0.5), pack("q", -3), b"\1", bytes(8), bytes(8)
    assert kernel == (5, (2, 1, 1), 128, 1000, ((0, b"map of d about"), *about_the_map, 1, *rest), owner)


@pytest.mark.parametrize(
    "known",
    [
        {"launch_pdl": True},
        {"launch_cooperative_grid": True},
        {"global_scratch_size": 4},
        {"ctas": 2},
        {"shared": 1 << 18},
        {"about": ()},  # of a GPU before Hopper
        {"about": None},
        {"signature": [*SIGNATURE[:-1], "bf16"]},
        {"signature": SIGNATURE[:-1]},
        {"signature": [*SIGNATURE[:3], "*fp32", *SIGNATURE[4:]]},
        {"ptx": ""},
        {"ptx": PTX.replace(".f32", ".f64")},
        {"ptx": PTX.replace(".u8 p", f".u8 p, {POINTER}")},
        {"ptx": PTX.replace(", .param .u8 p", "")},
        {"ptx": PTX.replace(f"{POINTER}\n", ".param .u32 p\n")},
    ],
)
def test_a_kernel_that_is_not_known(expands, known):
    assert triton_launch.driver_kernel(compiled(**known), (2, 1, 1), *ARGUMENTS) is None


def test_a_tensor_map_that_is_not_known():
    with pytest.raises(TypeError, match="no tensor map"):
        triton_launch._content(object())


# On a GPU ---------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("mechanism", ["aw", "se", "cbam"])
def test_layers_that_are_repeated_equal_plain_ones(mechanism, training, monkeypatch):
    """Seven calls with tensors at other addresses, each beside the plain form, which runs when somebody watches."""
    monkeypatch.setattr(tape, "_tapes", {})
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(64, 64, 3, padding=1, bias=False)).cuda().to(memory_format=torch.channels_last)
    foveal.insert(model, mechanism, at="0", start="paper")
    model.train(training)
    plain, kept = copy.deepcopy(model), []
    for _ in range(7):
        x = torch.randn(8, 64, 14, 14, device="cuda").to(memory_format=torch.channels_last)
        g, kept = torch.randn_like(x), [*kept, x]
        gradients = []
        for network in (model, plain):
            inputs = x.clone().requires_grad_()
            with foveal.watch(network) if network is plain else nullcontext():
                out = network(inputs)
            out.backward(g)
            gradients.append([out, inputs.grad, *(p.grad for p in network.parameters()), *network.buffers()])
            network.zero_grad()
        for one, other in zip(*gradients, strict=True):
            torch.testing.assert_close(one, other, atol=2e-3 * float(other.abs().max()) + 1e-5, rtol=1e-3)
    assert replay.available()
    assert any(isinstance(known, tape.CompiledTape) for known in tape._tapes.values())
