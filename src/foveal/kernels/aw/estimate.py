"""A model of how long a launch takes, good enough to choose among tiles without measuring.

A multiprocessor works off its share of the programs. Each needs time on the tensor cores, time to read its operands
from the L2 cache, and time for what is scaled in registers; with several programs on a multiprocessor these overlap.
Starting and storing a tile costs a constant. The constants are those of a Hopper GPU; only ratios matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from foveal.kernels.aw.geometry import Geometry, ceil_div
from foveal.kernels.aw.tiles import Launch
from foveal.kernels.support import capability

L2_BYTES = 32  # that a multiprocessor reads from the L2 cache in a cycle
MEMORY_BYTES = 2400  # that the whole GPU reads or writes in a cycle
SCALED = 64  # values that a multiprocessor scales in a cycle on their way into a product
FINISHED = 32  # accumulators that it scales and adds up in a cycle
START = 2000  # cycles until a tile's first product, and after its last
KERNEL = 4000  # cycles of a launch of its own, for a sum over parts


@dataclass(frozen=True)
class Machine:
    """What the model knows of a GPU: multiprocessors, operations of one in a cycle, and its shared memory in bytes."""

    processors: int
    operations: int
    shared: int


@cache
def machine(dtype: torch.dtype, exact: bool, device: torch.device) -> Machine:
    """The GPU with products in this precision; for tests without one, an H200."""
    processors, shared, recent = 132, 232448, True
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        processors, recent = properties.multi_processor_count, capability(device)[0] >= 9
        shared = getattr(properties, "shared_memory_per_block_optin", 101376)
    operations = (4096 if recent else 2048) // (1 if dtype.itemsize == 2 else 16 if exact else 2)
    return Machine(processors, operations, shared)


@dataclass(frozen=True)
class Work:
    """What a launch does.

    Attributes:
        programs: their number.
        rows, columns: of a program's product.
        depth: length of the sums of a program.
        step: how much of it is read at a time.
        scaled: rows or columns of the operand that is scaled in registers.
        finishes: how often the accumulator is scaled and added to another one.
        extra: cycles of what follows.
    """

    programs: int
    rows: int
    columns: int
    depth: float
    step: int
    scaled: int = 0
    finishes: float = 0
    extra: float = 0


def cycles(work: Work, tile: Launch, geometry: Geometry) -> float:
    """Estimated cycles of a launch; infinite if it does not fit."""
    gpu, element = machine(geometry.dtype, geometry.exact, geometry.device), geometry.dtype.itemsize
    held = tile.stages * (work.rows + work.columns) * work.step * element
    if held > gpu.shared:
        return float("inf")
    accumulators = work.rows * work.columns * (2 if work.finishes else 1)
    resident = max(1, min(gpu.shared // held, 65536 // (accumulators + 96 * 32 * tile.warps), 64 // tile.warps))
    product = 2 * work.rows * work.columns * work.depth / gpu.operations
    reads = (work.rows + work.columns) * work.depth * element / L2_BYTES
    registers = work.scaled * work.depth / SCALED + work.finishes * work.rows * work.columns / FINISHED
    busy = product + registers if resident == 1 else max(product, registers) + min(product, registers) / resident
    share = ceil_div(work.programs, gpu.processors)
    return share * max(busy, reads) + ceil_div(share, resident) * START + work.extra
