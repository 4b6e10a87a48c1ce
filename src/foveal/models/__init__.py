"""Whole networks built from attention modules, registered with timm as well."""

from foveal.models import attribute, aw, cifar, document, reference, segmenter, transformer
from foveal.models.registry import create_model, list_models, register

__all__ = [
    "attribute",
    "aw",
    "cifar",
    "create_model",
    "document",
    "list_models",
    "reference",
    "register",
    "segmenter",
    "transformer",
]
