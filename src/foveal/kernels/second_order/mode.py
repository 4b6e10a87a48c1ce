"""Layers in forms whose second derivative is cheap, for whatever runs inside a context."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from foveal.kernels.second_order.batch_norm import second_order_batch_norm
from foveal.kernels.second_order.convolution import second_order_conv2d


class SecondOrder(TorchFunctionMode):
    """Context manager: inside it, convolutions, batch norms, averages of channels and hard sigmoids are such forms.

    Under activation checkpointing they stay as they are, since they will run again outside of it and must be the same.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        form = FORMS.get(func)
        return (form if form and not _checkpointed() else func)(*args, **(kwargs or {}))


def second_order_hardsigmoid(input: Tensor, inplace: bool = False) -> Tensor:
    """As :func:`torch.nn.functional.hardsigmoid`, of which PyTorch has no second derivative."""
    out = F.relu6(input + 3) / 6
    return input.copy_(out) if inplace else out


def second_order_adaptive_avg_pool2d(input: Tensor, output_size: Any) -> Tensor:
    """As :func:`torch.nn.functional.adaptive_avg_pool2d`, whose one value a channel has a long way back in PyTorch."""
    if input.ndim == 4 and output_size in (1, (1, 1)):
        return input.mean((-2, -1), keepdim=True)
    return F.adaptive_avg_pool2d(input, output_size)


def _checkpointed() -> bool:
    """Whether something decides how tensors are saved here, as activation checkpointing does."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


FORMS: dict[Any, Callable[..., Any]] = {
    F.conv2d: second_order_conv2d,
    F.batch_norm: second_order_batch_norm,
    F.adaptive_avg_pool2d: second_order_adaptive_avg_pool2d,
    F.hardsigmoid: second_order_hardsigmoid,
}
