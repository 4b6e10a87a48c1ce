"""A mode in which layers run in forms with a second derivative of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from foveal.compat import saved_tensor_hooks_active
from foveal.kernels.second_order.batch_norm import second_order_batch_norm
from foveal.kernels.second_order.convolution import second_order_conv2d


class SecondOrder(TorchFunctionMode):
    """Context manager: convolutions, batch norms, global average pooling and hard sigmoids run in these forms.

    Under activation checkpointing they run as usual: they run again outside of this mode and must be the same.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        form = FORMS.get(func)
        use_form = form is not None and not saved_tensor_hooks_active()
        return (form if use_form else func)(*args, **(kwargs or {}))  # type: ignore[misc]


def second_order_hardsigmoid(input: Tensor, inplace: bool = False) -> Tensor:
    """As :func:`torch.nn.functional.hardsigmoid`, which has no second derivative in PyTorch."""
    out = F.relu6(input + 3) / 6
    return input.copy_(out) if inplace else out


def second_order_adaptive_avg_pool2d(input: Tensor, output_size: Any) -> Tensor:
    """As :func:`torch.nn.functional.adaptive_avg_pool2d`; one cell a channel is a mean, with a shorter backward."""
    if input.ndim == 4 and output_size in (1, (1, 1)):
        return input.mean((-2, -1), keepdim=True)
    return F.adaptive_avg_pool2d(input, output_size)


FORMS: dict[Any, Callable[..., Any]] = {
    F.conv2d: second_order_conv2d,
    F.batch_norm: second_order_batch_norm,
    F.adaptive_avg_pool2d: second_order_adaptive_avg_pool2d,
    F.hardsigmoid: second_order_hardsigmoid,
}
