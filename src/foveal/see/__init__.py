"""SEE: overlays, the maps of every gate, what a query attends to, words and their pairs, curves, reports."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from foveal.see.draw.boxes import Found, boxes, detections
from foveal.see.draw.class_maps import class_maps
from foveal.see.draw.curves import precision_recall, relation_recall, scale_accuracy, training
from foveal.see.draw.document import DocumentSamples, document
from foveal.see.draw.gates import gates
from foveal.see.draw.overlay import attended, heatmap, overlay
from foveal.see.draw.pairs import all_pairs, pairs
from foveal.see.draw.pareto import Tradeoff, pareto, tradeoffs
from foveal.see.draw.query import query, query_maps, sampling
from foveal.see.draw.relations import relations
from foveal.see.draw.samples import Samples
from foveal.see.draw.segmentation import painted, segmentation
from foveal.see.draw.top_classes import TopClasses, top_classes
from foveal.see.draw.words import words

__all__ = [
    "DocumentSamples",
    "Found",
    "Samples",
    "TopClasses",
    "Tradeoff",
    "all_pairs",
    "attended",
    "boxes",
    "class_maps",
    "detections",
    "document",
    "gates",
    "heatmap",
    "overlay",
    "painted",
    "pairs",
    "pareto",
    "precision_recall",
    "query",
    "query_maps",
    "relation_recall",
    "relations",
    "report",
    "sampling",
    "scale_accuracy",
    "segmentation",
    "top_classes",
    "tradeoffs",
    "training",
    "words",
]


def report(run_dir: str | Path | Sequence[str | Path], out: str | Path | None = None) -> Path:
    """Write ``report.html`` for one run or many: results, pictures, curves and settings in one file.

    Args:
        run_dir: a run folder, a folder with run folders at any depth, or a list of such folders. A run folder holds
            ``recipe.yaml``; whatever else it lacks is left out, and a run without ``result.json`` is called unfinished.
        out: the file, or a folder for it; by default ``report.html`` in ``run_dir``, for a list in the folder that
            holds all of them.

    Returns:
        Path of the report. It replaces an older one only when it is complete.

    Raises:
        RunError: no run is found, or the file cannot be written.
    """
    from foveal.tasks.report import report as assemble  # tasks bring the sections of their runs, and import this room

    return assemble(run_dir, out)
