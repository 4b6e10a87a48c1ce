"""Whole networks built from attention modules, registered with timm as well."""

from foveal.models import attribute, aw, reference
from foveal.models.registry import create_model, list_models, register

__all__ = ["attribute", "aw", "create_model", "list_models", "reference", "register"]
