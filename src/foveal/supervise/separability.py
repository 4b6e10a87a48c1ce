"""Attention separability and consistency: losses on class attention maps.

Wang, Wu, Karanam, Peng, Singh, Liu, Metaxas: "Sharpen Focus: Learning with Attention Separability and Consistency"
(ICCV 2019, https://arxiv.org/abs/1811.07484).

With A^T and A^Conf the maps of the true class and of the class most easily confused with it::

    Mask = sigmoid(ω (A^T / max A^T − σ))
    L_AS = 2 Σ min(A^T, A^Conf) · Mask / Σ (A^T + A^Conf)                 separability, at each layer
    L_AC = θ − Σ A^T_inner · Mask_last / Σ A^T_inner                      consistency of the inner layer with the last

Not in the paper: losses are taken per sample and averaged over the samples whose maps are not zero; the mask is a
constant; maps are divided by a common constant first, so that no ε is needed for small gradients.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from foveal.errors import UserError, unknown
from foveal.supervise._inputs import check_tensors, warn_not_finite

MaskLayer = Literal["last", "inner"]


def attention_mask(attention: Tensor, sigma: float = 0.55, omega: float = 100.0, *, gradient: bool = False) -> Tensor:
    """Soft region of high attention, (..., H, W) in [0, 1].

    Args:
        attention: (..., H, W), not negative.
        sigma: the threshold, as a fraction of each map's maximum.
        omega: sharpness of the threshold.
        gradient: let gradients through; by default the mask is a constant, so that the loss cannot fall by shrinking
            it. The maximum is always a constant.

    >>> attention_mask(torch.tensor([[5.0, 5.5, 10.0]]))
    tensor([[0.0067, 0.5000, 1.0000]])
    """
    peak = attention.detach().amax((-2, -1), keepdim=True)
    scaled = attention / _not_zero(peak)
    return torch.sigmoid(omega * ((scaled if gradient else scaled.detach()) - sigma))


def separability(
    target_map: Tensor,
    confuser_map: Tensor,
    *,
    sigma: float = 0.55,
    omega: float = 100.0,
    normalise: bool = False,
    mask_gradient: bool = False,
    true_gradient: bool = True,
    sum_gradient: bool = True,
) -> Tensor:
    """Overlap of the attention of the true and of the confusing class, where the true class attends; to be minimised.

    Args:
        target_map: (N, H, W), or (N, P, H, W) for P true classes of each image, not negative.
        confuser_map: of the same shape, of the confusing class, with the same scale.
        sigma: threshold of the mask, as a fraction of the target map's maximum.
        omega: sharpness of the mask.
        normalise: divide each map by its own maximum, so that the loss cannot fall by making one map larger.
        mask_gradient: let gradients through the mask.
        true_gradient: let gradients through A^T in the minimum; without them only the confusing class's map gives way.
        sum_gradient: let gradients through the denominator.

    Returns:
        Scalar in [0, 1], the mean over true classes and then over images; pairs whose target map is zero or not finite
        are skipped, and it is 0 if all are. A positive factor of both maps does not change it.

    >>> left, right = torch.tensor([[[1.0, 0.0]]]), torch.tensor([[[0.0, 1.0]]])
    >>> separability(left, right), separability(left, left)
    (tensor(0.), tensor(1.))
    """
    _check_maps(target_map, confuser_map)
    warn_not_finite(target_map=target_map, confuser_map=confuser_map)
    losses, valid = separabilities(
        target_map,
        confuser_map,
        sigma=sigma,
        omega=omega,
        normalise=normalise,
        mask_gradient=mask_gradient,
        true_gradient=true_gradient,
        sum_gradient=sum_gradient,
    )
    return mean(losses, valid)


def separabilities(
    target: Tensor,
    confuser: Tensor,
    *,
    sigma: float,
    omega: float,
    normalise: bool,
    mask_gradient: bool,
    true_gradient: bool = True,
    sum_gradient: bool = True,
) -> tuple[Tensor, Tensor]:
    """:func:`separability` of every pair of maps (...), and which of them count, bool (...)."""
    target, confuser = torch.broadcast_tensors(at_least_float32(target), at_least_float32(confuser))
    amount = _amount(target)
    valid = (amount > 0) & ((amount + _amount(confuser)).abs() < torch.inf)
    target, confuser = _only(target, valid), _only(confuser, valid)
    if normalise:
        target, confuser = (t / _not_zero(t.amax((-2, -1), keepdim=True)) for t in (target, confuser))
    else:
        scale = _not_zero(torch.maximum(target.detach(), confuser.detach()).amax((-2, -1), keepdim=True))
        target, confuser = target / scale, confuser / scale
    mask = attention_mask(target, sigma, omega, gradient=mask_gradient)
    total = _not_zero((target + confuser).sum((-2, -1)))
    shared = (torch.minimum(target if true_gradient else target.detach(), confuser) * mask).sum((-2, -1))
    return 2 * shared / (total if sum_gradient else total.detach()), valid


def consistency(
    inner_map: Tensor,
    last_map: Tensor,
    *,
    theta: float = 0.8,
    sigma: float = 0.55,
    omega: float = 100.0,
    source: MaskLayer = "last",
    hinge: bool = False,
    mask_gradient: bool = False,
) -> Tensor:
    """θ minus the share of the inner layer's attention where the last layer attends; to be minimised.

    Args:
        inner_map: (N, h, w) or (N, P, h, w), not negative, of the true class at the inner layer.
        last_map: (N, H, W) or (N, P, H, W), of the same at the last layer; its mask is brought to h×w bilinearly.
        theta: the wanted share of inner attention inside the mask.
        sigma: threshold of the mask, as a fraction of the map's maximum.
        omega: sharpness of the mask.
        source: whose mask: the ``last`` layer's, or the ``inner`` layer's own.
        hinge: no gain from a share above ``theta``.
        mask_gradient: let gradients through the mask.

    Returns:
        Scalar in [θ − 1, θ], or [0, θ] with ``hinge``, averaged as in :func:`separability`. Pairs with a map that is
        zero or not finite are skipped, and it is 0 if all are.

    >>> inner, last = torch.tensor([[[3.0, 1.0], [3.0, 1.0]]]), torch.tensor([[[8.0, 1.0], [8.0, 1.0]]])
    >>> consistency(inner, last)
    tensor(0.0500)
    """
    _check_maps(inner_map, last_map, same=False)
    warn_not_finite(inner_map=inner_map, last_map=last_map)
    losses, valid = consistencies(
        inner_map, last_map, theta, sigma=sigma, omega=omega, source=source, hinge=hinge, mask_gradient=mask_gradient
    )
    return mean(losses, valid)


def consistencies(
    inner: Tensor,
    last: Tensor,
    theta: float,
    *,
    sigma: float,
    omega: float,
    source: MaskLayer,
    hinge: bool,
    mask_gradient: bool,
) -> tuple[Tensor, Tensor]:
    """:func:`consistency` of every sample (...), and which of them count, bool (...)."""
    if source not in ("last", "inner"):
        raise unknown("source", str(source), ("last", "inner"))
    inner, last = at_least_float32(inner), at_least_float32(last)
    amounts = _amount(inner), _amount(last)
    valid = (torch.minimum(*amounts) > 0) & (sum(amounts) < torch.inf)
    inner, last = _only(inner, valid), _only(last, valid)
    mask = attention_mask(last if source == "last" else inner, sigma, omega, gradient=mask_gradient)
    if mask.shape[-2:] != inner.shape[-2:]:
        flat = mask.reshape(-1, 1, *mask.shape[-2:])
        mask = F.interpolate(flat, inner.shape[-2:], mode="bilinear", align_corners=False).view(inner.shape)
    inner = inner / _not_zero(inner.detach().amax((-2, -1), keepdim=True))
    short = theta - (inner * mask).sum((-2, -1)) / _not_zero(inner.sum((-2, -1)))
    return short.relu() if hinge else short, valid


def confusing_class(logits: Tensor, target: Tensor, valid: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The highest-scoring class that is not true.

    Args:
        logits: (N, K).
        target: class numbers (N,), negative if unknown; or 0 and 1, (N, K), for several labels.
        valid: bool (N, K), false for unknown labels: such a class is neither true nor confusing.

    Returns:
        Class (N,), never a true one, and bool (N,), whether there is one.

    >>> confusing_class(torch.tensor([[3.0, 2.0, 1.0], [3.0, 2.0, 1.0]]), torch.tensor([0, 2]))[0]
    tensor([1, 0])
    """
    scores = logits.detach().float().nan_to_num()
    if target.ndim == 1:
        scores = scores.scatter(1, target.clamp_min(0)[:, None], -torch.inf)
    else:
        scores = scores.masked_fill(target > 0, -torch.inf)
    if valid is not None:
        scores = scores.masked_fill(~valid, -torch.inf)
    best, confuser = scores.max(1)
    exists = best > -torch.inf
    return confuser, (exists & (target >= 0) if target.ndim == 1 else exists)


def _check_maps(first: Tensor, second: Tensor, same: bool = True) -> None:
    check_tensors(first=first, second=second)
    for name, maps in (("first", first), ("second", second)):
        if maps.ndim not in (3, 4) or 0 in maps.shape[-2:]:
            raise UserError(f"the {name} map must be (N, H, W) or (N, P, H, W), got shape {tuple(maps.shape)}")
    if first.shape[:-2] != second.shape[:-2] or (same and first.shape != second.shape):
        raise UserError(f"the maps are of different shapes, {tuple(first.shape)} and {tuple(second.shape)}")


def at_least_float32(values: Tensor) -> Tensor:
    """Widen half precision to float32; float64 stays."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def _amount(attention: Tensor) -> Tensor:
    """Sum of each map (...); NaN if one of its values is NaN, which compares as false."""
    return attention.detach().sum((-2, -1))


def _only(attention: Tensor, valid: Tensor) -> Tensor:
    return torch.where(valid[..., None, None], attention, 0)


def _not_zero(values: Tensor) -> Tensor:
    return values.masked_fill(values == 0, 1)


def mean(loss: Tensor, valid: Tensor) -> Tensor:
    """Mean over the valid losses: for (N, P) over those of each image, then over images."""
    loss = loss * valid
    if loss.ndim == 2:
        loss, valid = loss.sum(1) / valid.sum(1).clamp_min(1), valid.any(1)
    return loss.sum() / valid.sum().clamp_min(1)
