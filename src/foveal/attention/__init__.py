"""INSERT: one attention mechanism a file, and the records of what attention did."""

from foveal.attention.progressive import ProgressiveGate
from foveal.attention.record import Attends, AttentionRecord, watch

__all__ = ["Attends", "AttentionRecord", "ProgressiveGate", "watch"]
