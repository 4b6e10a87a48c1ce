"""Learning-rate schedules of a recipe, one dataclass each.

A new one is a dataclass with :func:`register_schedule`, and a function that builds it, registered with
``foveal.tasks.optim.build_schedule``.
"""

from __future__ import annotations

from dataclasses import dataclass

from foveal.errors import UserError
from foveal.recipe.choice import Choice, Options, fixed, number


@dataclass(kw_only=True)
class Schedule(Options):
    """How the learning rate changes; it is set anew at every step.

    Attributes:
        name: of the schedule.
    """

    name: str = fixed("")


schedules: Choice[Schedule] = Choice("schedule", "name")
register_schedule = schedules.register


@dataclass(kw_only=True)
class Warmup(Schedule):
    """A schedule that may begin with a linear warm-up.

    Attributes:
        warmup: length of the warm-up in epochs, which may be a fraction; 0: no warm-up.
        warmup_steps: length of the warm-up in steps, instead of ``warmup``.
        start: the rate of the first step, as a fraction of ``lr``; the warm-up ends at ``lr``.
    """

    warmup: float = number(0.0, least=0)
    warmup_steps: int = number(0, least=0)
    start: float = number(1e-3, above=0, most=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.warmup and self.warmup_steps:
            raise UserError(
                f"warmup: {self.warmup:g} epochs and {self.warmup_steps} steps (warmup_steps) exclude each other; "
                "give one of them"
            )


@register_schedule
@dataclass(kw_only=True)
class Constant(Warmup):
    """``lr`` throughout, after the warm-up if there is one."""

    name: str = fixed("constant")


@register_schedule
@dataclass(kw_only=True)
class Stairs(Schedule):
    """Divided by ``factor`` in the epoch that follows epoch ``after``, and then every ``every`` epochs.

    Attributes:
        after: last epoch with the full rate, counted from 0.
        every: epochs from one division to the next.
        factor: what the rate is divided by.
    """

    name: str = fixed("stairs")
    after: int = number(30, least=0)
    every: int = number(11, least=1)
    factor: float = number(1.5, above=0)


@register_schedule
@dataclass(kw_only=True)
class OneCycle(Schedule):
    """Up from 4 % of ``lr`` to ``lr`` in the first quarter of the run, then down to 0 along a cosine."""

    name: str = fixed("onecycle")


@register_schedule
@dataclass(kw_only=True)
class Cosine(Warmup):
    """Down from ``lr`` along half a cosine, from the end of the warm-up to the end of the run.

    Attributes:
        floor: the last rate, as a fraction of ``lr``.
    """

    name: str = fixed("cosine")
    floor: float = number(0.0, least=0, most=1)


@register_schedule
@dataclass(kw_only=True)
class Poly(Warmup):
    """``lr`` times (1 − steps done / all steps) to the power ``power``; both counted from the end of the warm-up.

    Attributes:
        power: the exponent.
    """

    name: str = fixed("poly")
    power: float = number(0.9, above=0)


@register_schedule
@dataclass(kw_only=True)
class InverseSqrt(Warmup):
    """``lr`` times √(warm-up steps / steps done), as for Transformers; 4000 warm-up steps if none are given.

    Attributes:
        warmup_steps: 4000 if neither ``warmup`` nor this is given.
        start: the first rate as a fraction of ``lr``: 1e-4 is the usual 1e-7 for an ``lr`` of 1e-3.
    """

    name: str = fixed("inverse_sqrt")
    start: float = number(1e-4, above=0, most=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.warmup and not self.warmup_steps:
            self.warmup_steps = 4000


@register_schedule
@dataclass(kw_only=True)
class Step(Warmup):
    """Divided by ``factor`` every ``every`` epochs, counted from the start of the run.

    Attributes:
        every: epochs from one division to the next.
        factor: what the rate is divided by.
    """

    name: str = fixed("step")
    every: int = number(30, least=1)
    factor: float = number(10.0, above=0)


@register_schedule
@dataclass(kw_only=True)
class MultiStep(Warmup):
    """Divided by ``factor`` after the epochs that ``epochs`` lists, counted from the start of the run.

    Attributes:
        epochs: numbers of epochs, such as ``[8, 11]``.
        factor: what the rate is divided by.
    """

    name: str = fixed("multistep")
    epochs: tuple[int, ...] = number((), least=1)
    factor: float = number(10.0, above=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.epochs or list(self.epochs) != sorted(set(self.epochs)):
            raise UserError(f"epochs: expected a list of rising numbers such as [8, 11], got {list(self.epochs)}")
