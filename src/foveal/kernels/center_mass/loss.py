"""The center-mass loss of whole graphs in a few launches: log-sums, loss and derivatives without small operators.

:func:`foveal.supervise.center_mass_loss` of q and k consists of the log-sums of :mod:`.log_sums` and some thirty
operators on one number a graph. On a GPU each of them takes longer to launch than to run. Here they are one kernel.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from foveal.errors import UserError
from foveal.kernels.center_mass.log_sums import fused
from foveal.kernels.center_mass.pairs import LabelledPairs
from foveal.kernels.support import observed


def fused_loss_available(q: Tensor, k: Tensor) -> bool:
    """Whether :func:`graph_loss` supports q and k: on an NVIDIA GPU, and no compiler or mode must see operators."""
    return fused(q, k) and not observed(q, k)


def graph_loss(
    q: Tensor, k: Tensor, valid: Tensor | None, pairs: LabelledPairs, scale: float, shape: str, r: float
) -> Tensor:
    """The loss over whole matrices, a scalar; differentiable once in q and k.

    Args:
        q: (B, N, d).
        k: (B, N, d).
        valid: bool (B, N), or None if all entities are valid.
        pairs: the labelled pairs.
        scale: of the affinity.
        shape: as in :func:`foveal.supervise.center_mass_loss`, like ``r``.
        r: the same.
    """
    return _GraphLoss.apply(q, k, valid, pairs, scale, shape, r)


class _GraphLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, valid: Tensor | None, pairs: LabelledPairs, scale: float, shape: str, r: float
    ) -> Tensor:
        from foveal.kernels.center_mass import launch

        prepared = launch.prepare(q, k, valid, pairs.target, pairs.owner, pairs.table, pairs.rule)
        sums = launch.graph_sums(prepared.q, prepared, valid is not None, pairs.rule, scale)
        loss, rates = launch.mean_loss(*sums, shape, r)
        ctx.rule, ctx.scale = pairs.rule, scale
        ctx.save_for_backward(*prepared, *sums, rates)
        return loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        from foveal.kernels.center_mass import launch

        if torch.is_grad_enabled():
            raise UserError(
                "the center-mass loss of (q, k) has no second derivative; give it the logits q @ k.mT * scale instead"
            )
        *inputs, labelled, everything, rates = ctx.saved_tensors
        prepared = launch.Prepared(*inputs)
        sums = rates[0], rates[1], labelled, everything
        gradients = launch.gradients(prepared.q, prepared, *sums, ctx.rule, ctx.scale, grad.float())
        return *gradients, None, None, None, None, None
