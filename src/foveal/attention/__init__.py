"""INSERT: one attention mechanism a file, insertion into live models, and the records of what attention did."""

from foveal.attention.aw import AWConv2d, KernelAttention
from foveal.attention.cbam import CBAM
from foveal.attention.class_maps.cam import cam, class_attention
from foveal.attention.focused import FocusedAttention
from foveal.attention.insertion.dry_run import Site, sites
from foveal.attention.insertion.inserting import Insertion, insert
from foveal.attention.insertion.registry import Gate, Kernel, mechanisms, register_mechanism
from foveal.attention.progressive import ProgressiveGate
from foveal.attention.records.record import Attends, AttentionRecord, watch
from foveal.attention.se import SqueezeExcite

__all__ = [
    "CBAM",
    "AWConv2d",
    "Attends",
    "AttentionRecord",
    "FocusedAttention",
    "Gate",
    "Insertion",
    "Kernel",
    "KernelAttention",
    "ProgressiveGate",
    "Site",
    "SqueezeExcite",
    "cam",
    "class_attention",
    "insert",
    "mechanisms",
    "register_mechanism",
    "sites",
    "watch",
]
