"""Launch the Triton kernels of a spatial gate's convolution of two maps to one; it is also an operator of its own."""

from __future__ import annotations

import torch
from torch import Tensor

from foveal.kernels.copies import sum_parts
from foveal.kernels.gates import spatial_kernels as spatial
from foveal.kernels.gates.plan import ceil, power
from foveal.kernels.prepared import launch
from foveal.kernels.support import on_its_device
from foveal.kernels.tape import empty, taped

COLUMNS = 512  # positions of a program of the convolution
POINTS, PROGRAMS = 32, 528  # positions of a tile of its weight's gradient, and the programs that are aimed at
MOMENTS = 1024  # parts of the norm's sums that are added up at once


def strides(weight: Tensor) -> tuple[int, int]:
    """From one channel of the convolution's weight (1, 2, K, K), and from one tap, to the next."""
    return (weight.shape[-1] ** 2, 1) if weight.is_contiguous() else (1, 2)


def gradient(
    g: Tensor, pair: Tensor, weight: Tensor, dpair: Tensor, h: int, w: int, steps: tuple[int, int, int, int],
    norm: tuple[Tensor | None, ...], parts: int, training: bool, of_weight: bool,
) -> Tensor | None:  # fmt: skip
    """Gradient of the maps into ``dpair``, and parts of that of the weight, (rows, 2·K²).

    Args:
        g: gradient of the convolution's output or, with ``norm``, of the norm's.
        pair: the maps; with ``norm`` all of the spatial gate's.
        weight: (1, 2, K, K).
        dpair: what is written to.
        h: height.
        w: width.
        steps: between samples of ``pair``, ``g`` and ``dpair``, and where in ``dpair`` the first map begins.
        norm: sums for its gradients, its moments, gradients of its weight and bias and of the amount; or all None.
        parts: of the sums.
        training: whether the norm used the statistics of the batch.
        of_weight: whether the gradient of the weight is needed.
    """
    n, size, kernel = len(g), h * w, weight.shape[-1]
    taps, chunks, turns, columns = None, 1, 0, 2 * kernel * kernel
    if of_weight:
        tiles = ceil(size, POINTS)
        turns = ceil(tiles, max(1, min(tiles, PROGRAMS // n)))
        chunks = ceil(tiles, turns)
        taps = empty((n * chunks, columns), torch.float32, g.device)
    blocks, extra = ceil(size, COLUMNS), 0 if taps is None else len(taps)
    flags = of_weight, norm[0] is not None, training, norm[4] is not None
    sizes: tuple[int, ...] = n * size, h, w, *steps, *strides(weight), turns, blocks, chunks, extra, parts
    tiles_of = COLUMNS, power(columns), POINTS, MOMENTS
    tensors = g, pair, weight, dpair, taps, *norm
    launch(spatial.convolution_grad, (extra + n * blocks,), tensors, (*sizes, kernel, *flags, *tiles_of))
    return taps


def convolve(pair: Tensor, weight: Tensor) -> Tensor:
    """The convolution of a spatial gate by itself: contiguous (N, 2, H, W) and (1, 2, K, K) to float32 (N, 1, H, W)."""
    key = "pair convolution", pair.shape, pair.dtype, pair.get_device(), weight.shape, weight.dtype
    (out,) = taped(key, _convolve, (pair, weight))
    assert out is not None
    return out


def _convolve(pair: Tensor, weight: Tensor) -> tuple[Tensor]:
    n, _, h, w = pair.shape
    size = h * w
    out = empty((n, 1, h, w), torch.float32, pair.device)
    sizes: tuple[int, ...] = h, w, 2 * size, size, 0, *strides(weight), weight.shape[-1], False, COLUMNS
    launch(spatial.convolve, (n, ceil(size, COLUMNS)), (pair, weight, out, None), sizes)
    return (out,)


@on_its_device
def convolve_backward(g: Tensor, pair: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of both arguments of :func:`convolve`; all contiguous."""
    _, _, h, w = pair.shape
    size = h * w
    dpair, dweight = torch.empty_like(pair), torch.empty_like(weight)
    steps = 2 * size, size, 2 * size, 0
    taps = gradient(g, pair, weight, dpair, h, w, steps, (None,) * 5, 0, False, True)
    assert taps is not None
    sum_parts(taps, dweight.dtype, dweight)
    return dpair, dweight
