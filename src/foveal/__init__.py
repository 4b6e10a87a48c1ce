"""Attention you can insert, supervise, measure and see.

Importing this package is cheap: every name below is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foveal import attention, data, measure, models, see, supervise, tasks
    from foveal.attention.class_maps.cam import cam
    from foveal.attention.insertion.dry_run import sites
    from foveal.attention.insertion.insert import insert
    from foveal.attention.insertion.registry import mechanisms, register_mechanism
    from foveal.attention.records.record import AttentionRecord
    from foveal.attention.records.watch import watch
    from foveal.models import create_model, list_models
    from foveal.tasks import load, save

__version__ = "0.1.0"
__all__ = [
    "AttentionRecord",
    "attention",
    "cam",
    "create_model",
    "data",
    "insert",
    "list_models",
    "load",
    "measure",
    "mechanisms",
    "models",
    "register_mechanism",
    "save",
    "see",
    "sites",
    "supervise",
    "tasks",
    "watch",
]

_HOME = {
    "AttentionRecord": "attention",
    "cam": "attention",
    "insert": "attention",
    "mechanisms": "attention",
    "register_mechanism": "attention",
    "sites": "attention",
    "watch": "attention",
    "create_model": "models",
    "list_models": "models",
    "load": "tasks",
    "save": "tasks",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'foveal' has no attribute {name!r}")
    if name in _HOME:
        return getattr(importlib.import_module(f"foveal.{_HOME[name]}"), name)
    return importlib.import_module(f"foveal.{name}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
