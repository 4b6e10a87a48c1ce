"""Whether and where fused kernels can run, and which gradients are asked of them."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from functools import cache, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")


def on_its_device(launch: Callable[Concatenate[Tensor, P], R]) -> Callable[Concatenate[Tensor, P], R]:
    """Decorator: kernels are launched on the GPU of the first argument, whichever is the current one."""

    @wraps(launch)
    def there(x: Tensor, *args: P.args, **kwargs: P.kwargs) -> R:
        with torch.cuda.device_of(x):
            return launch(x, *args, **kwargs)

    return there


@cache
def _triton() -> bool:
    if importlib.util.find_spec("triton") is None:
        warnings.warn("Triton is not installed: plain PyTorch is used instead of fused kernels", stacklevel=4)
        return False
    return True


@cache
def capability(device: torch.device) -> tuple[int, int]:
    """Compute capability of an NVIDIA GPU."""
    return torch.cuda.get_device_capability(device)


@torch.compiler.assume_constant_result
def fused_available(device: torch.device) -> bool:
    """Whether Triton kernels run on ``device``: NVIDIA GPUs from Ampere on. Says once if only Triton is missing."""
    if device.type != "cuda" or torch.version.cuda is None:
        return False
    return capability(device) >= (8, 0) and _triton()


def watched(*tensors: Tensor) -> bool:
    """Whether a compiler, a tracer, a transform or a mode is to be shown operators, or a tensor is only a stand-in."""
    return (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack() > 0
        or not all(type(x) in (Tensor, torch.nn.Parameter) and torch._C._has_storage(x) for x in tensors)
    )


def needed(ctx: Any, i: int) -> bool:
    """Whether this backward pass of an ``autograd.Function`` has use for the gradient of input ``i``.

    The maps of a class need gradients of features and none of parameters, which ``ctx.needs_input_grad`` does not know.
    """
    if not ctx.needs_input_grad[i]:
        return False
    try:
        return torch._C._will_engine_execute_node(ctx.next_functions[i][0])
    except RuntimeError:  # a leaf that the gradient was asked of, or no engine runs that could be asked
        return True
