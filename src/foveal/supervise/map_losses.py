"""Separability and consistency of the class maps of two layers, in the form that suits the device.

In first order on NVIDIA GPUs that is :mod:`foveal.kernels.class_maps`: maps, losses and derivatives in a few launches.
Elsewhere it is the operators of :mod:`foveal.supervise.separability`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor

from foveal.attention.class_maps.cam import MapKind, Traced, class_maps, weighted_map
from foveal.kernels.class_maps.losses import Layer, Options, Problem, fused_losses, fused_losses_available
from foveal.supervise.separability import MaskLayer, consistencies, mean, separabilities

TERMS = ("separability_inner", "separability_last", "consistency_inner")

Computed = tuple[dict[str, Tensor], dict[str, Tensor]]
"""Layer to detached maps (N, K, H, W), and term to loss."""


@dataclass(kw_only=True, eq=False)
class MapLosses:
    """Maps, and the losses on them; options as those of :class:`foveal.supervise.Sharpen`.

    Attributes:
        inner: name of the inner layer.
        last: name of the last layer.
        kind: of the maps.
        theta: the wanted share of inner attention inside the mask.
        sigma: threshold of masks.
        omega: sharpness of masks.
        mask: whose mask consistency uses.
        mask_gradient: let gradients through masks.
        normalise: divide maps by their own maxima.
        true_gradient: let gradients through A^T in the minimum.
        sum_gradient: let gradients through the denominator of separability.
        hinge: no gain from a share above ``theta``.
    """

    inner: str
    last: str
    kind: MapKind
    theta: float
    sigma: float
    omega: float
    mask: MaskLayer
    mask_gradient: bool
    normalise: bool
    true_gradient: bool
    sum_gradient: bool
    hinge: bool
    _compiled: Callable[..., Computed] | None = field(default=None, init=False)

    def layers(self, terms: Sequence[str]) -> list[str]:
        """The layers that some of ``terms`` need: fewer of them make a shorter backward pass."""
        inner = "separability_inner" in terms or "consistency_inner" in terms
        last = "separability_last" in terms or ("consistency_inner" in terms and self.mask == "last") or not inner
        return [self.inner] * inner + [self.last] * last

    def __call__(
        self, traced: Traced, counts: Tensor, has_confuser: Tensor, terms: Sequence[str], *, compile: bool = False
    ) -> Computed:
        """Maps by layer and losses by term.

        Args:
            traced: features of each layer, and gradients of P true classes and a confuser, if a term needs it.
            counts: bool (N, P), which true classes count.
            has_confuser: bool (N,), whether there is a confusing class.
            terms: which of :data:`TERMS` to compute, in that order.
            compile: let ``torch.compile`` fuse the operators where they are used in first order.
        """
        if self.true_gradient and self.sum_gradient and not self.normalise and not self.mask_gradient:
            layers = [Layer(*traced[name]) for name in self.layers(terms)]
            if fused_losses_available(layers):
                return self._fused(layers, counts, has_confuser, terms)
        second = any(gradient.requires_grad for _, gradients in traced.values() for gradient in gradients)
        if not compile or second:
            return self._plain(traced, counts, has_confuser, terms)
        if self._compiled is None:
            self._compiled = torch.compile(MethodType(_copied(type(self)._plain), self))
        return self._compiled(traced, counts, has_confuser, terms)

    def _fused(self, layers: list[Layer], counts: Tensor, has_confuser: Tensor, terms: Sequence[str]) -> Computed:
        names = self.layers(terms)

        def plain(features: Sequence[Tensor], weights: Sequence[Tensor]) -> list[Tensor]:
            both = zip(names, features, weights, strict=True)
            maps = {name: weighted_map(values, alpha).movedim(0, 1) for name, values, alpha in both}
            return list(self._terms(maps, counts, has_confuser, terms).values())

        inner, last, consistent = (name in terms for name in TERMS)
        own, positive = self.mask == "inner", self.kind == "channel"
        options = Options((inner, last, consistent), self.theta, self.sigma, self.omega, own, self.hinge, positive)
        problem = Problem(layers, counts, has_confuser, options, plain)
        losses = fused_losses(problem)
        return dict(zip(names, problem.maps, strict=True)), dict(zip(terms, losses, strict=True))

    def _plain(self, traced: Traced, counts: Tensor, has_confuser: Tensor, terms: Sequence[str]) -> Computed:
        maps = class_maps(traced, self.kind)
        detached = {name: layer_maps.detach() for name, layer_maps in maps.items()}
        return detached, self._terms(maps, counts, has_confuser, terms)

    def _terms(
        self, maps: Mapping[str, Tensor], counts: Tensor, has_confuser: Tensor, terms: Sequence[str]
    ) -> dict[str, Tensor]:
        """The losses from maps (N, P + 1, H, W): of P true classes, valid where ``counts``, then of a confuser."""
        masking: dict[str, Any] = {"sigma": self.sigma, "omega": self.omega, "mask_gradient": self.mask_gradient}
        through = {"true_gradient": self.true_gradient, "sum_gradient": self.sum_gradient}
        losses = {}
        for term, layer in (("separability_inner", self.inner), ("separability_last", self.last)):
            if term in terms:
                true, confuser = maps[layer][:, :-1], maps[layer][:, -1:]
                loss, usable = separabilities(true, confuser, normalise=self.normalise, **masking, **through)
                losses[term] = mean(loss, usable & counts & has_confuser[:, None])
        if "consistency_inner" in terms:
            true = maps[self.inner][:, : counts.shape[1]]
            last = maps[self.last][:, : counts.shape[1]] if self.last in maps else true
            loss, usable = consistencies(true, last, self.theta, source=self.mask, hinge=self.hinge, **masking)
            losses["consistency_inner"] = mean(loss, usable & counts)
        return losses


def _copied(function: Any) -> FunctionType:
    """The same function with its own code object: ``torch.compile`` keeps its cache, and its limit, by code object."""
    code = function.__code__.replace()
    return FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
