"""Code of your own that registers tasks, datasets, models, mechanisms, losses or metrics.

Two ways to be found: ``FOVEAL_PLUGINS=one,another`` names modules, which may lie in the current folder; an installed
package names its modules as entry points of the group ``foveal``.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
import traceback
from collections.abc import Callable
from importlib import metadata
from types import ModuleType

from foveal.errors import UserError

GROUP = "foveal"
_loaded = False


def own_module(name: str) -> ModuleType:
    """Import a module of the user's; it may lie in the current folder, which a command does not have on its path."""
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.append(os.getcwd())
    return importlib.import_module(name)


def plugin_names() -> list[str]:
    """The modules that ``FOVEAL_PLUGINS`` names."""
    return [name for name in map(str.strip, os.environ.get("FOVEAL_PLUGINS", "").split(",")) if name]


def load_plugins() -> None:
    """Import the modules of ``FOVEAL_PLUGINS`` and the entry points of the group ``foveal``, once."""
    global _loaded
    if _loaded:
        return
    _loaded = True
    try:
        for name in plugin_names():
            _load(f"FOVEAL_PLUGINS: {name}", functools.partial(own_module, name))
        for point in metadata.entry_points(group=GROUP):
            _load(f"the entry point {point.name} = {point.value}", point.load)
    except BaseException:
        _loaded = False  # so that the next call tries again and fails again
        raise


def _load(source: str, load: Callable[[], object]) -> None:
    try:
        load()
    except UserError as error:
        raise UserError(f"{source}: {_line(error)}{error}") from error
    except Exception as error:
        raise UserError(f"{source} cannot be imported: {_line(error)}{type(error).__name__}: {error}") from error


def _line(error: Exception) -> str:
    """The line of the plugin that led to ``error``: the first one outside of foveal and of Python's import system."""
    machinery = (os.path.dirname(__file__), os.path.dirname(importlib.__file__), "<frozen")
    frames = traceback.extract_tb(error.__traceback__)
    line = next((frame for frame in frames if not frame.filename.startswith(machinery)), None)
    return "" if line is None else f"{line.filename}, line {line.lineno}: "
