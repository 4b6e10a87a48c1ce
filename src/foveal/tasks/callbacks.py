"""What watches a run: the journal, the guard against divergence, checkpoints, patience, and the progress bar."""

from __future__ import annotations

import itertools
import math
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column
from torch import Tensor

from foveal.errors import DivergedError
from foveal.measure.info import MetricInfo
from foveal.runs import RunFolder

WARM_UP = 10  # steps
EVERY = 50  # steps between looks at the losses, so that a GPU need not wait at every step


class LossGuard(L.Callback):
    """Keeps the mean of every training loss of the epoch, and stops a run whose loss is not finite."""

    def __init__(self) -> None:
        self.pending: list[tuple[int, int, Tensor]] = []
        self.names: tuple[str, ...] = ()
        self.totals: dict[str, float] = {}
        self.count, self.last_finite, self.batch = 0, math.nan, 0

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start the means anew."""
        self.totals, self.count = {}, 0

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Keep the losses on their device; look at them now and then."""
        self.batch = batch_idx
        losses = outputs["losses"]
        if tuple(losses) != self.names:  # a loss may join after a warm-up
            self.look(trainer)
            self.names = tuple(losses)
        stacked = torch.stack([loss.detach().float() for loss in losses.values()])
        self.pending.append((trainer.global_step, batch_idx, stacked))
        if len(self.pending) >= EVERY:
            self.look(trainer)

    def look(self, trainer: L.Trainer) -> None:
        """Check what was gathered since the last look."""
        pending, self.pending = self.pending, []
        if not pending:
            return
        for (step, batch, _), losses in zip(pending, torch.stack([p[2] for p in pending]).tolist(), strict=True):
            if not math.isfinite(losses[0]):
                bad = [name for name, loss in zip(self.names[1:], losses[1:], strict=True) if not math.isfinite(loss)]
                which = f" ({', '.join(bad)})" if len(self.names) > 2 and bad else ""
                raise self._diverged(f"the loss{which} became {losses[0]} at step {step}", trainer, batch)
            self.last_finite = losses[0]
            self.count += 1
            for name, loss in zip(self.names, losses, strict=True):
                self.totals[name] = self.totals.get(name, 0.0) + loss

    def _diverged(self, message: str, trainer: L.Trainer, batch: int) -> DivergedError:
        before = f"the last finite value was {self.last_finite:.4g}"
        return DivergedError(
            f"{message} (epoch {trainer.current_epoch}, batch {batch}); "
            f"{before if math.isfinite(self.last_finite) else 'no loss was finite before'}. Every checkpoint is from "
            "before that. Try a lower optim.lr or optim.clip in another --out"
        )

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Look before anything is measured or saved; the last step may have spoilt weights that no loss has seen."""
        self.look(trainer)
        if not bool(torch.stack([p.detach().isfinite().all() for p in pl_module.parameters()]).all()):
            raise self._diverged(f"weights are not finite after step {trainer.global_step}", trainer, self.batch)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Publish the means."""
        self.look(trainer)
        means = {f"train/{name}": total / max(1, self.count) for name, total in self.totals.items()}
        pl_module.log_dict(means, rank_zero_only=True)


class StepTimer(L.Callback):
    """Publishes the median time from one training step to the next, with everything in between, of each epoch.

    On a GPU the times are those at which it passed from one step to the next, so nothing waits for them.
    """

    def __init__(self) -> None:
        self.times: list[Any] = []

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start anew: what lies between epochs is no step."""
        self.times = []

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Take the time."""
        if pl_module.device.type != "cuda":
            self.times.append(time.perf_counter())
            return
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self.times.append(event)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Publish the median; the first steps, in which things are compiled, do not count if there are more."""
        pairs = list(itertools.pairwise(self.times))
        pairs = pairs[min(WARM_UP, len(pairs) // 2) :]
        if pl_module.device.type == "cuda":
            torch.cuda.synchronize(pl_module.device)
            seconds = [before.elapsed_time(after) / 1000 for before, after in pairs]
        else:
            seconds = [after - before for before, after in pairs]
        if seconds:
            pl_module.log("train/step_seconds", statistics.median(seconds), rank_zero_only=True)


class Journal(L.Callback):
    """Writes one line an epoch to ``metrics.jsonl``. A resumed run first drops the lines it will write again."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.rows: list[dict[str, Any]] = []

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Keep the lines of the epochs that are done."""
        self.rows = [row for row in self.folder.epochs() if row["epoch"] < trainer.current_epoch]
        self.start = time.monotonic() - (self.rows[-1].get("seconds", 0.0) if self.rows else 0.0)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Add this epoch's line."""
        if not trainer.is_global_zero:
            return
        row: dict[str, Any] = {"epoch": trainer.current_epoch, "step": trainer.global_step}
        row["seconds"] = round(time.monotonic() - self.start, 3)
        row["lr"] = trainer.optimizers[0].param_groups[0]["lr"]
        row |= {k: round(float(v), 6) for k, v in sorted(trainer.callback_metrics.items())}
        self.rows.append(row)
        self.folder.write_epochs(self.rows)


class Patience(EarlyStopping):
    """Early stopping that is not forgotten by a run that was killed after it and resumed for its test."""

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Stop at once if patience had run out already."""
        trainer.should_stop = self.wait_count >= max(1, self.patience)


class Checkpoint(ModelCheckpoint):
    """Checkpoints in a run folder that may be moved before it is resumed; Lightning's own forgets the best score."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the paths of the checkpoints to be in this folder."""

        def here(path: str) -> str:
            return str(Path(str(self.dirpath), Path(path).name)) if path else path

        paths = {k: here(state_dict[k]) for k in ("best_model_path", "kth_best_model_path", "last_model_path")}
        models = {here(path): score for path, score in state_dict["best_k_models"].items()}
        super().load_state_dict(state_dict | paths | {"dirpath": self.dirpath, "best_k_models": models})


class ProgressLine(L.Callback):
    """One bar for the whole run: epoch, loss, score, samples a second, time left; plain lines without a terminal."""

    def __init__(self, title: str, score: MetricInfo) -> None:
        self.title, self.score = title, score
        self.console = Console(stderr=True)
        self.bar: Progress | None = None

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Open the bar."""
        self.bar = None
        if not trainer.is_global_zero:
            return
        if self.console.is_terminal:
            # On a narrow terminal the title is cut and the bar shrinks; the numbers and the time left stay whole.
            self.bar = Progress(
                TextColumn(
                    "{task.description}", style="bold", markup=False, table_column=Column(no_wrap=True, ratio=2)
                ),
                BarColumn(None, table_column=Column(ratio=1)),
                TextColumn("{task.fields[status]}", table_column=Column(no_wrap=True, min_width=41)),
                TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True, min_width=5)),
                TextColumn("left", table_column=Column(min_width=4)),
                console=self.console,
                expand=True,
            )
            self.bar.start()
            total = int(trainer.estimated_stepping_batches)
            self.job = self.bar.add_task(self.title, total=total, completed=trainer.global_step, status="")
        self.steps, self.updates = 0, trainer.global_step  # several steps may make one update of the weights
        self.begin = time.monotonic()

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Move the bar."""
        if not trainer.is_global_zero:
            return
        self.steps += 1
        self.batch = pl_module.batch_size(batch) * trainer.world_size  # type: ignore[operator]
        if self.bar is not None and self.steps % 10 == 0:
            self.bar.update(self.job, completed=trainer.global_step, status=self._status(trainer))

    def _status(self, trainer: L.Trainer) -> str:
        speed = self.steps * self.batch / max(1e-9, time.monotonic() - self.begin)
        known, names = trainer.callback_metrics, {"train/loss": "loss", f"val/{self.score.key}": "val"}
        scores = [f"{name} {float(known[key]):.3f}" for key, name in names.items() if key in known]
        return " · ".join([f"{trainer.current_epoch + 1}/{trainer.max_epochs}", *scores, f"{speed:,.0f}/s"])

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Without a terminal: a line now and then."""
        if not trainer.is_global_zero or self.bar is not None:
            return
        epoch, last = trainer.current_epoch + 1, trainer.max_epochs or 1
        if epoch % max(1, last // 10) == 0 or epoch == 1:
            spent = (time.monotonic() - self.begin) / max(1, trainer.global_step - self.updates)
            left = spent * max(0, int(trainer.estimated_stepping_batches) - trainer.global_step)
            print(
                f"{self.title}: epoch {self._status(trainer)} · {left:.0f} s left",
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
