"""Separability and consistency of class attention maps in a few launches: maps, losses and derivatives.

:class:`foveal.supervise.Sharpen` computes maps of features, and losses of maps, with more than two hundred operators,
and more in its backward pass. On a GPU each takes longer to launch than to run. Here a class takes one launch,
the losses take two, and the backward pass one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from foveal.compat import forward_mode_active
from foveal.kernels.support import DTYPES, fused_available, observed

MOST_POSITIONS = 4096  # a program has a whole map in registers

Plain = Callable[[Sequence[Tensor], Sequence[Tensor]], Sequence[Tensor]]
"""Features (N, C, H, W) and weights of channels (K, N, C) of each layer to losses, with PyTorch's operators."""


class Options(NamedTuple):
    """What is computed.

    Attributes:
        terms: whether there is separability of the inner layer, of the last, and consistency.
        theta: as in :func:`foveal.supervise.consistency`, like those that follow.
        sigma: threshold of masks.
        omega: sharpness of masks.
        own: consistency with the inner layer's own mask.
        hinge: no gain from a share above ``theta``.
        positive: weights of channels from positive gradients alone (A_ch).
    """

    terms: tuple[bool, bool, bool]
    theta: float
    sigma: float
    omega: float
    own: bool
    hinge: bool
    positive: bool


class Layer(NamedTuple):
    """Features (N, C, H, W) and the gradients of K class scores with respect to them."""

    features: Tensor
    gradients: list[Tensor]


@dataclass
class Problem:
    """What the losses are of, and the maps that come with them.

    Attributes:
        layers: the inner and the last, or one alone.
        counts: bool (N, P), which true classes count.
        confusers: bool (N,), which images have a confusing class.
        options: what to compute.
        plain: the same with PyTorch's operators, for second derivatives.
        maps: of each layer (N, K, H, W), once the losses are computed.
    """

    layers: Sequence[Layer]
    counts: Tensor
    confusers: Tensor
    options: Options
    plain: Plain
    maps: list[Tensor] = field(default_factory=list)


def fused_losses_available(layers: Sequence[Layer]) -> bool:
    """Whether :func:`fused_losses` supports these features and gradients, and nobody must see plain operators."""
    features = layers[0].features
    if torch.compiler.is_compiling() or not fused_available(features.device) or forward_mode_active():
        return False
    tensors = [tensor for layer in layers for tensor in (layer.features, *layer.gradients)]
    return (
        all(t.dtype in DTYPES and 0 < t.numel() < 2**31 and t.device == features.device for t in tensors)
        and all(layer.features.shape[2] * layer.features.shape[3] <= MOST_POSITIONS for layer in layers)
        and not any(gradient.requires_grad for layer in layers for gradient in layer.gradients)
        and not observed(*tensors)
    )


def fused_losses(problem: Problem) -> tuple[Tensor, ...]:
    """The losses of the terms there are, each (), differentiable in the features; sets ``problem.maps``."""
    return _Losses.apply(problem, *(layer.features for layer in problem.layers))


class _Losses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, problem: Problem, *features: Tensor) -> tuple[Tensor, ...]:
        from foveal.kernels.class_maps import launch

        of = problem.counts.contiguous(), problem.confusers.contiguous(), problem.layers, problem.options
        losses, problem.maps, ctx.sizes, buffer = launch.forward(*of)
        ctx.options, ctx.plain = problem.options, problem.plain
        ctx.save_for_backward(buffer, *features)
        ctx.set_materialize_grads(False)
        return tuple(losses)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        from foveal.kernels.class_maps import launch

        buffer, *features = ctx.saved_tensors
        needed = ctx.needs_input_grad[1:]
        present = [grad for grad in grads if grad is not None]
        if torch.is_grad_enabled() or observed(*present):
            weights = launch.weights(buffer, ctx.sizes, ctx.options)
            return None, *_differentiable(ctx.plain, features, weights, grads, needed)
        of_terms = iter(grads)
        upstream = [next(of_terms) if term else None for term in ctx.options.terms]
        return None, *launch.backward(buffer, upstream, features, needed, ctx.sizes, ctx.options)


def _differentiable(
    plain: Plain,
    features: Sequence[Tensor],
    weights: Sequence[Tensor],
    grads: Sequence[Tensor | None],
    needed: Sequence[bool],
) -> list[Tensor | None]:
    """Gradients that have a graph of their own, through the plain form."""
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        losses = plain(features, weights)
    wanted = [tensor for tensor, need in zip(features, needed, strict=True) if need]
    used = [(loss, grad) for loss, grad in zip(losses, grads, strict=True) if grad is not None and loss.requires_grad]
    if not used or not wanted:
        return [None] * len(features)
    outputs, upstream = zip(*used, strict=True)
    gradients = iter(torch.autograd.grad(outputs, wanted, upstream, create_graph=again, allow_unused=True))
    return [next(gradients) if need else None for need in needed]
