"""Whole networks built from attention modules, registered with timm as well."""

from foveal.models import attribute, reference
from foveal.models.registry import create_model, list_models, register

__all__ = ["attribute", "create_model", "list_models", "reference", "register"]
