"""Tiles for the Triton kernels of AW-convolution: which launch configurations may be the fastest for a shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import triton

from foveal.kernels.aw.geometry import ceil_div

LARGE = 32 * 32  # positions of a map; for larger maps tiles always lie within a sample


@dataclass(frozen=True)
class Launch:
    """Launch configuration of a kernel.

    Attributes:
        box: samples, rows and columns of a tile: one sample, or one row and one column.
        columns: output channels of a tile.
        depth: channels that are summed at a time.
        warps: of Triton, like ``stages``.
        stages: of Triton.
        splits: number of parts that a sum is split into.
    """

    box: tuple[int, int, int]
    columns: int
    depth: int
    warps: int
    stages: int
    splits: int = 1

    def __str__(self) -> str:
        """As in a table of launches."""
        box = "x".join(map(str, self.box))
        return f"{box} {self.columns} {self.depth} warps {self.warps} stages {self.stages} splits {self.splits}"

    @property
    def triton_options(self) -> dict[str, int]:
        """Arguments for Triton itself."""
        return {"num_warps": self.warps, "num_stages": self.stages}

    def tiles(self, n: int, h: int, w: int) -> int:
        """Number of tiles that cover n maps of h×w."""
        return ceil_div(n, self.box[0]) * ceil_div(h, self.box[1]) * ceil_div(w, self.box[2])


def box_within_sample(rows: int, h: int, w: int) -> tuple[int, int, int]:
    """The box of ``rows`` positions in one sample that covers an h×w map with the least waste; ties: the squarest."""
    sides = [(1, 1 << i, rows >> i) for i in range(rows.bit_length())]
    return min(sides, key=lambda box: (ceil_div(h, box[1]) * ceil_div(w, box[2]), abs(box[1] - box[2])))


# Rows, columns, depth, warps and stages: with one accumulator, with two, and for the two forms of the weight gradient.
TILES = ((64, 64, 64, 4, 3), (128, 64, 64, 4, 3), (256, 64, 64, 8, 3), (128, 128, 64, 4, 3), (128, 128, 64, 8, 3),
         (256, 128, 64, 8, 3), (64, 128, 64, 4, 3), (64, 256, 64, 4, 3), (128, 256, 64, 8, 3))  # fmt: skip
PRODUCT_TILES = ((128, 128, 64, 8, 4), (128, 128, 128, 8, 3), (128, 64, 64, 4, 4), (64, 128, 64, 4, 4),
                 (64, 64, 64, 4, 4))  # fmt: skip
WITHIN_TILES = ((64, 64, 64, 4, 3), (64, 128, 64, 4, 4), (64, 64, 128, 4, 3), (128, 64, 64, 8, 3), (128, 128, 64, 8, 4))
ACROSS_TILES = ((128, 128, 64, 8, 4), (128, 128, 64, 4, 3), (64, 128, 64, 4, 4), (64, 64, 64, 4, 4))
SPLITS = (1, 2, 3, 4, 8)


def launches_within(h: int, w: int, columns: int, depth: int) -> list[Launch]:
    """Candidates for maps of h×w, ``columns`` output and ``depth`` input channels, with boxes within one sample."""
    return [
        Launch(box_within_sample(rows, h, w), limit(width, columns), limit(deep, depth), warps, stages)
        for rows, width, deep, warps, stages in TILES
        if min(128, widest(columns)) <= width <= widest(columns) and rows <= max(64, 2 * h * w)
    ]


def launches_across(tiles: Sequence[Sequence[int]], n: int, h: int, w: int, columns: int, depth: int) -> list[Launch]:
    """Candidates for n maps of h×w, one position of many samples at a time; none if the maps are large or few."""
    return [
        Launch((rows, 1, 1), limit(width, columns), limit(deep, depth), warps, stages)
        for rows, width, deep, warps, stages in tiles
        if rows <= n and h * w <= LARGE and width <= widest(columns)
    ]


def widest(channels: int) -> int:
    """The widest useful tile."""
    return max(64, triton.next_power_of_2(channels))


def limit(side: int, channels: int) -> int:
    """The side of a tile, limited to the next power of two of the number of channels.

    >>> limit(64, 24), limit(64, 8), limit(64, 512)
    (32, 16, 64)
    """
    return min(side, max(16, triton.next_power_of_2(channels)))
