"""Train and test a recipe in a run folder, with Lightning's Trainer."""

from __future__ import annotations

import contextlib
import signal
import statistics
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor

from foveal.data import Entry, Source, data_root, dataset
from foveal.data.numbering import check_numbering
from foveal.data.place import folder_state
from foveal.errors import InterruptedRunError, RunError, UserError
from foveal.plugins import plugin_names
from foveal.recipe import Recipe, complete
from foveal.runs import RunFolder, Stored, find_run
from foveal.runs.folder import quoted, resume_advice
from foveal.runs.zoo import in_zoo
from foveal.tasks.averaging import averaging_callback
from foveal.tasks.base import OTHER_DATA, Task, make_task
from foveal.tasks.callbacks import Checkpoint, Journal, LossGuard, Patience, ProgressLine, StepTimer
from foveal.tasks.sharding import load_whole
from foveal.tasks.trainer import loggers_of, make_trainer, named_class, quiet
from foveal.tasks.weights import chosen, export, load_model, read_weights
from foveal.typed import parse


class Feed(L.LightningDataModule):
    """Hands a dataset's batches to the Trainer, each epoch's anew."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.task, self.recipe = task, task.recipe

    def _loader(self, split: str, batch: int) -> Iterable[dict[str, Tensor]]:
        trainer = self.trainer
        assert trainer is not None
        place: dict[str, Any] = {
            "rank": trainer.global_rank,
            "world": trainer.world_size,
            "device": trainer.strategy.root_device,
            "epoch": trainer.current_epoch,
            "seed": self.recipe.seed,
        }
        source = self.task.source
        if self.task.masks(split):
            try:
                return source.loader(split, batch, masks=True, **place)
            except UserError:
                if self.task.attention_losses.need_masks:
                    raise
        return source.loader(split, batch, **place)

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
    """The recipe's dataset; raises now if its files are missing."""
    entry = dataset(recipe.data["name"])
    options = parse(entry.options, {k: v for k, v in recipe.data.items() if k != "name"}, "data")
    root = data_root(data)
    folder = None if entry.place is None else entry.place.choose(entry.place.candidates(root, _folder(entry, options)))
    return _build_source(entry.name, options, root, () if folder is None else folder_state(folder[0]))


def _folder(entry: Entry, options: Any) -> str | None:
    return getattr(options, entry.place.option, None) if entry.place is not None and entry.place.option else None


@lru_cache(maxsize=3)
def _build_source(name: str, options: Any, root: Path | None, state: tuple[Any, ...]) -> Source:
    """Several runs in one process share a dataset and what it holds in memory, until its folder changes."""
    return dataset(name).build(options, root)


def fit(
    recipe: Recipe,
    out: str | Path,
    *,
    data: str | Path | None = None,
    progress: bool = True,
    callbacks: Sequence[L.Callback] = (),
    logger: Logger | Sequence[Logger] = (),
    jobs: int = 1,
) -> dict[str, Any]:
    """Train ``recipe`` in the folder ``out``, test its best epoch, and leave everything there.

    A folder that holds an unfinished run of the same recipe is resumed from its last checkpoint; a finished one is not
    run again, but weights that are missing or damaged are written again from its checkpoint. Whatever can be wrong with
    the recipe or the data is found before training starts.

    Args:
        recipe: what to train.
        out: the run folder.
        data: folder of real datasets, instead of ``FOVEAL_DATA``.
        progress: show a progress bar.
        callbacks: further callbacks of Lightning's Trainer; ``train.callbacks`` of a recipe names some as well.
        logger: one of Lightning's loggers or several, beside ``train.loggers`` of the recipe.
        jobs: how many runs share the machine; ``run.json`` says it, because they share its speed too.

    Returns:
        The content of ``result.json``.
    """
    if not isinstance(recipe, Recipe):
        kind = type(recipe).__name__
        raise UserError(f"fit needs a recipe, such as foveal.recipe.load('demo/classify'), got {kind}")
    if not isinstance(out, str | Path):
        raise UserError(f"fit needs the run folder as its second argument, such as 'runs/mine', got {out!r}")
    quiet()
    folder, recipe = RunFolder(Path(out)), complete(recipe)
    folder.check(recipe)
    if folder.finished:
        _mend(recipe, folder, data)
        return folder.result()
    L.seed_everything(recipe.seed, verbose=False)
    source = build_source(recipe, data)
    task = make_task(recipe, source)
    loggers = [logger] if isinstance(logger, Logger) else list(logger)
    own = [*callbacks, *(named_class(*item, L.Callback, "train.callbacks") for item in recipe.train.callbacks.items())]
    trainer = make_trainer(
        recipe,
        folder.path,
        [*_callbacks(task, folder, progress), *own],
        [*loggers, *loggers_of(recipe, folder.path)],
    )
    header = {"dataset": source.title, "embedded": source.embedded, "plugins": plugin_names(), "jobs": jobs}
    with (
        folder.opened(recipe, header) if not is_follower() else contextlib.nullcontext(),
        _stoppable(folder, recipe.train.check_every),
    ):
        resumed = folder.last if folder.last.exists() else None
        if resumed is not None:
            chosen(recipe, folder)  # without it, the last epoch would be trained for nothing
        trainer.fit(task, datamodule=Feed(task), ckpt_path=resumed)
        if trainer.is_global_zero:
            export(task, folder)
        trainer.strategy.barrier()
        result = _test(task, folder)
        if trainer.is_global_zero:
            _keep(task, result, folder, resume_advice(folder.path))
        return result


def _callbacks(task: Task, folder: RunFolder, progress: bool) -> list[L.Callback]:
    recipe = task.recipe
    callbacks: list[L.Callback] = [LossGuard(), StepTimer(), Journal(folder)]
    if progress:
        callbacks.append(ProgressLine(f"{task.source.title} {recipe.title}", task.score))
    if (averaging := averaging_callback(recipe.optim)) is not None:
        callbacks.append(averaging)
    if recipe.train.patience is not None:
        callbacks.append(Patience(task.val_key, patience=recipe.train.patience, mode=task.mode))
    place: dict[str, Any] = {"dirpath": folder.path, "enable_version_counter": False}
    callbacks.append(Checkpoint(filename="best", monitor=task.val_key, mode=task.mode, save_weights_only=True, **place))
    every = recipe.train.check_every
    callbacks.append(Checkpoint(filename="last", save_on_train_epoch_end=True, every_n_epochs=every, **place))
    return callbacks


def is_follower() -> bool:
    """Whether another process trains with this one, perhaps on another node, and does the writing."""
    return getattr(rank_zero_only, "rank", 0) != 0


@contextlib.contextmanager
def _stoppable(folder: RunFolder, check_every: int) -> Iterator[None]:
    """Turn a user's Ctrl-C into an error that says how to go on."""
    main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGINT) if main else None
    try:
        yield
    except SystemExit as stop:  # what Lightning raises on Ctrl-C, after its callbacks have run
        if handler is not None:
            signal.signal(signal.SIGINT, handler)
        if folder.finished:
            raise InterruptedRunError(f"stopped. The earlier result in {folder} is untouched") from stop
        beginning = f"from the beginning: no checkpoint was written (train.check_every={check_every})"
        start = "from the last checkpoint" if folder.last.exists() else beginning
        raise InterruptedRunError(f"stopped. Resume {start} with: foveal train {quoted(folder.path)}") from stop


def _mend(recipe: Recipe, folder: RunFolder, data: str | Path | None) -> None:
    """Write the weights of a finished run again if they are missing or damaged."""
    try:
        read_weights(folder)
    except RunError:
        if not is_follower():
            chosen(recipe, folder)  # a missing checkpoint is reported before the data is read
            source = build_source(recipe, data)
            with folder.opened(recipe, {}):
                export(make_task(recipe, source), folder)


def _test(task: Task, folder: RunFolder) -> dict[str, Any]:
    """What the test of the weights in ``folder`` gives."""
    recipe, source = task.recipe, task.source
    load_whole(task.model, read_weights(folder).tensors)
    rows = task.journal = folder.epochs()
    make_trainer(recipe, folder.path, []).test(task, datamodule=Feed(task), verbose=False)
    scores = {row["epoch"]: row[task.val_key] for row in rows if task.val_key in row}
    steps = [row["train/step_seconds"] for row in rows if row.get("train/step_seconds")]
    best = min if task.mode == "min" else max
    return {
        "task": recipe.task,
        "recipe": recipe.name,
        "title": recipe.title,
        "dataset": source.title,
        "cell": None if recipe.cell is None else vars(recipe.cell),
        "seed": recipe.seed,
        "embedded": source.embedded,
        "data": source.describe(),
        "parameters": sum(p.numel() for p in task.model.parameters()),
        "epochs": len(rows),
        "best_epoch": best(scores, key=lambda epoch: scores[epoch]) if scores else None,
        "seconds": rows[-1].get("seconds") if rows else None,
        "step_seconds": statistics.median(steps) if steps else None,
        "published": recipe.published,
        **task.results().dump(),
    }


def _keep(task: Task, result: dict[str, Any], folder: RunFolder, otherwise: str) -> None:
    """Write the test's samples and result."""
    about = task.about() | {"sites": task.sites}
    folder.write_tensors("samples.safetensors", Stored(task.samples, about), otherwise)
    folder.write_result(result, otherwise)


def evaluate(
    out: str | Path, *, data: str | Path | None = None, tell: Callable[[dict[str, Any]], None] | None = None
) -> dict[str, Any]:
    """Test the finished run in ``out`` again and rewrite its result; that of a model of the zoo is not kept.

    Args:
        out: the run folder.
        data: folder of real datasets, instead of ``FOVEAL_DATA``.
        tell: called with the result before it is written, so that it is known even if it cannot be.
    """
    quiet()
    folder = find_run(out)
    recipe = complete(folder.recipe())
    model, about = load_model(folder.path)
    source = build_source(recipe, data)
    task = make_task(recipe, source, model)
    check_numbering(about, task.source.about(), str(out), OTHER_DATA)
    with _stoppable(folder, recipe.train.check_every):
        result = _test(task, folder)
    if tell is not None:
        tell(result)
    if not is_follower() and not in_zoo(folder.path):
        again = f"foveal test {quoted(folder.path)}"
        _keep(task, result, folder, f"Free some space or make the folder writable, then test again with: {again}")
    return result
