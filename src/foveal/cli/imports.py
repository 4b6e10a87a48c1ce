"""Quicker imports of PyTorch and Lightning, for commands: they should start at once.

Two things are slow and of no use to a command. Python looks for garbage again and again while PyTorch makes its many
objects. And Lightning imports torchmetrics, which imports ``scipy.signal``, to give one of its functions an old name;
matplotlib, for ``Metric.plot``; and transformers, if it is installed, for metrics of language models.

While torchmetrics is imported, stand-ins take the place of those modules, and what torchmetrics takes from them is
looked up when it is first used: plots work as ever. Afterwards the stand-ins are gone, and an import of one of the
modules anywhere is an ordinary one. If a release of torchmetrics does with them what a stand-in cannot do, it is
imported as usual.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

UNUSED = ("scipy.signal", "matplotlib", "matplotlib.axes", "matplotlib.pyplot", "transformers")


@contextlib.contextmanager
def quick_imports() -> Iterator[None]:
    """Imports in this context take less time, if they are the first of PyTorch."""
    if "torch" in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        with deferred("torchmetrics", UNUSED):
            yield
    finally:
        gc.freeze()  # what was imported stays, and need not be looked at again
        atexit.register(gc.unfreeze)  # until the end: C++ modules report what is not taken away then
        gc.enable()


@contextlib.contextmanager
def deferred(package: str, modules: Sequence[str]) -> Iterator[None]:
    """The first import of ``package`` in this context puts off its imports of ``modules``, parents before children."""
    finder = _Finder(package, modules)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)


class _Finder(MetaPathFinder):
    """Finds ``package`` where it is, and runs it with stand-ins; once."""

    def __init__(self, package: str, modules: Sequence[str]) -> None:
        self.package, self.modules = package, modules

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname != self.package:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module
            spec.loader.exec_module = lambda module: self._run(module, run)  # type: ignore[method-assign]
        return spec

    def _run(self, module: ModuleType, run: Callable[[ModuleType], None]) -> None:
        before = dict(vars(module))
        try:
            with _stand_ins(self.modules):
                run(module)
        except Exception:
            for name in [name for name in sys.modules if name.startswith(f"{self.package}.")]:
                del sys.modules[name]
            vars(module).clear()
            vars(module).update(before)
            run(module)


@contextlib.contextmanager
def _stand_ins(modules: Sequence[str]) -> Iterator[None]:
    """Stand-ins for modules that are not imported yet."""
    importing = _Importing()
    made = {name: _StandIn(name, importing) for name in modules if name not in sys.modules}
    for name, stand_in in made.items():
        parent, _, child = name.rpartition(".")
        if parent in made:
            setattr(made[parent], child, stand_in)
    sys.modules.update(made)
    try:
        yield
    finally:
        importing.now = False
        for name in made:
            del sys.modules[name]


class _Importing:
    """Whether the package is still being imported."""

    now = True


class _StandIn(ModuleType):
    """A module that is imported when one of its names is needed."""

    def __init__(self, name: str, importing: _Importing) -> None:
        super().__init__(name)
        self._importing = importing

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _later(lambda: getattr(importlib.import_module(self.__name__), name), self._importing)


class _Later:
    """Something of a module that is not imported yet: one of its names, or what follows from that."""

    def __init__(self, look_up: Callable[[], Any], importing: _Importing) -> None:
        self._look_up, self._importing = look_up, importing

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _later(lambda: self._look_up()(*args, **kwargs), self._importing)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _later(lambda: getattr(self._look_up(), name), self._importing)

    def __instancecheck__(self, instance: object) -> bool:
        return isinstance(instance, self._look_up())


def _later(look_up: Callable[[], Any], importing: _Importing) -> Any:
    return _Later(look_up, importing) if importing.now else look_up()
