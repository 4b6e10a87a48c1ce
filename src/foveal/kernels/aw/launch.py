"""Launch the Triton kernels of AW-convolution, in the form and with the tiles that are fastest for a shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from foveal.kernels.aw import triton_kernels
from foveal.kernels.aw.tiles import (
    ACROSS_TILES,
    LARGE,
    PRODUCT_TILES,
    SPLITS,
    TILES,
    WITHIN_TILES,
    Launch,
    box_within_sample,
    ceil_div,
    launches_across,
    launches_within,
    limit,
    widest,
)
from foveal.kernels.support import capability, on_its_device
from foveal.kernels.tune import fastest

MIN_BYTES = 128  # a tensor descriptor reads at least this many bytes of a sample's multipliers


def _pad_to_stride(x: Tensor, stride: int) -> Tensor:
    """Contiguous (N, H, W, C), padded with zeros so that H and W are multiples of ``stride``."""
    return _padded(x, *(ceil_div(side, stride) * stride for side in x.shape[1:3]))


def _padded(x: Tensor, h: int, w: int) -> Tensor:
    """Contiguous (N, H, W, C), padded with zeros to (N, h, w, C)."""
    down, right = h - x.shape[1], w - x.shape[2]
    return torch.nn.functional.pad(x, (0, 0, 0, right, 0, down)) if down or right else x


def channels_last(x: Tensor) -> Tensor:
    """(N, C, H, W) as contiguous (N, H, W, C); free for a channels-last tensor."""
    x = x.permute(0, 2, 3, 1).contiguous()
    # PyTorch ignores the stride of an axis of size one; a tensor descriptor does not.
    return x.view(-1).view(x.shape) if 1 in x.shape else x


def _interleaved(x: Tensor, stride: int, block: list[int]) -> TensorDescriptor:
    """Contiguous (N, H, W, C) as (N, H/S, S, W/S, S·C); H and W multiples of S."""
    n, h, w, c = x.shape
    shape = [n, h // stride, stride, w // stride, stride * c]
    return TensorDescriptor(x, shape, [h * w * c, stride * w * c, w * c, stride * c, 1], block)


def _flat(x: Tensor, rows: int, columns: int) -> TensorDescriptor:
    """Contiguous (N, H, W, C) as (N, H·W·C)."""
    return TensorDescriptor.from_tensor(x.view(len(x), -1), [rows, columns])


def _precision(x: Tensor) -> str:
    exact = x.dtype == torch.float32 and not torch.backends.cuda.matmul.allow_tf32
    return "ieee" if exact else "tf32"


def _hopper(x: Tensor) -> bool:
    return x.is_cuda and capability(x.device)[0] == 9


@on_its_device
def forward(
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    bias: Tensor | None,
    stride: int,
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Tensor:
    """O = Σ_t s_t ⊙ (K_t · I_t): x (N, C1, H, W), weight (C2, C1, h, w), scale (N, C2, h, w) to (N, C2, H', W')."""
    (n, c1, h, w), (c2, _, kh, kw) = x.shape, weight.shape
    oh = (h + 2 * padding[0] - dilation[0] * (kh - 1) - 1) // stride + 1
    ow = (w + 2 * padding[1] - dilation[1] * (kw - 1) - 1) // stride + 1
    images = channels_last(x)
    padded, kernel = _pad_to_stride(images, stride), channels_last(weight).view(c2, kh * kw, c1)
    s = channels_last(scale).view(n, kh * kw, c2)
    out = torch.empty(n, oh, ow, c2, dtype=x.dtype, device=x.device)
    common = c1, c2, stride, *padding, *dilation, kh, kw, bias is not None, _precision(x)

    def launch(tile: Launch) -> None:
        nb, th, tw = tile.box
        grid = tile.tiles(n, oh, ow), ceil_div(c2, tile.columns)
        weights = TensorDescriptor.from_tensor(kernel, [tile.columns, 1, tile.depth])
        multiplier = TensorDescriptor.from_tensor(s, [nb, 1, tile.columns])
        if nb > 1:
            triton_kernels.forward_across[grid](
                _flat(images, nb, tile.depth), weights, multiplier, bias, out, n, h, w, oh, ow, *common,
                nb, tile.columns, tile.depth, **tile.triton_options,
            )  # fmt: skip
        else:
            triton_kernels.forward[grid](
                _interleaved(padded, stride, [1, th, 1, tw, tile.depth]), weights, multiplier, bias, out, oh, ow,
                *common, _hopper(x), th, tw, tile.columns, tile.depth, **tile.triton_options,
            )  # fmt: skip

    def candidates() -> list[Launch]:
        width = max(c2, MIN_BYTES // s.element_size())
        return launches_within(oh, ow, width, c1) + launches_across(PRODUCT_TILES, n, oh, ow, c2, c1)

    key = "aw forward", x.device, x.dtype, _precision(x), n, oh, ow, c1, c2, stride, kh
    launch(fastest(key, candidates, launch, x.device))
    return out.permute(0, 3, 1, 2)


class _Gradients:
    """∂I, ∂K and ∂s of one convolution: the last two together, sample by sample, or separately, across samples.

    The kernel is (C2, h·w, C1), the multiplier (N, h·w, C2), and the maps are (N, H, W, C).
    """

    def __init__(
        self,
        g: Tensor,
        x: Tensor,
        weight: Tensor,
        scale: Tensor,
        stride: int,
        padding: Sequence[int],
        dilation: Sequence[int],
    ) -> None:
        (self.n, self.c1, *self.size), (self.c2, _, kh, kw) = x.shape, weight.shape
        self.taps, self.stride = kh * kw, stride
        self.oh, self.ow = g.shape[2:]
        self.x, self.gradient = x, channels_last(g)
        self.kernel = channels_last(weight).view(self.c2, self.taps, self.c1)
        self.s = channels_last(scale).view(self.n, self.taps, self.c2)
        self.shape = stride, *padding, *dilation, kh, kw
        self.key = x.device, x.dtype, _precision(x), self.n, self.oh, self.ow, self.c1, self.c2, stride, kh

    def of_input(self) -> Tensor:
        """∂I (N, H, W, C1)."""
        (h, w), n, c1, stride = self.size, self.n, self.c1, self.stride
        dx = torch.empty(n, h, w, c1, dtype=self.gradient.dtype, device=self.gradient.device)
        ph, pw = ceil_div(h, stride), ceil_div(w, stride)

        def launch(tile: Launch) -> None:
            nb, th, tw = tile.box
            triton_kernels.input_grad[tile.tiles(n, ph, pw), ceil_div(c1, tile.columns), stride * stride](
                TensorDescriptor.from_tensor(self.gradient, [nb, th, tw, tile.depth]),
                TensorDescriptor.from_tensor(self.kernel, [tile.depth, 1, tile.columns]),
                TensorDescriptor.from_tensor(self.s, [nb, 1, tile.depth]), dx, n, h, w, self.oh, self.ow, c1, self.c2,
                *self.shape, _precision(self.gradient), _hopper(self.gradient),
                nb, th, tw, tile.columns, tile.depth, **tile.triton_options,
            )  # fmt: skip

        def candidates() -> list[Launch]:
            deep = max(self.c2, MIN_BYTES // self.s.element_size())
            return launches_within(ph, pw, c1, deep) + launches_across(TILES, n, ph, pw, c1, self.c2)

        launch(fastest(("aw input grad", *self.key, h, w), candidates, launch, dx.device))
        return dx

    def of_weights(self) -> tuple[Tensor, Tensor]:
        """∂K (C2, h·w, C1) and ∂s (N, h·w, C2), in float32 or in their own dtype."""

        def run(form: str) -> tuple[Tensor, Tensor]:
            return self.across() if form == "across" else self.within(flat=form == "flat")

        self.images = channels_last(self.x)
        gradients = run(fastest(("aw weight grad", *self.key), self.forms, run, self.s.device, threads=1))
        del self.images
        return gradients

    def forms(self) -> list[str]:
        """The forms that may be the fastest for this shape."""
        small = self.oh * self.ow <= LARGE
        return ["within"] + ["flat"] * (small and self.ow <= 64) + ["across"] * (small and self.n >= 64)

    def within(self, flat: bool) -> tuple[Tensor, Tensor]:
        """One sample's weight gradient at a time; ``flat``: in boxes of whole rows of padded maps."""
        images, width = _pad_to_stride(self.images, self.stride), triton.next_power_of_2(self.ow)

        def box(rows: int) -> tuple[int, int, int]:
            return (1, max(1, rows // width), width) if flat else box_within_sample(rows, self.oh, self.ow)

        def launch(tile: Launch) -> tuple[Tensor, Tensor]:
            _, th, tw = tile.box
            blocks = ceil_div(self.c2, tile.columns), ceil_div(self.c1, tile.depth)
            splits = max(1, min(self.n, 528 // (self.taps * ceil_div(self.c2, 64) * ceil_div(self.c1, 64))))
            dw, ds = self._parts(splits, self.kernel), self._parts(blocks[1], self.s)
            if flat:
                padded = _padded(self.gradient, ceil_div(self.oh, th) * th, tw)
                gradient = TensorDescriptor.from_tensor(padded.view(-1, self.c2), [th * tw, tile.columns])
            else:
                gradient = TensorDescriptor.from_tensor(self.gradient, [1, th, tw, tile.columns])
            triton_kernels.weight_grad[*blocks, self.taps * splits](
                gradient, _interleaved(images, self.stride, [1, th, 1, tw, tile.depth]),
                self.kernel, self.s, dw, ds, self.n, self.oh, self.ow, self.c1, self.c2, splits, *self.shape,
                tile.tiles(1, self.oh, self.ow), _precision(self.images), flat,
                th, tw, tile.columns, tile.depth, **tile.triton_options,
            )  # fmt: skip
            return _sum(dw), _sum(ds)

        def tiles() -> list[Launch]:
            return [
                Launch(box(rows), limit(bp, self.c2), limit(bc, self.c1), warps, stages)
                for bp, bc, rows, warps, stages in WITHIN_TILES
                if bp <= widest(self.c2) and bc <= widest(self.c1)
            ]

        return launch(fastest(("aw weight grad within", flat, *self.key), tiles, launch, self.s.device))

    def across(self) -> tuple[Tensor, Tensor]:
        """One position of the map in many samples at a time, first for the kernel, then for the multiplier."""
        n, c1, c2 = self.n, self.c1, self.c2
        sizes = n, *self.size, self.oh, self.ow, c1, c2

        def kernel_grad(tile: Launch) -> Tensor:
            nb, splits = tile.box[0], tile.splits
            dw = self._parts(splits, self.kernel)
            triton_kernels.kernel_grad[ceil_div(c2, tile.columns), ceil_div(c1, tile.depth), self.taps * splits](
                _flat(self.gradient, nb, tile.columns), _flat(self.images, nb, tile.depth),
                TensorDescriptor.from_tensor(self.s, [nb, 1, tile.columns]),
                dw, *sizes, splits, *self.shape, _precision(self.images), _hopper(self.images),
                nb, tile.columns, tile.depth, **tile.triton_options,
            )  # fmt: skip
            return _sum(dw)

        def scale_grad(tile: Launch) -> Tensor:
            nb, splits = tile.box[0], tile.splits
            ds = self._parts(splits, self.s)
            triton_kernels.scale_grad[ceil_div(n, nb), ceil_div(c2, tile.columns), self.taps * splits](
                _flat(self.gradient, nb, tile.columns), _flat(self.images, nb, tile.depth),
                TensorDescriptor.from_tensor(self.kernel, [tile.columns, 1, tile.depth]),
                ds, *sizes, splits, *self.shape, _precision(self.images),
                nb, tile.columns, tile.depth, **tile.triton_options,
            )  # fmt: skip
            return _sum(ds)

        def kernel_tiles() -> list[Launch]:
            return [
                Launch((nb, 1, 1), limit(bp, c2), limit(bc, c1), warps, stages, splits)
                for bp, bc, nb, warps, stages in ACROSS_TILES
                for splits in self._splits(c2 * self.taps * c1)
                if bp <= widest(c2) and bc <= widest(c1)
            ]

        def scale_tiles() -> list[Launch]:
            return [
                replace(tile, splits=splits)
                for tile in launches_across(PRODUCT_TILES, n, self.oh, self.ow, c2, c1)
                for splits in self._splits(n * self.taps * c2)
            ]

        device = self.s.device
        dw = kernel_grad(fastest(("aw kernel grad", *self.key), kernel_tiles, kernel_grad, device))
        ds = scale_grad(fastest(("aw scale grad", *self.key), scale_tiles, scale_grad, device))
        return dw, ds

    def _splits(self, size: int) -> list[int]:
        """Candidate numbers of parts of a sum of ``size`` numbers; they should not take more memory than the images."""
        largest = min(self.oh * self.ow, self.images.nbytes // (4 * size))
        return [splits for splits in SPLITS if splits <= max(1, largest)]

    def _parts(self, count: int, like: Tensor) -> Tensor:
        """Memory for ``count`` parts of a sum.

        Large kernels have many parts of ∂s, so these are bfloat16 if ∂s is; float16 does not have the range.
        """
        half = count == 1 or (like is self.s and like.dtype == torch.bfloat16)
        return torch.empty(count, *like.shape, dtype=like.dtype if half else torch.float32, device=like.device)


def _sum(parts: Tensor) -> Tensor:
    """Over the first axis."""
    return parts[0] if len(parts) == 1 else parts.sum(0)


@on_its_device
def backward(
    g: Tensor, x: Tensor, weight: Tensor, scale: Tensor, stride: int, padding: Sequence[int], dilation: Sequence[int],
    needed: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    """∂I, ∂K and ∂s from ∂O, in the shapes of x, weight and scale; ``needed``: of the input, of the other two."""
    dx = dw = ds = None
    if not any(needed):
        return dx, dw, ds
    gradients, (kh, kw) = _Gradients(g, x, weight, scale, stride, padding, dilation), weight.shape[2:]
    if needed[1]:  # first, so that its temporary memory is free again
        of_kernel, of_s = gradients.of_weights()
        dw = of_kernel.to(weight.dtype).unflatten(1, (kh, kw)).permute(0, 3, 1, 2)
        ds = of_s.to(scale.dtype).unflatten(1, (kh, kw)).permute(0, 3, 1, 2)
    if needed[0]:
        dx = gradients.of_input().permute(0, 3, 1, 2)
    return dx, dw, ds
