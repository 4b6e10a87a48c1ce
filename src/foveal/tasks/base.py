"""What all tasks share: named losses and their weights, optimiser, compiled steps, seeds, validation, samples.

A task is one folder (or one file of your own) with one class derived from :class:`Task`, registered by
``@register_task``. It brings the dataclasses of its recipe sections, its named losses, its metrics, how it predicts
from a file or a text, which samples it keeps, and the sections of its report. Nothing else names it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import lightning as L
import torch
from timm.layers import convert_sync_batchnorm
from torch import Tensor, nn
from torchmetrics import MeanMetric, Metric

from foveal import registry
from foveal.attention import AttentionRecord
from foveal.attention.insertion.attached import reattach
from foveal.compat import raise_recompile_limit
from foveal.data import Source
from foveal.data.numbering import INPUTS, check_numbering, numbering
from foveal.errors import UserError
from foveal.measure.info import MetricInfo
from foveal.models.build import find_checkpoint
from foveal.models.weights import read_about
from foveal.recipe import LossOptions, MeasureOptions, Recipe
from foveal.tasks.attention_losses import AttentionLosses
from foveal.tasks.optim import fused_step, optimiser, schedule
from foveal.tasks.prediction import Prediction, Trained
from foveal.tasks.results import Results
from foveal.tasks.sharding import split
from foveal.typed import check_names

if TYPE_CHECKING:
    from foveal.runs import Group
    from foveal.see.page import Section
    from foveal.tasks.report import ReportWords

SAMPLES = 12  # test samples kept for pictures
OTHER_DATA = "put the files back that it was trained with, or train another run"  # advice
Batch = Mapping[str, Tensor]


class Task(L.LightningModule):
    """Train and test a model on one kind of question.

    A subclass defines :meth:`losses`, ``validation_step``, ``test_step`` and :meth:`rebuild`; the other
    methods have defaults.

    Args:
        recipe: the whole recipe.
        source: the dataset.
        model: the model.
        score: what the validation score is called; the best epoch by it is tested.
        metric: makes the metric that computes it.

    Attributes:
        name: as recipes call the task; set by ``@register_task``.
        summary: one line for ``foveal list tasks``.
        sections: dataclass of each recipe section that is the task's own; ``loss`` and ``measure`` at least.
        usual_weights: weights of losses that are not 1 unless the recipe says otherwise.
        recipe: with what :meth:`complete` fills in.
        samples: tensors of a few test samples by name, for pictures.
        sites: names of the attention whose maps are among them.
        journal: a line for each epoch of its training, when it is tested.
    """

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    sections: ClassVar[Mapping[str, type]] = {"loss": LossOptions, "measure": MeasureOptions}
    usual_weights: ClassVar[Mapping[str, float]] = {}

    def __init__(
        self, recipe: Recipe, source: Source, model: nn.Module, score: MetricInfo, metric: Callable[[], Metric]
    ) -> None:
        super().__init__()
        self.recipe, self.source, self.score = recipe, source, score
        self.model = synchronised(model) if recipe.train.sync_batchnorm else model
        self.model.to(memory_format=torch.channels_last)
        self.val_loss, self.val_score, self.test_score = MeanMetric(), metric(), metric()
        self.samples: dict[str, Tensor] = {}
        self.sites: list[str] = []
        self.journal: list[dict[str, Any]] = []
        self.attention_losses = AttentionLosses(recipe.loss.attention, self.model, self.weight)
        self._check_losses()
        self._step: Callable[[Batch], tuple[Tensor, dict[str, Tensor]]] = self.weighed

    # What a subclass defines -------------------------------------------------------

    @abstractmethod
    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Losses of a training batch by name, scalars; this is what ``train.compile`` compiles."""

    @classmethod
    @abstractmethod
    def rebuild(cls, recipe: Recipe, about: Mapping[str, Any]) -> nn.Module:
        """The model of a finished run, ready to take its trained weights; ``about`` is what :meth:`about` returned."""

    def about(self) -> dict[str, Any]:
        """Plain values that the trained model, its predictions and its report need without the data."""
        return self.source.about()

    def loss_names(self) -> tuple[str, ...]:
        """Names of all losses, if they are known before the first batch; a wrong weight is then found at once."""
        return ()

    def results(self) -> Results:
        """Everything measured in the test; a subclass adds its own to what this returns."""
        results = Results()
        results.add(self.score, self.test_score.compute())
        return results

    def masks(self, split: str) -> bool:
        """Whether batches of ``split`` should carry masks, if the dataset has them."""
        return split == "train" and bool(self.attention_losses)

    def class_maps(self, batch: Batch, at: str, kind: Any) -> AttentionRecord:
        """Class attention maps of a batch's true classes, for losses on them."""
        raise no_class_maps(self.name)

    @classmethod
    def complete(cls, recipe: Recipe) -> Recipe:
        """The recipe with what it leaves open."""
        return recipe

    @classmethod
    def predict(cls, runs: Sequence[Trained], inputs: Sequence[str]) -> Prediction:
        """What trained models say about an input; keyword arguments that a subclass adds are options of the command."""
        raise UserError(f"task {cls.name} cannot predict from a file or a text")

    @classmethod
    def report_words(cls, groups: Sequence[Group]) -> ReportWords:
        """The words of the report's beginning."""
        from foveal.tasks.report import ReportWords

        return ReportWords(doing=f"were trained for task {cls.name}" + (f": {cls.summary}" if cls.summary else ""))

    @classmethod
    def report_sections(cls, groups: Sequence[Group], colours: Mapping[str, int]) -> list[Section]:
        """The task's own sections of the report of some models on one dataset, in order.

        Args:
            groups: the models, each with its runs over seeds.
            colours: slot of each model's colour, for the helpers of :mod:`foveal.see.page`.
        """
        return []

    # What Lightning calls ------------------------------------------------------------

    @property
    def val_key(self) -> str:
        """Under which name the validation score is logged."""
        return f"val/{self.score.key}"

    @property
    def mode(self) -> str:
        """Whether the best epoch has the greatest or the least score, as Lightning says it."""
        return "min" if self.score.better == "lower" else "max"

    def weight(self, name: str) -> float:
        """What a loss is multiplied by."""
        return self.recipe.loss.weights.get(name, self.usual_weights.get(name, 1.0))

    def weighed(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """The weighted sum of all losses, and each of them detached."""
        if self.attention_losses:
            with self.attention_losses.watching() as seen:
                losses = self.losses(batch)
            losses |= self.attention_losses(seen, batch, self.class_maps)
        else:
            losses = self.losses(batch)
        self._check_names(losses)
        total: Tensor | None = None
        for name, loss in losses.items():
            weight = self.weight(name)
            if weight:
                part = loss.float() if weight == 1 else weight * loss.float()
                total = part if total is None else total + part
        if total is None:
            raise no_loss(losses)
        return total, {name: loss.detach() for name, loss in losses.items()}

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> dict[str, Any]:
        """Loss of one batch."""
        total, losses = self._step(batch)
        if self.recipe.train.compile:  # a CUDA graph writes its next losses to the same place
            total, losses = total.clone(), {name: loss.clone() for name, loss in losses.items()}
        # Lightning divides "loss" by the number of accumulated batches; the journal has it whole.
        return {"loss": total, "losses": {"loss": total.detach(), **losses}}

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Backward pass, in the thread of the step if the recipe says so."""
        with torch.autograd.set_multithreading_enabled(self.recipe.train.threads_backward):
            loss.backward(*args, **kwargs)

    def configure_model(self) -> None:
        """Split the weights over processes if the strategy does so."""
        split(self.model, self.trainer.strategy)

    def configure_optimizers(self) -> Any:
        """The recipe's optimiser, its rate set anew at every step."""
        optim, total = self.recipe.optim, int(self.trainer.estimated_stepping_batches)
        steps = max(1, total // max(1, self.recipe.train.epochs))
        fused = fused_step(self.device, self.recipe.train.precision)
        chosen = optimiser(optim, self.model.named_parameters(), fused=fused)
        return {
            "optimizer": chosen,
            "lr_scheduler": {"scheduler": schedule(optim, chosen, steps, total), "interval": "step"},
        }

    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: float | None = None, gradient_clip_algorithm: str | None = None
    ) -> None:
        """Clip the norm, also before a fused step, which Lightning refuses whether or not gradients are scaled."""
        if gradient_clip_val:
            self.trainer.precision_plugin.clip_grad_by_norm(optimizer, gradient_clip_val)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep what numbers stand for."""
        checkpoint["numbering"] = numbering(self.source.about())

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Raise if numbers stand for something else in the data of today."""
        check_numbering(checkpoint.get("numbering", {}), self.source.about(), "this run", OTHER_DATA)

    def on_fit_start(self) -> None:
        """Compile if asked to."""
        if not self.recipe.train.compile:
            return
        raise_recompile_limit()
        if self.attention_losses:  # they look at the model from outside
            self.model.compile()
            return
        # Steps of small models are launch-bound: on a GPU replay them as CUDA graphs.
        self._step = torch.compile(self.weighed, mode="reduce-overhead" if self.device.type == "cuda" else None)

    def on_train_epoch_start(self) -> None:
        """Dropout of an epoch depends on seed, epoch and process alone, so that a resumed run repeats it."""
        torch.manual_seed((self.recipe.seed * 100_003 + self.current_epoch) * 1_009 + self.global_rank)

    def on_validation_epoch_end(self) -> None:
        """Hand the scores to the callbacks."""
        if self.val_loss.update_called:
            self.log("val/loss", self.val_loss.compute(), sync_dist=True)
        self.log(self.val_key, self.val_score.compute(), sync_dist=True)
        self.val_loss.reset()
        self.val_score.reset()

    def batch_size(self, batch: Any) -> int:
        """Samples of a batch, for the progress bar: the length of its first tensor."""
        values = batch.values() if isinstance(batch, Mapping) else batch
        return next((len(value) for value in values if isinstance(value, Tensor) and value.ndim), 1)

    # Checks ------------------------------------------------------------------------

    def _check_losses(self) -> None:
        names = self.loss_names()
        for name, option in self.attention_losses.options.items():
            if name in names:
                raise UserError(f"loss.attention.{name}: task {self.name} has such a loss itself; choose another name")
            if option.on == "class_maps" and type(self).class_maps is Task.class_maps:
                raise no_class_maps(self.name)
        if not names:
            return
        names = (*names, *self.attention_losses.names)
        check_names(self.recipe.loss.weights, names, "loss.weights")
        if not any(self.weight(name) for name in names):
            raise no_loss(names)

    def _check_names(self, losses: Mapping[str, Tensor]) -> None:
        if not self.loss_names() and not torch.compiler.is_compiling():
            check_names(self.recipe.loss.weights, losses, "loss.weights")


def synchronised(model: nn.Module) -> nn.Module:
    """The model with batch norms whose statistics are taken over all processes."""
    model = convert_sync_batchnorm(model)  # timm's own knows its norms with an activation inside, torch's does not
    reattach(model)
    return model


def no_class_maps(task: str) -> UserError:
    """The error of a loss on class maps for a task that has none."""
    return UserError(f"loss.attention: task {task} has no class maps; use on: records")


def no_loss(names: Iterable[str]) -> UserError:
    """The error of a recipe whose losses all have weight 0."""
    return UserError(f"loss.weights: every loss has weight 0 ({', '.join(names)}); nothing would be learnt")


def _check_checkpoint(recipe: Recipe, source: Source) -> None:
    """Raise if training would start from the weights of a run in which numbers of words stand for other words."""
    if (name := recipe.model.get("checkpoint")) is not None:
        file = find_checkpoint(str(name), getattr(source, "root", None))
        advice = "use the data that it was trained with, or start from random weights with model.checkpoint=null"
        check_numbering(read_about(file), source.about(), f"model.checkpoint: {file}", advice, INPUTS)


def find_task(name: str) -> type[Task]:
    """The task called ``name``."""
    return registry.tasks.get(name)


def make_task(recipe: Recipe, source: Source, model: nn.Module | None = None) -> Task:
    """The recipe's task on ``source``, with its own model or an already built one."""
    if model is None:
        _check_checkpoint(recipe, source)
    return find_task(recipe.task)(recipe, source, model)  # type: ignore[call-arg, arg-type]
