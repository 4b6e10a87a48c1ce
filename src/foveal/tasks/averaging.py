"""Weight averaging in training: the average is validated, saved, exported and tested.

Lightning's ``WeightAveraging`` (from 2.6) is not used: a checkpoint of weights alone, such as the best epoch's, would
hold the weights in training and not their average, and it copies the whole LightningModule with its dataset.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import singledispatch
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn, get_swa_multi_avg_fn

from foveal.errors import UserError
from foveal.recipe.optim import EMA, SWA, Average, Last, Optim

Averaging = Callable[[Any, Any, Any], None]  # of torch.optim.swa_utils


def averaging_callback(optim: Optim) -> L.Callback | None:
    """The callback for ``optim.average``, or None; a Trainer takes it with its other callbacks, in any order."""
    return None if optim.average is None else build_average(optim.average)


class WeightAverage(L.Callback):
    """Keeps two sets of weights: those in training and their average.

    The module holds the weights in training during a training batch. From the start of a validation, or from the end of
    an epoch without one, until the next training batch it holds their average. Checkpoints that are written then have
    the average as their ``state_dict``, whether or not they are of weights alone. The other set is the state of this
    callback, so that a resumed run continues exactly.

    Averaged are parameters and floating-point buffers. The statistics of a batch norm are averaged too: those of the
    last model belong to other weights, and computing them anew would need another pass over the training data.
    Integer buffers (counters) are those of the last model. While nothing has been averaged, the average is the weights
    in training.
    """

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self.module_tensors: dict[str, Tensor] = {}  # the set that the module holds
        self.other: dict[str, Tensor] = {}  # the set that the module does not hold
        self.holds_average = False  # whether the module holds the average
        self.count = 0  # sets of weights in the average
        self.step = 0  # optimiser steps at the last update

    def after_step(self) -> None:
        """Called after every step of the optimiser; a subclass may call :meth:`add_to_average`."""

    def after_epoch(self, trainer: L.Trainer) -> None:
        """Called after the last step of an epoch, before its validation; likewise."""

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Forget an earlier run; a checkpoint is loaded after this."""
        if stage != "fit":
            return
        if trainer.strategy.restore_checkpoint_after_setup:  # true of those that split the weights over processes
            raise UserError(
                f"optim.average does not work with {type(trainer.strategy).__name__}, which splits the weights over "
                "processes; set train.strategy=ddp or optim.average=null"
            )
        self._reset()

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Copy the weights of the module, or move those of a checkpoint to its device."""
        self.module_tensors = state_tensors(pl_module)
        source = self.other or self.module_tensors
        self.other = {name: source[name].detach().to(t.device, copy=True) for name, t in self.module_tensors.items()}

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Give the module the weights in training."""
        if self.holds_average:
            self._swap()

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Update the average, unless the batch was one of several whose gradients are accumulated."""
        if trainer.global_step > self.step:
            self.step = trainer.global_step
            self.after_step()
        if trainer.is_last_batch:
            self.after_epoch(trainer)

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Give the module the average."""
        self._hold_average()

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Give the module the average if there was no validation; checkpoints are written after this."""
        self._hold_average()

    def _hold_average(self) -> None:
        if self.module_tensors and not self.holds_average:
            if self.count == 0:
                self._copy_to_average(self.module_tensors)
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for name, tensor in self.module_tensors.items():
            held = tensor.clone()
            tensor.copy_(self.other[name])
            self.other[name].copy_(held)
        self.holds_average = not self.holds_average

    @torch.no_grad()
    def _copy_to_average(self, weights: Mapping[str, Tensor]) -> None:
        for name, tensor in weights.items():
            self.other[name].copy_(tensor)

    @torch.no_grad()
    def add_to_average(self, weights: Mapping[str, Tensor], function: Averaging) -> None:
        """Add weights to the average, while the module holds those in training.

        Args:
            weights: all of them by name.
            function: changes the averages in place, given the new weights and how many it has averaged.
        """
        if self.count == 0:
            self._copy_to_average(weights)
        else:
            floating = [name for name, tensor in weights.items() if tensor.is_floating_point()]
            function([self.other[name] for name in floating], [weights[name] for name in floating], self.count)
            self._copy_to_average({k: v for k, v in weights.items() if not v.is_floating_point()})
        self.count += 1

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs beside the weights that the module holds."""
        return {"other": self.other, "holds_average": self.holds_average, "count": self.count, "step": self.step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take back what :meth:`state_dict` returned."""
        for name, value in state_dict.items():
            setattr(self, name, value)

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Free the copy; the module keeps the average."""
        self.module_tensors, self.other = {}, {}


def state_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers by name; one that has several names only once."""
    names: dict[int, str] = {}
    tensors = {k: v for k, v in module.state_dict(keep_vars=True).items() if isinstance(v, Tensor)}
    for name, tensor in tensors.items():
        names.setdefault(id(tensor), name)
    return {name: tensors[name] for name in names.values()}


@singledispatch
def build_average(average: Average) -> WeightAverage:
    """Build the callback of a weight average; one class for each dataclass."""
    raise NotImplementedError(f"register a callback for {type(average).__name__} with build_average.register")


class ExponentialAverage(WeightAverage):
    """Exponential moving average over steps; it starts as the weights after the first step."""

    def __init__(self, decay: float) -> None:
        super().__init__()
        self.function = get_ema_multi_avg_fn(decay)

    def after_step(self) -> None:
        """Average in the weights of this step."""
        self.add_to_average(self.module_tensors, self.function)


@build_average.register
def _ema(average: EMA) -> WeightAverage:
    return ExponentialAverage(average.decay)


class FinalAverage(WeightAverage):
    """Mean over the ends of the last epochs of the run. A run that stops before them has nothing averaged."""

    def __init__(self, epochs: int) -> None:
        super().__init__()
        self.epochs = epochs
        self.function = get_swa_multi_avg_fn()

    def after_epoch(self, trainer: L.Trainer) -> None:
        """Average in the weights of this epoch if it is one of the last."""
        if trainer.current_epoch >= (trainer.max_epochs or 0) - self.epochs:
            self.add_to_average(self.module_tensors, self.function)


@build_average.register
def _swa(average: SWA) -> WeightAverage:
    return FinalAverage(average.epochs)


class MovingAverage(WeightAverage):
    """Mean over the ends of the latest epochs, at every epoch; a copy of the weights for each lies in main memory."""

    def __init__(self, epochs: int) -> None:
        super().__init__()
        self.epochs = epochs
        self.function = get_swa_multi_avg_fn()

    def _reset(self) -> None:
        super()._reset()
        self.window: list[dict[str, Tensor]] = []  # oldest first

    def after_epoch(self, trainer: L.Trainer) -> None:
        """Average the latest epochs anew."""
        latest = {name: tensor.detach().to("cpu", copy=True) for name, tensor in self.module_tensors.items()}
        self.window = [*self.window, latest][-self.epochs :]
        self.count = 0
        for weights in self.window:
            on_device = {name: weights[name].to(tensor.device) for name, tensor in self.module_tensors.items()}
            self.add_to_average(on_device, self.function)

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs beside the weights that the module holds."""
        return super().state_dict() | {"window": self.window}


@build_average.register
def _last(average: Last) -> WeightAverage:
    return MovingAverage(average.epochs)
