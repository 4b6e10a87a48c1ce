"""Visual Genome: its annotation files, samples for attribute prediction, and the dataset ``visual-genome``."""

from foveal.data.formats.visual_genome.source import VisualGenomeData, VisualGenomeOptions

__all__ = ["VisualGenomeData", "VisualGenomeOptions"]
