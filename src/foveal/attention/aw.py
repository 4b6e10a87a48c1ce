"""AW-convolution: attention with the shape of the kernel, one for every sample.

"An Attention Module for Convolutional Neural Networks" (ICANN 2021, https://arxiv.org/abs/2108.08205).

A small branch computes, from the input, an attention tensor of the kernel's shape; the convolution then uses
K + A ⊙ K, a different kernel for every sample. In the paper's setting A is constant along input channels.

Departures: sharing along output channels and kernel positions is ours, analogous to the paper's Expand, and so are the
presets of ``mode`` for its intermediate variants. The branch's width is a sixteenth of the *output* channels, as the
published parameter counts require.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foveal.attention.insertion.layers import is_depthwise, spatial_convolutions
from foveal.attention.insertion.registry import Kernel, Start, bottleneck, refuse_tracing, register_mechanism
from foveal.compat import CONV_FORWARD, exporting, only_computes, transforms_active
from foveal.errors import UserError, unknown
from foveal.kernels.aw.branch import (
    Branch,
    Parameters,
    attention_of_cells,
    branch_multiplier,
    branch_of,
    multiplier_of,
)
from foveal.kernels.aw.compiled import compiled_multiplier, compiled_site
from foveal.kernels.aw.forms import PATHS, Path, form_for, scales_output
from foveal.kernels.aw.fused import fused_conv
from foveal.kernels.aw.loop import conv_one_by_one
from foveal.kernels.aw.plain import conv_by_products, conv_by_taps, conv_per_sample, first_order_suffices
from foveal.kernels.aw.pointwise import pointwise_conv
from foveal.kernels.aw.pool import average_pool
from foveal.kernels.aw.site import Convolution, attended_conv
from foveal.kernels.support import fused_available, in_layout_of

MODES = ("kernel", "channel", "local", "output")


def expand(attention: Tensor, out: int, into: int, plane: tuple[int, int]) -> Tensor:
    """Repeat shared values: runs of ``out``, ``into`` and ``plane`` consecutive positions get the same one.

    Args:
        attention: (N, C2/out, C1/into, h/plane, w/plane).
        out: number of consecutive output channels that share a value.
        into: number of consecutive input channels that do.
        plane: number of consecutive positions along each axis of the kernel that do.

    Returns:
        (N, C2, C1, h, w).
    """
    for dim, times in ((1, out), (2, into), (3, plane[0]), (4, plane[1])):
        if times > 1:
            attention = attention.repeat_interleave(times, dim)
    return attention


@register_mechanism("aw")
class KernelAttention(Kernel):
    """AW-convolution: the kernel is multiplied by attention of its own shape, computed from each sample.

    For input I and kernel K (C2×C1×h×w), with Expand repeating values as the sharing options say::

        A0 = AvgPool(I) to h×w;  A1 = ReLU(BN(W1 A0));  A = Expand(Sigmoid(BN(W2 A1)));  O = Conv(I, K + A ⊙ K)

    Args:
        in_channels, out_channels, kernel_size, groups: of the convolution it serves.
        reduction: the branch's width is the number of attention channels divided by this, at least 1.
        share_in: number of consecutive input channels that share a value; None, or all of them, for all of a group, as
            in the paper.
        share_out: number of consecutive output channels that share a value.
        share_kernel: number of consecutive kernel positions along each axis that share a value.
        share_batch: number of consecutive samples that share their mean attention; must divide every batch size.
        mode: a preset of the first three: ``kernel`` uses them as they are; ``channel``: one value an input channel;
            ``local``: one an input channel and kernel position; ``output``: one a pair of output and input channel.
        residual: K + A ⊙ K, or A ⊙ K alone.
        start: ``identity`` to start as the plain convolution (one more parameter), ``paper`` for the published one.
        path: the form it is computed in: ``auto``, ``loop``, ``grouped``, ``taps``, ``products`` or ``fused``; the
            result is the same. ``fused`` is one kernel on NVIDIA GPUs, and falls back to ``auto`` elsewhere. Second
            derivatives of it and of ``products`` are computed by ``taps``; compiled, it has none.
    """

    kind = "weight"

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: tuple[int, int],
        *,
        groups: int = 1,
        reduction: int = 16,
        share_in: int | None = None,
        share_out: int = 1,
        share_kernel: int = 1,
        share_batch: int = 1,
        mode: Literal["kernel", "channel", "local", "output"] = "kernel",
        residual: bool = True,
        start: Start = "paper",
        path: Path = "auto",
    ) -> None:
        super().__init__()
        group_in, plane = in_channels // groups, (share_kernel, share_kernel)
        match mode:
            case "kernel":
                share_in = group_in if share_in in (None, in_channels) else share_in
            case "channel":
                share_in, share_out, plane = 1, out_channels // groups, kernel_size
            case "local":
                share_in, share_out, plane = 1, out_channels // groups, (1, 1)
            case "output":
                share_in, share_out, plane = 1, 1, kernel_size
            case _:
                raise unknown("mode", str(mode), MODES)
        if path not in PATHS:
            raise unknown("path", str(path), PATHS)
        for option, total, ratio in (
            ("share_in", group_in, share_in),
            ("share_out", out_channels, share_out),
            ("share_kernel", kernel_size[0], plane[0]),
            ("share_kernel", kernel_size[1], plane[1]),
        ):
            if ratio < 1 or total % ratio:
                raise UserError(f"{option}={ratio} does not divide {total}")
        if share_batch < 1:
            raise UserError(f"share_batch={share_batch}: expected at least one sample")
        self.share_in, self.share_out, self.share_kernel = share_in, share_out, plane
        self.share_batch = share_batch
        self.pooled = (kernel_size[0] // plane[0], kernel_size[1] // plane[1])
        self.shape = (out_channels // share_out, group_in // share_in)
        self.constant_in = share_in == group_in
        self.as_published = self.constant_in and share_out == share_batch == 1 and plane == (1, 1)
        self.residual, self.path = residual, path
        values = self.shape[0] * self.shape[1]
        hidden = bottleneck(values, reduction)
        self.squeeze = nn.Conv2d(in_channels, hidden, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(hidden)
        self.excite = nn.Conv2d(hidden, values, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(values)
        for conv in (self.squeeze, self.excite):
            nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
        if start not in ("identity", "paper"):
            raise unknown("start", str(start), ("identity", "paper"))
        self.amount = nn.Parameter(torch.zeros(())) if start == "identity" else None

    @classmethod
    def serves(cls, layer: nn.Module) -> str | None:
        """Plain convolutions with constant padding by zeros."""
        if not isinstance(layer, nn.Conv2d):
            return "it is no 2-d convolution"
        plain = getattr(layer, "_plain", type(layer))
        custom = any(getattr(plain, name) is not getattr(nn.Conv2d, name) for name in CONV_FORWARD)
        if plain not in (nn.Conv2d, AWConv2d) and custom:
            return f"{plain.__name__} has a convolution of its own"
        if plain is AWConv2d:
            return "it is an AW-convolution already"
        if is_depthwise(layer) and layer.kernel_size == (1, 1):
            return "a depthwise 1×1 convolution has nothing to attend to"
        if layer.padding_mode != "zeros":
            return f"padding_mode={layer.padding_mode!r} is not supported, only zeros"
        return None

    @classmethod
    def usual(cls, model: nn.Module) -> list[str]:
        """The 3×3 convolutions of the blocks; the pointwise ones of a MobileNet."""
        return spatial_convolutions(model)

    @classmethod
    def for_layer(cls, layer: nn.Module, *, start: Start, **options: Any) -> Self:
        """Build it for a convolution."""
        assert isinstance(layer, nn.Conv2d)
        size = (layer.kernel_size[0], layer.kernel_size[1])
        return cls(layer.in_channels, layer.out_channels, size, groups=layer.groups, start=start, **options)

    def attend(self, x: Tensor) -> Tensor:
        """The attention before it is expanded: (N, C2/share_out, C1/share_in, h/share_kernel, w/share_kernel)."""
        self._check_rows(x)
        with torch.autocast(x.device.type, enabled=False):
            a = self._attention(average_pool(x, self.pooled).to(self.squeeze.weight.dtype))
        if self.share_batch > 1:
            if not exporting() and len(a) % self.share_batch:
                raise UserError(f"share_batch={self.share_batch} does not divide a batch of {len(a)}")
            a = a.unflatten(0, (-1, self.share_batch)).mean(1).repeat_interleave(self.share_batch, 0)
        a = a.unflatten(1, self.shape)
        self.note(a)
        return a

    def _check_rows(self, x: Tensor) -> None:
        """Raise if there is nothing to take statistics of."""
        if self.training and x.shape[0] * self.pooled[0] * self.pooled[1] == 1:
            raise UserError(
                "one sample with a 1×1 pooled map cannot be normalised in training mode: "
                "train with a batch of at least two, or switch the attention to eval mode"
            )

    def _attention(self, pooled: Tensor) -> Tensor:
        """Sigmoid(BN(W2 ReLU(BN(W1 A0)))) of A0 (N, C1, h, w): (N, values, h, w), before anything is expanded."""
        modules = self.squeeze, self.norm1, self.excite, self.norm2
        if not all(map(only_computes, modules, (nn.Conv2d, nn.BatchNorm2d) * 2)):
            hidden = torch.relu(self.norm1(self.squeeze(pooled)))
            return torch.sigmoid(self.norm2(self.excite(hidden)))

        def rows(norm: nn.BatchNorm2d) -> Callable[[Tensor], Tensor]:
            return lambda z: norm(z[..., None, None]).flatten(1)

        return attention_of_cells(pooled, self.squeeze.weight, rows(self.norm1), self.excite.weight, rows(self.norm2))

    def multiplier(self, x: Tensor) -> Tensor:
        """The factor of the kernel, in the shape of :meth:`attend`."""
        branch = self._branch(x, self.squeeze.weight.dtype)
        if branch is not None:
            return branch_multiplier(x, *branch).unsqueeze(2)
        compiled = self._compiled_multiplier(x) if torch.compiler.is_compiling() else None
        if compiled is not None:
            return compiled.unsqueeze(2)
        return multiplier_of(self.attend(x), self.residual, self.amount)

    def _compiled_multiplier(self, x: Tensor) -> Tensor | None:
        """The branch as one operator of a compiled graph; None if the compiler must see the modules."""
        if self.watchers or not self.as_published or exporting() or not first_order_suffices() or transforms_active():
            return None
        if x.shape[0] == 0 or not fused_available(x.device):
            return None
        self._check_rows(x)
        with torch.autocast(x.device.type, enabled=False):
            pooled = average_pool(x, self.pooled).float()
            modules = self.squeeze, self.norm1, self.excite, self.norm2
            return compiled_multiplier(pooled, modules, self.amount, self.residual)

    def _branch(self, x: Tensor, dtype: torch.dtype) -> tuple[Parameters, Branch] | None:
        """The branch as a function of few launches, for a multiplier of ``dtype``; None if modules must be called."""
        if torch.compiler.is_compiling() or self.watchers or not self.as_published or not first_order_suffices():
            return None
        self._check_rows(x)
        modules = self.squeeze, self.norm1, self.excite, self.norm2
        return branch_of(x, *modules, self.amount, self.pooled, self.residual, dtype)

    def convolve(self, conv: nn.Conv2d, x: Tensor) -> Tensor:
        """The result that replaces ``conv(x)``."""
        refuse_tracing()
        weight, padding, images = conv.weight, conv.padding, x  # a parametrised weight is computed at every access
        if isinstance(padding, str):  # "same" may pad one side more, "valid" not at all
            if padding == "same":
                images = F.pad(x, _same_padding(conv))
            padding = (0, 0)
        device = x.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
        images = images.to(dtype)
        path = form_for(self.path, images, conv, weight, self.constant_in)
        fused = path == "fused" and conv.padding != "same"  # the branch reads what is convolved
        out: Tensor | None = None
        if torch.compiler.is_compiling():
            out = self._compiled(images, conv, weight, padding) if fused else None
        elif fused or scales_output(self.path, path, images, conv):
            branch = self._branch(images, dtype)
            if branch is not None:
                form = attended_conv if fused else pointwise_conv
                options = Convolution(conv.stride, padding, conv.dilation, conv.groups)
                out = form(images, weight, conv.bias, *branch, options)
        if out is None:
            out = self._convolve(path, conv, images, weight, self.multiplier(x), padding)
        if path == "taps":
            return out
        # The other forms return a layout of their own; a model keeps its own, as after a plain convolution.
        return in_layout_of(x, out)

    def _compiled(self, x: Tensor, conv: nn.Conv2d, weight: Tensor, padding: tuple[int, ...]) -> Tensor | None:
        """Branch and convolution as one operator of a compiled graph; None if the compiler must see the modules."""
        if self.watchers or not self.as_published:
            return None
        self._check_rows(x)
        bias = None if conv.bias is None else conv.bias.to(x.dtype)
        modules, options = (
            (self.squeeze, self.norm1, self.excite, self.norm2),
            (self.amount, self.pooled, self.residual),
        )
        return compiled_site(x, weight, bias, modules, *options, conv.stride, padding, conv.dilation, conv.groups)

    def _convolve(
        self, path: Path, conv: nn.Conv2d, x: Tensor, weight: Tensor, scale: Tensor, padding: tuple[int, ...]
    ) -> Tensor:
        """The convolution of x, already in the dtype of the result, in the form ``path``."""
        options: dict[str, Any] = {
            "stride": conv.stride,
            "padding": padding,
            "dilation": conv.dilation,
            "groups": conv.groups,
        }
        weight, bias = weight.to(x.dtype), None if conv.bias is None else conv.bias.to(x.dtype)
        if path in ("loop", "grouped"):
            into = 1 if self.constant_in else self.share_in
            scale = expand(scale, self.share_out, into, self.share_kernel).to(x.dtype)
            if path == "loop" and len(x) and not exporting():
                return conv_one_by_one(x, weight, scale, bias, **options)
            form: Any = "unfold" if exporting() else "grouped"  # keeps the batch size dynamic
            return conv_per_sample(x, weight * scale, bias, form, **options)
        scale = expand(scale, self.share_out, 1, self.share_kernel).squeeze(2).to(x.dtype)
        if path == "taps":
            return conv_by_taps(x, weight, scale, bias, **options)
        if path == "products":
            return conv_by_products(x, weight, scale, bias, **options)
        return fused_conv(x, weight, scale, bias, conv.stride, padding, conv.dilation, conv.groups)


def _same_padding(conv: nn.Conv2d) -> list[int]:
    """Padding of ``padding="same"`` as :func:`torch.nn.functional.pad` takes it: left, right, top, bottom."""
    totals = [dilation * (size - 1) for size, dilation in zip(conv.kernel_size, conv.dilation, strict=True)]
    return [side for total in reversed(totals) for side in (total // 2, total - total // 2)]


class AWConv2d(nn.Conv2d):
    """A convolution with kernel-shaped attention, for networks built by hand.

    Args:
        in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode, device, dtype: as
            in :class:`torch.nn.Conv2d`.
        **options: as in :class:`KernelAttention`.

    >>> AWConv2d(16, 32, 3, padding=1, stride=2)(torch.rand(4, 16, 9, 7)).shape
    torch.Size([4, 32, 5, 4])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        padding: str | int | tuple[int, int] = 0,
        dilation: int | tuple[int, int] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: Literal["zeros"] = "zeros",
        device: Any = None,
        dtype: Any = None,
        **options: Any,
    ) -> None:
        factory = {"device": device, "dtype": dtype}
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode, **factory
        )
        if padding_mode != "zeros":
            raise UserError(f"padding_mode={padding_mode!r} is not supported, only zeros")
        size = (self.kernel_size[0], self.kernel_size[1])
        self.attention = KernelAttention(in_channels, out_channels, size, groups=groups, **options).to(**factory)

    def forward(self, input: Tensor) -> Tensor:
        """(N, C1, H, W) to (N, C2, H', W')."""
        return self.attention.convolve(self, input)
