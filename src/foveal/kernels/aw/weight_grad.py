"""Launch the Triton kernels for ∂K and ∂s of AW-convolution, in one of three forms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
import triton
from torch import Tensor

from foveal.kernels.aw import gradient_kernels
from foveal.kernels.aw.estimate import KERNEL, MEMORY_BYTES, Work, cycles
from foveal.kernels.aw.geometry import Geometry, ceil_div, channels_last, contiguous, interleaved
from foveal.kernels.aw.tiles import (
    ACROSS_TILES,
    LARGE,
    PRODUCT_TILES,
    SPLITS,
    WITHIN_TILES,
    Launch,
    box_within_sample,
    launches_across,
    limit,
    widest,
)
from foveal.kernels.copies import padded, sum_parts
from foveal.kernels.prepared import Prepared, View
from foveal.kernels.tape import empty
from foveal.kernels.tune import Key, run

Dtypes = tuple[torch.dtype, torch.dtype | None]


class WeightGradients:
    """∂K and ∂s of one shape: together, sample by sample, or separately, across samples.

    The forms: ``within`` computes one sample's weight gradient at a time; ``flat`` the same in boxes of whole rows of
    padded maps; ``across`` one position of the map in many samples at a time, first for the kernel, then for the
    multiplier.
    """

    def __init__(self, geometry: Geometry, hopper: bool) -> None:
        g = self.geometry = geometry
        self.hopper = hopper
        self.key, self.kernel_key, self.scale_key, self.within_key, self.flat_key = (
            Key(f"aw {kernel}", g.text, g.n, g.device)
            for kernel in ("weight grad", "kernel grad", "scale grad", "weight grad within", "weight grad flat")
        )
        self.sides = ceil_div(g.h, g.stride) * g.stride, ceil_div(g.w, g.stride) * g.stride
        self.kernel_shape, self.scale_shape = (g.c2, g.kh, g.kw, g.group[0]), (g.n, g.kh, g.kw, g.c2)
        g1, g2 = g.wide
        tiles = g.taps * ceil_div(g1, 64) * ceil_div(g2, 64) * g.super_groups
        self.splits = max(1, min(g.n, 528 // tiles))  # parts of ∂K, sample by sample: about four waves
        self.prepared: dict[object, Prepared] = {}

    def __call__(
        self, gradient: Tensor, x: Tensor, kernel: Tensor, s: Tensor, dtypes: Dtypes, add_up: bool = True
    ) -> tuple[Tensor, Tensor]:
        """∂K and ∂s of ``dtypes``, in the shapes of weight and multiplier, from ∂O and s in channels last.

        ``kernel`` are the packed weights.

        With None for a dtype, ∂s comes as parts of a sum, (parts, N, h, w, C2); unless ``add_up``, ∂K may, too, as
        (parts, C2, h, w, C1/groups).
        """
        images = channels_last(x)

        def launch(form: str) -> tuple[Tensor, Tensor]:
            if form == "across":
                return self._across(gradient, images, kernel, s, dtypes, add_up)
            return self._within(gradient, images, kernel, s, dtypes, add_up, flat=form == "flat")

        dw, ds = run(self.key, self.forms, launch, threads=1)
        dw = dw.permute(0, 3, 1, 2) if dw.ndim == 4 else dw
        return dw, ds if dtypes[1] is None else ds.permute(0, 3, 1, 2)

    def forms(self) -> list[str]:
        """The forms that may be the fastest for this shape, best first."""
        g = self.geometry
        small = g.oh * g.ow <= LARGE
        forms = {"within": lambda: self._within_cycles(self.within_tiles(False)[0], False)}
        if small and g.ow <= 64:
            forms["flat"] = lambda: self._within_cycles(self.within_tiles(True)[0], True)
        if small and g.n >= 64:
            forms["across"] = lambda: (
                self._kernel_cycles(self.kernel_tiles()[0]) + self._scale_cycles(self.scale_tiles()[0])
            )
        return sorted(forms, key=lambda form: forms[form]())

    def _launch(self, kind: object, prepare: Callable[[], Prepared], *tensors: Tensor) -> None:
        prepared = self.prepared.get(kind)
        if prepared is None:
            prepared = self.prepared[kind] = prepare()
        prepared(*tensors)

    # Sample by sample -------------------------------------------------------------------------------------------------

    def _within(
        self, gradient: Tensor, images: Tensor, kernel: Tensor, s: Tensor, dtypes: Dtypes, add_up: bool, flat: bool
    ) -> tuple[Tensor, Tensor]:
        g, images = self.geometry, padded(images, *self.sides)

        def launch(tile: Launch) -> tuple[Tensor, Tensor]:
            _, th, tw = tile.box
            dw = self._parts(self.splits, self.kernel_shape, s, dtypes[0])
            ds = self._parts(ceil_div(g.wide[0], tile.depth), self.scale_shape, s, dtypes[1])
            rows = padded(gradient, ceil_div(g.oh, th) * th, tw) if flat else gradient
            self._launch(
                (tile, flat, *dtypes), lambda: self._prepare_within(tile, flat), rows, images, kernel, s, dw, ds
            )
            return _sum(dw, dtypes[0] if add_up else None), _sum(ds, dtypes[1])

        return run(self.flat_key if flat else self.within_key, lambda: self.within_tiles(flat), launch)

    def _prepare_within(self, tile: Launch, flat: bool) -> Prepared:
        g, (_, th, tw), g1 = self.geometry, tile.box, self.geometry.wide[0]
        shape = (g.n * ceil_div(g.oh, th) * th * tw, g.c2) if flat else (g.n, g.oh, g.ow, g.c2)
        views = (
            contiguous(shape, [th * tw, tile.columns] if flat else [1, th, tw, tile.columns]),
            interleaved(g.n, *self.sides, g.c1, g.stride, [1, th, 1, tw, tile.depth]),
            None, None, None, None,
        )  # fmt: skip
        rest = (
            g.n, g.oh, g.ow, self.splits, *g.units[:4], *g.group, g.units[4], g.groups > 1, *g.shape,
            tile.tiles(1, g.oh, g.ow), g.precision, flat, th, tw, tile.columns, tile.depth,
        )  # fmt: skip
        grid = self._blocks(tile), ceil_div(g1, tile.depth), g.taps * self.splits
        return Prepared(gradient_kernels.weight_grad, grid, views, rest, tile.triton_options)

    def within_tiles(self, flat: bool) -> list[Launch]:
        """Candidates, best first."""
        g, (g1, g2) = self.geometry, self.geometry.wide
        width = triton.next_power_of_2(g.ow)

        def box(rows: int) -> tuple[int, int, int]:
            return (1, max(1, rows // width), width) if flat else box_within_sample(rows, g.oh, g.ow)

        tiles = [
            Launch(box(rows), limit(bp, g2), limit(bc, g1), warps, stages)
            for bp, bc, rows, warps, stages in WITHIN_TILES
            if bp <= widest(g2) and bc <= widest(g1)
        ]
        return sorted(tiles, key=lambda tile: self._within_cycles(tile, flat))

    def _within_cycles(self, tile: Launch, flat: bool) -> float:
        g, (_, th, tw) = self.geometry, tile.box
        programs = self._blocks(tile) * ceil_div(g.wide[0], tile.depth) * g.taps * self.splits
        samples, rows = g.n / self.splits, tile.tiles(1, g.oh, g.ow) * th * tw
        extra = float(KERNEL if self.splits > 1 else 0)
        if flat and (g.oh % th or g.ow != tw):  # ∂O is copied
            extra += KERNEL + g.n * rows * g.c2 * g.dtype.itemsize * 2 / MEMORY_BYTES
        work = Work(programs, tile.columns, tile.depth, samples * rows, th * tw, samples, extra)
        return cycles(work, tile, g)

    # Across samples ---------------------------------------------------------------------------------------------------

    def _across(
        self, gradient: Tensor, images: Tensor, kernel: Tensor, s: Tensor, dtypes: Dtypes, add_up: bool
    ) -> tuple[Tensor, Tensor]:
        def kernel_grad(tile: Launch) -> Tensor:
            dw = self._parts(tile.splits, self.kernel_shape, s, dtypes[0])
            kind = "kernel", tile, dtypes[0]
            self._launch(kind, lambda: self._prepare_kernel_grad(tile), gradient, images, s, dw)
            return _sum(dw, dtypes[0] if add_up else None)

        def scale_grad(tile: Launch) -> Tensor:
            ds = self._parts(tile.splits, self.scale_shape, s, dtypes[1])
            kind = "scale", tile, dtypes[1]
            self._launch(kind, lambda: self._prepare_scale_grad(tile), gradient, images, kernel, ds)
            return _sum(ds, dtypes[1])

        return run(self.kernel_key, self.kernel_tiles, kernel_grad), run(self.scale_key, self.scale_tiles, scale_grad)

    def _prepare_kernel_grad(self, tile: Launch) -> Prepared:
        g, nb, g1 = self.geometry, tile.box[0], self.geometry.wide[0]
        views = (*self._flat_views(tile), contiguous((g.n, g.taps, g.c2), [nb, 1, tile.columns]), None)
        rest = (
            g.n, g.h, g.w, g.oh, g.ow, tile.splits, *g.units[:4], *g.group, g.units[4], g.groups > 1, *g.shape,
            g.precision, self.hopper, nb, tile.columns, tile.depth,
        )  # fmt: skip
        grid = self._blocks(tile), ceil_div(g1, tile.depth), g.taps * tile.splits
        return Prepared(gradient_kernels.kernel_grad, grid, views, rest, tile.triton_options)

    def _prepare_scale_grad(self, tile: Launch) -> Prepared:
        g, nb, g1 = self.geometry, tile.box[0], self.geometry.wide[0]
        views = (*self._flat_views(tile), contiguous((g.c2, g.taps, g1), [tile.columns, 1, tile.depth]), None)
        rest = (
            g.n, g.h, g.w, g.oh, g.ow, tile.splits, *g.units, *g.shape,
            g.precision, nb, tile.columns, tile.depth,
        )  # fmt: skip
        grid = ceil_div(g.n, nb), self._blocks(tile), g.taps * tile.splits
        return Prepared(gradient_kernels.scale_grad, grid, views, rest, tile.triton_options)

    def _flat_views(self, tile: Launch) -> tuple[View, View]:
        """∂O and images, a row a sample."""
        g = self.geometry
        gradient = contiguous((g.n, g.oh * g.ow * g.c2), [tile.box[0], tile.columns])
        return gradient, contiguous((g.n, g.h * g.w * g.c1), [tile.box[0], tile.depth])

    def kernel_tiles(self) -> list[Launch]:
        """Candidates for ∂K, best first."""
        g, (g1, g2) = self.geometry, self.geometry.wide
        tiles = [
            Launch((nb, 1, 1), limit(bp, g2), limit(bc, g1), warps, stages, splits)
            for bp, bc, nb, warps, stages in ACROSS_TILES
            for splits in self._splits(g.c2 * g.taps * g.group[0])
            if bp <= widest(g2) and bc <= widest(g1)
        ]
        return sorted(tiles, key=self._kernel_cycles)

    def _kernel_cycles(self, tile: Launch) -> float:
        g, nb = self.geometry, tile.box[0]
        programs = self._blocks(tile) * ceil_div(g.wide[0], tile.depth) * g.taps * tile.splits
        deep = ceil_div(g.n, nb) * nb * g.inside / g.taps / tile.splits
        extra = self._sum_cycles(tile.splits, g.c2 * g.taps * g.group[0])
        work = Work(programs, tile.columns, tile.depth, deep, nb, extra=extra)
        return cycles(work, tile, g)

    def scale_tiles(self) -> list[Launch]:
        """Candidates for ∂s, best first."""
        g, (g1, g2) = self.geometry, self.geometry.wide
        tiles = [
            replace(tile, splits=splits)
            for tile in launches_across(PRODUCT_TILES, g.n, g.oh, g.ow, g2, g1)
            for splits in self._splits(g.n * g.taps * g.c2)
        ]
        return sorted(tiles, key=self._scale_cycles)

    def _scale_cycles(self, tile: Launch) -> float:
        g, nb = self.geometry, tile.box[0]
        positions = g.inside / g.taps / tile.splits
        programs = ceil_div(g.n, nb) * self._blocks(tile) * g.taps * tile.splits
        deep = ceil_div(g.wide[0], tile.depth) * tile.depth * positions
        extra = self._sum_cycles(tile.splits, g.n * g.taps * g.c2)
        return cycles(Work(programs, nb, tile.columns, deep, tile.depth, positions, extra), tile, g)

    # Both -------------------------------------------------------------------------------------------------------------

    def _blocks(self, tile: Launch) -> int:
        """Number of tiles of output channels."""
        return ceil_div(self.geometry.wide[1], tile.columns) * self.geometry.super_groups

    def _splits(self, size: int) -> list[int]:
        """Candidate numbers of parts of a sum of ``size`` numbers; they should not take more memory than the images."""
        g = self.geometry
        images = g.n * g.h * g.w * g.c1 * g.dtype.itemsize
        return [splits for splits in SPLITS if splits <= max(1, min(g.oh * g.ow, images // (4 * size)))]

    def _sum_cycles(self, splits: int, size: int) -> float:
        """Cycles to write and sum up parts of ``size`` numbers."""
        return 0 if splits == 1 else KERNEL + splits * size * 4 * 2 / MEMORY_BYTES

    def _parts(self, count: int, shape: tuple[int, ...], s: Tensor, dtype: torch.dtype | None) -> Tensor:
        """Memory for a sum of ``dtype``, or for ``count`` parts of it; for None always as parts.

        Large kernels have many parts of ∂s, so these are bfloat16 if s is; float16 does not have the range.
        """
        if count == 1 and dtype is not None:
            return empty(shape, dtype, s.device)
        half = shape is self.scale_shape and s.dtype == torch.bfloat16
        return empty((count, *shape), s.dtype if half else torch.float32, s.device)


def _sum(parts: Tensor, dtype: torch.dtype | None) -> Tensor:
    """Over the first of five axes, in ``dtype``; a sum of one part has four, and parts may be wanted as they are."""
    return parts if parts.ndim == 4 or dtype is None else sum_parts(parts, dtype)
