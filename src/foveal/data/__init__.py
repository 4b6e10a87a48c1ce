"""Real datasets in their official formats, and embedded ones that need no download.

A dataset registers itself in the file that reads or generates it, below ``formats`` or ``embedded``.
"""

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
