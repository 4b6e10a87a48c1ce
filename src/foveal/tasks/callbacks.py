"""What watches a run: the journal, the guard against divergence, and the progress bar."""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import lightning as L
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import Tensor

from foveal.errors import DivergedError

EVERY = 50  # steps between looks at the losses, so that a GPU need not wait at every step


class LossGuard(L.Callback):
    """Keeps the mean training loss of the epoch, and stops a run whose loss is not finite."""

    def __init__(self) -> None:
        self.pending: list[tuple[int, int, Tensor]] = []
        self.total, self.count, self.last_finite = 0.0, 0, math.nan

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start the mean anew."""
        self.total, self.count = 0.0, 0

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Keep the loss on its device; look at it now and then."""
        self.pending.append((trainer.global_step, batch_idx, outputs["loss"].detach()))
        if len(self.pending) >= EVERY:
            self.look(trainer)

    def look(self, trainer: L.Trainer) -> None:
        """Check what has come together since the last look."""
        pending, self.pending = self.pending, []
        if not pending:
            return
        for (step, batch, _), loss in zip(pending, torch.stack([p[2] for p in pending]).tolist(), strict=True):
            if not math.isfinite(loss):
                raise DivergedError(
                    f"the loss became {loss} at step {step} (epoch {trainer.current_epoch}, batch {batch}); the last "
                    f"finite value was {self.last_finite:.4g}. The last checkpoint is from before that. "
                    "Try a lower optim.lr or optim.clip"
                )
            self.last_finite = loss
            self.total, self.count = self.total + loss, self.count + 1

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Look before anything is measured or saved."""
        self.look(trainer)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Publish the mean."""
        self.look(trainer)
        trainer.callback_metrics["train/loss"] = torch.tensor(self.total / max(1, self.count))


class Journal(L.Callback):
    """Writes one line an epoch to ``metrics.jsonl``. A resumed run first drops the lines it will write again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.before = 0.0

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Keep the lines of the epochs that are done."""
        self.start = time.monotonic()
        if not trainer.is_global_zero:
            return
        rows = [row for row in read_journal(self.path) if row["epoch"] < trainer.current_epoch]
        self.before = rows[-1]["seconds"] if rows else 0.0
        self.path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Add this epoch's line."""
        if not trainer.is_global_zero:
            return
        row: dict[str, Any] = {"epoch": trainer.current_epoch, "step": trainer.global_step}
        row["seconds"] = round(self.before + time.monotonic() - self.start, 3)
        row["lr"] = trainer.optimizers[0].param_groups[0]["lr"]
        row |= {k: round(float(v), 6) for k, v in sorted(trainer.callback_metrics.items())}
        with open(self.path, "a") as file:
            file.write(json.dumps(row) + "\n")


def read_journal(path: Path) -> list[dict[str, Any]]:
    """Whole lines of ``metrics.jsonl``; a line cut off by a crash is passed over."""
    rows = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return rows


class ProgressLine(L.Callback):
    """One bar for the whole run: epoch, loss, score, samples a second, time left; plain lines without a terminal."""

    def __init__(self, title: str, score: str = "val/accuracy") -> None:
        self.title, self.score = title, score
        self.console = Console(stderr=True)
        self.bar: Progress | None = None

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Open the bar."""
        self.bar = None
        if not trainer.is_global_zero:
            return
        columns = ("[bold]{task.description}", "epoch {task.fields[epoch]}", "{task.fields[said]}")
        text = [TextColumn(c) for c in columns]
        if self.console.is_terminal:
            self.bar = Progress(
                text[0], BarColumn(), *text[1:], TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn()
            )
            self.bar.start()
            total = int(trainer.estimated_stepping_batches)
            self.job = self.bar.add_task(self.title, total=total, completed=trainer.global_step, epoch="", said="")
        self.steps = 0
        self.begin = time.monotonic()

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Move the bar."""
        if not trainer.is_global_zero:
            return
        self.steps += 1
        self.batch = len(batch["query"]) * trainer.world_size
        if self.bar is not None and self.steps % 10 == 0:
            self.bar.update(
                self.job, completed=trainer.global_step, epoch=self._epoch(trainer), said=self._said(trainer)
            )

    def _epoch(self, trainer: L.Trainer) -> str:
        return f"{trainer.current_epoch + 1}/{trainer.max_epochs}"

    def _said(self, trainer: L.Trainer) -> str:
        speed = self.steps * self.batch / max(1e-9, time.monotonic() - self.begin)
        known = trainer.callback_metrics
        said = [f"{k.split('/')[-1]} {float(known[k]):.3f}" for k in ("train/loss", self.score) if k in known]
        return " · ".join([*said, f"{speed:,.0f}/s"])

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Without a terminal: a line now and then."""
        if not trainer.is_global_zero or self.bar is not None:
            return
        epoch, last = trainer.current_epoch + 1, trainer.max_epochs or 1
        if epoch % max(1, last // 10) == 0 or epoch == 1:
            spent = time.monotonic() - self.begin
            left = spent / max(1, self.steps) * max(0, int(trainer.estimated_stepping_batches) - trainer.global_step)
            print(
                f"{self.title}: epoch {self._epoch(trainer)} · {self._said(trainer)} · {left:.0f} s left",
                file=sys.stderr,
            )

    def _close(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Close the bar."""
        self._close()

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Close the bar, so that the message stands alone."""
        self._close()
