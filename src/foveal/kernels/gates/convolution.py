"""Launch the Triton kernel of the gradient of a spatial gate's convolution of two maps to one."""

from __future__ import annotations

import torch
from torch import Tensor

from foveal.kernels.gates import spatial_kernels as spatial
from foveal.kernels.gates.plan import ceil, power
from foveal.kernels.prepared import launch
from foveal.kernels.tape import empty

COLUMNS = 512  # positions of a program of the convolution
POINTS, PROGRAMS = 32, 528  # positions of a tile of its weight's gradient, and the programs that are aimed at
MOMENTS = 1024  # parts of the norm's sums that are added up at once


def strides(weight: Tensor) -> tuple[int, int]:
    """From one channel of the convolution's weight (1, 2, K, K), and from one tap, to the next."""
    return (weight.shape[-1] ** 2, 1) if weight.is_contiguous() else (1, 2)


def gradient(
    dmaps: Tensor, maps: Tensor, weight: Tensor, h: int, w: int, norm: tuple[Tensor | None, ...], parts: int,
    training: bool, of_weight: bool,
) -> Tensor | None:  # fmt: skip
    """Gradients of the maximum and the mean into ``dmaps``, and parts of that of the weight, (rows, 2·K²).

    Args:
        dmaps: gradients of the spatial gate's maps (N, 3, H·W), of which the first is known.
        maps: the spatial gate's, (N, 4, H·W).
        weight: (1, 2, K, K).
        h: height.
        w: width.
        norm: sums for the gradients of the norm, its moments, gradients of its weight and bias and of the amount.
        parts: of the sums.
        training: whether the norm used the statistics of the batch.
        of_weight: whether the gradient of the weight is needed.
    """
    n, size, kernel = len(maps), h * w, weight.shape[-1]
    taps, chunks, turns, columns = None, 1, 0, 2 * kernel * kernel
    if of_weight:
        tiles = ceil(size, POINTS)
        turns = ceil(tiles, max(1, min(tiles, PROGRAMS // n)))
        chunks = ceil(tiles, turns)
        taps = empty((n * chunks, columns), torch.float32, maps.device)
    blocks, extra = ceil(size, COLUMNS), 0 if taps is None else len(taps)
    sizes: tuple[int, ...] = n * size, h, w, *strides(weight), turns, blocks, chunks, extra, parts
    flags = of_weight, training, norm[4] is not None
    tiles_of = COLUMNS, power(columns), POINTS, MOMENTS
    tensors = dmaps, maps, weight, taps, *norm
    launch(spatial.convolution_grad, (extra + n * blocks,), tensors, (*sizes, kernel, *flags, *tiles_of))
    return taps
