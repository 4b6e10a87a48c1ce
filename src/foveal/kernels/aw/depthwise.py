"""Launch the Triton kernels of depthwise AW-convolution. What depends on the shape alone is prepared once."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from foveal.kernels.aw import depthwise_kernels
from foveal.kernels.aw.estimate import machine
from foveal.kernels.aw.geometry import Geometry, ceil_div, channels_last, empty_last
from foveal.kernels.aw.tiles import Launch, box_within_sample, limit
from foveal.kernels.copies import sum_parts
from foveal.kernels.prepared import Prepared, launch
from foveal.kernels.tape import do_not_record, empty, empty_like
from foveal.kernels.tune import Key, run

MAP_TILES = ((64, 64, 4), (32, 64, 4), (16, 64, 2), (128, 32, 4), (64, 32, 4), (32, 32, 2), (32, 128, 4), (128, 64, 8))
"""Positions and channels of a tile, and warps."""
SUM_TILES = ((16, 64, 4), (32, 64, 8), (32, 32, 4), (16, 32, 4), (64, 32, 8))
"""The same for the weight gradient."""
VALUES = 40  # products of one kernel position that a multiprocessor does in a cycle, with their loads
BLOCK = 1024  # values of a program that scales kernels
START = 1500  # cycles until a tile's first product, and after its last


def is_depthwise(geometry: Geometry) -> bool:
    """Whether every output channel has one input channel of its own."""
    return geometry.groups == geometry.c1 == geometry.c2


class Plan:
    """One shape of depthwise AW-convolution: its sizes, and its kernels, prepared when they are first used."""

    def __init__(self, geometry: Geometry) -> None:
        g = self.geometry = geometry
        self.forward_key, self.input_key, self.weight_key = (
            Key(f"aw depthwise {kernel}", g.text, g.n, g.device) for kernel in ("forward", "input grad", "weight grad")
        )
        self.out_shape, self.in_shape = (g.n, g.c2, g.oh, g.ow), (g.n, g.c1, g.h, g.w)
        self.sides = ceil_div(g.h, g.stride), ceil_div(g.w, g.stride)  # of one interleaved image
        self.sizes = g.h, g.w, g.oh, g.ow
        self.prepared: dict[object, Prepared] = {}

    def packed(self, weight: Tensor) -> Tensor:
        """Weights (C, 1, h, w) of any dtype: contiguous, as channels-last ones are, too."""
        if not weight.is_contiguous():
            do_not_record()
        return weight.contiguous()

    def sample_kernels(self, weight: Tensor, s: Tensor) -> Tensor:
        """The samples' own kernels (N, C, h, w), in channels last like s, from weight (C, 1, h, w) and multiplier s."""
        kernels = empty_like(s)
        rest = kernels.numel(), self.geometry.c1, self.geometry.taps, BLOCK
        tensors = weight, s, kernels
        launch(depthwise_kernels.sample_kernels, (ceil_div(kernels.numel(), BLOCK),), tensors, rest, num_warps=4)
        return kernels

    def forward(self, x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
        """O (N, C, H', W'); ``weight`` is packed."""
        g, images, kernels = self.geometry, channels_last(x), self.sample_kernels(weight, channels_last(scale))
        out = empty_last(self.out_shape, x)

        def start(tile: Launch) -> None:
            kind = "forward", tile, None if bias is None else bias.dtype
            prepared = self.prepared.get(kind)
            if prepared is None:
                _, th, tw = tile.box
                rest = *self.sizes, g.c1, *g.shape, bias is not None, th, tw, tile.columns
                grid = tile.tiles(g.n, g.oh, g.ow), ceil_div(g.c1, tile.columns)
                prepared = Prepared(depthwise_kernels.forward, grid, (None,) * 4, rest, tile.triton_options)
                self.prepared[kind] = prepared
            prepared(images, kernels, bias, out)

        run(self.forward_key, lambda: self.map_tiles(g.oh, g.ow), start)
        return out

    def input_grad(self, gradient: Tensor, weight: Tensor, s: Tensor, cells: Tensor | None = None) -> Tensor:
        """∂I (N, C, H, W) from ∂O (N, C, H', W'), weight (C, 1, h, w) and multiplier (N, C, h, w).

        To it is added what the branch gives each position of a pooled cell, ``cells`` (N·h·w, C), float32.
        """
        g, kernels, dx = self.geometry, self.sample_kernels(weight, s), empty_last(self.in_shape, gradient)

        def start(tile: Launch) -> None:
            kind = "input", tile, cells is None
            prepared = self.prepared.get(kind)
            if prepared is None:
                _, th, tw = tile.box
                rest = *self.sizes, g.c1, *g.shape, th, tw, tile.columns
                grid = tile.tiles(g.n, *self.sides), ceil_div(g.c1, tile.columns), g.stride**2
                prepared = Prepared(depthwise_kernels.input_grad, grid, (None,) * 4, rest, tile.triton_options)
                self.prepared[kind] = prepared
            prepared(gradient, kernels, cells, dx)

        run(self.input_key, lambda: self.map_tiles(*self.sides), start)
        return dx

    def map_tiles(self, h: int, w: int) -> list[Launch]:
        """Candidates for maps of h×w, best first by a model like :mod:`foveal.kernels.aw.estimate`."""
        g = self.geometry
        sms = machine(g.dtype, g.exact, g.device).processors

        def cost(tile: Launch) -> float:
            share = ceil_div(tile.tiles(g.n, h, w) * ceil_div(g.c1, tile.columns), sms)
            work = tile.box[1] * tile.box[2] * tile.columns * g.taps / VALUES
            return share * work + ceil_div(share, 32 // tile.warps) * START

        tiles = [
            Launch(box_within_sample(rows, h, w), limit(columns, g.c1), 1, warps, 1)
            for rows, columns, warps in MAP_TILES
        ]
        return sorted(dict.fromkeys(tiles), key=cost)

    def weights(
        self, gradient: Tensor, x: Tensor, kernel: Tensor, s: Tensor, dtypes: tuple[torch.dtype, torch.dtype | None],
        add_up: bool = True,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """∂K and ∂s of ``dtypes``, in the shapes of weight and multiplier, from ∂O and s in channels last.

        ``kernel`` is the packed weight. Unless ``add_up``, ∂K may come as parts of a sum, (parts, C, h, w, 1).
        """
        g, images = self.geometry, channels_last(x)

        def start(tile: Launch) -> tuple[Tensor, Tensor]:
            ds = empty_like(s, dtypes[1] or torch.float32)
            kind = dtypes[0] if tile.splits == 1 else torch.float32
            dw = empty((tile.splits, g.c1, g.kh, g.kw, 1), kind, s.device)
            prepared = self.prepared.get(("weight", tile, kernel.dtype, *dtypes))
            if prepared is None:
                wide = triton.next_power_of_2(g.kw)
                rest = g.n, *self.sizes, tile.splits, g.c1, *g.shape, wide, tile.box[2], tile.columns
                grid = g.kh * tile.splits, ceil_div(g.c1, tile.columns)
                prepared = Prepared(depthwise_kernels.weight_grad, grid, (None,) * 6, rest, tile.triton_options)
                self.prepared["weight", tile, kernel.dtype, *dtypes] = prepared
            prepared(gradient, images, kernel, s, dw, ds)
            if len(dw) == 1:
                return dw[0], ds
            return sum_parts(dw, dtypes[0]) if add_up else dw, ds

        dw, ds = run(self.weight_key, self.sum_tiles, start)
        return dw.permute(0, 3, 1, 2) if dw.ndim == 4 else dw, ds

    def sum_tiles(self) -> list[Launch]:
        """Candidates for the weight gradient, with as many parts of the batch as keep the GPU busy; best first."""
        g = self.geometry
        sms = machine(g.dtype, g.exact, g.device).processors

        def tile(rows: int, columns: int, warps: int) -> Launch:
            columns = limit(columns, g.c1)
            splits = max(1, min(g.n, 4 * sms // (g.kh * ceil_div(g.c1, columns))))
            return Launch((1, 1, rows), columns, 1, warps, 1, splits)

        def waste(tile: Launch) -> float:
            positions = ceil_div(g.oh * g.ow, tile.box[2]) * tile.box[2]
            return positions * ceil_div(g.c1, tile.columns) * tile.columns

        return sorted(dict.fromkeys(tile(*sizes) for sizes in SUM_TILES), key=waste)
