"""The run folder: one writer, one reader.

``run.json`` header: format, task, dataset · ``recipe.yaml`` resolved recipe · ``environment.json`` versions, hardware,
revision · ``metrics.jsonl`` a line for each epoch · ``last.ckpt``, ``best.ckpt`` checkpoints · ``weights.safetensors``
the chosen model, alone · ``result.json`` the test · ``samples.safetensors`` test samples with their attention.
"""

from foveal.runs.folder import RunFolder, Stored, find_run
from foveal.runs.groups import Group, grouped
from foveal.runs.reading import Run, found_runs, read_run, read_runs

__all__ = ["Group", "Run", "RunFolder", "Stored", "find_run", "found_runs", "grouped", "read_run", "read_runs"]
