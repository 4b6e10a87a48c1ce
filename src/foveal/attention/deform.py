"""Deformable convolution: each position decides where the taps of the kernel look.

Dai et al.: "Deformable Convolutional Networks" (https://arxiv.org/abs/1703.06211), and with ``modulated=True`` Zhu et
al.: "Deformable ConvNets v2" (https://arxiv.org/abs/1811.11168); in the comparison of Zhu et al. "An Empirical Study of
Spatial Attention Mechanisms" (https://arxiv.org/abs/1904.05873) the sparse form of attention from query content and
relative position.

Three forms compute it: on NVIDIA GPUs, for convolutions without groups, kernels of our own that keep the precision and
layout of the map; on a CPU sums of rows; elsewhere, and in exported models, torchvision's operator. None of them has a
second derivative: where one is needed, as in class attention of second order, a plain form is used.

Departures: torchvision's operator does not support bfloat16, so mixed precision is float32 there; sums of rows are
float32, and their product has the precision of autocast. With ``start="identity"`` modulation starts at one (twice a
sigmoid), with ``paper`` at a half.

ONNX has the operator since opset 19. PyTorch lets no module know the opset, so an earlier one cannot be refused here:
the file is written, and onnxruntime does not load it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from foveal.attention.checks import check_maps, check_pair, check_whole
from foveal.attention.insertion.registry import Kernel, Start, check_start, register_mechanism
from foveal.attention.insertion.stages import block_convolutions
from foveal.compat import CONV_FORWARD, exporting
from foveal.errors import UserError
from foveal.kernels.aw.plain import first_order_suffices
from foveal.kernels.deform.fused import fusable, fused_deform_conv
from foveal.kernels.deform.plain import Geometry, deform_conv, sampling_points
from foveal.kernels.deform.rows import deform_conv_by_rows
from foveal.kernels.support import in_layout_of


class SamplingPoints:
    """What a deformable convolution looked at in one forward pass.

    Args:
        points: (N, G, K, H', W', 2), x and y in pixels of the convolution's input.
        modulation: (N, G, K, H', W'), or None.
        input_size: (H, W) of the convolution's input.
    """

    def __init__(self, points: Tensor, modulation: Tensor | None, input_size: tuple[int, int]) -> None:
        self.points, self.modulation, self.input_size = points, modulation, input_size

    @property
    def parts(self) -> dict[str, Tensor]:
        """The modulation, if there is one."""
        return {} if self.modulation is None else {"modulation": self.modulation}

    @property
    def shape(self) -> torch.Size:
        """(N, G, K, H', W', 2)."""
        return self.points.shape

    def whole(self) -> Tensor:
        """The points."""
        return self.points

    def rows(self, queries: Tensor, heads: Tensor | None) -> Tensor:
        """Not for points; :class:`~foveal.attention.AttentionRecord` refuses it."""
        raise TypeError("sampling points have no rows")


@register_mechanism("deform")
class DeformableKernel(Kernel):
    """Deformable convolution: the taps of the kernel look where the content of each position says.

    For tap p_k of kernel w, with offsets Δp and modulation Δm from a convolution of the kernel's own size, which is
    zero at first::

        y(q) = Σ_k w_k · x(q + p_k + Δp_k(q)) · Δm_k(q)

    Between pixels x is bilinear, outside of the map zero. Without modulation (v1) it starts as the plain convolution.

    Args:
        in_channels, out_channels, kernel_size, stride, padding, dilation, groups: of the convolution it serves.
        modulated: whether the samples are modulated (v2).
        deform_groups: number of groups of channels with offsets of their own; must divide the input channels.
        start: with ``modulated``, ``identity`` for a modulation that starts at 1, ``paper`` at 0.5.
    """

    kind = "points"
    filled: tuple[str, ...] = (*Kernel.filled, "stride", "padding", "dilation")
    stages = 3

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: tuple[int, int],
        *,
        stride: tuple[int, int] = (1, 1),
        padding: tuple[int, int] = (0, 0),
        dilation: tuple[int, int] = (1, 1),
        groups: int = 1,
        modulated: bool = False,
        deform_groups: int = 1,
        start: Start = "identity",
    ) -> None:
        super().__init__()
        check_start(start)
        check_whole(deform_groups=deform_groups)
        if in_channels % deform_groups:
            raise UserError(f"deform_groups={deform_groups} does not divide {in_channels} input channels")
        self.geometry = Geometry(kernel_size, stride, padding, dilation, deform_groups, groups)
        self.modulated = modulated
        self.most = 2.0 if start == "identity" else 1.0
        channels = deform_groups * kernel_size[0] * kernel_size[1] * (3 if modulated else 2)
        self.offset = nn.Conv2d(in_channels, channels, kernel_size, stride, padding, dilation)
        nn.init.zeros_(self.offset.weight)
        assert self.offset.bias is not None
        nn.init.zeros_(self.offset.bias)

    @classmethod
    def serves(cls, layer: nn.Module) -> str | None:
        """Plain convolutions wider than 1×1, with constant padding by zeros."""
        if not isinstance(layer, nn.Conv2d):
            return "it is no 2-d convolution"
        plain = getattr(layer, "_plain", type(layer))
        if any(getattr(plain, name) is not getattr(nn.Conv2d, name) for name in CONV_FORWARD):
            return f"{plain.__name__} has a convolution of its own"
        if layer.kernel_size == (1, 1):
            return "a 1×1 convolution has no taps to move"
        if layer.padding_mode != "zeros":
            return f"padding_mode={layer.padding_mode!r} is not supported, only zeros"
        if _uneven(layer):
            return "its padding differs between the sides"
        return None

    @classmethod
    def usual(cls, model: nn.Module) -> list[str]:
        """The spatial convolution of every block of the last three stages."""
        return block_convolutions(model, cls.stages)

    @classmethod
    def for_layer(cls, layer: nn.Module, *, start: Start, **options: Any) -> Self:
        """Build it for a convolution."""
        assert isinstance(layer, nn.Conv2d)
        return cls(
            layer.in_channels,
            layer.out_channels,
            _pair(layer.kernel_size),
            stride=_pair(layer.stride),
            padding=_padding(layer),
            dilation=_pair(layer.dilation),
            groups=layer.groups,
            start=start,
            **options,
        )

    def convolve(self, conv: nn.Conv2d, x: Tensor) -> Tensor:
        """The result that replaces ``conv(x)``."""
        check_maps(x, conv.in_channels)
        dtype = torch.get_autocast_dtype(x.device.type) if torch.is_autocast_enabled(x.device.type) else x.dtype
        offset, modulation = self.offset(x), None
        if self.modulated:
            offset, logits = offset.split([offset.shape[1] * 2 // 3, offset.shape[1] // 3], 1)
            modulation = self.most * torch.sigmoid(logits)
        if self.watchers:
            by_group = None if modulation is None else modulation.unflatten(1, (self.geometry.deform_groups, -1))
            points = sampling_points(offset, self.geometry)
            self.note(SamplingPoints(points, by_group, (x.shape[2], x.shape[3])))
        form, inside = self._form(x, dtype)
        inputs = x, offset, modulation, conv.weight, conv.bias
        return form(*(None if t is None else t.to(inside) for t in inputs), self.geometry).to(dtype)

    def _form(self, x: Tensor, dtype: torch.dtype) -> tuple[Callable[..., Tensor], torch.dtype]:
        """The function that computes the convolution of ``x``, and in which dtype."""
        if first_order_suffices() and not exporting() and fusable(x, dtype, self.geometry):
            return fused_deform_conv, dtype
        half = dtype == torch.bfloat16 or (dtype == torch.float16 and not x.is_cuda)
        wide = torch.float32 if half else dtype
        if not first_order_suffices():
            return deform_conv, wide
        exported = exporting() or torch.jit.is_tracing()
        return (deform_conv_by_rows if x.device.type == "cpu" and not exported else _by_torchvision), wide

    def extra_repr(self) -> str:
        """Show what the children do not."""
        return f"modulated={self.modulated}, deform_groups={self.geometry.deform_groups}"


def _by_torchvision(
    x: Tensor, offset: Tensor, modulation: Tensor | None, weight: Tensor, bias: Tensor | None, g: Geometry
) -> Tensor:
    """Deformable convolution by torchvision's operator; arguments as of :func:`deform_conv_by_rows`."""
    from torchvision.ops import deform_conv2d  # imports the compiler, which takes seconds

    return in_layout_of(x, deform_conv2d(x, offset, weight, bias, g.stride, g.padding, g.dilation, modulation))


class DeformConv2d(nn.Conv2d):
    """A deformable convolution, with the arguments of :class:`torch.nn.Conv2d` and those of :class:`DeformableKernel`.

    >>> conv = DeformConv2d(16, 32, 3, stride=2, padding=1, modulated=True)
    >>> conv(torch.rand(2, 16, 9, 7)).shape
    torch.Size([2, 32, 5, 4])
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
        *,
        start: Start = "paper",
        **options: Any,
    ) -> None:
        factory = {"device": device, "dtype": dtype}
        check_whole(in_channels=in_channels, out_channels=out_channels, groups=groups)
        check_pair(kernel_size=kernel_size, stride=stride, dilation=dilation)
        if not isinstance(padding, str):
            check_pair(0, padding=padding)
        if padding_mode != "zeros":
            raise UserError(f"padding_mode={padding_mode!r} is not supported, only zeros")
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode, **factory
        )
        if _uneven(self):
            raise UserError(f"kernel_size={kernel_size!r}: expected odd numbers with padding='same', or even dilation")
        self.deform = DeformableKernel.for_layer(self, start=start, **options).to(**factory)

    def forward(self, input: Tensor) -> Tensor:
        """(N, C1, H, W) to (N, C2, H', W')."""
        return self.deform.convolve(self, input)


def _pair(values: tuple[int, ...]) -> tuple[int, int]:
    return values[0], values[1]


def _uneven(conv: nn.Conv2d) -> bool:
    """Whether ``padding="same"`` needs one pixel more on one side than on the other."""
    spans = (d * (k - 1) for d, k in zip(conv.dilation, conv.kernel_size, strict=True))
    return conv.padding == "same" and any(span % 2 for span in spans)


def _padding(conv: nn.Conv2d) -> tuple[int, int]:
    """Padding in numbers."""
    if isinstance(conv.padding, str):
        sides = [d * (k - 1) // 2 for d, k in zip(conv.dilation, conv.kernel_size, strict=True)]
        return (0, 0) if conv.padding == "valid" else (sides[0], sides[1])
    return _pair(conv.padding)
