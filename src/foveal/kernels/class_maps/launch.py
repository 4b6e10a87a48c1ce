"""Launch the Triton kernels of class attention maps and the losses on them; tiles follow from the shapes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor
from triton import next_power_of_2

from foveal.kernels.class_maps import triton_kernels as kernels
from foveal.kernels.class_maps.losses import Layer, Options
from foveal.kernels.parts import Part, parts
from foveal.kernels.prepared import launch
from foveal.kernels.support import on_its_device

ELEMENTS = 8192  # of a tile of features, with 8 warps: 32 a thread
IMAGES = 1024  # of a program that averages

Steps = tuple[int, int, int]
"""From image to image, from channel to channel and from position to position."""


class Sizes(NamedTuple):
    """Images, classes with a map, true classes; channels, height and width of both layers, which may be one."""

    n: int
    k: int
    p: int
    inner: tuple[int, ...]
    last: tuple[int, ...]
    two: bool


class Memory(NamedTuple):
    """Parts of one buffer; their shapes are those of the kernels' arguments."""

    weights: tuple[Part, Part]
    slopes: tuple[Part, Part, Part]
    table: Part
    rates: Part


@lru_cache(maxsize=1024)
def _lengths(sizes: Sizes, terms: tuple[bool, bool, bool]) -> tuple[int, ...]:
    n, k, p, (c0, h0, w0), (c1, h1, w1), two = sizes
    slopes = n * k * h0 * w0, n * k * h1 * w1, n * p * h0 * w0
    return k * n * c0, k * n * c1 * two, *(a * b for a, b in zip(slopes, terms, strict=True)), 6 * n, 3


def memory(sizes: Sizes, terms: tuple[bool, bool, bool], at: torch.device | Tensor) -> tuple[Tensor, Memory]:
    """The buffer, a new one or a given one, and its parts."""
    buffer, (w0, w1, s0, s1, s2, table, rates) = parts(_lengths(sizes, terms), at)
    return buffer, Memory((w0, w1 if sizes.two else w0), (s0, s1, s2), table, rates)


def weights(buffer: Tensor, sizes: Sizes, options: Options) -> list[Tensor]:
    """Weights of the channels of each layer, (K, N, C), of a forward pass."""
    kept = memory(sizes, options.terms, buffer)[1]
    return [part.view().view(sizes.k, sizes.n, -1) for part in kept.weights[: 1 + sizes.two]]


@lru_cache(maxsize=1024)
def _tile(shape: tuple[int, ...]) -> tuple[int, int, int, int]:
    """Channels and positions of a layer, and those of its tiles."""
    channels, positions = shape[0], shape[1] * shape[2]
    wide = next_power_of_2(positions)
    return channels, positions, max(1, min(next_power_of_2(channels), ELEMENTS // wide)), wide


def _steps(t: Tensor) -> Steps | None:
    """Steps in the memory of ``t`` (N, C, H, W); None if those from position to position differ."""
    n, c, h, w = t.stride()
    if t.shape[2] > 1 and t.shape[3] > 1 and h != t.shape[3] * w:
        return None
    return n, c, w if t.shape[3] > 1 else h


def _readable(t: Tensor) -> tuple[Tensor, Steps]:
    steps = _steps(t)
    return _readable(t.contiguous()) if steps is None else (t, steps)


def _float32(shape: tuple[int, ...], like: Tensor) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device=like.device)


@on_its_device
def forward(
    counts: Tensor, confusers: Tensor, layers: Sequence[Layer], options: Options
) -> tuple[list[Tensor], list[Tensor], Sizes, Tensor]:
    """The losses of the terms there are, maps (N, K, H, W) of each layer, sizes, and a buffer for the backward pass.

    Args:
        counts: bool (N, P), which true classes count.
        confusers: bool (N,), which images have a confusing class.
        layers: the inner and the last, or one alone.
        options: what to compute.
    """
    n, p, k, two = *counts.shape, len(layers[0].gradients), len(layers) > 1
    inner, last = (tuple(layers[i].features.shape[1:]) for i in (0, -1))
    sizes = Sizes(n, k, p, inner, last, two)
    buffer, kept = memory(sizes, options.terms, counts.device)
    maps = [_float32((n, k, *shape[1:]), buffer) for shape in (inner, last)[: 1 + two]]
    features = [_readable(layer.features) for layer in layers]
    for i in range(k):
        gradients = [_readable(layer.gradients[i]) for layer in layers]
        tensors: list[Tensor | Part] = []
        steps: list[int] = []
        for j in (0, -1):
            tensors += [features[j][0], gradients[j][0], kept.weights[j], maps[j]]
            steps += [*features[j][1], *gradients[j][1]]
        rest = i, n, k, *steps, *_tile(inner), *_tile(last), options.positive
        launch(kernels.maps_kernel, (n, 1 + two), tuple(tensors), rest, num_warps=8)
    return _losses(counts, confusers, maps, kept, sizes, options), maps, sizes, buffer


def _losses(
    counts: Tensor, confusers: Tensor, maps: list[Tensor], kept: Memory, sizes: Sizes, options: Options
) -> list[Tensor]:
    """Losses and slopes of all images, and the means."""
    n, k, p, (_, *inner), (_, *last), _ = sizes
    slopes, table, rates = kept.slopes, kept.table, kept.rates
    numbers = options.theta, options.sigma, options.omega
    shapes = *inner, next_power_of_2(inner[0] * inner[1]), *last, next_power_of_2(last[0] * last[1])
    tensors = maps[0], maps[-1], counts, confusers, *slopes, table
    rest = n, *numbers, k, p, *shapes, *options.terms, options.own, options.hinge
    launch(kernels.losses_kernel, (n,), tensors, rest, num_warps=1 if max(shapes) <= 256 else 4)
    losses = [_float32((), maps[0]) for term in options.terms if term]
    of_terms = iter(losses)
    wanted = tuple(next(of_terms) if term else table for term in options.terms)
    bits = sum(term << i for i, term in enumerate(options.terms))
    launch(kernels.means_kernel, (3,), (*wanted, table, rates), (n, min(IMAGES, next_power_of_2(n)), bits), num_warps=4)
    return losses


@on_its_device
def backward(
    buffer: Tensor, grads: Sequence[Tensor | None], features: Sequence[Tensor], needed: Sequence[bool],
    sizes: Sizes, options: Options,
) -> list[Tensor | None]:  # fmt: skip
    """Gradients of the features of each layer, None where there is none.

    Args:
        buffer: of the forward pass.
        grads: of the three losses, (), None where a loss is not used.
        features: of each layer.
        needed: whether the gradient of each layer is needed.
        sizes: of the forward pass.
        options: of the forward pass.
    """
    terms = tuple(grad is not None for grad in grads)
    wanted = needed[0] and (terms[0] or terms[2]), needed[-1] and terms[1]
    inner, last = (_like(features[i]) if want else None for i, want in zip((0, -1), wanted, strict=True))
    outs = [inner, last] if sizes.two else [inner if last is None else last]
    tiles = _tile(sizes.inner), _tile(sizes.last)
    first, second = (-(-tile[0] // tile[2]) * want for tile, want in zip(tiles, wanted, strict=True))
    if not first + second:
        return outs
    kept = memory(sizes, options.terms, buffer)[1]
    (w0, w1), (s0, s1, s2) = kept.weights, kept.slopes
    out0, out1, grad0, grad1, grad2 = (buffer if t is None else t for t in (inner, last, *grads))
    steps = [(0, 0, 0) if out is None else _readable(out)[1] for out in (inner, last)]
    tensors = w0, s0, s2, out0, w1, s1, out1, grad0, grad1, grad2, kept.rates
    rest = sizes.n, *steps[0], *steps[1], first, *tiles[0], *tiles[1], sizes.k, sizes.p, *terms
    launch(kernels.gradients_kernel, (sizes.n, first + second), tensors, rest, num_warps=8)
    return outs


def _like(features: Tensor) -> Tensor:
    """Memory for the gradient, in the layout of the features if the kernels can write it."""
    out = torch.empty_like(features)
    return out if _steps(out) is not None else torch.empty_like(features, memory_format=torch.contiguous_format)
