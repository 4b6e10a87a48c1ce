"""The ``optim`` section of a recipe: optimisers and weight averages, one dataclass each, and a schedule.

A dataclass has the keys of its optimiser or average and no others. A new optimiser is one dataclass with
:func:`register_optimiser`: ``builds`` names the class, and the keys of the dataclass are arguments of that class.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from foveal.errors import UserError
from foveal.recipe.choice import Choice, Options, fixed, keys, number
from foveal.recipe.schedules import Constant, Schedule, schedules
from foveal.typed import join


@dataclass(kw_only=True)
class Average(Options):
    """Weights that are averaged over training; validation, test and export use the average.

    Attributes:
        kind: the kind of average.
    """

    kind: str = fixed("")


averages: Choice[Average] = Choice("weight average", "kind")
register_average = averages.register


@register_average
@dataclass(kw_only=True)
class EMA(Average):
    """Exponential moving average, updated after every step.

    Attributes:
        decay: factor of the old average; that of the new weights is 1 − ``decay``.
    """

    kind: str = fixed("ema")
    decay: float = number(0.999, least=0, below=1)


@register_average
@dataclass(kw_only=True)
class SWA(Average):
    """Mean of the weights after each of the last epochs of the run; before these nothing is averaged.

    Attributes:
        epochs: how many epochs are averaged.
    """

    kind: str = fixed("swa")
    epochs: int = number(5, least=1)


@register_average
@dataclass(kw_only=True)
class Last(Average):
    """Moving mean of the weights after the latest epochs; keeps a copy of the weights for each of them.

    Attributes:
        epochs: how many epochs are averaged.
    """

    kind: str = fixed("last")
    epochs: int = number(5, least=1)


@dataclass(kw_only=True)
class Optim(Options):
    """How weights are updated. The keys that a subclass adds are arguments of the optimiser it stands for.

    Attributes:
        name: ``rmsprop``, ``adam``, ``adamw`` or ``sgd``.
        lr: learning rate; schedules multiply it.
        weight_decay: decoupled for ``adamw``, L2 otherwise.
        decay: what weight decay acts on: ``all`` parameters, or only ``weights``, without biases, norms and all other
            parameters of one dimension.
        rates: factors of the learning rate by parameter name, such as ``{"head.*": 10}``; the first match counts.
        clip: gradients are clipped to this total norm; null: not clipped.
        schedule: name of a learning-rate schedule, or a section with its ``name`` and its keys.
        average: null, or a section with the ``kind`` of a weight average and its keys.
        builds: module and class of the optimiser, ``module:Class``.
    """

    builds: ClassVar[str] = ""

    name: str = fixed("")
    lr: float = number(1e-3, least=0)
    weight_decay: float = number(0.0, least=0)
    decay: Literal["weights", "all"] = "weights"
    rates: dict[str, float] = field(default_factory=dict)
    clip: float | None = number(None, above=0)
    schedule: Schedule = field(default_factory=Constant)
    average: Average | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, factor in self.rates.items():
            if not factor >= 0:
                raise UserError(f"rates.{name}: expected at least 0, got {factor:g}")

    def arguments(self) -> dict[str, Any]:
        """What the optimiser takes beside parameters, learning rate and weight decay."""
        return {key: getattr(self, key) for key in keys(type(self)) if key not in keys(Optim)}


optimisers: Choice[Optim] = Choice("optimiser", "name")
register_optimiser = optimisers.register


@register_optimiser
@dataclass(kw_only=True)
class RMSprop(Optim):
    """RMSprop.

    Attributes:
        alpha: decay of the average of squared gradients.
        eps: added to the denominator.
        momentum: momentum of the update.
    """

    builds = "torch.optim:RMSprop"

    name: str = fixed("rmsprop")
    alpha: float = number(0.9, least=0)
    eps: float = number(1e-8, least=0)
    momentum: float = number(0.0, least=0)


@register_optimiser
@dataclass(kw_only=True)
class Adam(Optim):
    """Adam, with weight decay as an L2 penalty.

    Attributes:
        betas: decay of the averages of gradients and of squared gradients.
        eps: added to the denominator.
    """

    builds = "torch.optim:Adam"

    name: str = fixed("adam")
    betas: tuple[float, float] = number((0.9, 0.999), least=0, below=1)
    eps: float = number(1e-8, least=0)


@register_optimiser
@dataclass(kw_only=True)
class AdamW(Optim):
    """Adam with decoupled weight decay.

    Attributes:
        betas: decay of the averages of gradients and of squared gradients.
        eps: added to the denominator.
    """

    builds = "torch.optim:AdamW"

    name: str = fixed("adamw")
    betas: tuple[float, float] = number((0.9, 0.999), least=0, below=1)
    eps: float = number(1e-8, least=0)


@register_optimiser
@dataclass(kw_only=True)
class SGD(Optim):
    """Stochastic gradient descent.

    Attributes:
        momentum: share of the last update that is added to the next.
        nesterov: Nesterov momentum.
    """

    builds = "torch.optim:SGD"

    name: str = fixed("sgd")
    momentum: float = number(0.9, least=0)
    nesterov: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nesterov and not self.momentum > 0:
            raise UserError("nesterov=true needs a momentum above 0")


def parse_optim(raw: Mapping[str, Any], where: str = "optim") -> Optim:
    """Build the section from plain data; ``dataclasses.asdict`` of the result is such data again.

    >>> parse_optim({"name": "sgd", "lr": 0.1, "schedule": "cosine"}).schedule
    Cosine(name='cosine', warmup=0.0, warmup_steps=0, start=0.001, floor=0.0)
    >>> parse_optim({"momentum": 0.9})
    Traceback (most recent call last):
    ...
    foveal.errors.UserError: optim.momentum is not an option of adamw; rmsprop and sgd have it
    """
    if isinstance(raw, Mapping):
        raw = dict(raw)
        for key in raw:
            owners = schedules.owners(key)
            if owners and key not in keys(Optim) and not optimisers.owners(key):
                raise UserError(
                    f"{join(where, key)} is an option of the schedule; write {join(where, 'schedule')}.{key} "
                    f"(for {', '.join(owners)})"
                )
        for key, choice in (("schedule", schedules), ("average", averages)):
            if raw.get(key) is not None:
                raw[key] = choice.parse(raw[key], join(where, key))
            else:
                raw.pop(key, None)
    return optimisers.parse(raw, where, "adamw")


def inherited(optim: Mapping[str, Any], name: object) -> dict[str, Any]:
    """What a recipe that names the optimiser ``name`` inherits: all keys but those that only other optimisers have.

    >>> inherited({"name": "rmsprop", "lr": 0.1, "alpha": 0.9}, "sgd")
    {'name': 'rmsprop', 'lr': 0.1}
    """
    if optim.get("name", "adamw") == name or name not in optimisers.kinds:
        return dict(optim)
    own = keys(optimisers.kinds[str(name)])
    return {key: value for key, value in optim.items() if key in own or not optimisers.owners(key)}
