"""Train and test a recipe in a run folder, with Lightning's Trainer."""

from __future__ import annotations

import contextlib
import logging
import signal
import statistics
import textwrap
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import lightning as L
import torch
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor

from foveal.attention.insertion.describe import inserted
from foveal.data import Entry, Source, data_root, dataset
from foveal.data.place import folder_state
from foveal.errors import InterruptedRunError, RunError, UserError
from foveal.models import list_models
from foveal.plugins import own_module, plugin_names
from foveal.recipe import Recipe, complete
from foveal.runs import RunFolder, Stored, find_run
from foveal.runs.checkpoints import SafeCheckpointIO
from foveal.runs.folder import quoted, resume_advice
from foveal.runs.zoo import in_zoo
from foveal.tasks.averaging import averaging_callback
from foveal.tasks.base import Task, find_task, make_task
from foveal.tasks.callbacks import Checkpoint, Journal, LossGuard, Patience, ProgressLine, StepTimer
from foveal.tasks.sharding import load_whole, split_weights
from foveal.typed import parse

T = TypeVar("T")
PRECISIONS = {"32": "32-true", "bf16": "bf16-mixed", "16": "16-mixed"}
QUIET = (  # warnings of Lightning's for people who write Trainer code
    ".*does not have many workers.*",
    ".*reload_dataloaders.*",
    ".*`isinstance.treespec.*",
    ".*Checkpoint directory.*",
    ".*smaller than the logging interval.*",
    r".*module\(s\) in eval mode.*",  # frozen parts
)


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


def _loggers(recipe: Recipe, out: Path) -> list[Logger]:
    """The loggers that a recipe names."""
    loggers = [
        named_class(*item, Logger, "train.loggers")  # type: ignore[type-abstract]
        for item in recipe.train.loggers.items()
    ]
    if recipe.train.tensorboard:
        try:
            from lightning.pytorch.loggers import TensorBoardLogger

            loggers.append(TensorBoardLogger(out, name="", version="tensorboard"))
        except ModuleNotFoundError as error:
            raise UserError("train.tensorboard=true needs TensorBoard: install foveal[tensorboard]") from error
    return loggers


def named_class(name: str, arguments: Mapping[str, Any], kind: type[T], key: str) -> T:
    """The object that ``module:Class`` and its arguments make, which must be of a ``kind``."""
    module, colon, attribute = name.partition(":")
    if not colon:
        raise UserError(f"{key}.{name}: expected module:Class, such as lightning.pytorch.callbacks:DeviceStatsMonitor")
    try:
        made = getattr(own_module(module), attribute)(**arguments)
    except Exception as error:  # of a third party
        raise UserError(f"{key}.{name} cannot be made: {' '.join(str(error).split())}") from error
    if not isinstance(made, kind):
        raise UserError(f"{key}.{name} is no {kind.__name__} of Lightning but {type(made).__name__}")
    return made


def _trainer(recipe: Recipe, out: Path, callbacks: Sequence[L.Callback], loggers: Sequence[Logger] = ()) -> L.Trainer:
    train = recipe.train
    settings: dict[str, Any] = {
        "accelerator": train.accelerator,
        "devices": train.devices,
        "num_nodes": train.nodes,
        "strategy": split_weights(train) if train.strategy == "fsdp2" else train.strategy,
        "precision": PRECISIONS[train.precision],
        "max_epochs": train.epochs,
        "check_val_every_n_epoch": train.check_every,
        "accumulate_grad_batches": train.accumulate,
        "gradient_clip_val": recipe.optim.clip,
        "reload_dataloaders_every_n_epochs": 1,
        "num_sanity_val_steps": 0,
        "inference_mode": False,
        "benchmark": not train.repeatable,
        "deterministic": "warn" if train.repeatable else False,
        "use_distributed_sampler": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "logger": list(loggers) or False,
        "callbacks": list(callbacks),
        "plugins": [SafeCheckpointIO()],
        "default_root_dir": out,
    }
    torch.set_float32_matmul_precision("high")
    try:
        return L.Trainer(**settings)
    except (TypeError, ValueError, RuntimeError, L.pytorch.utilities.exceptions.MisconfigurationException) as error:
        raise UserError(f"train: {' '.join(str(error).split())}") from error


def _quiet() -> None:
    for name in ("lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero"):
        logging.getLogger(name).setLevel(logging.ERROR)
    for message in QUIET:
        warnings.filterwarnings("ignore", message)


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

    A folder that holds an unfinished run of the same recipe is resumed from its last epoch; a finished one is not run
    again, but weights that are missing or damaged are written again from its checkpoint. Whatever can be wrong with
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
    _quiet()
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
    trainer = _trainer(
        recipe,
        folder.path,
        [*_callbacks(task, folder, progress), *own],
        [*loggers, *_loggers(recipe, folder.path)],
    )
    header = {"dataset": source.title, "embedded": source.embedded, "plugins": plugin_names(), "jobs": jobs}
    with folder.opened(recipe, header) if not is_follower() else contextlib.nullcontext(), _stoppable(folder):
        resumed = folder.last if folder.last.exists() else None
        if resumed is not None:
            _chosen(recipe, folder)  # without it, the last epoch would be trained for nothing
        trainer.fit(task, datamodule=Feed(task), ckpt_path=resumed)
        if trainer.is_global_zero:
            _export(task, folder)
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
def _stoppable(folder: RunFolder) -> Iterator[None]:
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
        whole = folder.last.exists()
        start = "from the last whole epoch" if whole else "from the beginning: no epoch was finished"
        raise InterruptedRunError(f"stopped. Resume {start} with: foveal train {quoted(folder.path)}") from stop


def _mend(recipe: Recipe, folder: RunFolder, data: str | Path | None) -> None:
    """Write the weights of a finished run again if they are missing or damaged."""
    try:
        _weights(folder)
    except RunError:
        if not is_follower():
            _chosen(recipe, folder)  # a missing checkpoint is reported before the data is read
            source = build_source(recipe, data)
            with folder.opened(recipe, {}):
                _export(make_task(recipe, source), folder)


def _chosen(recipe: Recipe, folder: RunFolder) -> dict[str, Tensor]:
    """State of the epoch to be tested."""
    return SafeCheckpointIO().load_checkpoint(folder.file(f"{recipe.train.select}.ckpt"), "cpu")["state_dict"]


def _export(task: Task, folder: RunFolder) -> None:
    """Write the model of the epoch to be tested alone, with what it needs to be used without its data."""
    state = _chosen(task.recipe, folder)
    weights = {name.removeprefix("model."): tensor for name, tensor in state.items() if name.startswith("model.")}
    folder.write_tensors("weights.safetensors", Stored(weights, task.about() | {"inserted": inserted(task.model)}))


def _weights(folder: RunFolder) -> Stored:
    """What :func:`_export` wrote."""
    stored = folder.tensors("weights.safetensors")
    for name, tensor in stored.tensors.items():
        if tensor.isnan().any():
            again = f"`foveal train {quoted(folder.path)}` writes it again"
            raise RunError(f"{folder.file('weights.safetensors')} is damaged ({name} is not a number); {again}")
    return stored


def _test(task: Task, folder: RunFolder) -> dict[str, Any]:
    """What the test of the weights in ``folder`` gives."""
    recipe, source = task.recipe, task.source
    load_whole(task.model, _weights(folder).tensors)
    _trainer(recipe, folder.path, []).test(task, datamodule=Feed(task), verbose=False)
    rows = folder.epochs()
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
    _quiet()
    folder = find_run(out)
    recipe = complete(folder.recipe())
    source = build_source(recipe, data)
    task = make_task(recipe, source, load_model(folder.path)[0])
    with _stoppable(folder):
        result = _test(task, folder)
    if tell is not None:
        tell(result)
    if not is_follower() and not in_zoo(folder.path):
        again = f"foveal test {quoted(folder.path)}"
        _keep(task, result, folder, f"Free some space or make the folder writable, then test again with: {again}")
    return result


def at_the_same_sites(recipe: Recipe, about: Mapping[str, Any]) -> Recipe:
    """The recipe with the sites at which attention was inserted in training, whatever is usual today."""
    entries = recipe.model.get("insert", [])
    names = [entry if isinstance(entry, str) else entry["mechanism"] for entry in _listed(entries)]
    sites = {description["mechanism"]: description["at"] for description in about.get("inserted", [])}
    if recipe.model["name"] in list_models() or len(names) != len(sites):  # with attention of its own, or of old
        return recipe
    same = [
        {**({} if isinstance(entry, str) else entry), "mechanism": name, "at": sites[name]}
        for name, entry in zip(names, _listed(entries), strict=True)
    ]
    return replace(recipe, model={**recipe.model, "insert": same}) if same else recipe


def _listed(entries: Any) -> list[Any]:
    return entries if isinstance(entries, list) else [entries]


def load_model(out: str | Path) -> tuple[torch.nn.Module, dict[str, Any]]:
    """The trained model of a run in eval mode, and what its task keeps of the data: ``answers``, ``size``, …."""
    folder = find_run(out)
    recipe = complete(folder.recipe())
    stored = _weights(folder)
    about = {key: value for key, value in stored.about.items() if key != "inserted"}
    model = find_task(recipe.task).rebuild(at_the_same_sites(recipe, stored.about), about)
    try:
        model.load_state_dict(stored.tensors)
    except RuntimeError as error:
        file, problem = folder.file("weights.safetensors"), textwrap.shorten(str(error), 300)
        raise RunError(f"{file} does not fit the model of recipe.yaml: {problem}") from error
    return model.eval(), about
