"""The progress bar; the other callbacks are tested with whole runs."""

import io
import re
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from foveal.tasks.callbacks import ProgressLine


@pytest.mark.parametrize("title", ["mref SOFT", "visual-genome HAttNet-CTX", "[/strange] title"])
def test_a_usual_terminal_shows_epoch_loss_score_speed_and_time_left(title):
    bar = ProgressLine(title, "val/accuracy")
    bar.console = Console(file=io.StringIO(), force_terminal=True, width=80, color_system=None)
    trainer = SimpleNamespace(
        is_global_zero=True,
        estimated_stepping_batches=45_000,
        global_step=1,
        world_size=1,
        current_epoch=11,
        max_epochs=300,
        callback_metrics={"train/loss": torch.tensor(1.43), "val/accuracy": torch.tensor(0.184)},
    )
    bar.on_train_start(trainer, None)
    for step in range(10):
        trainer.global_step = step
        bar.on_train_batch_end(trainer, None, None, {"query": range(200)}, step)
    bar.on_train_end(trainer, None)
    shown = bar.console.file.getvalue()
    time_left = r"(--:--|\d\d:\d\d|\d:\d\d:\d\d)"
    assert re.search(rf"12/300 · loss 1\.430 · val 0\.184 · [\d,]+/s +{time_left} left", shown), shown
