"""Follow a softmax to the product with the values, in models that compute attention themselves."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from foveal.attention.records.dot_product import LogitMatrix
from foveal.attention.records.products import Product

SOFTMAXES = {torch.softmax, Tensor.softmax, F.softmax, torch.special.softmax}
PRODUCTS = {torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm}
SWAPS = {torch.transpose, Tensor.transpose, torch.swapaxes, Tensor.swapaxes, Tensor.mT.__get__}  # type: ignore[attr-defined]
PERMUTES = {torch.permute, Tensor.permute}
# Of the same weights afterwards; records are without dropout.
SAME = {F.dropout, torch.dropout, Tensor.to, Tensor.type, Tensor.type_as, Tensor.float, Tensor.half, Tensor.bfloat16}
SAME |= {Tensor.contiguous, Tensor.view, Tensor.reshape, torch.reshape, Tensor.flatten, torch.flatten, Tensor.clone}


class Weights(NamedTuple):
    """Attention that a tensor holds: as it is, transposed, or its dimensions permuted in another way."""

    attention: LogitMatrix | Tensor
    transposed: bool = False
    permuted: bool = False


class Softmaxes:
    """Tensors that hold attention weights, from their softmax to the product with the values."""

    def __init__(self) -> None:
        self._weights: dict[int, tuple[weakref.ref[Tensor], Weights]] = {}

    def __bool__(self) -> bool:
        """Whether there are such tensors now."""
        return bool(self._weights)

    def see(
        self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
    ) -> Product | str | None:
        """Look at a call of any function of PyTorch: what it multiplies if that is weights and values.

        Otherwise None, or why it is not followed.
        """
        if func in SOFTMAXES:
            return self._begin(result, *args, **kwargs)
        if not self:
            return None
        if func in PRODUCTS:
            left, right = (*args, *kwargs.values())[:2]
            return self._product(left, right)
        if func is torch.einsum and isinstance(args[0], str) and len(args) == 3:
            return self._product(*args[1:]) if is_product(args[0]) else None
        if isinstance(result, Tensor):
            for tensor in args:
                if (weights := self._held(tensor)) is not None:
                    self._go_on(func, args, tensor, weights, result)
                    break
        return None

    def _begin(self, result: Tensor, input: Tensor, dim: int | None = None, *_: Any, **_options: Any) -> str | None:
        if input.ndim < 3:
            return None
        if dim not in (-1, input.ndim - 1):
            return f"its softmax is over dimension {dim} of {tuple(input.shape)}, not over keys"
        self._follow(result, Weights(LogitMatrix(input)))
        return None

    def _follow(self, tensor: Tensor, weights: Weights) -> None:
        key = id(tensor)
        self._weights[key] = weakref.ref(tensor, lambda _: self._weights.pop(key, None)), weights

    def _held(self, tensor: Any) -> Weights | None:
        reference, weights = self._weights.get(id(tensor), (None, None))
        return weights if reference is not None and reference() is tensor else None

    def _product(self, left: Any, right: Any) -> Product | None:
        for tensor, values in ((left, right), (right, left)):
            weights = self._held(tensor)
            if weights is not None and weights.transposed == (tensor is right):
                del self._weights[id(tensor)]
                return Product(weights.attention, values.mT if weights.transposed else values)
        return None

    def _go_on(
        self, func: Callable[..., Any], args: Sequence[Any], before: Tensor, weights: Weights, result: Tensor
    ) -> None:
        """Follow weights through a function: dropout, a change of shape or type, a mixture of heads."""
        if func in SAME and result.shape[-2:] == before.shape[-2:]:
            self._follow(result, weights)
        elif func in SWAPS and (len(args) < 3 or {dim % before.ndim for dim in args[1:3]} == _last_two(before)):
            self._follow(result, weights._replace(transposed=not weights.transposed))
        elif sorted(result.shape) == sorted(before.shape) and (func is not F.linear or weights.permuted):
            # Its rows need not sum to one. A linear layer over heads mixes them; over keys, it makes no attention.
            self._follow(result, Weights(result, permuted=func in PERMUTES))


def is_product(equation: str) -> bool:
    """Whether an equation of einsum is the product of weights, the first operand, and values.

    >>> is_product("bhij,bhjd->bhid"), is_product("b h i j, b j h d -> b i h d"), is_product("bijh,bjhd->bihd")
    (True, True, False)
    """
    sides = equation.replace(" ", "").replace("...", "").split("->")
    if len(sides) != 2 or sides[0].count(",") != 1:
        return False
    weights, values = sides[0].split(",")
    if len(weights) < 3:
        return False
    query, key = weights[-2], weights[-1]
    return key in values and key not in sides[1] and query in sides[1] and query not in values


def _last_two(tensor: Tensor) -> set[int]:
    return {tensor.ndim - 2, tensor.ndim - 1}
