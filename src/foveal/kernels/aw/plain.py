"""AW-convolution in plain PyTorch: one kernel a sample, or one kernel for all with a multiplier a sample."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from foveal.compat import forward_mode_active, transforms_active

_first_order_only = True  # whether forms with a slow second derivative, or none when compiled, may be used


@contextlib.contextmanager
def differentiable_twice() -> Iterator[None]:
    """Inside, mechanisms use forms that have a second derivative, as fast as the first. Not thread-safe."""
    global _first_order_only
    before, _first_order_only = _first_order_only, False
    try:
        yield
    finally:
        _first_order_only = before


def first_order_suffices() -> bool:
    """Whether forms without a fast second derivative, without ``torch.func`` and without forward mode may be used."""
    if torch.compiler.is_compiling():
        return _first_order_only
    return _first_order_only and not transforms_active() and not forward_mode_active()


def conv_per_sample(
    x: Tensor, kernels: Tensor, bias: Tensor | None, path: Literal["loop", "grouped", "unfold"], **options: Any
) -> Tensor:
    """Convolve every sample with its own kernel.

    Args:
        x: (N, C1, H, W).
        kernels: (N, C2, C1/groups, h, w).
        bias: (C2,) or None.
        path: ``loop`` is the plain definition; ``grouped`` the same as one convolution with N times as many groups;
            ``unfold`` the same as a matrix product with unfolded images, which exports with a dynamic N.
        **options: stride, padding, dilation and groups of the convolution.

    Returns:
        (N, C2, H', W').
    """
    if path == "unfold":
        return _conv_by_unfold(x, kernels, bias, **options)
    n = len(x)
    if n == 0:
        return F.conv2d(x, x.new_zeros(kernels.shape[1:]), bias, **options)
    if path == "loop":
        return torch.cat([F.conv2d(x[i : i + 1], kernels[i], bias, **options) for i in range(n)])
    options = options | {"groups": n * options["groups"]}
    out = F.conv2d(x.reshape(1, -1, *x.shape[2:]), kernels.flatten(0, 1), None, **options)
    out = out.view(n, kernels.shape[1], *out.shape[2:])
    return out if bias is None else out + bias[:, None, None]


def _conv_by_unfold(
    x: Tensor, kernels: Tensor, bias: Tensor | None, stride: Any, padding: Any, dilation: Any, groups: int
) -> Tensor:
    h, w = kernels.shape[3:]
    columns = F.unfold(x, (h, w), dilation, padding, stride).unflatten(1, (groups, -1))
    out = (kernels.flatten(2).unflatten(1, (groups, -1)) @ columns).flatten(1, 2)
    rows = (x.shape[2] + 2 * padding[0] - dilation[0] * (h - 1) - 1) // stride[0] + 1
    out = out.unflatten(2, (rows, -1))
    return out if bias is None else out + bias[:, None, None]


def conv_by_taps(x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None, **options: Any) -> Tensor:
    """Convolve where a sample's kernel is the common one times a number for each output channel and kernel position.

    One 1×1 convolution computes the contribution of every kernel position, the same for all samples; the contributions
    are then scaled, shifted and added. No kernel is built for any sample.

    Args:
        x: (N, C1, H, W).
        weight: the common kernel (C2, C1/groups, h, w).
        scale: (N, C2, h, w).
        bias: (C2,) or None.
        **options: stride, padding, dilation and groups; padding as two numbers.

    Returns:
        (N, C2, H', W').
    """
    c2, _, h, w = weight.shape
    (sy, sx), (py, px), (dy, dx) = options["stride"], options["padding"], options["dilation"]
    if h == w == 1:
        gate = scale.view(-1, c2, 1, 1)
        gated = F.conv2d(x, weight, None, **options) * gate
        return gated if bias is None else gated + bias[:, None, None]
    padded = F.pad(x, (px, px, py, py))
    by_position = weight.permute(0, 2, 3, 1).reshape(c2 * h * w, -1, 1, 1)
    taps = F.conv2d(padded, by_position, groups=options["groups"]).unflatten(1, (c2, h * w))
    out: Tensor | None = None if bias is None else bias[:, None, None]
    for t in range(h * w):
        top, left = (t // w) * dy, (t % w) * dx
        bottom, right = (top - dy * (h - 1)) or None, (left - dx * (w - 1)) or None  # from the end: sizes stay dynamic
        part = taps[:, :, t, top:bottom:sy, left:right:sx]
        term = part * scale[:, :, t // w, t % w, None, None]
        out = term if out is None else out + term
    assert out is not None
    return out


def conv_by_products(x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None, **options: Any) -> Tensor:
    """As :func:`conv_by_taps` for one group, by one matrix product a kernel position.

    The fastest plain form where maps are small and channels many: the memory it keeps grows with the map, while one
    kernel a sample grows with the channels.
    """
    out, _ = _Products.apply(x, weight, scale, options["stride"], options["padding"], options["dilation"])
    return out if bias is None else out + bias[:, None, None]


class _Products(torch.autograd.Function):
    """O = Σ_t s_t ⊙ (K_t · I_t), channels last; the products K_t · I_t are kept for the gradient of s."""

    @staticmethod
    def forward(
        x: Tensor, weight: Tensor, scale: Tensor, stride: list[int], padding: list[int], dilation: list[int]
    ) -> tuple[Tensor, Tensor]:
        """The convolution (N, C2, H', W'), and the products (h·w, N, H', W', C2)."""
        (n, c1), (c2, _, h, w) = x.shape[:2], weight.shape
        images, kernel, s = _pad_channels_last(x, padding), _by_position(weight), _by_position(scale)
        windows = _windows(images, (h, w), stride, dilation)
        rows, columns = images[:, windows[0][0], windows[0][1]].shape[1:3]
        out, products = x.new_zeros(n, rows, columns, c2), x.new_empty(h * w, n, rows, columns, c2)
        for t, (down, across) in enumerate(windows):
            torch.mm(images[:, down, across].reshape(-1, c1), kernel[t].T, out=products[t].view(-1, c2))
            out.addcmul_(products[t], s[t, :, None, None])
        return out.permute(0, 3, 1, 2), products

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        """Save what the gradients need."""
        x, weight, scale, ctx.stride, ctx.padding, ctx.dilation = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(x, weight, scale, output[1])

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        """Gradients of input, kernel and multiplier."""
        x, weight, scale, products = ctx.saved_tensors
        if torch.is_grad_enabled():
            return *differentiable_gradients(ctx, g, x, weight, scale), None, None, None
        stride, padding, dilation = ctx.stride, ctx.padding, ctx.dilation
        (c1, height, width), (c2, _, h, w) = x.shape[1:], weight.shape
        images, kernel, s = _pad_channels_last(x, padding), _by_position(weight), _by_position(scale)
        g = g.permute(0, 2, 3, 1)
        dx, dw, ds = torch.zeros_like(images), torch.empty_like(kernel), torch.empty_like(s)
        for t, (down, across) in enumerate(_windows(images, (h, w), stride, dilation)):
            ds[t] = (g * products[t]).sum((1, 2))
            scaled = (g * s[t, :, None, None]).reshape(-1, c2)
            dx[:, down, across] += (scaled @ kernel[t]).view(*g.shape[:3], c1)
            torch.mm(scaled.T, images[:, down, across].reshape(-1, c1), out=dw[t])
        dx = dx[:, padding[0] : padding[0] + height, padding[1] : padding[1] + width].permute(0, 3, 1, 2)
        dw, ds = (part.unflatten(0, (h, w)).permute(2, 3, 0, 1) for part in (dw, ds))
        return match_layout(dx, x), dw, match_layout(ds, scale), None, None, None


def match_layout(gradient: Tensor, like: Tensor) -> Tensor:
    """A channels-last gradient, made contiguous if ``like`` is contiguous.

    Otherwise the backward of a batch norm before it is wrong for a batch of one: seen with PyTorch 2.15 on CPUs.
    """
    return gradient.contiguous() if like.is_contiguous() else gradient


def differentiable_gradients(ctx: Any, g: Tensor, *inputs: Tensor) -> list[Tensor | None]:
    """Gradients of input, kernel and multiplier that have a graph of their own, through :func:`conv_by_taps`."""
    needed = ctx.needs_input_grad[:3]
    wanted = [tensor for tensor, need in zip(inputs, needed, strict=True) if need]
    if not wanted:
        return [None] * 3
    options = {"stride": ctx.stride, "padding": ctx.padding, "dilation": ctx.dilation}
    options["groups"] = getattr(ctx, "groups", 1)
    x, weight, scale = inputs
    out = conv_by_taps(x, weight, scale, None, **options)
    gradients = iter(torch.autograd.grad(out, wanted, g, create_graph=True))
    return [next(gradients) if need else None for need in needed]


def _pad_channels_last(x: Tensor, padding: list[int]) -> Tensor:
    """(N, C, H, W) as (N, H + 2p, W + 2q, C)."""
    return F.pad(x.permute(0, 2, 3, 1), (0, 0, padding[1], padding[1], padding[0], padding[0]))


def _by_position(values: Tensor) -> Tensor:
    """(A, B, h, w) as contiguous (h·w, A, B)."""
    return values.permute(2, 3, 0, 1).flatten(0, 1).contiguous()


def _windows(
    images: Tensor, kernel: tuple[int, int], stride: list[int], dilation: list[int]
) -> list[tuple[slice, slice]]:
    """For each kernel position, the rows and columns of padded ``images`` (N, H, W, C) that it covers."""

    def along(axis: int, position: int) -> slice:
        if images.shape[1 + axis] < dilation[axis] * (kernel[axis] - 1) + 1:
            raise ValueError(f"the kernel is larger than the padded map, {tuple(images.shape[1:3])}")
        last = (images.shape[1 + axis] - dilation[axis] * (kernel[axis] - 1) - 1) // stride[axis]
        first = position * dilation[axis]
        return slice(first, first + last * stride[axis] + 1, stride[axis])

    return [(along(0, i), along(1, j)) for i in range(kernel[0]) for j in range(kernel[1])]
