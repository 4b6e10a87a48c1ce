"""Launch the kernels of the fused AW-convolution, in the form and with the tiles that are fastest for a shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from foveal.kernels.aw import triton as aw_triton
from foveal.kernels.support import capability, on_its_device
from foveal.kernels.tune import fastest

LARGE = 32 * 32  # positions of a map from which on tiles lie within a sample
PIECE = 128  # bytes to which a tensor descriptor must put what it reads; a sample's multipliers are no fewer


def ceil_div(a: int, b: int) -> int:
    """``a`` divided by ``b``, rounded up; Triton's own takes microseconds, and a launch needs many."""
    return -(-a // b)


@dataclass(frozen=True)
class Launch:
    """Shape of a tile: ``box`` samples, rows and columns by ``columns`` channels, ``depth`` summed at a time.

    Either one sample or one row and column. ``splits`` says into how many parts a sum goes.
    """

    box: tuple[int, int, int]
    columns: int
    depth: int
    warps: int
    stages: int
    splits: int = 1

    @property
    def how(self) -> dict[str, int]:
        """Arguments for Triton itself."""
        return {"num_warps": self.warps, "num_stages": self.stages}

    def tiles(self, n: int, h: int, w: int) -> int:
        """How many tiles cover n maps of h×w."""
        return ceil_div(n, self.box[0]) * ceil_div(h, self.box[1]) * ceil_div(w, self.box[2])


def box_within_sample(rows: int, h: int, w: int) -> tuple[int, int, int]:
    """The box of ``rows`` positions of one sample that covers an h×w map with least waste, the squarest of those."""
    sides = [(1, 1 << i, rows >> i) for i in range(rows.bit_length())]
    return min(sides, key=lambda box: (ceil_div(h, box[1]) * ceil_div(w, box[2]), abs(box[1] - box[2])))


# Rows, columns, depth, warps and stages. With one accumulator, with two, and those of the two weight gradients.
TILES = ((64, 64, 64, 4, 3), (128, 64, 64, 4, 3), (256, 64, 64, 8, 3), (128, 128, 64, 4, 3), (128, 128, 64, 8, 3),
         (256, 128, 64, 8, 3), (64, 128, 64, 4, 3), (64, 256, 64, 4, 3), (128, 256, 64, 8, 3))  # fmt: skip
PRODUCT_TILES = ((128, 128, 64, 8, 4), (128, 128, 128, 8, 3), (128, 64, 64, 4, 4), (64, 128, 64, 4, 4),
                 (64, 64, 64, 4, 4))  # fmt: skip
WITHIN_TILES = ((64, 64, 64, 4, 3), (64, 128, 64, 4, 4), (64, 64, 128, 4, 3), (128, 64, 64, 8, 3), (128, 128, 64, 8, 4))
ACROSS_TILES = ((128, 128, 64, 8, 4), (128, 128, 64, 4, 3), (64, 128, 64, 4, 4), (64, 64, 64, 4, 4))
SPLITS = (1, 2, 3, 4, 8)


def launches_within(h: int, w: int, columns: int, depth: int) -> list[Launch]:
    """Candidates for maps of h×w, ``columns`` channels out and ``depth`` channels in, in boxes of one sample."""
    return [
        Launch(box_within_sample(rows, h, w), narrow(wide, columns), narrow(deep, depth), warps, stages)
        for rows, wide, deep, warps, stages in TILES
        if min(128, most(columns)) <= wide <= most(columns) and rows <= max(64, 2 * h * w)
    ]


def launches_across(tiles: Sequence[Sequence[int]], n: int, h: int, w: int, columns: int, depth: int) -> list[Launch]:
    """Candidates for n maps of h×w, one place of many samples at a time; none if the maps are large or few."""
    return [
        Launch((rows, 1, 1), narrow(wide, columns), narrow(deep, depth), warps, stages)
        for rows, wide, deep, warps, stages in tiles
        if rows <= n and h * w <= LARGE and wide <= most(columns)
    ]


def most(channels: int) -> int:
    """The widest tile that makes sense."""
    return max(64, triton.next_power_of_2(channels))


def narrow(side: int, channels: int) -> int:
    """A side of a tile that is not much wider than there are channels.

    >>> narrow(64, 24), narrow(64, 8), narrow(64, 512)
    (32, 16, 64)
    """
    return min(side, max(16, triton.next_power_of_2(channels)))


def _whole(x: Tensor, stride: int) -> Tensor:
    """Contiguous (N, H, W, C) with H and W multiples of ``stride``, filled up with zeros."""
    return _padded(x, *(ceil_div(side, stride) * stride for side in x.shape[1:3]))


def _padded(x: Tensor, h: int, w: int) -> Tensor:
    """Contiguous (N, H, W, C) filled up with zeros to (N, h, w, C)."""
    down, right = h - x.shape[1], w - x.shape[2]
    return torch.nn.functional.pad(x, (0, 0, 0, right, 0, down)) if down or right else x


def channels_last(x: Tensor) -> Tensor:
    """(N, C, H, W) as contiguous (N, H, W, C); free for a channels-last tensor."""
    x = x.permute(0, 2, 3, 1).contiguous()
    # PyTorch does not care for the stride of an axis of size one; a tensor descriptor does.
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
    whole, kernel = _whole(images, stride), channels_last(weight).view(c2, kh * kw, c1)
    s = channels_last(scale).view(n, kh * kw, c2)
    out = torch.empty(n, oh, ow, c2, dtype=x.dtype, device=x.device)
    common = c1, c2, stride, *padding, *dilation, kh, kw, bias is not None, _precision(x)

    def launch(tile: Launch) -> None:
        nb, th, tw = tile.box
        grid = tile.tiles(n, oh, ow), ceil_div(c2, tile.columns)
        weights = TensorDescriptor.from_tensor(kernel, [tile.columns, 1, tile.depth])
        multiplier = TensorDescriptor.from_tensor(s, [nb, 1, tile.columns])
        if nb > 1:
            aw_triton.forward_across[grid](
                _flat(images, nb, tile.depth), weights, multiplier, bias, out, n, h, w, oh, ow, *common,
                nb, tile.columns, tile.depth, **tile.how,
            )  # fmt: skip
        else:
            aw_triton.forward[grid](
                _interleaved(whole, stride, [1, th, 1, tw, tile.depth]), weights, multiplier, bias, out, oh, ow,
                *common, _hopper(x), th, tw, tile.columns, tile.depth, **tile.how,
            )  # fmt: skip

    def candidates() -> list[Launch]:
        wide = max(c2, PIECE // s.element_size())
        return launches_within(oh, ow, wide, c1) + launches_across(PRODUCT_TILES, n, oh, ow, c2, c1)

    key = "aw forward", x.device, x.dtype, _precision(x), n, oh, ow, c1, c2, stride, kh
    launch(fastest(key, candidates, launch, x.device))
    return out.permute(0, 3, 1, 2)


class _Gradients:
    """∂I, ∂K and ∂s of one convolution; the last two both at once, sample by sample, or each by itself, across samples.

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
            aw_triton.input_grad[tile.tiles(n, ph, pw), ceil_div(c1, tile.columns), stride * stride](
                TensorDescriptor.from_tensor(self.gradient, [nb, th, tw, tile.depth]),
                TensorDescriptor.from_tensor(self.kernel, [tile.depth, 1, tile.columns]),
                TensorDescriptor.from_tensor(self.s, [nb, 1, tile.depth]), dx, n, h, w, self.oh, self.ow, c1, self.c2,
                *self.shape, _precision(self.gradient), _hopper(self.gradient),
                nb, th, tw, tile.columns, tile.depth, **tile.how,
            )  # fmt: skip

        def candidates() -> list[Launch]:
            deep = max(self.c2, PIECE // self.s.element_size())
            return launches_within(ph, pw, c1, deep) + launches_across(TILES, n, ph, pw, c1, self.c2)

        launch(fastest(("aw input grad", *self.key, h, w), candidates, launch, dx.device))
        return dx

    def of_weights(self) -> tuple[Tensor, Tensor]:
        """∂K (C2, h·w, C1) and ∂s (N, h·w, C2), in float32 or in their own type."""

        def way(name: str) -> tuple[Tensor, Tensor]:
            return self.across() if name == "across" else self.within(flat=name == "flat")

        self.images = channels_last(self.x)
        found = way(fastest(("aw weight grad", *self.key), self.ways, way, self.s.device, threads=1))
        del self.images
        return found

    def ways(self) -> list[str]:
        """Those that may be the fastest."""
        small = self.oh * self.ow <= LARGE
        return ["within"] + ["flat"] * (small and self.ow <= 64) + ["across"] * (small and self.n >= 64)

    def within(self, flat: bool) -> tuple[Tensor, Tensor]:
        """A sample's own weight gradient at a time; ``flat``: in boxes of whole rows of padded maps."""
        images, width = _whole(self.images, self.stride), triton.next_power_of_2(self.ow)

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
            aw_triton.weight_grad[*blocks, self.taps * splits](
                gradient, _interleaved(images, self.stride, [1, th, 1, tw, tile.depth]),
                self.kernel, self.s, dw, ds, self.n, self.oh, self.ow, self.c1, self.c2, splits, *self.shape,
                tile.tiles(1, self.oh, self.ow), _precision(self.images), flat,
                th, tw, tile.columns, tile.depth, **tile.how,
            )  # fmt: skip
            return _sum(dw), _sum(ds)

        def tiles() -> list[Launch]:
            return [
                Launch(box(rows), narrow(bp, self.c2), narrow(bc, self.c1), warps, stages)
                for bp, bc, rows, warps, stages in WITHIN_TILES
                if bp <= most(self.c2) and bc <= most(self.c1)
            ]

        return launch(fastest(("aw weight grad within", flat, *self.key), tiles, launch, self.s.device))

    def across(self) -> tuple[Tensor, Tensor]:
        """One position of the map in many samples at a time, first for the kernel, then for the multiplier."""
        n, c1, c2, where = self.n, self.c1, self.c2, (self.n, *self.size, self.oh, self.ow, self.c1, self.c2)

        def kernel_grad(tile: Launch) -> Tensor:
            nb, splits = tile.box[0], tile.splits
            dw = self._parts(splits, self.kernel)
            aw_triton.kernel_grad[ceil_div(c2, tile.columns), ceil_div(c1, tile.depth), self.taps * splits](
                _flat(self.gradient, nb, tile.columns), _flat(self.images, nb, tile.depth),
                TensorDescriptor.from_tensor(self.s, [nb, 1, tile.columns]),
                dw, *where, splits, *self.shape, _precision(self.images), _hopper(self.images),
                nb, tile.columns, tile.depth, **tile.how,
            )  # fmt: skip
            return _sum(dw)

        def scale_grad(tile: Launch) -> Tensor:
            nb, splits = tile.box[0], tile.splits
            ds = self._parts(splits, self.s)
            aw_triton.scale_grad[ceil_div(n, nb), ceil_div(c2, tile.columns), self.taps * splits](
                _flat(self.gradient, nb, tile.columns), _flat(self.images, nb, tile.depth),
                TensorDescriptor.from_tensor(self.kernel, [tile.columns, 1, tile.depth]),
                ds, *where, splits, *self.shape, _precision(self.images),
                nb, tile.columns, tile.depth, **tile.how,
            )  # fmt: skip
            return _sum(ds)

        def kernel_tiles() -> list[Launch]:
            return [
                Launch((nb, 1, 1), narrow(bp, c2), narrow(bc, c1), warps, stages, splits)
                for bp, bc, nb, warps, stages in ACROSS_TILES
                for splits in self._splits(c2 * self.taps * c1)
                if bp <= most(c2) and bc <= most(c1)
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
        """Into how many parts a sum of ``size`` numbers may go: they should not need more memory than the images."""
        room = min(self.oh * self.ow, self.images.nbytes // (4 * size))
        return [splits for splits in SPLITS if splits <= max(1, room)]

    def _parts(self, count: int, like: Tensor) -> Tensor:
        """Room for so many parts of a sum.

        The parts of ∂s are many where kernels are large, so they are in bfloat16 if ∂s is; float16 has not the range.
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
    work, (kh, kw) = _Gradients(g, x, weight, scale, stride, padding, dilation), weight.shape[2:]
    if needed[1]:  # first, since what it needs meanwhile is then free again
        of_kernel, of_s = work.of_weights()
        dw = of_kernel.to(weight.dtype).unflatten(1, (kh, kw)).permute(0, 3, 1, 2)
        ds = of_s.to(scale.dtype).unflatten(1, (kh, kw)).permute(0, 3, 1, 2)
    if needed[0]:
        dx = work.of_input().permute(0, 3, 1, 2)
    return dx, dw, ds
