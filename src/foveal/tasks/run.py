"""Train and test a recipe in a run folder, with Lightning's Trainer."""

from __future__ import annotations

import contextlib
import logging
import signal
import statistics
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.utilities import rank_zero_only

from foveal.data import Source, data_root, dataset
from foveal.errors import InterruptedRunError, RunError, UserError
from foveal.recipe import Recipe
from foveal.tasks.callbacks import Checkpoint, Journal, LossGuard, Patience, ProgressLine, StepTimer, read_journal
from foveal.tasks.classify import Classify
from foveal.tasks.document import Document
from foveal.tasks.folder import (
    SafeCheckpointIO,
    check_recipe,
    load_run,
    open_run,
    quoted,
    read_tensors,
    resume,
    write_json,
    write_tensors,
)
from foveal.tasks.refer import Refer
from foveal.tasks.task import Task
from foveal.typed import parse

TASKS: dict[str, type[Refer] | type[Classify] | type[Document]] = {
    "refer": Refer,
    "classify": Classify,
    "document": Document,
}
EXPECTED = ("title", "dataset", "embedded", "data", "parameters", "epochs", "seconds", "metrics")  # in result.json


class Feed(L.LightningDataModule):
    """Hands a dataset's batches to the Trainer, each epoch's anew."""

    def __init__(self, source: Source, recipe: Recipe) -> None:
        super().__init__()
        self.source, self.recipe = source, recipe

    def _loader(self, split: str, batch: int) -> Iterable[dict[str, torch.Tensor]]:
        t = self.trainer
        assert t is not None
        where: dict[str, Any] = {"rank": t.global_rank, "world": t.world_size, "device": t.strategy.root_device}
        return self.source.loader(split, batch, epoch=t.current_epoch, seed=self.recipe.seed, **where)

    def train_dataloader(self) -> Any:
        """This epoch's training batches."""
        return self._loader("train", self.recipe.train.batch)

    def val_dataloader(self) -> Any:
        """Validation batches."""
        return self._loader("val", self.recipe.train.eval_batch)

    def test_dataloader(self) -> Any:
        """Test batches."""
        return self._loader("test", self.recipe.train.eval_batch)


def build_source(recipe: Recipe, data: str | Path | None = None) -> Source:
    """The recipe's dataset; complains now if its files are missing."""
    entry = dataset(recipe.data["name"])
    options = parse(entry.options, {k: v for k, v in recipe.data.items() if k != "name"}, "data")
    return _build_source(entry.name, options, data_root(data))


@lru_cache(maxsize=3)
def _build_source(name: str, options: Any, root: Path | None) -> Source:
    """Several runs in one process share a dataset and what it holds in memory."""
    return dataset(name).build(options, root)


def _trainer(recipe: Recipe, out: Path, callbacks: list[L.Callback]) -> L.Trainer:
    t = recipe.train
    logger: Any = False
    if t.tensorboard:
        try:
            from lightning.pytorch.loggers import TensorBoardLogger

            logger = TensorBoardLogger(out, name="", version="tensorboard")
        except ModuleNotFoundError as error:
            raise UserError("train.tensorboard=true needs TensorBoard: install foveal[tensorboard]") from error
    settings: dict[str, Any] = {
        "accelerator": t.accelerator,
        "devices": t.devices,
        "num_nodes": t.nodes,
        "strategy": t.strategy,
        "precision": {"32": "32-true", "bf16": "bf16-mixed", "16": "16-mixed"}[t.precision],
        "max_epochs": t.epochs,
        "gradient_clip_val": recipe.optim.clip,
        "reload_dataloaders_every_n_epochs": 1,
        "num_sanity_val_steps": 0,
        "inference_mode": False,
        "benchmark": True,
        "use_distributed_sampler": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "logger": logger,
        "callbacks": callbacks,
        "plugins": [SafeCheckpointIO()],
        "default_root_dir": out,
    }
    torch.set_float32_matmul_precision("high")
    try:
        return L.Trainer(**settings)
    except (TypeError, ValueError, RuntimeError, L.pytorch.utilities.exceptions.MisconfigurationException) as error:
        raise UserError(f"train: {' '.join(str(error).split())}") from error


def _quiet() -> None:
    """Lightning's remarks are for people who write Trainer code; ours are in the progress bar."""
    for name in ("lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero"):
        logging.getLogger(name).setLevel(logging.ERROR)
    for said in (
        ".*does not have many workers.*",
        ".*reload_dataloaders.*",
        ".*`isinstance.treespec.*",
        ".*Checkpoint directory.*",
        ".*smaller than the logging interval.*",
    ):
        warnings.filterwarnings("ignore", said)


def fit(recipe: Recipe, out: str | Path, *, data: str | Path | None = None, progress: bool = True) -> dict[str, Any]:
    """Train ``recipe`` in the folder ``out``, test its best epoch, and leave everything there.

    A folder that holds an unfinished run of the same recipe is resumed from its last epoch; a finished one is not run
    again, but weights that are missing or damaged are written again from its checkpoint. Whatever can be wrong with
    the recipe or the data is found before training starts.

    Args:
        recipe: what to train.
        out: the run folder.
        data: folder of real datasets, instead of ``FOVEAL_DATA``.
        progress: show a progress bar.

    Returns:
        The content of ``result.json``.
    """
    _quiet()
    out = Path(out)
    check_recipe(recipe, out)
    if (out / "result.json").exists():
        _mend(recipe, out, data)
        return read_result(out)
    L.seed_everything(recipe.seed, verbose=False)
    source = build_source(recipe, data)
    task = TASKS[recipe.task](recipe, source)
    recipe = task.recipe  # with what the task has filled in
    callbacks: list[L.Callback] = [LossGuard(), StepTimer(), Journal(out / "metrics.jsonl")]
    if progress:
        callbacks.append(ProgressLine(f"{source.name} {recipe.title}", task.score))
    if recipe.train.patience is not None:
        callbacks.append(Patience(task.score, patience=recipe.train.patience, mode="max"))
    where: dict[str, Any] = {"dirpath": out, "enable_version_counter": False}
    callbacks.append(Checkpoint(filename="best", monitor=task.score, mode="max", save_weights_only=True, **where))
    callbacks.append(Checkpoint(filename="last", save_on_train_epoch_end=True, **where))
    trainer = _trainer(recipe, out, callbacks)
    last = out / "last.ckpt"
    with open_run(recipe, out) if not _follower() else contextlib.nullcontext(), _stoppable(out):
        if last.exists():
            _chosen(recipe, out)  # without it, the last epoch would be trained for nothing
        trainer.fit(task, datamodule=Feed(source, recipe), ckpt_path=last if last.exists() else None)
        if trainer.is_global_zero:
            _export(task, out)
        trainer.strategy.barrier()
        result = _test(task, recipe, source, out)
        if trainer.is_global_zero:
            _keep(task, result, out, resume(out))
        return result


def _follower() -> bool:
    """Whether another process started this one to train with it and does the writing."""
    return getattr(rank_zero_only, "rank", 0) != 0


@contextlib.contextmanager
def _stoppable(out: Path) -> Iterator[None]:
    """Turn a user's Ctrl-C into an error that says how to go on."""
    main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGINT) if main else None
    try:
        yield
    except SystemExit as stop:  # what Lightning makes of Ctrl-C, after its callbacks have run
        if handler is not None:
            signal.signal(signal.SIGINT, handler)
        if (out / "result.json").exists():
            raise InterruptedRunError(f"stopped. The earlier result in {out} is untouched") from stop
        whole = (out / "last.ckpt").exists()
        saved = "from the last whole epoch" if whole else "from the beginning: no epoch was finished"
        raise InterruptedRunError(f"stopped. Resume {saved} with: foveal train {quoted(out)}") from stop


def _mend(recipe: Recipe, out: Path, data: str | Path | None) -> None:
    """Write the weights of a finished run again if they are missing or damaged."""
    try:
        read_tensors(out / "weights.safetensors")
    except RunError:
        if not _follower():
            _chosen(recipe, out)  # a missing checkpoint is no matter of the data
            with open_run(recipe, out):
                _export(TASKS[recipe.task](recipe, build_source(recipe, data)), out)


def _chosen(recipe: Recipe, out: Path) -> dict[str, torch.Tensor]:
    """State of the epoch to be tested."""
    return SafeCheckpointIO().load_checkpoint(out / f"{recipe.train.select}.ckpt", "cpu")["state_dict"]


def _export(task: Task, out: Path) -> None:
    """Write the model of the epoch to be tested alone, with what it needs to be used without its data."""
    chosen = _chosen(task.recipe, out)
    weights = {k.removeprefix("model."): v for k, v in chosen.items() if k.startswith("model.")}
    write_tensors(out / "weights.safetensors", weights, task.about(), resume(out))


def _test(task: Task, recipe: Recipe, source: Source, out: Path) -> dict[str, Any]:
    """What the test of the weights in ``out`` gives."""
    weights, _ = read_tensors(out / "weights.safetensors")
    task.model.load_state_dict(weights)
    trainer = _trainer(recipe, out, [])
    trainer.test(task, datamodule=Feed(source, recipe), verbose=False)
    rows = read_journal(out / "metrics.jsonl")
    scores = [row[task.score] for row in rows]
    steps = [row["train/step_seconds"] for row in rows if row.get("train/step_seconds")]
    published = recipe.published
    result = {
        "recipe": recipe.name,
        "title": recipe.title,
        "dataset": recipe.data["name"].upper(),
        "seed": recipe.seed,
        "embedded": source.embedded,
        "data": source.describe(),
        "parameters": sum(p.numel() for p in task.model.parameters()),
        "epochs": len(rows),
        "best_epoch": scores.index(max(scores)) if scores else None,
        "seconds": rows[-1]["seconds"] if rows else None,
        "step_seconds": statistics.median(steps) if steps else None,
        "published": None if published is None else {k: v for k, v in vars(published).items() if isinstance(v, float)},
        **task.results(),
    }
    return result


def _keep(task: Task, result: dict[str, Any], out: Path, otherwise: str) -> None:
    """Write what a test gave."""
    write_tensors(out / "samples.safetensors", task.samples, task.about() | {"sites": task.sites}, otherwise)
    write_json(out / "result.json", result, otherwise)


def evaluate(
    out: str | Path, *, data: str | Path | None = None, tell: Callable[[dict[str, Any]], None] | None = None
) -> dict[str, Any]:
    """Test the finished run in ``out`` again and rewrite its result.

    Args:
        out: the run folder.
        data: folder of real datasets, instead of ``FOVEAL_DATA``.
        tell: called with the result before it is written, so that it is known even if it cannot be.
    """
    _quiet()
    out = Path(out)
    recipe = load_run(out)
    source = build_source(recipe, data)
    task = TASKS[recipe.task](recipe, source, load_model(out)[0])
    with _stoppable(out):
        result = _test(task, recipe, source, out)
    if tell is not None:
        tell(result)
    if not _follower():
        again = f"foveal test {quoted(out)}"
        _keep(task, result, out, f"Free some space or make the folder writable, then test again with: {again}")
    return result


def load_model(out: str | Path) -> tuple[torch.nn.Module, dict[str, Any]]:
    """The trained model of a run in eval mode, and what its task said of the data: ``answers``, ``multilabel``, …."""
    out = Path(out)
    recipe = load_run(out)
    weights, about = read_tensors(out / "weights.safetensors")
    model = TASKS[recipe.task].rebuild(recipe, about)
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise RunError(f"{out / 'weights.safetensors'} does not fit the model of recipe.yaml: {error}") from error
    return model.eval(), about


def read_result(out: Path) -> dict[str, Any]:
    """``result.json`` of a run."""
    import json

    try:
        result = json.loads((out / "result.json").read_text(encoding="utf-8"))
        lost = [key for key in EXPECTED if key not in result] if isinstance(result, dict) else EXPECTED
        if lost or not isinstance(result["metrics"], dict):
            raise ValueError(f"it holds no {(*lost, 'metrics')[0]}")
    except FileNotFoundError as error:
        raise RunError(f"{out} has no result yet; `foveal train {quoted(out)}` finishes it") from error
    except (OSError, ValueError) as error:  # a ValueError too: neither JSON nor UTF-8
        raise RunError(
            f"{out / 'result.json'} is damaged ({error}); `foveal test {quoted(out)}` writes it again"
        ) from error
    return result
