"""Launch the Triton kernels of AW-convolution. What depends on the shape alone is prepared once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from foveal.kernels.aw import depthwise, gradient_kernels, triton_kernels
from foveal.kernels.aw.estimate import Work, cycles
from foveal.kernels.aw.geometry import Geometry, ceil_div, channels_last, contiguous, empty_last, interleaved
from foveal.kernels.aw.tiles import PRODUCT_TILES, TILES, Launch, launches_across, launches_within
from foveal.kernels.aw.weight_grad import Dtypes, WeightGradients
from foveal.kernels.copies import packed, padded
from foveal.kernels.prepared import Prepared
from foveal.kernels.support import capability, on_its_device
from foveal.kernels.tune import Key, run

MIN_BYTES = 128  # a tensor descriptor reads at least this many bytes of a sample's multipliers


class Plan:
    """One shape of AW-convolution: its sizes, and its kernels, prepared when they are first used."""

    def __init__(self, geometry: Geometry) -> None:
        g = self.geometry = geometry
        self.hopper = g.device.type == "cuda" and capability(g.device)[0] == 9
        self.rows, self.columns = ceil_div(g.h, g.stride), ceil_div(g.w, g.stride)  # of one interleaved image
        self.least = MIN_BYTES // g.dtype.itemsize
        self.out_shape, self.in_shape = (g.n, g.c2, g.oh, g.ow), (g.n, g.c1, g.h, g.w)
        self.forward_key = Key("aw forward", g.text, g.n, g.device)
        self.input_key = Key("aw input grad", g.text, g.n, g.device)
        self.weights = WeightGradients(geometry, self.hopper)
        self.prepared: dict[object, Prepared] = {}

    def packed(self, weight: Tensor) -> Tensor:
        """Weights (C2, C1/groups, h, w) of any dtype as (C2 or more, h·w, G1), block-diagonal within super-groups."""
        g = self.geometry
        return packed(weight, g.dtype, g.groups, g.together)

    # Forward ----------------------------------------------------------------------------------------------------------

    def forward(self, x: Tensor, kernel: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
        """O (N, C2, H', W'); ``kernel`` are the packed weights."""
        images, s = channels_last(x), channels_last(scale)
        out = empty_last(self.out_shape, x)

        def launch(tile: Launch) -> None:
            kind = "forward", tile, None if bias is None else bias.dtype
            prepared = self.prepared.get(kind)
            if prepared is None:
                prepared = self.prepared[kind] = self._prepare_forward(tile, bias is not None)
            across = tile.box[0] > 1
            prepared(images if across else self._interleaved(images), kernel, s, bias, out)

        run(self.forward_key, self.forward_tiles, launch)
        return out

    def _interleaved(self, images: Tensor) -> Tensor:
        """Padded so that H and W are multiples of the stride."""
        return padded(images, self.rows * self.geometry.stride, self.columns * self.geometry.stride)

    def _prepare_forward(self, tile: Launch, bias: bool) -> Prepared:
        g, (nb, th, tw), (g1, g2) = self.geometry, tile.box, self.geometry.wide
        grid = tile.tiles(g.n, g.oh, g.ow), ceil_div(g2, tile.columns) * g.super_groups
        weights = contiguous((g.c2, g.taps, g1), [tile.columns, 1, tile.depth])
        multiplier = contiguous((g.n, g.taps, g.c2), [nb, 1, tile.columns])
        if nb > 1:
            images = contiguous((g.n, g.h * g.w * g.c1), [nb, tile.depth])
            sizes = g.n, g.h, g.w, g.oh, g.ow
            rest = *sizes, *g.units, *g.shape, bias, g.precision, nb, tile.columns, tile.depth
            views = images, weights, multiplier, None, None
            return Prepared(triton_kernels.forward_across, grid, views, rest, tile.triton_options)
        block = [1, th, 1, tw, tile.depth]
        images = interleaved(g.n, self.rows * g.stride, self.columns * g.stride, g.c1, g.stride, block)
        rest = g.oh, g.ow, *g.units, *g.shape, bias, g.precision, self.hopper, th, tw, tile.columns, tile.depth
        views = images, weights, multiplier, None, None
        return Prepared(triton_kernels.forward, grid, views, rest, tile.triton_options)

    def forward_tiles(self) -> list[Launch]:
        """Candidates, best first."""
        g, (g1, g2) = self.geometry, self.geometry.wide

        def work(tile: Launch) -> Work:
            nb, th, tw = tile.box
            programs = tile.tiles(g.n, g.oh, g.ow) * ceil_div(g2, tile.columns) * g.super_groups
            deep = ceil_div(g1, tile.depth) * tile.depth
            if nb > 1:  # kernel positions outside the map are skipped
                taps = g.inside / (g.oh * g.ow)
                return Work(programs, nb, tile.columns, deep * taps, tile.depth, finishes=taps)
            return Work(programs, th * tw, tile.columns, deep * g.taps, tile.depth)

        tiles = launches_within(g.oh, g.ow, max(g2, self.least), g1)
        tiles += launches_across(PRODUCT_TILES, g.n, g.oh, g.ow, g2, g1)
        return sorted(tiles, key=lambda tile: cycles(work(tile), tile, g))

    # Backward ---------------------------------------------------------------------------------------------------------

    def input_grad(self, gradient: Tensor, kernel: Tensor, s: Tensor, cells: Tensor | None = None) -> Tensor:
        """∂I (N, C1, H, W) from ∂O (N, C2, H', W'), the packed kernel and the multiplier (N, C2, h, w).

        To it is added what the branch gives each position of a pooled cell, ``cells`` (N·h·w, C1), float32.
        """
        dx = empty_last(self.in_shape, gradient)

        def launch(tile: Launch) -> None:
            kind = "input", tile, cells is None
            prepared = self.prepared.get(kind)
            if prepared is None:
                prepared = self.prepared[kind] = self._prepare_input_grad(tile)
            prepared(gradient, kernel, s, cells, dx)

        run(self.input_key, self.input_tiles, launch)
        return dx

    def _prepare_input_grad(self, tile: Launch) -> Prepared:
        g, (nb, th, tw), (g1, g2) = self.geometry, tile.box, self.geometry.wide
        columns = ceil_div(g1, tile.columns) * g.super_groups
        views = (
            contiguous((g.n, g.oh, g.ow, g.c2), [nb, th, tw, tile.depth]),
            contiguous((g.c2, g.taps, g1), [tile.depth, 1, tile.columns]),
            contiguous((g.n, g.taps, g.c2), [nb, 1, tile.depth]),
            None, None,
        )  # fmt: skip
        rest = (
            g.n, g.h, g.w, g.oh, g.ow, *g.units, g2 < g.c2 and g2 % tile.depth > 0, *g.shape, g.precision, self.hopper,
            nb, th, tw, tile.columns, tile.depth,
        )  # fmt: skip
        grid = tile.tiles(g.n, self.rows, self.columns), columns, g.stride**2
        return Prepared(gradient_kernels.input_grad, grid, views, rest, tile.triton_options)

    def input_tiles(self) -> list[Launch]:
        """Candidates, best first."""
        g, (g1, g2) = self.geometry, self.geometry.wide

        def work(tile: Launch) -> Work:
            nb, th, tw = tile.box
            programs = tile.tiles(g.n, self.rows, self.columns) * ceil_div(g1, tile.columns) * g.super_groups
            taps = g.inside / (g.oh * g.ow) if nb > 1 and g.stride == 1 else g.taps / g.stride**2
            deep = ceil_div(g2, tile.depth) * tile.depth * taps
            rows = nb * th * tw
            return Work(programs * g.stride**2, rows, tile.columns, deep, tile.depth)

        tiles = launches_within(self.rows, self.columns, g1, max(g2, self.least))
        tiles += launches_across(TILES, g.n, self.rows, self.columns, g1, g2)
        return sorted(tiles, key=lambda tile: cycles(work(tile), tile, g))


@lru_cache(maxsize=4096)
def _plan(
    x: torch.Size, weight: torch.Size, stride: int, padding: tuple[int, int], dilation: tuple[int, int], groups: int,
    dtype: torch.dtype, device: torch.device, exact: bool,
) -> Plan | depthwise.Plan:  # fmt: skip
    n, c1, h, w = x
    c2, _, kh, kw = weight
    geometry = Geometry(n, c1, h, w, c2, kh, kw, stride, padding, dilation, groups, dtype, device, exact)
    return depthwise.Plan(geometry) if depthwise.is_depthwise(geometry) else Plan(geometry)


def plan(
    x: Tensor, weight: Tensor, stride: int, padding: Sequence[int], dilation: Sequence[int], groups: int
) -> Plan | depthwise.Plan:
    """The plan for this shape."""
    exact = x.dtype == torch.float32 and not torch.backends.cuda.matmul.allow_tf32
    pads, steps = (padding[0], padding[1]), (dilation[0], dilation[1])
    return _plan(x.shape, weight.shape, stride, pads, steps, groups, x.dtype, x.device, exact)


@on_its_device
def forward(
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    bias: Tensor | None,
    stride: int,
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    """O = Σ_t s_t ⊙ (K_t · I_t), (N, C2, H', W').

    I is ``x`` (N, C1, H, W), s is ``scale`` (N, C2, h, w), both of one dtype; K is ``weight`` (C2, C1/groups, h, w).
    """
    if x.dtype != scale.dtype:
        raise TypeError(f"expected input and multiplier of one dtype: {x.dtype}, {scale.dtype}")
    shape = plan(x, weight, stride, padding, dilation, groups)
    return shape.forward(x, shape.packed(weight), scale, None if bias is None else bias.contiguous())


@on_its_device
def backward(
    g: Tensor, x: Tensor, weight: Tensor, scale: Tensor, stride: int, padding: Sequence[int], dilation: Sequence[int],
    groups: int, needed: Sequence[bool], dtypes: Dtypes,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    """∂I, ∂K and ∂s from ∂O, in the shapes of x, weight and scale, all in channels last.

    ``needed``: of the input, of the other two; ``dtypes``: of ∂K and ∂s; see :class:`WeightGradients`.
    """
    shape = plan(x, weight, stride, padding, dilation, groups)
    return gradients(shape, g, x, shape.packed(weight), scale, needed, dtypes)


def gradients(
    shape: Plan | depthwise.Plan, g: Tensor, x: Tensor, kernel: Tensor, scale: Tensor, needed: Sequence[bool],
    dtypes: Dtypes,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    """As :func:`backward`, with the packed weights."""
    dx = dw = ds = None
    gradient, s = channels_last(g), channels_last(scale)
    if needed[1]:  # first, so that its temporary memory is free again
        dw, ds = shape.weights(gradient, x, kernel, s, dtypes)
    if needed[0]:
        dx = shape.input_grad(gradient, kernel, s)
    return dx, dw, ds
