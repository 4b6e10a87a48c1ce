"""Real datasets in their official formats, and embedded ones that need no download.

A dataset registers itself in the file that reads or generates it, below ``formats`` or ``embedded``. Names are loaded
when they are first used: ``foveal data`` needs :mod:`foveal.data.place` and no PyTorch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foveal.data.batches import Batches, EpochBatches, epoch_seed
    from foveal.data.images.classification import register_images
    from foveal.data.images.format import Format
    from foveal.data.images.labelled import ImageSet, LabelledImages
    from foveal.data.images.reading import read_image
    from foveal.data.place import Place, data_root
    from foveal.data.registry import Entry, Source, dataset, datasets, register_data
    from foveal.data.text.documents import TextFormat, register_texts
    from foveal.data.text.reading import Corpus, stamp

__all__ = [
    "Batches",
    "Corpus",
    "Entry",
    "EpochBatches",
    "Format",
    "ImageSet",
    "LabelledImages",
    "Place",
    "Source",
    "TextFormat",
    "data_root",
    "dataset",
    "datasets",
    "epoch_seed",
    "read_image",
    "register_data",
    "register_images",
    "register_texts",
    "stamp",
]

_HOME = {
    "Batches": "batches",
    "EpochBatches": "batches",
    "epoch_seed": "batches",
    "Format": "images.format",
    "ImageSet": "images.labelled",
    "LabelledImages": "images.labelled",
    "read_image": "images.reading",
    "register_images": "images.classification",
    "Place": "place",
    "data_root": "place",
    "Corpus": "text.reading",
    "stamp": "text.reading",
    "TextFormat": "text.documents",
    "register_texts": "text.documents",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'foveal.data' has no attribute {name!r}")
    return getattr(importlib.import_module(f"foveal.data.{_HOME.get(name, 'registry')}"), name)
