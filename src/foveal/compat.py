"""Private API of PyTorch: every use of it is in this file, each with the public way or a safe answer beside it.

A private name is looked up once, at import. If a release of PyTorch drops it, the function falls back to public API, or
to the answer that is always correct and only slower.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

F = TypeVar("F", bound=Callable[..., Any])


def _private(owner: Any, path: str) -> Any:
    """The attribute ``path`` of ``owner``, or None if this version of PyTorch does not have it.

    >>> _private(torch, "nn.no_such_name") is None
    True
    """
    for name in path.split("."):
        owner = getattr(owner, name, None)
        if owner is None:
            return None
    return owner


_transforms_active = _private(torch, "_C._are_functorch_transforms_active")
_dispatch_modes = _private(torch, "_C._len_torch_dispatch_stack")
_function_modes = _private(torch, "_C._len_torch_function_stack")
_has_storage = _private(torch, "_C._has_storage")
_will_run = _private(torch, "_C._will_engine_execute_node")
_saved_tensor_hooks = _private(torch, "_C._autograd._top_saved_tensors_default_hooks")
_graph_task = _private(torch, "_C._current_graph_task_id")
_batch_norm_impl = _private(torch, "_batch_norm_impl_index")
_batch_norm_impl_backward = _private(torch.ops.aten, "_batch_norm_impl_index_backward")
_clear_workspaces = _private(torch, "_C._cuda_clearCublasWorkspaces")

raw_stream: Callable[[int], int] | None = _private(torch, "_C._cuda_getCurrentRawStream")
"""The current stream of a GPU, as CUDA's handle."""
empty_on_gpu: Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], Tensor] | None = _private(
    torch, "_C._dynamo.guards._empty_strided_cuda"
)
"""``torch.empty_strided`` on the current GPU, without what PyTorch does to find out what to call."""

BATCH_NORM: tuple[type[nn.Module], ...] = tuple(filter(None, [_private(nn.modules.batchnorm, "_BatchNorm")])) or (
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.SyncBatchNorm,
)
"""Base classes of all batch norms."""
INSTANCE_NORM: tuple[type[nn.Module], ...] = tuple(
    filter(None, [_private(nn.modules.instancenorm, "_InstanceNorm")])
) or (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
"""Base classes of all instance norms."""
CONV_FORWARD = tuple(name for name in ("forward", "_conv_forward") if hasattr(nn.Conv2d, name))
"""Methods by which a subclass of ``nn.Conv2d`` changes what it computes."""


# What is running --------------------------------------------------------------------------------------------------


def exporting() -> bool:
    """Whether ``torch.export`` or the ONNX exporter is tracing; False inside ``torch.compile``.

    ``torch.compiler.is_exporting()`` is True inside ``torch.compile`` too, in PyTorch 2.8 to 2.11; the flag is not. It
    is read here and not at import, because it changes; compiled code is guarded by it.
    """
    flag = getattr(torch.compiler, "_is_exporting_flag", None)
    return torch.compiler.is_exporting() if flag is None else flag


def transforms_active() -> bool:
    """Whether a transform of ``torch.func`` (vmap, grad, jvp, …) is active. If unknown, True."""
    return _transforms_active is None or _transforms_active()


def forward_mode_active() -> bool:
    """Whether forward-mode differentiation is active. If unknown, True."""
    return getattr(forward_ad, "_current_level", 0) >= 0


def dispatch_mode_active() -> bool:
    """Whether a ``TorchDispatchMode`` (FLOP counter, fake tensors, tracer, …) is active. If unknown, True."""
    return _dispatch_modes is None or _dispatch_modes() > 0


def function_modes() -> int:
    """Number of active ``TorchFunctionMode``; 0 if unknown."""
    return 0 if _function_modes is None else _function_modes()


def backward_running() -> bool:
    """Whether a backward pass is running on this thread. If unknown, False."""
    return _graph_task is not None and _graph_task() >= 0


def saved_tensor_hooks_active() -> bool:
    """Whether hooks decide how autograd saves tensors, as in activation checkpointing. If unknown, True."""
    return _saved_tensor_hooks is None or _saved_tensor_hooks(True) is not None


# Tensors and the graph --------------------------------------------------------------------------------------------


def has_storage(tensor: Tensor) -> bool:
    """Whether ``tensor`` has memory of its own, in contrast to a wrapper or a fake."""
    if _has_storage is not None:
        return _has_storage(tensor)
    try:
        return tensor.untyped_storage().device == tensor.device and tensor.data_ptr() >= 0
    except (RuntimeError, NotImplementedError):
        return False


def gradient_will_run(node: Any) -> bool:
    """Whether the running backward pass will execute ``node``. If unknown, True.

    Raises:
        RuntimeError: no backward pass is running, or ``node`` is a leaf whose gradient was asked for.
    """
    return _will_run is None or _will_run(node)


def python_function(node: Any) -> Any:
    """The ``autograd.Function`` class behind a node of the graph, or None for a node of PyTorch's own."""
    return getattr(node, "_forward_cls", None)


def frees_its_buffers(node: Any) -> bool:
    """Whether ``node`` is a compiled backward that frees its buffers when it first runs. If unknown, False."""
    return bool(getattr(getattr(python_function(node), "metadata", None), "bw_donated_idxs", None))


def apply_directly(function: Any, *arguments: Any) -> Any:
    """``function.apply(*arguments)`` of an ``autograd.Function``, without a search for wrappers of ``torch.func``.

    Only for a function without ``setup_context``, outside transforms, and for tensors that have storage.
    """
    return super(torch.autograd.Function, function).apply(*arguments)  # what Function.apply ends with


# Modules ----------------------------------------------------------------------------------------------------------

_GLOBAL_HOOKS = tuple(
    hooks
    for name in ("forward", "forward_pre", "backward", "backward_pre")
    if (hooks := _private(nn.modules.module, f"_global_{name}_hooks")) is not None
)


def only_computes(module: nn.Module, plain: type[nn.Module]) -> bool:
    """Whether calling ``module`` does what class ``plain`` does and nothing else: no subclass, hook or other forward.

    If unknown, False. It runs several times for every call of a layer: no loops.

    >>> layer = nn.Linear(2, 2)
    >>> only_computes(layer, nn.Linear), only_computes(layer, nn.Conv2d)
    (True, False)
    """
    if type(module) is not plain:  # a subclass, a parametrised module, or another one
        return False
    state = module.__dict__
    try:
        hooked = (
            state["_forward_hooks"]
            or state["_forward_pre_hooks"]
            or state["_backward_hooks"]
            or state["_backward_pre_hooks"]
        )
    except KeyError:
        return False
    return not (hooked or "forward" in state or any(_GLOBAL_HOOKS) or is_compiled_in_place(module))


def parameter_of(module: nn.Module, name: str) -> Any:
    """``getattr(module, name)``, without PyTorch's search in Python where it is a parameter.

    Replicas of ``nn.DataParallel``, and modules inside FSDP, have attributes instead.
    """
    found = module._parameters.get(name)
    return getattr(module, name) if found is None else found


def compiled_original(module: nn.Module) -> nn.Module | None:
    """The module inside a wrapper made by ``torch.compile``, or None if ``module`` is no such wrapper."""
    children = getattr(module, "_modules", None)
    return (dict(module.named_children()) if children is None else children).get("_orig_mod")


def plain_name(name: str) -> str:
    """A module's name without the wrappers that ``torch.compile`` adds.

    >>> plain_name("_orig_mod.layer4._orig_mod.conv1")
    'layer4.conv1'
    """
    return ".".join(part for part in name.split(".") if part != "_orig_mod")


def is_compiled_in_place(module: nn.Module) -> bool:
    """Whether ``module.compile()`` was called."""
    return getattr(module, "_compiled_call_impl", None) is not None


def keep_backward_buffers() -> AbstractContextManager[Any]:
    """Context manager: what is compiled inside has a backward pass that can run several times."""
    try:
        from torch._functorch import config

        return config.patch(donated_buffer=False)
    except (ImportError, AttributeError):  # then buffers are not donated, or backward says how to switch it off
        return nullcontext()


# Operators --------------------------------------------------------------------------------------------------------


def batch_norm_forward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, int]:
    """Batch norm in training mode with what its backward needs.

    Returns:
        Output, mean (C,), inverse standard deviation (C,), the workspace of cuDNN, and the number of the
        implementation that ran (−1 for the public one).
    """
    if _batch_norm_impl is not None and _batch_norm_impl_backward is not None:
        return _batch_norm_impl(
            x, weight, bias, running_mean, running_var, True, momentum, eps, torch.backends.cudnn.enabled
        )
    out, mean, inverse_std = torch.native_batch_norm(x, weight, bias, running_mean, running_var, True, momentum, eps)
    return out, mean, inverse_std, x.new_empty(0), -1


def batch_norm_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    mean: Tensor,
    inverse_std: Tensor,
    workspace: Tensor,
    implementation: int,
    eps: float,
    needed: list[bool],
) -> tuple[Tensor | None, ...]:
    """Gradients of x, weight and bias, those that ``needed`` says; arguments as :func:`batch_norm_forward` returns."""
    if implementation >= 0:
        return _batch_norm_impl_backward(
            implementation, x, grad, weight, None, None, mean, inverse_std, True, eps, needed, workspace
        )
    return torch.ops.aten.native_batch_norm_backward(grad, x, weight, None, None, mean, inverse_std, True, eps, needed)


def constant_result(function: F) -> F:
    """``torch.compiler.assume_constant_result`` without importing ``torch._dynamo``, which takes seconds."""
    if "torch._dynamo" in sys.modules:
        return torch.compiler.assume_constant_result(function)
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]  # what it does
    return function


def clear_cublas_workspaces() -> None:
    """Free the workspaces of cuBLAS, 32 MiB for every stream that ever multiplied matrices; no-op if unknown."""
    if _clear_workspaces is not None:
        _clear_workspaces()


def raise_recompile_limit(limit: int = 64) -> None:
    """Let one function have so many compiled forms: one process may train many models, one after the other."""
    config = _private(torch, "_dynamo.config")
    if config is not None:
        config.recompile_limit = max(limit, config.recompile_limit)
