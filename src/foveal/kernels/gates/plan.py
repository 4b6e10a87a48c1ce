"""Tiles and grids of the kernels of gates; they follow from the shape, nothing is searched."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from torch import Tensor

ELEMENTS = 4096  # of a tile of a map, with 8 warps: 16 a thread
BUSY = 132  # programs that run at once if a multiprocessor runs one, on a large GPU
HIDDEN = 8, 32  # values of a tile of the perceptron's weights: of few, and of more hidden ones
Grid = tuple[int, int, int]


def ceil(a: int, b: int) -> int:
    """The quotient, rounded up."""
    return -(-a // b)


def power(n: int) -> int:
    """The next power of two."""
    return 1 << (n - 1).bit_length()


class Plan(NamedTuple):
    """Tiles and grids for maps of one shape; the sizes are those of the kernels' arguments.

    Attributes:
        steps: from one position, and from one channel, to the next.
        tile: positions and channels of a tile.
        pool: grid (samples, blocks of channels, parts of the positions) and tiles of a part where positions are summed.
        gate: the same where that takes more registers: with a spatial gate, for its gradient.
        write: the same where every value is written.
        across: tile where channels are summed.
        positions: grid, tiles a program where channels are summed and the sums added up.
        hidden: hidden values of a tile of the perceptron's weights that has the channels of a tile.
        registers: limits for four programs on a multiprocessor, with maxima, and for three, with a spatial gate.
        row: channels and hidden values of a tile of the perceptron's weights where a program has all channels, and its
            warps.
    """

    steps: tuple[int, int]
    tile: tuple[int, int]
    pool: tuple[Grid, int]
    gate: tuple[Grid, int]
    write: tuple[Grid, int]
    across: tuple[int, int]
    positions: tuple[tuple[int, int], int]
    hidden: int
    registers: tuple[dict[str, int], dict[str, int]]
    row: tuple[int, int, int]


@lru_cache(maxsize=1024)
def plan_of(n: int, c: int, size: int, hidden: int, last: bool) -> Plan:
    """The plan for maps (``n``, ``c``, ``size`` positions), channels ``last`` or not."""
    if last:
        wide = min(128, power(c))
        tile = min(power(size), ELEMENTS // wide), wide
        deep = min(256, power(c))
        across = min(power(size), ELEMENTS // deep), deep
    else:
        rows = min(128, power(size))
        tile = rows, min(power(c), ELEMENTS // rows)
        across = tile
    blocks, tiles = ceil(c, tile[1]), ceil(size, tile[0])

    def parts(programs: int, least: int = 1) -> tuple[Grid, int]:
        turns = max(ceil(tiles, max(1, min(tiles, programs // (n * blocks)))), min(tiles, least))
        return (n, blocks, ceil(tiles, turns)), turns

    lines = ceil(size, across[0])
    steps = ceil(lines, max(1, min(lines, 4 * BUSY // n)))
    weights = power(c), min(power(hidden), max(1, min(16, 2 * ELEMENTS // power(c))))
    return Plan(
        steps=(c, 1) if last else (1, size),
        tile=tile,
        pool=parts(4 * BUSY),
        gate=parts(3 * BUSY),
        write=parts(4 * BUSY, ceil(2 * hidden, tile[0])),  # at least as much of the map as of the perceptron's weights
        across=across,
        positions=((n, ceil(lines, steps)), steps),
        hidden=HIDDEN[hidden > HIDDEN[0]],
        registers=({"maxnreg": 64}, {"maxnreg": 80}) if last else ({}, {}),
        row=(*weights, 4 if weights[0] * weights[1] <= ELEMENTS // 2 else 8),
    )


def plan_for(x: Tensor, hidden: int) -> tuple[Plan, int, int, int]:
    """The plan for ``x``, N, C and H·W."""
    n, c, h, w = x.shape
    return plan_of(n, c, h * w, hidden, not x.is_contiguous()), n, c, h * w
