"""Recipes small enough to train in a second, and what tests of whole runs share."""

import time
from pathlib import Path

from foveal.recipe import load
from foveal.runs import RunFolder

RECIPE = """
version: 2
task: refer
title: tiny
data: {name: mref, digits: embedded, triples: [120, 40, 40], canvas: 30, count: [1, 2], scale: [0.3, 0.5]}
model: {name: hattnet, channels: 4, hidden: 4, stages: 2, dropout: 0.2}
optim: {name: adamw, lr: 0.01}
train: {epochs: 3, batch: 20, eval_batch: 40, accelerator: cpu}
"""
DIGITS = """
version: 2
task: classify
title: tiny
data: {name: digits, size: 8}
model: {name: aw_cbam_cifar_resnet20, depth: 8, width: 4}
optim: {name: sgd, lr: 0.1, nesterov: true, weight_decay: 5.0e-4, schedule: onecycle}
train: {epochs: 2, batch: 42, eval_batch: 100, accelerator: cpu}
"""
SHARPEN = """
version: 2
task: classify
title: tiny
data: {name: digits, size: 12}
model: {name: cifar_resnet20, depth: 8, width: 4}
loss: {sharpen: {layers: [layer2, layer3]}}
optim: {name: sgd, lr: 0.1, schedule: onecycle}
train: {epochs: 1, batch: 63, eval_batch: 200, accelerator: cpu}
"""


def write_recipe(folder: Path, text: str = RECIPE) -> Path:
    path = folder / "tiny.yaml"
    path.write_text(text)
    return path


def tiny_recipe(folder: Path, *changes: str, text: str = RECIPE):
    return load(write_recipe(folder, text), changes)


def wait_for_epochs(process, out: Path, count: int) -> None:
    """Wait until a run in another process has written ``count`` epochs."""
    deadline = time.monotonic() + 240
    while len(RunFolder(out).epochs()) < count:
        assert process.poll() is None, process.errors()
        assert time.monotonic() < deadline
        time.sleep(0.005)
