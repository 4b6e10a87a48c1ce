"""SUPERVISE: losses on attention itself, and the targets they need. Plain tensors or records in, plain tensors out."""

from foveal.supervise.center_mass import center_mass, center_mass_loss
from foveal.supervise.mask import mask_loss
from foveal.supervise.registry import register_attention_loss
from foveal.supervise.relations import region_pairs, relation_loss
from foveal.supervise.separability import attention_mask, confusing_class, consistency, separability
from foveal.supervise.sharpen import Sharpen
from foveal.supervise.targets import Tag, object_pairs, object_relations, relation_pairs, semantic_table, word_pairs

__all__ = [
    "Sharpen",
    "Tag",
    "attention_mask",
    "center_mass",
    "center_mass_loss",
    "confusing_class",
    "consistency",
    "mask_loss",
    "object_pairs",
    "object_relations",
    "region_pairs",
    "register_attention_loss",
    "relation_loss",
    "relation_pairs",
    "semantic_table",
    "separability",
    "word_pairs",
]
