"""Optimisers and learning-rate schedules of a recipe's ``optim`` section."""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import singledispatch

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, LinearLR, LRScheduler, MultiStepLR, PolynomialLR, SequentialLR

from foveal.errors import UserError, unknown
from foveal.recipe.optim import Optim
from foveal.recipe.schedules import (
    Constant,
    Cosine,
    InverseSqrt,
    MultiStep,
    OneCycle,
    Poly,
    Schedule,
    Stairs,
    Step,
    Warmup,
)


def fused_step(device: torch.device, precision: str) -> bool | None:
    """Whether the optimiser's step is to be one kernel: on a GPU; None leaves it to PyTorch.

    Not with float16: its scaler would hand the scale of the gradients to the step, and clipping would not see it.
    """
    return True if device.type == "cuda" and precision != "16" else None


def optimiser(
    optim: Optim, parameters: Iterable[nn.Parameter | tuple[str, nn.Parameter]], *, fused: bool | None = None
) -> torch.optim.Optimizer:
    """Build the optimiser; weight decay spares biases, norms and embeddings of one dimension unless told otherwise.

    Args:
        optim: the recipe's section.
        parameters: what is trained, with or without names; those that need no gradient are left out.
        fused: take the step in one kernel where the optimiser has one; None lets PyTorch choose.
    """
    named = [p if isinstance(p, tuple) else ("", p) for p in parameters]
    by_factor = _by_factor(named, optim.rates)
    dimensions = 2 if optim.decay == "weights" else 0  # least dimensions of what is decayed
    groups = []
    for factor, members in by_factor.items():
        trained, rate = [p for p in members if p.requires_grad], {"lr": optim.lr * factor}
        groups += [
            {"params": [p for p in trained if p.ndim >= dimensions], "weight_decay": optim.weight_decay, **rate},
            {"params": [p for p in trained if p.ndim < dimensions], "weight_decay": 0.0, **rate},
        ]
    module, _, name = optim.builds.partition(":")
    kind = getattr(importlib.import_module(module), name)
    arguments = optim.arguments()
    if "fused" in inspect.signature(kind).parameters:
        arguments["fused"] = fused
    return kind(groups, lr=optim.lr, **arguments)


def _by_factor(
    named: Sequence[tuple[str, nn.Parameter]], rates: Mapping[str, float]
) -> dict[float, list[nn.Parameter]]:
    """Parameters by the factor of their learning rate, 1 first."""
    by_factor: dict[float, list[nn.Parameter]] = {1.0: []}
    for pattern in rates:
        if not any(fnmatchcase(name, pattern) for name, _ in named):
            raise UserError(f"optim.rates: {unknown('parameter', pattern, [name for name, _ in named])}")
    for name, parameter in named:
        factor = next((rates[pattern] for pattern in rates if fnmatchcase(name, pattern)), 1.0)
        by_factor.setdefault(factor, []).append(parameter)
    return by_factor


@dataclass(frozen=True)
class Length:
    """How long a run is, in steps of the optimiser.

    Attributes:
        epoch: steps of an epoch, at least 1.
        warmup: steps of the warm-up.
        total: steps of the run.
    """

    epoch: int
    warmup: int
    total: int

    @property
    def rest(self) -> int:
        """Steps after the warm-up, at least 1."""
        return max(1, self.total - self.warmup)


def schedule(optim: Optim, optimizer: torch.optim.Optimizer, steps_per_epoch: int, total_steps: int) -> LRScheduler:
    """Build the learning-rate schedule; call its ``step()`` after every step of the optimiser.

    Args:
        optim: the recipe's section.
        optimizer: what :func:`optimiser` built from it.
        steps_per_epoch: steps of the optimiser in an epoch.
        total_steps: steps of the optimiser in the run, where ``onecycle``, ``cosine`` and ``poly`` end.
    """
    options, epoch = optim.schedule, max(1, steps_per_epoch)
    warmup = 0
    if isinstance(options, Warmup):
        warmup = options.warmup_steps or round(options.warmup * epoch)
    length = Length(epoch, warmup, total_steps)
    if not isinstance(options, Warmup) or not warmup:
        return build_schedule(options, optimizer, length)
    linear = LinearLR(optimizer, start_factor=options.start, total_iters=warmup)
    return SequentialLR(optimizer, [linear, build_schedule(options, optimizer, length)], milestones=[warmup])


@singledispatch
def build_schedule(options: Schedule, optimizer: torch.optim.Optimizer, length: Length) -> LRScheduler:
    """Build what follows the warm-up, as if it started at step 0; one function for each dataclass of a schedule."""
    raise NotImplementedError(f"register a function for {type(options).__name__} with build_schedule.register")


@build_schedule.register
def _constant(options: Constant, optimizer: torch.optim.Optimizer, length: Length) -> LRScheduler:
    return LambdaLR(optimizer, lambda step: 1.0)


@build_schedule.register
def _stairs(options: Stairs, optimizer: torch.optim.Optimizer, length: Length) -> LRScheduler:
    def multiplier(step: int) -> float:
        """The authors' code: after epoch 30, whenever more than 10 epochs have passed since the last division."""
        epoch = step // length.epoch
        return options.factor ** -(max(0, epoch - options.after - 1) // options.every + (epoch > options.after))

    return LambdaLR(optimizer, multiplier)


@build_schedule.register
def _onecycle(options: OneCycle, optimizer: torch.optim.Optimizer, length: Length) -> LRScheduler:
    def multiplier(step: int) -> float:
        """OneCycleLR of torch has another rise, and raises an error after the last step."""
        done = min(step / length.rest, 1.0)
        return 0.04 + 0.96 * done / 0.25 if done < 0.25 else 0.5 * (1 + math.cos(math.pi * (done - 0.25) / 0.75))

    return LambdaLR(optimizer, multiplier)


@build_schedule.register
def _cosine(options: Cosine, optimizer: torch.optim.Optimizer, length: Length) -> LRScheduler:
    def multiplier(step: int) -> float:
        """CosineAnnealingLR of torch rises again after the last step."""
        done = min(step / length.rest, 1.0)
        return options.floor + (1 - options.floor) * (0.5 * (1 + math.cos(math.pi * done)))

    return LambdaLR(optimizer, multiplier)


@build_schedule.register
def _poly(options: Poly, optimizer: torch.optim.Optimizer, length: Length) -> LRScheduler:
    return PolynomialLR(optimizer, total_iters=length.rest, power=options.power)


@build_schedule.register
def _inverse_sqrt(options: InverseSqrt, optimizer: torch.optim.Optimizer, length: Length) -> LRScheduler:
    warmup = max(1, length.warmup)
    return LambdaLR(optimizer, lambda step: math.sqrt(warmup / (warmup + step)))


@build_schedule.register
def _step(options: Step, optimizer: torch.optim.Optimizer, length: Length) -> LRScheduler:
    every = options.every * length.epoch
    return _divided(range(every, length.total, every), options.factor, optimizer, length)


@build_schedule.register
def _multistep(options: MultiStep, optimizer: torch.optim.Optimizer, length: Length) -> LRScheduler:
    return _divided([epoch * length.epoch for epoch in options.epochs], options.factor, optimizer, length)


def _divided(steps: Iterable[int], factor: float, optimizer: torch.optim.Optimizer, length: Length) -> LRScheduler:
    """Divided by ``factor`` at each of ``steps``, which are counted from the start of the run."""
    return MultiStepLR(optimizer, [step - length.warmup for step in steps], gamma=1 / factor)
