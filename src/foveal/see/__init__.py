"""SEE: overlays, the maps of every gate, curves, and the report of a run."""

from foveal.see.cards import gates_html
from foveal.see.curves import precision_recall, scale_accuracy, training
from foveal.see.gates import gates
from foveal.see.overlay import attended, heatmap, overlay
from foveal.see.report import report
from foveal.see.samples import Samples

__all__ = [
    "Samples",
    "attended",
    "gates",
    "gates_html",
    "heatmap",
    "overlay",
    "precision_recall",
    "report",
    "scale_accuracy",
    "training",
]
