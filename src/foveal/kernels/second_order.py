"""Layers in forms whose second derivative is cheap, for whatever runs inside a context."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from foveal.kernels.batch_norm import second_order_batch_norm
from foveal.kernels.convolution import second_order_conv2d


class SecondOrder(TorchFunctionMode):
    """Context manager: inside it, convolutions and batch norms are such forms.

    Args:
        wanted: says of the next one whether it shall be.
        compile: let ``torch.compile`` fuse the second derivative of batch norms.
    """

    def __init__(self, wanted: Callable[[], bool] = lambda: True, *, compile: bool = False) -> None:
        super().__init__()
        self.wanted = wanted
        self.forms: dict[Any, Callable[..., Any]] = {
            F.conv2d: second_order_conv2d,
            F.batch_norm: partial(second_order_batch_norm, compile=compile),
        }

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        form = self.forms.get(func)
        return (form if form and self.wanted() else func)(*args, **(kwargs or {}))
