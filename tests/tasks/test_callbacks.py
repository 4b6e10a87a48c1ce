"""The progress bar and the clock; the other callbacks are tested with whole runs."""

import io
import itertools
import re
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from foveal.tasks.answers import ACCURACY
from foveal.tasks.callbacks import ProgressLine, StepTimer


@pytest.mark.parametrize("title", ["mref SOFT", "visual-genome HAttNet-CTX", "[/strange] title"])
def test_a_usual_terminal_shows_epoch_loss_score_speed_and_time_left(title):
    bar = ProgressLine(title, ACCURACY)
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
        bar.on_train_batch_end(trainer, SimpleNamespace(batch_size=lambda batch: 200), None, None, step)
    bar.on_train_end(trainer, None)
    shown = bar.console.file.getvalue()
    time_left = r"(--:--|\d\d:\d\d|\d:\d\d:\d\d)"
    assert re.search(rf"12/300 · loss 1\.430 · val 0\.184 · [\d,]+/s +{time_left} left", shown), shown


@pytest.mark.parametrize("accumulate", [1, 4])
def test_lines_without_a_terminal_tell_the_time_left(monkeypatch, capsys, accumulate):
    """Of 100 updates of the weights, each of one or several batches, 10 took 20 seconds."""
    bar = ProgressLine("mref SOFT", ACCURACY)
    bar.console = Console(file=io.StringIO(), force_terminal=False)
    trainer = SimpleNamespace(
        is_global_zero=True,
        estimated_stepping_batches=100,
        global_step=0,
        world_size=1,
        current_epoch=0,
        max_epochs=10,
        callback_metrics={"val/accuracy": torch.tensor(0.5)},
    )
    now = 0.0
    monkeypatch.setattr("foveal.tasks.callbacks.time.monotonic", lambda: now)
    bar.on_train_start(trainer, None)
    for step in range(10 * accumulate):
        bar.on_train_batch_end(trainer, SimpleNamespace(batch_size=lambda batch: 200), None, None, step)
    trainer.global_step, now = 10, 20.0
    bar.on_train_epoch_end(trainer, None)
    line = capsys.readouterr().err
    assert f"epoch 1/10 · val 0.500 · {100 * accumulate}/s · 180 s left" in line


@pytest.mark.parametrize(
    ("gaps", "expected"),
    [
        ([9.0, 9.0, 0.1, 0.3, 0.2, 0.2], 0.2),  # half of a few steps are warm-up
        ([9.0] * 10 + [0.5] * 3 + [0.1] * 12, 0.1),  # ten of many
        ([0.4], 0.4),
        ([], None),
    ],
)
def test_the_median_step_after_the_warm_up(monkeypatch, gaps, expected):
    now, logged = iter(itertools.accumulate([5.0, *gaps])), {}
    monkeypatch.setattr("foveal.tasks.callbacks.time.perf_counter", lambda: next(now))
    task = SimpleNamespace(device=torch.device("cpu"), log=lambda name, value, **how: logged.update({name: value}))
    timer = StepTimer()
    timer.times = [1.0]  # of an epoch before
    timer.on_train_epoch_start(None, task)
    for step in range(len(gaps) + 1):
        timer.on_train_batch_end(None, task, None, None, step)
    timer.on_train_epoch_end(None, task)
    assert logged == ({} if expected is None else {"train/step_seconds": pytest.approx(expected)})
