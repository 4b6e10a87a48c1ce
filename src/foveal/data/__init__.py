"""Real datasets in their official formats, and embedded ones that need no download."""

from foveal.data import attributes, classification, confusion, reference, texts
from foveal.data.registry import Entry, Source, data_root, dataset, datasets, register_data

__all__ = [
    "Entry",
    "Source",
    "attributes",
    "classification",
    "confusion",
    "data_root",
    "dataset",
    "datasets",
    "reference",
    "register_data",
    "texts",
]
