"""A recipe small enough to train in a second, shared by the tests of runs."""

import signal
from pathlib import Path

RECIPE = """
version: 1
task: refer
title: tiny
data: {name: mref, digits: embedded, triples: [120, 40, 40], canvas: 30, count: [1, 2], scale: [0.3, 0.5]}
model: {name: hattnet, channels: 4, hidden: 4, stages: 2, dropout: 0.2}
optim: {name: adamw, lr: 0.01}
train: {epochs: 3, batch: 20, eval_batch: 40, accelerator: cpu}
"""


def write_recipe(folder: Path) -> Path:
    path = folder / "tiny.yaml"
    path.write_text(RECIPE)
    return path


def hears_ctrl_c() -> None:
    """In a new process: obey Ctrl-C even if the shell that runs the tests ignores it, as in the background."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
