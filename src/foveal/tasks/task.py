"""What all tasks share: optimiser and schedule, compiled steps, seeds, validation, what is kept for pictures."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import lightning as L
import torch
import torch.nn.functional as F
from timm.layers import convert_sync_batchnorm
from torch import Tensor, nn
from torchmetrics import MeanMetric, Metric

from foveal.attention.insertion.inserting import reattach
from foveal.data import Source
from foveal.errors import DataError, UserError
from foveal.recipe import Loss, Recipe
from foveal.tasks.schedule import fused_step, optimiser, rate

SAMPLES = 12  # test samples kept for pictures


class Task(L.LightningModule):
    """Train and test a model on one kind of question.

    Args:
        recipe: the whole recipe.
        source: the dataset.
        model: the model.
        score: name of the validation score; higher is better, and the best epoch is tested.
        metric: makes the metric that computes it.

    Attributes:
        recipe: with what the task fills in where the given one leaves it open.
        score: under which name the validation score is logged.
        samples: tensors of a few test samples by name, for pictures.
        sites: names of the gates whose maps are among them.
    """

    def __init__(
        self, recipe: Recipe, source: Source, model: nn.Module, score: str, metric: Callable[[], Metric]
    ) -> None:
        super().__init__()
        self.recipe, self.source, self.score = recipe, source, f"val/{score}"
        self.model = synchronised(model) if recipe.train.sync_batchnorm else model
        self.model.to(memory_format=torch.channels_last)  # several times faster with few channels, on CPU and GPU
        self.val_loss, self.val_score = MeanMetric(), metric()
        self.test_score = metric()
        self.samples: dict[str, Tensor] = {}
        self.sites: list[str] = []
        self._step: Callable[[dict[str, Tensor]], Tensor] = self.loss

    @classmethod
    @abstractmethod
    def rebuild(cls, recipe: Recipe, about: Mapping[str, Any]) -> nn.Module:
        """The model of a finished run, ready to take its trained weights; ``about`` is what :meth:`about` said."""

    @abstractmethod
    def about(self) -> dict[str, Any]:
        """What the trained model needs to be used without its data: plain values."""

    @abstractmethod
    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        """Training loss of a batch, a scalar; this is what ``train.compile`` compiles."""

    @abstractmethod
    def results(self) -> dict[str, Any]:
        """Everything measured in the test, as plain numbers; fractions throughout."""

    def configure_optimizers(self) -> Any:
        """The recipe's optimiser, its rate set anew at every step."""
        optim, total = self.recipe.optim, int(self.trainer.estimated_stepping_batches)
        steps = max(1, total // max(1, self.recipe.train.epochs))
        fused = fused_step(self.device, self.recipe.train.precision)
        chosen = optimiser(optim, self.model.parameters(), fused=fused)
        schedule = torch.optim.lr_scheduler.LambdaLR(chosen, lambda step: rate(optim, step, steps, total))
        return {"optimizer": chosen, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: float | None = None, gradient_clip_algorithm: str | None = None
    ) -> None:
        """Clip the norm, also before a fused step, which Lightning refuses whether or not gradients are scaled."""
        if gradient_clip_val:
            self.trainer.precision_plugin.clip_grad_by_norm(optimizer, gradient_clip_val)

    def on_fit_start(self) -> None:
        """Compile if asked to."""
        if self.recipe.train.compile:
            torch._dynamo.config.recompile_limit = 64  # one process may train many models, one after the other
            # Steps of small models are launch-bound: on a GPU replay them as CUDA graphs.
            self._step = torch.compile(self.loss, mode="reduce-overhead" if self.device.type == "cuda" else None)

    def on_train_epoch_start(self) -> None:
        """Dropout of an epoch depends on seed, epoch and process alone, so that a resumed run repeats it."""
        torch.manual_seed((self.recipe.seed * 100_003 + self.current_epoch) * 1_009 + self.global_rank)

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        """Loss of one batch."""
        loss = self._step(batch)
        # A CUDA graph writes its next loss to the same place.
        return loss.clone() if self.recipe.train.compile else loss

    def on_validation_epoch_end(self) -> None:
        """Hand the scores to the callbacks."""
        self.log("val/loss", self.val_loss.compute(), sync_dist=True)
        self.log(self.score, self.val_score.compute(), sync_dist=True)
        self.val_loss.reset()
        self.val_score.reset()

    def keep(self, batch: dict[str, Tensor], logits: Tensor, gates: dict[str, Tensor], map_: Tensor | None) -> None:
        """Keep some samples of a batch: what was asked, what was answered, and where the model looked.

        Args:
            batch: image, label and, where there are such, query and mask.
            logits: (N, K).
            gates: attention maps by site, each (N, h, w).
            map_: all of them combined, (N, H, W), or None if there are none.
        """
        kept: dict[str, Tensor] = {k: batch[k] for k in ("image", "query", "label", "mask") if k in batch}
        kept["probability"], kept["prediction"] = answers(logits, self.source.multilabel)
        if map_ is not None:
            kept["map"] = map_
        kept |= {f"gate.{i}": values for i, values in enumerate(gates.values())}
        spread = torch.linspace(0, len(logits) - 1, min(SAMPLES, len(logits)), device=logits.device).long()
        self.sites = list(gates)
        self.samples = {k: v[spread].detach().cpu() for k, v in kept.items()}


def synchronised(model: nn.Module) -> nn.Module:
    """The model with batch norms whose statistics are taken over all processes."""
    model = convert_sync_batchnorm(model)  # timm's own knows its norms with an activation inside, torch's does not
    reattach(model)
    return model


def count_classes(source: Source) -> int:
    """How many answers a dataset has; complains if there is nothing to choose from."""
    count = len(source.answers)
    if count < 2 and not source.multilabel:
        named = f"only the class {source.answers[0]!r}" if count else "no class"
        raise DataError(f"data.name={source.name} has {named}; at least two are needed to tell apart")
    return count


def answers(logits: Tensor, multilabel: bool) -> tuple[Tensor, Tensor]:
    """Probabilities (N, K), and the answers: class int64 (N,), or 0 and 1 for every class (N, K) if ``multilabel``."""
    if multilabel:
        probability = logits.sigmoid()
        return probability, (probability > 0.5).long()
    probability = logits.softmax(1)
    return probability, probability.argmax(1)


def answer_loss(logits: Tensor, label: Tensor, loss: Loss, multilabel: bool, valid: Tensor | None = None) -> Tensor:
    """Loss of the answers: binary cross entropy per answer if several may hold, else cross entropy.

    Args:
        logits: (N, K).
        label: (N,) class indices, or (N, K) in {0, 1} if ``multilabel``.
        loss: options; ``floor`` is added to the probability inside the logarithm.
        multilabel: whether several answers may hold at once.
        valid: bool (N, K), false for answers that do not count; only if ``multilabel``.
    """
    logits = logits.float()
    if multilabel:
        each = F.binary_cross_entropy_with_logits(logits, label.float(), reduction="none")
        return each.mean() if valid is None else (each * valid).sum() / valid.sum().clamp_min(1)
    if loss.floor:
        right = logits.softmax(1).gather(1, label[:, None])
        return -(right + loss.floor).log().mean()
    return F.cross_entropy(logits, label, label_smoothing=loss.label_smoothing)


def pixels(image: Tensor) -> Tensor:
    """Bytes to [0, 1], channels last."""
    image = image.float().div(255) if image.dtype == torch.uint8 else image
    return image.contiguous(memory_format=torch.channels_last)


def find_checkpoint(name: str, root: Path | None) -> Path:
    """The file that ``model.checkpoint`` means: here, or in the folder of datasets."""
    places = [Path(name).expanduser(), *([] if root is None else [root / name])]
    for place in places:
        if place.is_file():
            return place
    raise UserError(
        f"model.checkpoint: there is no file {' or '.join(map(str, places))}; put the pretrained weights there, or "
        "start from random ones with model.checkpoint=null"
    )
