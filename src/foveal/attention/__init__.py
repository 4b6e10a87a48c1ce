"""INSERT: attention mechanisms, one per file, their insertion into live models, and records of what attention did."""

from foveal.attention.aw import AWConv2d, KernelAttention
from foveal.attention.cbam import CBAM
from foveal.attention.class_maps.cam import cam, class_attention
from foveal.attention.deform import DeformableKernel, DeformConv2d
from foveal.attention.deform1d import DeformConv1d
from foveal.attention.dynamic import DynamicConv1d, DynamicConv2d
from foveal.attention.focused import FocusedAttention
from foveal.attention.insertion.attached import reattach
from foveal.attention.insertion.dry_run import Site, sites
from foveal.attention.insertion.insert import Insertion, insert
from foveal.attention.insertion.registry import Gate, Kernel, mechanisms, register_mechanism
from foveal.attention.progressive import ProgressiveGate
from foveal.attention.records.dot_product import DotProduct
from foveal.attention.records.record import Attends, AttentionRecord, LazyValues
from foveal.attention.records.watch import watch
from foveal.attention.regions import FocusedRegions, RegionGraph, region_graphs
from foveal.attention.relationships import Relationships, relationship_proposals
from foveal.attention.relative import RelativeAttention
from foveal.attention.se import SqueezeExcite
from foveal.attention.spatial import SpatialAttention

__all__ = [
    "CBAM",
    "AWConv2d",
    "Attends",
    "AttentionRecord",
    "DeformConv1d",
    "DeformConv2d",
    "DeformableKernel",
    "DotProduct",
    "DynamicConv1d",
    "DynamicConv2d",
    "FocusedAttention",
    "FocusedRegions",
    "Gate",
    "Insertion",
    "Kernel",
    "KernelAttention",
    "LazyValues",
    "ProgressiveGate",
    "RegionGraph",
    "Relationships",
    "RelativeAttention",
    "Site",
    "SpatialAttention",
    "SqueezeExcite",
    "cam",
    "class_attention",
    "insert",
    "mechanisms",
    "reattach",
    "region_graphs",
    "register_mechanism",
    "relationship_proposals",
    "sites",
    "watch",
]
