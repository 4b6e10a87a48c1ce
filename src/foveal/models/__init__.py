"""Whole networks built from attention modules, registered with timm as well."""

from foveal.models import attribute, aw, cifar, detector, document, reference, scene, segmenter, transformer
from foveal.models.build import build_model
from foveal.models.registry import create_model, list_models, register

__all__ = [
    "attribute",
    "aw",
    "build_model",
    "cifar",
    "create_model",
    "detector",
    "document",
    "list_models",
    "reference",
    "register",
    "scene",
    "segmenter",
    "transformer",
]
