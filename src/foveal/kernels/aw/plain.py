"""AW-convolution in plain PyTorch: one kernel a sample, or one kernel for all with a multiplier a sample."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from foveal.compat import forward_mode_active, transforms_active

_first_order_only = True  # whether forms without a usable second derivative may be used


@contextlib.contextmanager
def differentiable_twice() -> Iterator[None]:
    """Inside, mechanisms use forms that have a second derivative. Not thread-safe."""
    global _first_order_only
    before, _first_order_only = _first_order_only, False
    try:
        yield
    finally:
        _first_order_only = before


def first_order_suffices() -> bool:
    """Whether forms without a second derivative of their own, ``torch.func`` or forward mode may be used."""
    if torch.compiler.is_compiling():
        return _first_order_only
    return _first_order_only and not transforms_active() and not forward_mode_active()


def conv_per_sample(
    x: Tensor, kernels: Tensor, bias: Tensor | None, path: Literal["grouped", "unfold"], **options: Any
) -> Tensor:
    """Convolve every sample with its own kernel.

    Args:
        x: (N, C1, H, W).
        kernels: (N, C2, C1/groups, h, w).
        bias: (C2,) or None.
        path: ``grouped`` is one convolution with N times as many groups; ``unfold`` a matrix product with unfolded
            images, which exports with a dynamic N.
        **options: stride, padding, dilation and groups of the convolution.

    Returns:
        (N, C2, H', W').
    """
    if path == "unfold":
        return _conv_by_unfold(x, kernels, bias, **options)
    n = len(x)
    if n == 0:
        return F.conv2d(x, x.new_zeros(kernels.shape[1:]), bias, **options)
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

    For small maps with many channels: the memory it keeps grows with the map, while one kernel a sample grows with the
    channels.
    """
    place = (options["stride"], options["padding"], options["dilation"])
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad or scale.requires_grad):
        out, *_ = _Products.apply(x, weight, scale, *place)
    else:
        out, _ = _sum_of_products(x, weight, scale, *place, keep=False)
    return out if bias is None else out + bias[:, None, None]


def _sum_of_products(
    x: Tensor, weight: Tensor, scale: Tensor, stride: list[int], padding: list[int], dilation: list[int], keep: bool
) -> tuple[Tensor, list[Tensor]]:
    """Σ_t s_t ⊙ (K_t · I_t), where I_t are the positions that t covers within the map, without padding.

    A product is a 1×1 convolution, which oneDNN computes on CPUs.

    Returns:
        The convolution (N, C2, H', W'), channels last; if ``keep``, the product of each position t that falls on the
        map, (N, C2, rows, columns).
    """
    images, kernel, s = map(_channels_last, (x, weight, scale))
    size, windows = _windows(x, weight, stride, padding, dilation)
    out, products = x.new_zeros(len(x), *size, len(weight)), []
    for window in windows:
        product = F.conv2d(_channels_second(window.read(images)), window.tap(kernel)[:, :, None, None])
        window.write(out).addcmul_(product.permute(0, 2, 3, 1), window.tap(s)[:, None, None])
        if keep:
            products.append(product)
    return _channels_second(out), products


class _Products(torch.autograd.Function):
    """O = Σ_t s_t ⊙ (K_t · I_t), channels last; the products K_t · I_t are kept for the gradient of s."""

    @staticmethod
    def forward(
        x: Tensor, weight: Tensor, scale: Tensor, stride: list[int], padding: list[int], dilation: list[int]
    ) -> tuple[Tensor, ...]:
        """The convolution (N, C2, H', W'), and the products."""
        out, products = _sum_of_products(x, weight, scale, stride, padding, dilation, keep=True)
        return out, *products

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Save what the gradients need."""
        x, weight, scale, ctx.stride, ctx.padding, ctx.dilation = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(x, weight, scale, *output[1:])

    @staticmethod
    def backward(ctx: Any, g: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        """Gradients of input, kernel and multiplier."""
        x, weight, scale, *products = ctx.saved_tensors
        if torch.is_grad_enabled():
            return *differentiable_gradients(ctx, g, x, weight, scale), None, None, None
        images, kernel, s, g = map(_channels_last, (x, weight, scale, g))
        dx, dw, ds = torch.zeros_like(images), torch.zeros_like(kernel), torch.zeros_like(s)
        windows = _windows(x, weight, ctx.stride, ctx.padding, ctx.dilation)[1]
        for window, product in zip(windows, products, strict=True):
            gradient, image = window.write(g), _channels_second(window.read(images))
            window.tap(ds).copy_((gradient * product.permute(0, 2, 3, 1)).sum((1, 2)))
            scaled = _channels_second(gradient * window.tap(s)[:, None, None])
            to_image, to_tap = conv_gradients(scaled, image, window.tap(kernel)[:, :, None, None])
            window.tap(dw).copy_(to_tap[:, :, 0, 0])
            window.read(dx).add_(to_image.permute(0, 2, 3, 1))
        dx, dw, ds = map(_channels_second, (dx, dw, ds))
        return match_layout(dx, x), dw, match_layout(ds, scale), None, None, None


def conv_gradients(
    g: Tensor, x: Tensor, weight: Tensor, stride: Any = (1, 1), padding: Any = (0, 0), dilation: Any = (1, 1),
    groups: int = 1, need: tuple[bool, bool] = (True, True),
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Gradients of input and kernel of a convolution without bias; None where not needed."""
    place = stride, padding, dilation, False, (0, 0), groups
    return torch.ops.aten.convolution_backward(g, x, weight, None, *place, [*need, False])[:2]


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


def _channels_last(x: Tensor) -> Tensor:
    """(N, C, H, W) as contiguous (N, H, W, C)."""
    return x.permute(0, 2, 3, 1).contiguous()


def _channels_second(x: Tensor) -> Tensor:
    """(N, H, W, C) as (N, C, H, W), channels last."""
    return x.permute(0, 3, 1, 2)


class _Window(NamedTuple):
    """The part of a map that a kernel position covers.

    Attributes:
        position: row and column in the kernel.
        outputs: rows and columns of the outputs for which it falls on the map.
        inputs: rows and columns of the map on which it falls.
    """

    position: tuple[int, int]
    outputs: tuple[slice, slice]
    inputs: tuple[slice, slice]

    def tap(self, kernel: Tensor) -> Tensor:
        """The matrix (A, B) at this position of a kernel (A, h, w, B)."""
        return kernel[:, self.position[0], self.position[1]]

    def read(self, images: Tensor) -> Tensor:
        """What it covers of maps (N, H, W, C)."""
        return images[:, self.inputs[0], self.inputs[1]]

    def write(self, outputs: Tensor) -> Tensor:
        """Where it contributes to outputs (N, H', W', C)."""
        return outputs[:, self.outputs[0], self.outputs[1]]


def _windows(
    x: Tensor, weight: Tensor, stride: list[int], padding: list[int], dilation: list[int]
) -> tuple[list[int], list[_Window]]:
    """Size of the output, and a window for each kernel position that falls on the map anywhere."""
    sizes, along = [], []
    for side, kernel, step, pad, spread in zip(x.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True):
        if side + 2 * pad < spread * (kernel - 1) + 1:
            raise ValueError(f"the kernel is larger than the padded map, {tuple(x.shape[2:])} padded by {padding}")
        sizes.append((side + 2 * pad - spread * (kernel - 1) - 1) // step + 1)
        spans = []
        for i in range(kernel):
            offset = i * spread - pad  # of the input from step times the output
            low, high = max(0, -(offset // step)), min(sizes[-1], (side - 1 - offset) // step + 1)
            inputs = slice(low * step + offset, (high - 1) * step + offset + 1, step)
            if low < high:
                spans.append((i, slice(low, high), inputs))
        along.append(spans)
    return sizes, [
        _Window((i, j), (rows, columns), (from_rows, from_columns))
        for i, rows, from_rows in along[0]
        for j, columns, from_columns in along[1]
    ]
