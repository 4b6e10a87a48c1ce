"""Adds attention separability and consistency to anyone's training step.

Wang, Wu, Karanam, Peng, Singh, Liu, Metaxas: "Sharpen Focus: Learning with Attention Separability and Consistency"
(ICCV 2019, https://arxiv.org/abs/1811.07484). The losses themselves are in :mod:`foveal.supervise.separability`.

The features of both layers come from the forward pass of the task. A class's gradient with respect to both comes from
one backward pass that stops at the inner layer and computes no parameter's gradient: two classes cost twice the input
gradient of the last stage. The true classes of an image share one confusing class.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from foveal.attention.class_maps.cam import (
    KINDS,
    MapKind,
    check_order,
    trace_classes,
    twice_differentiable,
)
from foveal.attention.class_maps.gradients import BatchNorm
from foveal.attention.class_maps.layout import Reshape
from foveal.attention.class_maps.taps import Taps, find_layers, unwrapped
from foveal.errors import UserError, unknown
from foveal.kernels.class_maps.choice import fused_choice
from foveal.supervise.map_losses import TERMS, MapLosses
from foveal.supervise.separability import MaskLayer, confusing_class

ClassPairs = Literal["every", "one"]
MOST_BELOW, LOWEST = 0.3, -0.4  # share of features below zero, and the least of them, that an activation leaves


class Sharpen:
    """Adds separability and consistency to anyone's training step.

    One forward pass of the model, and one backward pass down to the inner layer for each class with a map: the true one
    and the confusing one. Nothing is added to the model.

    Args:
        model: any classifier that returns scores (N, classes) before softmax; may be compiled or in
            DistributedDataParallel.
        at: names of the inner and the last layer, or of the last one only. Choose layers after a stage's ReLU; features
            of both signs give a warning.
        kind: ``channel`` for A_ch, ``gradcam`` for Grad-CAM.
        order: 1: the losses act through the features; 2: through the gradients as well, which costs more.
        weights: weight of each of ``separability_inner``, ``separability_last`` and ``consistency_inner``, 1 each if
            left out. A term with weight 0 is not computed.
        theta: the wanted share of inner attention inside the mask, for consistency.
        sigma: threshold of masks, as a fraction of a map's maximum.
        omega: sharpness of masks.
        mask: whose mask consistency uses, the ``last`` layer's or the ``inner`` layer's own.
        mask_gradient: let gradients through masks.
        normalise: divide maps by their own maxima before they are compared.
        true_gradient, sum_gradient: let gradients through the true class's map in the minimum of separability, and
            through its denominator.
        hinge: no gain from a share above ``theta``.
        batch_norm: ``coupled`` or ``frozen``, see :func:`foveal.cam`.
        pairs: with several labels: ``every`` true class against the best-scoring class that is not true, averaged; or
            ``one`` pair, of the best-scoring true class.
        positives: with ``every``: largest number of true classes of an image, chosen at random in every step.
        warmup: number of first steps without these losses.
        reshape: see :func:`foveal.cam`.
        compile: let ``torch.compile`` fuse the arithmetic on the maps where foveal has no kernels of its own for it:
            away from NVIDIA GPUs, with ``normalise``, and where gradients go through other than the usual parts. Second
            order is never compiled.

    Attributes:
        weights: the weights, by name.
        steps: training steps so far; set it when you resume, if you use ``warmup``.
        maps: layer to maps of the last step (N, P + 1, H, W), detached: of P true classes, then of the confusing one
            (which is missing if only consistency has a weight).

    >>> import timm
    >>> from torch.nn import functional as F
    >>> model = timm.create_model("resnet18", num_classes=10)
    >>> sharpen = Sharpen(model, at=("layer3", "layer4"))
    >>> x, y = torch.rand(4, 3, 64, 64), torch.tensor([3, 1, 4, 1])
    >>> logits, losses = sharpen(x, y)
    >>> (F.cross_entropy(logits, y) + sharpen.total(losses)).backward()
    >>> list(losses)
    ['separability_inner', 'separability_last', 'consistency_inner']
    """

    def __init__(
        self,
        model: nn.Module,
        at: str | Sequence[str] = ("layer3", "layer4"),
        *,
        kind: MapKind = "channel",
        order: Literal[1, 2] = 1,
        weights: Mapping[str, float] | None = None,
        theta: float = 0.8,
        sigma: float = 0.55,
        omega: float = 100.0,
        mask: MaskLayer = "last",
        mask_gradient: bool = False,
        normalise: bool = False,
        true_gradient: bool = True,
        sum_gradient: bool = True,
        hinge: bool = False,
        batch_norm: BatchNorm = "coupled",
        pairs: ClassPairs = "every",
        positives: int = 3,
        warmup: int = 0,
        reshape: Reshape | None = None,
        compile: bool = False,
    ) -> None:
        names = [at] if isinstance(at, str) else list(at)
        if len(names) not in (1, 2):
            raise UserError(f"at: expected the inner and the last layer, or the last alone, got {len(names)} names")
        self.weights = _weights(weights, inner=len(names) == 2)
        choices: list[tuple[str, str, Sequence[str]]] = [
            ("kind", kind, KINDS),
            ("mask", mask, ("last", "inner")),
            ("pairs", pairs, ("every", "one")),
            ("batch_norm", batch_norm, ("coupled", "frozen")),
        ]
        for option, value, known in choices:
            if value not in known:
                raise unknown(option, str(value), known)
        if positives < 1 or warmup < 0:
            raise UserError(f"expected positives of at least 1 and warmup of at least 0, got {positives} and {warmup}")
        if not 0 < sigma < 1:
            raise UserError(f"sigma={sigma}: expected a fraction of the map's maximum, between 0 and 1")
        self.model, self.order, self.batch_norm = model, order, batch_norm
        self.last, self.inner = names[-1], names[0]
        self.pairs, self.positives, self.warmup, self.compile = pairs, positives, warmup, compile
        self._compute = MapLosses(
            inner=self.inner,
            last=self.last,
            kind=kind,
            theta=theta,
            sigma=sigma,
            omega=omega,
            mask=mask,
            mask_gradient=mask_gradient,
            normalise=normalise,
            true_gradient=true_gradient,
            sum_gradient=sum_gradient,
            hinge=hinge,
        )
        self.steps = 0
        self.maps: dict[str, Tensor] = {}
        self._warned = self._saw_signs = False
        check_order(order)
        find_layers(unwrapped(model), names)  # also those that no term needs now
        self._taps = Taps(model, self._compute.layers(self._terms()), reshape)

    def _terms(self) -> tuple[str, ...]:
        """The terms with a weight."""
        return tuple(name for name, weight in self.weights.items() if weight)

    def on(self, model: nn.Module) -> Sharpen:
        """The same for another form of the model, such as a compiled one."""
        other = copy.copy(self)
        other.model, other.maps, other._compute = model, {}, replace(self._compute)
        other._taps = Taps(model, list(self._taps.layers), self._taps.reshape)
        return other

    @property
    def active(self) -> bool:
        """Whether the next step has attention losses."""
        return torch.is_grad_enabled() and any(self.weights.values()) and self.steps >= self.warmup

    def __call__(self, x: Any, target: Tensor, valid: Tensor | None = None) -> tuple[Any, dict[str, Tensor]]:
        """Run the model and compute the losses.

        Args:
            x: the model's input; a tuple for several.
            target: class numbers (N,), negative if unknown; or 0 and 1, (N, classes), for several labels.
            valid: bool (N, classes), false for unknown labels.

        Returns:
            The model's output, and the losses by name, not yet weighted; see :meth:`total`. There are none without
            gradients, during ``warmup`` and if all weights are zero.
        """
        inputs = x if isinstance(x, tuple) else (x,)
        if not self.active:
            self.steps += torch.is_grad_enabled()
            return self.model(*inputs), {}
        with self:
            output = self.model(*inputs)
        return output, self.losses(target, valid)

    def __enter__(self) -> Self:
        """For your own training step: run the model inside ``with sharpen:`` and call :meth:`losses` after it."""
        self._taps.__enter__()
        self._forms = twice_differentiable(self.order, self._taps)
        self._forms.__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        self._forms.__exit__(*exc)
        self._taps.__exit__(*exc)

    def total(self, losses: Mapping[str, Tensor]) -> Tensor:
        """The weighted sum of ``losses``."""
        if not losses:
            return torch.zeros(())
        weighted = ((self.weights[name], loss) for name, loss in losses.items())
        return reduce(torch.add, [loss if weight == 1 else weight * loss for weight, loss in weighted])

    def losses(self, target: Tensor, valid: Tensor | None = None) -> dict[str, Tensor]:
        """The losses of the forward pass that ran inside ``with sharpen:``; arguments as in :meth:`__call__`."""
        if not self.active:
            self.steps += torch.is_grad_enabled()
            self._taps.clear()
            return {}
        try:
            self._check(target, valid)
            self.steps += 1
            terms = self._terms()
            need_confuser = any(term.startswith("separability") for term in terms)
            classes, counts, has_confuser = self._choose(self._taps.logits, target, valid)
            classes = classes if need_confuser else classes[:, :-1]
            traced = trace_classes(self._taps, classes, self.order, batch_norm=self.batch_norm)
        finally:
            self._taps.clear()
        self.maps, losses = self._compute(traced, counts, has_confuser, terms, compile=self.compile)
        return losses

    def _check(self, target: Tensor, valid: Tensor | None) -> None:
        if self._taps.returned is None:
            raise UserError("there is no forward pass: run the model inside `with sharpen:`, then call losses() once")
        logits = self._taps.logits
        if not isinstance(target, Tensor):
            raise UserError(f"target must be a tensor of class numbers or of 0 and 1, got {type(target).__name__}")
        if valid is not None and not isinstance(valid, Tensor):
            raise UserError(f"valid must be a bool tensor {tuple(logits.shape)}, got {type(valid).__name__}")
        if valid is not None and (valid.dtype != torch.bool or valid.shape != logits.shape):
            raise UserError(
                f"valid must be bool {tuple(logits.shape)}, got {valid.dtype} of shape {tuple(valid.shape)}"
            )
        if logits.shape[1] < 2:
            raise UserError(
                "the model has a single class, which cannot be confused with another; give it two outputs, yes and no"
            )
        if target.shape not in (logits.shape[:1], logits.shape):
            raise UserError(
                f"target must hold class numbers ({len(logits)},) or 0 and 1 {tuple(logits.shape)}, "
                f"got shape {tuple(target.shape)}"
            )
        if target.ndim == 1 and target.dtype.is_floating_point:
            raise UserError(f"target must hold class numbers (integers), got {target.dtype}")
        if target.ndim == 1 and target.device.type == "cpu" and bool((target >= logits.shape[1]).any()):
            raise UserError(f"target must be below {logits.shape[1]}, the number of classes, got {int(target.max())}")
        if target.ndim == 2 and target.dtype != torch.bool:
            clear = (target == 0) | (target == 1)
            if not bool((clear if valid is None else clear | ~valid).all()):
                raise UserError(
                    "target must be 0 and 1 for several labels; mixed or smoothed labels have no true class; mark "
                    "unknown labels with valid="
                )
        self._check_layers()
        if not self._saw_signs:  # once: it waits for the device
            self._saw_signs = True
            self._check_signs()

    def _check_signs(self) -> None:
        """Warn of layers without an activation: there, weights and maps of channels say nothing about evidence."""
        for name, tapped in self._taps.outputs.items():
            values = tapped.values.detach().float()
            if (
                values.ndim == 4
                and values.min() < LOWEST
                and -values.clamp_max(0).sum() > MOST_BELOW * values.abs().sum()
            ):
                warnings.warn(
                    f"the features at {name} are below zero as much as above, as before an activation; maps are meant "
                    "for features after a ReLU: name such a layer, in an inverted residual network the first norm with "
                    "an activation in the next block",
                    stacklevel=5,
                )

    def _check_layers(self) -> None:
        ran = [name for name in self._taps.outputs if name in (self.inner, self.last)]
        if ran == [self.last, self.inner]:
            raise UserError(f"{self.inner} runs after {self.last}; name the inner layer first: at={tuple(ran)}")
        if self.order == 1 and not self._taps.trained():
            raise UserError(
                f"nothing up to {self.last} is trained, so with order=1 attention losses change no parameter; "
                "unfreeze a layer before it, or use order=2"
            )
        idle = [name for name in ("separability_inner", "consistency_inner") if self.weights.get(name)]
        if self._compute.mask_gradient and self._compute.mask == "last":  # consistency acts through the mask
            idle = [name for name in idle if name != "consistency_inner"]
        tapped = self._taps.outputs.get(self.inner)
        if self.order == 1 and idle and not self._warned and tapped is not None and tapped.values.is_leaf:
            self._warned = True
            warnings.warn(
                f"nothing up to {self.inner} is trained, so with order=1 {' and '.join(idle)} change no "
                "parameter; unfreeze a layer before it, give the weight 0, or use order=2",
                stacklevel=5,
            )

    def _choose(self, logits: Tensor, target: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """P true classes and the confuser (N, P + 1), which true ones count (N, P), whether it has a confuser (N,)."""
        if target.ndim == 1 and valid is None and (fused := fused_choice(logits, target)) is not None:
            return *fused, fused[1][:, 0]
        confuser, has_confuser = confusing_class(logits, target, valid)
        if target.ndim == 1:
            true, counts = target.clamp_min(0)[:, None], (target >= 0)[:, None]
        else:
            true, counts = self._positives(logits, (target > 0) if valid is None else (target > 0) & valid)
        return torch.cat([true, confuser[:, None]], 1), counts, has_confuser

    def _positives(self, logits: Tensor, positive: Tensor) -> tuple[Tensor, Tensor]:
        """Numbers of true classes (N, P), and which of them are true (N, P)."""
        if self.pairs == "one":
            rank, most = logits.detach().float().nan_to_num(), 1
        else:
            most = max(1, int(positive.sum(1).max())) if len(positive) else 1
            # Random numbers are drawn only where needed, so that other runs draw the same ones.
            rank = torch.rand(positive.shape, device=logits.device) if most > self.positives else positive.float()
        chosen = rank.masked_fill(~positive, -torch.inf).topk(min(most, self.positives), 1).indices
        return chosen, positive.gather(1, chosen)


def _weights(weights: Mapping[str, float] | None, inner: bool) -> dict[str, float]:
    known = TERMS if inner else TERMS[1:2]
    checked = dict.fromkeys(known, 1.0)
    for name, weight in (weights or {}).items():
        try:
            checked[name] = float(weight)
        except (TypeError, ValueError):
            raise UserError(f"the weight of {name} must be a number, got {weight!r}") from None
        if not checked[name] >= 0:
            raise UserError(f"the weight of {name} must not be negative, got {weight}")
        if name not in TERMS or (name not in known and checked[name]):
            hint = "; it needs an inner and a last layer" if name in TERMS else ""
            raise UserError(f"{unknown('term', name, known)}{hint}")
    return {name: checked[name] for name in known}
