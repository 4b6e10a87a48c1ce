"""SEE: overlays, the maps of every gate, words and their pairs, curves, and the report of a run."""

from foveal.see.cards import gates_html
from foveal.see.class_maps import TopClasses, class_maps, top_classes
from foveal.see.curves import precision_recall, scale_accuracy, training
from foveal.see.documents import DocumentSamples, document
from foveal.see.gates import gates
from foveal.see.overlay import attended, heatmap, overlay
from foveal.see.pairs import pairs
from foveal.see.report import report
from foveal.see.samples import Samples
from foveal.see.words import words

__all__ = [
    "DocumentSamples",
    "Samples",
    "TopClasses",
    "attended",
    "class_maps",
    "document",
    "gates",
    "gates_html",
    "heatmap",
    "overlay",
    "pairs",
    "precision_recall",
    "report",
    "scale_accuracy",
    "top_classes",
    "training",
    "words",
]
