"""Visual Genome: its annotation files, attributes (``visual-genome``) and scene graphs (``visual-genome-graphs``)."""

from foveal.data.formats.visual_genome.graphs import read_graphs
from foveal.data.formats.visual_genome.source import VisualGenomeData, VisualGenomeOptions

__all__ = ["VisualGenomeData", "VisualGenomeOptions", "read_graphs"]
