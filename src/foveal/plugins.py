"""Modules of your own that register mechanisms, datasets or models: ``FOVEAL_PLUGINS=one,another``."""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType

from foveal.errors import UserError

_loaded = False


def own_module(name: str) -> ModuleType:
    """Import a module of the user's; it may lie in the current folder, which a command does not have on its path."""
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.append(os.getcwd())
    return importlib.import_module(name)


def load_plugins() -> None:
    """Import what ``FOVEAL_PLUGINS`` names, once."""
    global _loaded
    if _loaded:
        return
    for name in filter(None, map(str.strip, os.environ.get("FOVEAL_PLUGINS", "").split(","))):
        try:
            own_module(name)
        except Exception as error:
            raise UserError(f"FOVEAL_PLUGINS: {name} cannot be imported: {error}") from error
    _loaded = True
