"""Things by name: foveal's own, those of installed packages, and those of ``FOVEAL_PLUGINS``.

There is one registry for each kind of thing. A thing is registered where it is defined, with the decorator of its room
(``register_task``, ``register_data``, …); nothing else names it. The first lookup imports foveal's own modules and the
plugins.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any, Generic, TypeVar

from foveal.errors import UnknownNameError, unknown
from foveal.plugins import load_plugins, plugin_names

T = TypeVar("T")


class Registry(Generic[T]):
    """Things of one kind by name.

    Args:
        kind: what they are, for error messages.
        packages: where foveal's own are; every module of these packages is imported at the first lookup.
        folders: import subpackages only.

    >>> registry: Registry[int] = Registry("number")
    >>> registry.register("seven", 7)
    7
    >>> registry.get("sevn")
    Traceback (most recent call last):
    ...
    foveal.errors.UnknownNameError: unknown number 'sevn'; did you mean 'seven'?
    """

    def __init__(self, kind: str, *packages: str, folders: bool = False) -> None:
        self.kind, self.packages, self.folders = kind, packages, folders
        self._things: dict[str, T] = {}
        self._complete = False

    def register(self, name: str, thing: T) -> T:
        """Make ``thing`` known as ``name``; a later one of the same name replaces it, and any replaces foveal's own."""
        self._things[name] = thing
        return thing

    def items(self) -> dict[str, T]:
        """Everything by name, in alphabetical order."""
        self._discover()
        return dict(sorted(self._things.items()))

    def names(self) -> list[str]:
        """All names."""
        return list(self.items())

    def get(self, name: str) -> T:
        """The thing called ``name``."""
        self._discover()
        if name not in self._things:
            error = unknown(self.kind, name, self._things)
            if str(error).endswith("?") or plugin_names():  # a close match, or the user knows how
                raise error
            raise UnknownNameError(f"{error}; FOVEAL_PLUGINS=MODULE makes one of your own known")
        return self._things[name]

    def __contains__(self, name: object) -> bool:
        self._discover()
        return name in self._things

    def _discover(self) -> None:
        if not self._complete:
            self._complete = True
            try:
                registered = dict(self._things)  # before foveal's own, so by the user: they stay
                for package in self.packages:
                    self._import(package)
                self._things |= registered
                load_plugins()
            except BaseException:
                self._complete = False
                raise

    def _import(self, package: str) -> None:
        for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
            if (module.ispkg or not self.folders) and not module.name.startswith("_"):
                importlib.import_module(f"{package}.{module.name}")


tasks: Registry[Any] = Registry("task", "foveal.tasks", folders=True)
datasets: Registry[Any] = Registry("dataset", "foveal.data.formats", "foveal.data.embedded")
metrics: Registry[Any] = Registry("metric", "foveal.measure")
attention_losses: Registry[Any] = Registry("loss on attention", "foveal.supervise")
