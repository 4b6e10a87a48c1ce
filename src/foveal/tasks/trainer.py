"""Lightning's Trainer as a recipe sets it up: precision, devices, loggers and callbacks by name."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import lightning as L
import torch
from lightning.pytorch.loggers import Logger

from foveal.errors import UserError
from foveal.plugins import own_module
from foveal.recipe import Recipe
from foveal.runs.checkpoints import SafeCheckpointIO
from foveal.tasks.sharding import split_weights

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


def loggers_of(recipe: Recipe, out: Path) -> list[Logger]:
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


def make_trainer(
    recipe: Recipe, out: Path, callbacks: Sequence[L.Callback], loggers: Sequence[Logger] = ()
) -> L.Trainer:
    """The Trainer of a run in the folder ``out``."""
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


def quiet() -> None:
    """Switch off messages of Lightning's for people who write Trainer code."""
    for name in ("lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero"):
        logging.getLogger(name).setLevel(logging.ERROR)
    for message in QUIET:
        warnings.filterwarnings("ignore", message)
