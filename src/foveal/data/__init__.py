"""Real datasets in their official formats, and embedded ones that need no download.

A dataset registers itself in the file that reads or generates it, below ``formats`` or ``embedded``. Names are loaded
when they are first used: ``foveal data`` needs :mod:`foveal.data.place` and no PyTorch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foveal.data.batches import Batches, EpochBatches, epoch_seed
    from foveal.data.place import Place, data_root
    from foveal.data.registry import Entry, Source, dataset, datasets, register_data

__all__ = [
    "Batches",
    "Entry",
    "EpochBatches",
    "Place",
    "Source",
    "data_root",
    "dataset",
    "datasets",
    "epoch_seed",
    "register_data",
]

_HOME = {
    "Batches": "batches",
    "EpochBatches": "batches",
    "epoch_seed": "batches",
    "Place": "place",
    "data_root": "place",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'foveal.data' has no attribute {name!r}")
    return getattr(importlib.import_module(f"foveal.data.{_HOME.get(name, 'registry')}"), name)
