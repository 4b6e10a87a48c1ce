"""Whether and where fused kernels can run, and which gradients a backward pass needs."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Sequence
from functools import cache, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch
from torch import Tensor

from foveal.compat import (
    constant_result,
    dispatch_mode_active,
    forward_mode_active,
    gradient_will_run,
    has_storage,
    transforms_active,
)

P = ParamSpec("P")
R = TypeVar("R")
KINDS = Tensor, torch.nn.Parameter
DTYPES = torch.float32, torch.bfloat16, torch.float16  # that kernels read


def on_its_device(launch: Callable[Concatenate[Tensor, P], R]) -> Callable[Concatenate[Tensor, P], R]:
    """Decorator: kernels are launched on the GPU of the first argument, whatever the current device is."""

    @wraps(launch)
    def wrapper(x: Tensor, *args: P.args, **kwargs: P.kwargs) -> R:
        if not x.is_cuda or x.get_device() == torch.cuda.current_device():  # a context manager takes microseconds
            return launch(x, *args, **kwargs)
        with torch.cuda.device_of(x):
            return launch(x, *args, **kwargs)

    return wrapper


@cache
def _has_triton() -> bool:
    if importlib.util.find_spec("triton") is None:
        warnings.warn("Triton is not installed: plain PyTorch is used instead of fused kernels", stacklevel=4)
        return False
    return True


@cache
def capability(device: torch.device) -> tuple[int, int]:
    """Compute capability of an NVIDIA GPU."""
    return torch.cuda.get_device_capability(device)


@constant_result
def fused_available(device: torch.device) -> bool:
    """Whether Triton kernels run on ``device``: NVIDIA GPUs from Ampere on. Warns once if only Triton is missing."""
    if device.type != "cuda" or torch.version.cuda is None:
        return False
    return capability(device) >= (8, 0) and _has_triton()


def other_derivatives() -> bool:
    """Whether derivatives may be wanted that operators do not have: of a transform, or in forward mode."""
    return transforms_active() or forward_mode_active()


def ordinary(*tensors: Any) -> bool:
    """Whether all are tensors of PyTorch's own classes, whose memory a kernel can read."""
    return all(type(tensor) in KINDS for tensor in tensors)


def described(tensors: Sequence[Tensor | None]) -> str:
    """Dtypes, sizes and strides in one string, which a compiler makes once; an operator makes a key of it."""
    text = ""
    for tensor in tensors:
        kind = "" if tensor is None else f"{tensor.dtype} {tuple(tensor.shape)} {tuple(tensor.stride())}"
        text += f";{kind}"
    return text


def observed(*tensors: Tensor) -> bool:
    """Whether a compiler, tracer, transform or mode must see operators, or a tensor is a fake or a wrapper."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or transforms_active() or dispatch_mode_active():
        return True
    return not all([type(x) in KINDS and has_storage(x) for x in tensors])  # noqa: C419, a generator takes twice as long


def in_layout_of(x: Tensor, out: Tensor) -> Tensor:
    """``out`` in channels last if ``x`` is, else contiguous."""
    last = not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)
    return out.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)


def needed(ctx: Any, i: int) -> bool:
    """Whether the running backward pass of an ``autograd.Function`` uses the gradient of input ``i``.

    Class attention maps need gradients of features and none of parameters, which ``ctx.needs_input_grad`` cannot tell.
    """
    if not ctx.needs_input_grad[i]:
        return False
    try:
        return gradient_will_run(ctx.next_functions[i][0])
    except RuntimeError:  # a leaf whose gradient was asked for, or no backward pass is running
        return True
