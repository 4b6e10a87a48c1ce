"""Ways to compute an AW-convolution: plain PyTorch, and one operator that is fused on NVIDIA GPUs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils.flop_counter import conv_flop_count, register_flop_formula

from foveal.kernels.support import fused_available, watched

_once = True  # whether forms whose second derivative is slow, or missing if compiled, will do


@contextlib.contextmanager
def differentiable_twice() -> Iterator[None]:
    """Inside, AW-convolutions use forms whose second derivative is as good as the first; not for several threads."""
    global _once
    before, _once = _once, False
    try:
        yield
    finally:
        _once = before


def once_will_do() -> bool:
    """Whether a form may be used that has no good second derivative, and none but the ordinary kind of the first."""
    if torch.compiler.is_compiling():
        return _once
    return _once and not torch._C._are_functorch_transforms_active() and forward_ad._current_level < 0


def conv_per_sample(
    x: Tensor, kernels: Tensor, bias: Tensor | None, path: Literal["loop", "grouped", "unfold"], **how: Any
) -> Tensor:
    """Convolve every sample with its own kernel.

    Args:
        x: (N, C1, H, W).
        kernels: (N, C2, C1/groups, h, w).
        bias: (C2,) or None.
        path: ``loop`` is the plain definition; ``grouped`` the same as one convolution with N times as many groups;
            ``unfold`` the same as a matrix product with unfolded images, for any N once it is exported.
        **how: stride, padding, dilation and groups of the convolution.

    Returns:
        (N, C2, H', W').
    """
    if path == "unfold":
        return _unfolded(x, kernels, bias, **how)
    n = len(x)
    if n == 0:
        return F.conv2d(x, x.new_zeros(kernels.shape[1:]), bias, **how)
    if path == "loop":
        return torch.cat([F.conv2d(x[i : i + 1], kernels[i], bias, **how) for i in range(n)])
    out = F.conv2d(x.reshape(1, -1, *x.shape[2:]), kernels.flatten(0, 1), None, **how | {"groups": n * how["groups"]})
    out = out.view(n, kernels.shape[1], *out.shape[2:])
    return out if bias is None else out + bias[:, None, None]


def _unfolded(
    x: Tensor, kernels: Tensor, bias: Tensor | None, stride: Any, padding: Any, dilation: Any, groups: int
) -> Tensor:
    h, w = kernels.shape[3:]
    columns = F.unfold(x, (h, w), dilation, padding, stride).unflatten(1, (groups, -1))
    out = (kernels.flatten(2).unflatten(1, (groups, -1)) @ columns).flatten(1, 2)
    rows = (x.shape[2] + 2 * padding[0] - dilation[0] * (h - 1) - 1) // stride[0] + 1
    out = out.unflatten(2, (rows, -1))
    return out if bias is None else out + bias[:, None, None]


def conv_by_taps(x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None, **how: Any) -> Tensor:
    """Convolve where a sample's kernel is the common one times a number for each output channel and kernel position.

    One 1×1 convolution computes what each kernel position would contribute, for all samples alike; the contributions
    are then scaled, shifted and added. No kernel is built for any sample.

    Args:
        x: (N, C1, H, W).
        weight: the common kernel (C2, C1/groups, h, w).
        scale: (N, C2, h, w).
        bias: (C2,) or None.
        **how: stride, padding, dilation and groups; padding as two numbers.

    Returns:
        (N, C2, H', W').
    """
    c2, _, h, w = weight.shape
    (sy, sx), (py, px), (dy, dx) = how["stride"], how["padding"], how["dilation"]
    if h == w == 1:
        gate = scale.view(-1, c2, 1, 1)
        gated = F.conv2d(x, weight, None, **how) * gate
        return gated if bias is None else gated + bias[:, None, None]
    padded = F.pad(x, (px, px, py, py))
    by_position = weight.permute(0, 2, 3, 1).reshape(c2 * h * w, -1, 1, 1)
    taps = F.conv2d(padded, by_position, groups=how["groups"]).unflatten(1, (c2, h * w))
    out: Tensor | None = None if bias is None else bias[:, None, None]
    for t in range(h * w):
        top, left = (t // w) * dy, (t % w) * dx
        bottom, right = (top - dy * (h - 1)) or None, (left - dx * (w - 1)) or None  # from the end, so sizes stay open
        part = taps[:, :, t, top:bottom:sy, left:right:sx]
        term = part * scale[:, :, t // w, t % w, None, None]
        out = term if out is None else out + term
    assert out is not None
    return out


def conv_by_products(x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None, **how: Any) -> Tensor:
    """As :func:`conv_by_taps` for one group, by a matrix product for each kernel position.

    The fastest plain form where maps are small and channels many: what it keeps grows with the map, whereas a kernel
    for every sample grows with the channels.
    """
    out, _ = _Products.apply(x, weight, scale, how["stride"], how["padding"], how["dilation"])
    return out if bias is None else out + bias[:, None, None]


class _Products(torch.autograd.Function):
    """O = Σ_t s_t ⊙ (K_t · I_t), channels last; the products K_t · I_t are kept for the gradient of s."""

    @staticmethod
    def forward(
        x: Tensor, weight: Tensor, scale: Tensor, stride: list[int], padding: list[int], dilation: list[int]
    ) -> tuple[Tensor, Tensor]:
        """The convolution (N, C2, H', W'), and the products (h·w, N, H', W', C2)."""
        (n, c1), (c2, _, h, w) = x.shape[:2], weight.shape
        images, kernel, s = _padded(x, padding), _by_position(weight), _by_position(scale)
        windows = _windows(images, (h, w), stride, dilation)
        rows, columns = images[:, windows[0][0], windows[0][1]].shape[1:3]
        out, products = x.new_zeros(n, rows, columns, c2), x.new_empty(h * w, n, rows, columns, c2)
        for t, (down, across) in enumerate(windows):
            torch.mm(images[:, down, across].reshape(-1, c1), kernel[t].T, out=products[t].view(-1, c2))
            out.addcmul_(products[t], s[t, :, None, None])
        return out.permute(0, 3, 1, 2), products

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        """Keep what the gradients need."""
        x, weight, scale, ctx.stride, ctx.padding, ctx.dilation = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(x, weight, scale, output[1])

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        """Gradients of input, kernel and multiplier."""
        x, weight, scale, products = ctx.saved_tensors
        if torch.is_grad_enabled():
            return *_differentiable(ctx, g, x, weight, scale), None, None, None
        stride, padding, dilation = ctx.stride, ctx.padding, ctx.dilation
        (c1, height, width), (c2, _, h, w) = x.shape[1:], weight.shape
        images, kernel, s = _padded(x, padding), _by_position(weight), _by_position(scale)
        g = g.permute(0, 2, 3, 1)
        dx, dw, ds = torch.zeros_like(images), torch.empty_like(kernel), torch.empty_like(s)
        for t, (down, across) in enumerate(_windows(images, (h, w), stride, dilation)):
            ds[t] = (g * products[t]).sum((1, 2))
            into = (g * s[t, :, None, None]).reshape(-1, c2)
            dx[:, down, across] += (into @ kernel[t]).view(*g.shape[:3], c1)
            torch.mm(into.T, images[:, down, across].reshape(-1, c1), out=dw[t])
        dx = dx[:, padding[0] : padding[0] + height, padding[1] : padding[1] + width].permute(0, 3, 1, 2)
        dw, ds = (part.unflatten(0, (h, w)).permute(2, 3, 0, 1) for part in (dw, ds))
        return _laid_out(dx, x), dw, _laid_out(ds, scale), None, None, None


def _laid_out(gradient: Tensor, like: Tensor) -> Tensor:
    """A channels-last gradient, contiguous if what it belongs to is.

    Otherwise the backward of a batch norm before it is wrong for a batch of one: seen with PyTorch 2.15 on CPUs.
    """
    return gradient.contiguous() if like.is_contiguous() else gradient


def _differentiable(ctx: Any, g: Tensor, *inputs: Tensor) -> list[Tensor | None]:
    """Gradients of input, kernel and multiplier that have a graph of their own, by way of :func:`conv_by_taps`."""
    needed = ctx.needs_input_grad[:3]
    wanted = [each for each, need in zip(inputs, needed, strict=True) if need]
    if not wanted:
        return [None] * 3
    how = {"stride": ctx.stride, "padding": ctx.padding, "dilation": ctx.dilation, "groups": 1}
    x, weight, scale = inputs
    found = iter(torch.autograd.grad(conv_by_taps(x, weight, scale, None, **how), wanted, g, create_graph=True))
    return [next(found) if need else None for need in needed]


def _padded(x: Tensor, padding: list[int]) -> Tensor:
    """(N, C, H, W) as (N, H + 2p, W + 2q, C)."""
    return F.pad(x.permute(0, 2, 3, 1), (0, 0, padding[1], padding[1], padding[0], padding[0]))


def _by_position(values: Tensor) -> Tensor:
    """(A, B, h, w) as contiguous (h·w, A, B)."""
    return values.permute(2, 3, 0, 1).flatten(0, 1).contiguous()


def _windows(
    images: Tensor, kernel: tuple[int, int], stride: list[int], dilation: list[int]
) -> list[tuple[slice, slice]]:
    """For each kernel position, the rows and columns of padded ``images`` (N, H, W, C) that it meets."""

    def along(axis: int, position: int) -> slice:
        if images.shape[1 + axis] < dilation[axis] * (kernel[axis] - 1) + 1:
            raise ValueError(f"the kernel is larger than the padded map, {tuple(images.shape[1:3])}")
        last = (images.shape[1 + axis] - dilation[axis] * (kernel[axis] - 1) - 1) // stride[axis]
        first = position * dilation[axis]
        return slice(first, first + last * stride[axis] + 1, stride[axis])

    return [(along(0, i), along(1, j)) for i in range(kernel[0]) for j in range(kernel[1])]


def fusable(x: Tensor, weight: Tensor, stride: tuple[int, ...], dilation: tuple[int, ...], groups: int) -> bool:
    """Whether the fused kernels serve this convolution: dense, larger than 1×1, channels in whole 16-byte pieces."""
    (c2, c1, h, w), unit = weight.shape, 16 // x.element_size()
    return (
        groups == 1
        and h * w > 1
        and stride[0] == stride[1]
        and (stride[0] == 1 or tuple(dilation) == (1, 1))
        and c1 % unit == c2 % unit == 0
        and x.dtype in (torch.float32, torch.bfloat16, torch.float16)
        and max(x.numel(), x.numel() // c1 * c2) < 2**31
        and fused_available(x.device)
    )


@torch.library.custom_op("foveal::aw_conv2d", mutates_args=())
def aw_conv2d(
    x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None,
    stride: list[int], padding: list[int], dilation: list[int],
) -> Tensor:  # fmt: skip
    """Convolution with ``weight`` (C2, C1, h, w) times ``scale`` (N, C2, h, w), in Triton; see :func:`fusable`."""
    from foveal.kernels.aw import launch as aw_launch

    return aw_launch.forward(x, weight, scale, bias, stride[0], padding, dilation)


@aw_conv2d.register_fake
def _(x, weight, scale, bias, stride, padding, dilation):
    sizes = [
        (x.shape[2 + i] + 2 * padding[i] - dilation[i] * (weight.shape[2 + i] - 1) - 1) // stride[i] + 1 for i in (0, 1)
    ]
    return x.new_empty(x.shape[0], *sizes, weight.shape[0]).permute(0, 3, 1, 2)


@torch.library.custom_op("foveal::aw_conv2d_backward", mutates_args=())
def aw_conv2d_backward(
    g: Tensor, x: Tensor, weight: Tensor, scale: Tensor,
    stride: list[int], padding: list[int], dilation: list[int], needed: list[bool],
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of input, kernel and multiplier; ``needed`` says whether of the input and of the other two."""
    from foveal.kernels.aw import launch as aw_launch

    found = aw_launch.backward(g, x, weight, scale, stride[0], padding, dilation, needed)
    dx, dw, ds = (g.new_empty(0) if each is None else each for each in found)
    return dx, dw, ds


@aw_conv2d_backward.register_fake
def _(g, x, weight, scale, stride, padding, dilation, needed):
    def like(t: Tensor, wanted: bool) -> Tensor:
        n, c, h, w = t.shape
        return t.new_empty(n, h, w, c).permute(0, 3, 1, 2) if wanted else t.new_empty(0)

    return like(x, needed[0]), like(weight, needed[1]), like(scale, needed[1])


def _save(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    x, weight, scale, _, ctx.stride, ctx.padding, ctx.dilation = inputs
    ctx.save_for_backward(x, weight, scale)


def _gradients(ctx, g: Tensor):  # type: ignore[no-untyped-def]
    x, weight, scale = ctx.saved_tensors
    need = ctx.needs_input_grad
    dx, dw, ds = aw_conv2d_backward(
        g, x, weight, scale, ctx.stride, ctx.padding, ctx.dilation, [need[0], need[1] or need[2]]
    )
    db = g.sum((0, 2, 3)) if need[3] else None
    return dx if need[0] else None, dw if need[1] else None, ds if need[2] else None, db, None, None, None


aw_conv2d.register_autograd(_gradients, setup_context=_save)


class _Direct(torch.autograd.Function):
    """The same without the operator around it, and differentiable as often as one likes."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        from foveal.kernels.aw import launch as aw_launch

        _save(ctx, inputs, None)
        x, weight, scale, bias, stride, padding, dilation = inputs
        return aw_launch.forward(x, weight, scale, bias, stride[0], padding, dilation)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        from foveal.kernels.aw import launch as aw_launch

        (x, weight, scale), need = ctx.saved_tensors, ctx.needs_input_grad
        db = g.sum((0, 2, 3)) if need[3] else None
        if torch.is_grad_enabled():
            return *_differentiable(ctx, g, x, weight, scale), db, None, None, None
        if watched(g):
            return _gradients(ctx, g)
        wanted = [need[0], need[1] or need[2]]
        dx, dw, ds = aw_launch.backward(g, x, weight, scale, ctx.stride[0], ctx.padding, ctx.dilation, wanted)
        if len(x) == 1:
            dx, ds = (None if part is None else _laid_out(part, like) for part, like in ((dx, x), (ds, scale)))
        return dx, dw if need[1] else None, ds if need[2] else None, db, None, None, None


def fused_conv(
    x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None,
    stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
) -> Tensor:  # fmt: skip
    """:func:`aw_conv2d`; without PyTorch's way to an operator in Python, which takes longer than the launches.

    Whoever looks at operators (see :func:`watched`) is shown one.
    """
    if watched(x, weight, scale):
        return aw_conv2d(x, weight, scale, bias, stride, padding, dilation)
    return _Direct.apply(x, weight, scale, bias, stride, padding, dilation)


@register_flop_formula(torch.ops.foveal.aw_conv2d)
def _flops(x_shape, weight_shape, *args, out_shape, **kwargs) -> int:  # type: ignore[no-untyped-def]
    return conv_flop_count(x_shape, weight_shape, out_shape)


@register_flop_formula(torch.ops.foveal.aw_conv2d_backward)
def _backward_flops(g_shape, x_shape, weight_shape, *args, out_shape, **kwargs) -> int:  # type: ignore[no-untyped-def]
    wanted = args[-1] if args else kwargs["needed"]
    return conv_flop_count(x_shape, weight_shape, g_shape) * sum(wanted)
