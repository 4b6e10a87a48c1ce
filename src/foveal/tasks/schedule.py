"""Optimisers and learning-rate schedules of a recipe's ``optim`` section."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import nn

from foveal.recipe import Optim


def rate(optim: Optim, step: int, steps_per_epoch: int, total: int) -> float:
    """What the learning rate is multiplied by at ``step``.

    >>> stairs = Optim(schedule="stairs", after=30, every=11, factor=1.5)
    >>> [round(rate(stairs, epoch, 1, 300), 3) for epoch in (0, 30, 31, 41, 42)]
    [1.0, 1.0, 0.667, 0.667, 0.444]
    """
    done = min(step / max(total, 1), 1.0)
    match optim.schedule:
        case "stairs":  # the authors' code: after epoch 30, once more than 10 epochs have passed since the last time
            epoch = step // steps_per_epoch
            return optim.factor ** -(max(0, epoch - optim.after - 1) // optim.every + (epoch > optim.after))
        case "cosine":
            return 0.5 * (1 + math.cos(math.pi * done))
        case "onecycle":  # up in the first quarter, then down to zero
            return 0.04 + 0.96 * done / 0.25 if done < 0.25 else 0.5 * (1 + math.cos(math.pi * (done - 0.25) / 0.75))
        case _:
            return 1.0


def fused_step(device: torch.device, precision: str) -> bool | None:
    """Whether the optimiser's step is to be one kernel: on a GPU; None leaves it to PyTorch.

    Not with float16: its scaler would hand the scale of the gradients to the step, behind the back of clipping.
    """
    return True if device.type == "cuda" and precision != "16" else None


def optimiser(optim: Optim, parameters: Iterable[nn.Parameter], *, fused: bool | None = None) -> torch.optim.Optimizer:
    """Build the optimiser; weight decay spares biases, norms and embeddings of one dimension unless told otherwise.

    Args:
        optim: the recipe's section.
        parameters: what is trained; those that need no gradient are left out.
        fused: take the step in one kernel where PyTorch has one, or let PyTorch choose.
    """
    trained = [p for p in parameters if p.requires_grad]
    least = 2 if optim.decay == "weights" else 0  # dimensions of what is decayed
    groups = [
        {"params": [p for p in trained if p.ndim >= least], "weight_decay": optim.weight_decay},
        {"params": [p for p in trained if p.ndim < least], "weight_decay": 0.0},
    ]
    match optim.name:
        case "rmsprop":
            return torch.optim.RMSprop(groups, lr=optim.lr, alpha=optim.alpha, eps=optim.eps)
        case "adam":
            return torch.optim.Adam(groups, lr=optim.lr, eps=optim.eps, fused=fused)
        case "adamw":
            return torch.optim.AdamW(groups, lr=optim.lr, eps=optim.eps, fused=fused)
        case _:
            momentum, nesterov = optim.momentum, optim.nesterov
            return torch.optim.SGD(groups, lr=optim.lr, momentum=momentum, nesterov=nesterov, fused=fused)
