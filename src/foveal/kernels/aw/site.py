"""Branch and convolution of an AW site together, in few launches on NVIDIA GPUs.

What is launched for a shape is recorded once and then repeated (:mod:`foveal.kernels.tape`): Python would take longer
than the GPU. Where somebody looks at operators or a second derivative is wanted, the plain forms run instead.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from foveal.compat import apply_directly, has_storage
from foveal.kernels.ahead import compile_ahead
from foveal.kernels.aw.branch import (
    Branch,
    Parameters,
    branch_key,
    differentiate,
    parameter_gradients,
    plain_multiplier,
)
from foveal.kernels.aw.geometry import channels_last
from foveal.kernels.aw.plain import conv_by_taps, match_layout
from foveal.kernels.support import observed
from foveal.kernels.tape import empty, known, taped


class Convolution(NamedTuple):
    """Options of the convolution of a site."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @property
    def for_launch(self) -> tuple[int, tuple[int, ...], tuple[int, ...], int]:
        """As :mod:`foveal.kernels.aw.launch` takes them."""
        return self.stride[0], self.padding, self.dilation, self.groups


def attended_conv(
    x: Tensor, weight: Tensor, bias: Tensor | None, parameters: Parameters, branch: Branch, conv: Convolution
) -> Tensor:
    """Branch and convolution as one function: (N, C1, H, W) to (N, C2, H', W'), channels last.

    Args:
        x: input, in ``branch.dtype``.
        weight: (C2, C1/groups, h, w), of any dtype.
        bias: (C2,) or None.
        parameters: of the branch.
        branch: see :class:`~foveal.kernels.aw.branch.Branch`.
        conv: options of the convolution, one that :func:`~foveal.kernels.aw.fused.fusable` accepts.
    """
    if has_storage(weight) and (bias is None or has_storage(bias)):  # the others have been looked at
        return apply_directly(_Site, x, weight, bias, *parameters, branch, conv)
    return _Site.apply(x, weight, bias, *parameters, branch, conv)


def _key(
    name: str, x: Tensor, weight: Tensor, parameters: Parameters, branch: Branch, conv: Convolution
) -> tuple[Any, ...]:
    """What launches depend on, beside options of their own."""
    exact = x.dtype == torch.float32 and not torch.backends.cuda.matmul.allow_tf32
    layout = weight.shape, weight.stride(), weight.dtype
    return *branch_key(name, x, parameters, branch), *layout, conv, exact


Kept = tuple[Tensor, Tensor, Tensor | None]
"""What :func:`backward` needs: the multiplier, what the branch keeps, and the packed kernel unless it is the weight."""


def forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, parameters: Parameters, branch: Branch, conv: Convolution,
    key: Hashable = None,
) -> tuple[Tensor, *Kept]:  # fmt: skip
    """The convolution of x, in channels last, and what is kept for its gradient; with a key of one's own for both."""
    bias = None if bias is None else bias.contiguous()
    if key is None:
        key = *_key("aw site", x, weight, parameters, branch, conv), None if bias is None else bias.dtype
    one, two = branch.norm1, branch.norm2
    tensors = (x, weight, bias, *parameters, *one[:3], *two[:3])
    if x.is_cuda and not known(key):
        with torch.cuda.device_of(x):
            out, *kept = compile_ahead(_forward, *tensors, branch, conv)
            if one.batch:  # in training, where a gradient will be wanted
                compile_ahead(_backward, out, x, weight, *kept, *parameters, branch, conv, True, True)
    return taped(key, _forward, tensors, branch, conv)  # type: ignore[return-value]


def _forward(x: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any) -> tuple[Tensor, *Kept]:
    from foveal.kernels.aw import branch_launch, launch

    parameters, branch, conv = Parameters(*rest[:7]), rest[-2], rest[-1]
    multiplier, kept = branch_launch.forward(x, parameters, branch)
    shape = launch.plan(x, weight, *conv.for_launch)
    kernel = shape.packed(weight)
    return shape.forward(x, kernel, multiplier, bias), multiplier, kept, None if kernel is weight else kernel


def backward(
    g: Tensor, x: Tensor, weight: Tensor, kept: Kept, parameters: Parameters, branch: Branch, conv: Convolution,
    of_input: bool, of_branch: bool, key: Hashable = None,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    """Gradients of x and weight, and the buffer with those of the branch; from ∂O and x in channels last.

    With ``of_branch`` all but ``of_input`` are computed; without it, that of the weight.
    """
    if key is None:
        key = *_key("aw site backward", x, weight, parameters, branch, conv), kept[2] is None, of_input, of_branch
    tensors = (g, x, weight, *kept, *parameters)
    return taped(key, _backward, tensors, branch, conv, of_input, of_branch)  # type: ignore[return-value]


def _backward(
    g: Tensor, x: Tensor, weight: Tensor, multiplier: Tensor, kept: Tensor, kernel: Tensor | None, *rest: Any
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    from foveal.kernels.aw import branch_launch, launch

    parameters, (branch, conv, of_input, of_branch) = Parameters(*rest[:7]), rest[7:]
    dtypes = weight.dtype, None  # not rounded in between; the branch adds up what the multiplier's consists of
    shape = launch.plan(x, weight, *conv.for_launch)
    packed = weight if kernel is None else kernel
    s = channels_last(multiplier)
    dw, ds = shape.weights(g, x, packed, s, dtypes, add_up=not of_branch)
    gradients = cells = None
    if of_branch:
        together = None
        if dw.ndim == 5:  # parts, which the branch adds up on its way
            together = dw, empty(dw.shape[1:], weight.dtype, dw.device)
            dw = together[1].permute(0, 3, 1, 2)
        of_x = x.shape if of_input else None
        gradients, cells = branch_launch.backward(ds, parameters, kept, branch, of_x, together)
    return shape.input_grad(g, packed, s, cells) if of_input else None, dw, gradients


class _Site(torch.autograd.Function):
    """x, kernel, bias and the branch's parameters to the convolution."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, *inputs: Any) -> Tensor:
        parameters, branch, conv = Parameters(*inputs[:7]), inputs[7], inputs[8]
        images = channels_last(x)
        out, *kept = forward(images, weight, bias, parameters, branch, conv)
        ctx.branch, ctx.conv = branch, conv
        ctx.save_for_backward(x, weight, *kept, *parameters)
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, *rest = ctx.saved_tensors
        kept, parameters = tuple(rest[:3]), Parameters(*rest[3:])
        need = ctx.needs_input_grad
        conv: Convolution = ctx.conv
        db = g.sum((0, 2, 3), dtype=weight.dtype) if need[2] else None
        if torch.is_grad_enabled() or observed(g):
            inputs, of_inputs = [x, weight, *parameters], [*need[:2], *need[3:10]]
            dx, dw, *rest = differentiate(plain_site, inputs, of_inputs, g, ctx.branch, conv)
            return dx, dw, db, *rest, None, None
        of_branch = need[0] or any(need[3:10])
        if not (of_branch or need[1]):
            return None, None, db, *[None] * 9
        tensors = channels_last(g), channels_last(x), weight, kept, parameters
        dx, dw, gradients = backward(*tensors, ctx.branch, conv, need[0], of_branch)
        of_parameters = [None] * 7 if gradients is None else parameter_gradients(gradients, parameters)
        if dx is not None and len(x) == 1:
            dx = match_layout(dx, x)
        return dx, dw if need[1] else None, db, *_where(of_parameters, need[3:10]), None, None


def _where(tensors: Sequence[Tensor | None], needed: tuple[bool, ...]) -> Sequence[Tensor | None]:
    """The tensors that are needed, None instead of others."""
    return tensors if all(needed) else [t if need else None for t, need in zip(tensors, needed, strict=True)]


def plain_site(x: Tensor, weight: Tensor, *rest: Any) -> Tensor:
    """What :class:`_Site` computes, without the bias, in plain PyTorch: x, kernel, parameters, branch, convolution."""
    branch, conv = rest[-2:]
    multiplier = plain_multiplier(x, Parameters(*rest[:-2]), branch)
    options = {"stride": conv.stride, "padding": conv.padding, "dilation": conv.dilation, "groups": conv.groups}
    return conv_by_taps(x, weight.to(branch.dtype), multiplier, None, **options)
