"""Tasks by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from foveal import registry
from foveal.tasks.base import Task

T = TypeVar("T", bound=type[Task])


def register_task(name: str) -> Callable[[T], T]:
    """Make the decorated :class:`~foveal.tasks.base.Task` known as ``name``.

    Recipes then name it as their ``task``; train, test, predict, see, list, reproduce and compare work with it.
    """

    def decorate(task: T) -> T:
        task.name = name
        registry.tasks.register(name, task)
        return task

    return decorate
