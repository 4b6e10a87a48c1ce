"""A model of how long a launch takes, good enough to choose among tiles without measuring.

Programs run in waves: as many at a time as registers and shared memory of all multiprocessors allow. A wave takes as
long as one of its programs alone, whose steps follow each other, or as long as a multiprocessor needs for its share of
the products, reads and scaled accumulators, whichever is more. The constants are those of an H200, fitted to launches
of the layers of ResNets (batches of 64 to 256, bfloat16). Only ratios matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from foveal.kernels.aw.geometry import Geometry, ceil_div
from foveal.kernels.aw.tiles import Launch
from foveal.kernels.support import capability

L2_BYTES = 57  # that a multiprocessor reads from the L2 cache in a cycle
MEMORY_BYTES = 2400  # that the whole GPU reads or writes in a cycle
FINISHED = 35  # accumulators that a multiprocessor scales and adds up in a cycle
STEP = 550  # cycles that a program waits in every step, when it is alone
START = 3200  # cycles until a program's first product, and after its last
KERNEL = 4000  # cycles of a launch of its own, for a sum over parts
REGISTERS = 80  # of a thread, beside its accumulators


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
        finishes: how often the accumulator is scaled and added to another one.
        extra: cycles of what follows.
    """

    programs: int
    rows: int
    columns: int
    depth: float
    step: int
    finishes: float = 0
    extra: float = 0


def cycles(work: Work, tile: Launch, geometry: Geometry) -> float:
    """Estimated cycles of a launch; infinite if it does not fit."""
    gpu, element = machine(geometry.dtype, geometry.exact, geometry.device), geometry.dtype.itemsize
    held = tile.stages * (work.rows + work.columns) * work.step * element
    if held > gpu.shared:
        return float("inf")
    accumulators = work.rows * work.columns * (2 if work.finishes else 1)
    threads = 32 * tile.warps
    resident = max(1, min(gpu.shared // held, 65536 // (accumulators + REGISTERS * threads), 2048 // threads))
    product = 2 * work.rows * work.columns * work.depth / gpu.operations
    reads = (work.rows + work.columns) * work.depth * element / L2_BYTES
    finish = work.finishes * work.rows * work.columns / FINISHED
    alone = START + product + finish + work.depth / work.step * STEP

    def wave(programs: int) -> float:
        share = ceil_div(programs, gpu.processors)
        return max(alone, START + share * max(product, reads, finish)) if programs else 0.0

    full, rest = divmod(work.programs, gpu.processors * resident)
    return full * wave(gpu.processors * resident) + wave(rest) + work.extra
