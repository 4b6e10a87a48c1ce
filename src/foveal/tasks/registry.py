"""Tasks by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TypeVar

from foveal import registry
from foveal.errors import UserError
from foveal.recipe import LossOptions
from foveal.tasks.base import Task

T = TypeVar("T", bound=type[Task])
REQUIRED = ("losses", "validation_step", "test_step", "rebuild")  # what a task defines itself


def register_task(name: str) -> Callable[[T], T]:
    """Make the decorated :class:`~foveal.tasks.base.Task` known as ``name``.

    Recipes then name it as their ``task``; train, test, predict, see, list, reproduce and compare work with it.
    ``sections`` needs to hold only what differs from ``Task.sections``.
    """

    def decorate(task: T) -> T:
        if not (inspect.isclass(task) and issubclass(task, Task)):
            raise UserError(f"task {name!r}: expected a class derived from foveal.tasks.Task, got {task!r}")
        undefined = [method for method in REQUIRED if _inherits(task, method)]
        if undefined:
            raise UserError(f"task {name!r}: {task.__name__} must define {', '.join(undefined)}")
        sections = {**Task.sections, **task.sections}
        if not issubclass(sections["loss"], LossOptions):
            raise UserError(
                f"task {name!r}: sections['loss'] must be derived from foveal.recipe.LossOptions, whose keys every "
                f"task has, got {sections['loss'].__name__}"
            )
        task.name, task.sections = name, sections
        return registry.tasks.register(name, task)

    return decorate


def _inherits(task: type[Task], method: str) -> bool:
    """Whether a method is still the one of ``Task``."""
    return inspect.getattr_static(task, method) is inspect.getattr_static(Task, method)
