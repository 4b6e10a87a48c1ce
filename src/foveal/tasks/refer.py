"""Task ``refer``: an image and a query that names one object in it; predict something about that object."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassAccuracy

from foveal import measure
from foveal.attention.record import watch
from foveal.data import Source
from foveal.errors import UserError
from foveal.models import create_model
from foveal.models.registry import accepts
from foveal.recipe import Loss, Recipe
from foveal.tasks.schedule import optimiser, rate

SAMPLES = 12  # test samples kept for pictures


def answer_loss(logits: Tensor, label: Tensor, loss: Loss, multilabel: bool) -> Tensor:
    """Loss of the answers: binary cross entropy per answer if several may hold, else cross entropy.

    Args:
        logits: (N, K).
        label: (N,) class indices, or (N, K) in {0, 1} if ``multilabel``.
        loss: options; ``floor`` is added to the probability inside the logarithm.
        multilabel: whether several answers may hold at once.
    """
    logits = logits.float()
    if multilabel:
        return F.binary_cross_entropy_with_logits(logits, label.float())
    if loss.floor:
        right = logits.softmax(1).gather(1, label[:, None])
        return -(right + loss.floor).log().mean()
    return F.cross_entropy(logits, label, label_smoothing=loss.label_smoothing)


def build_model(
    recipe: Recipe, queries: int, classes: int, *, root: Path | None = None, trained: bool = False
) -> nn.Module:
    """The recipe's model, sized for its data.

    Args:
        recipe: names the model and its options.
        queries: number of queries.
        classes: number of answers.
        root: folder of datasets, where ``model.checkpoint`` is looked for if it is not here.
        trained: trained weights are loaded next, so ``model.checkpoint``, what training starts from, is not needed.
    """
    options = {k: v for k, v in recipe.model.items() if k != "name" and not (trained and k == "checkpoint")}
    if isinstance(options.get("checkpoint"), str):
        options["checkpoint"] = _checkpoint(options["checkpoint"], root)
    name = recipe.model["name"]
    sizes = {"queries": queries, "classes": classes, "image_size": recipe.data.get("canvas", 100)}
    if given := sorted(sizes.keys() & options.keys()):
        raise UserError(f"model.{given[0]} comes from the data; leave it out of the recipe")
    return create_model(name, **{k: v for k, v in sizes.items() if accepts(name, k)} | options)


def _checkpoint(name: str, root: Path | None) -> Path:
    places = [Path(name).expanduser(), *([] if root is None else [root / name])]
    for place in places:
        if place.is_file():
            return place
    raise UserError(
        f"model.checkpoint: there is no file {' or '.join(map(str, places))}; put the pretrained weights there, or "
        "start from random ones with model.checkpoint=null"
    )


class Refer(L.LightningModule):
    """Train and test a model ``(images in [0, 1], query) -> logits``.

    Args:
        recipe: the whole recipe.
        source: the dataset; batches hold image, query, label and, for test, mask and scale.
        model: an already built model to use instead of the recipe's, with the prior it has.

    Attributes:
        score: under which name the validation score is logged; higher is better, and the best epoch is tested.
    """

    def __init__(self, recipe: Recipe, source: Source, model: nn.Module | None = None) -> None:
        super().__init__()
        self.recipe, self.source = recipe, source
        self.score = f"val/{'weighted_average_precision' if source.multilabel else 'accuracy'}"
        if model is None:
            sizes = len(source.queries), len(source.answers)
            model = build_model(recipe, *sizes, root=getattr(source, "root", None))
            if getattr(model, "prior", None) is not None and hasattr(source, "prior"):
                model.set_prior(source.prior())  # type: ignore[operator]
        self.model = model
        self.model.to(memory_format=torch.channels_last)  # several times faster with few channels, on CPU and GPU
        classes = len(source.answers)
        self.val_loss = MeanMetric()
        self.val_score = self._score(classes)
        self.test_score = self._score(classes)
        self.strength, self.strength_last, self.area = (measure.TruePositiveStrength() for _ in range(3))
        self.pixel_pr = measure.AttentionPrecisionRecall(thresholds=101)
        self.by_scale = measure.ScaleAccuracy(edges=getattr(source, "scale_edges", (0.0, 1.0)))
        self.samples: dict[str, Tensor] = {}
        self.sites: list[str] = []
        self._step: Callable[[Tensor, Tensor, Tensor], Tensor] = self._forward_loss

    def _score(self, classes: int) -> Any:
        if self.source.multilabel:
            return measure.WeightedAveragePrecision()
        return MulticlassAccuracy(classes, average="micro")

    def configure_optimizers(self) -> Any:
        """The recipe's optimiser, its rate set anew at every step."""
        optim, total = self.recipe.optim, int(self.trainer.estimated_stepping_batches)
        steps = max(1, total // max(1, self.recipe.train.epochs))
        chosen = optimiser(optim, self.model.parameters())
        schedule = torch.optim.lr_scheduler.LambdaLR(chosen, lambda step: rate(optim, step, steps, total))
        return {"optimizer": chosen, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_fit_start(self) -> None:
        """Compile if asked to."""
        if self.recipe.train.compile:
            torch._dynamo.config.recompile_limit = 64  # one process may train many models, one after the other
            # Steps of small models are launch-bound: on a GPU replay them as CUDA graphs.
            self._step = torch.compile(
                self._forward_loss, mode="reduce-overhead" if self.device.type == "cuda" else None
            )

    def on_train_epoch_start(self) -> None:
        """Dropout of an epoch depends on seed, epoch and process alone, so that a resumed run repeats it."""
        torch.manual_seed((self.recipe.seed * 100_003 + self.current_epoch) * 1_009 + self.global_rank)

    def _forward_loss(self, image: Tensor, query: Tensor, label: Tensor) -> Tensor:
        return answer_loss(self.model(pixels(image), query), label, self.recipe.loss, self.source.multilabel)

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        """Loss of one batch."""
        loss = self._step(batch["image"], batch["query"], batch["label"])
        return (
            loss.clone() if self.recipe.train.compile else loss
        )  # a CUDA graph writes its next loss to the same place

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        """Loss and score of one batch."""
        logits = self.model(pixels(batch["image"]), batch["query"]).float()
        self.val_loss.update(answer_loss(logits, batch["label"], self.recipe.loss, self.source.multilabel), len(logits))
        self.val_score.update(logits, batch["label"])

    def on_validation_epoch_end(self) -> None:
        """Hand the scores to the callbacks."""
        self.log("val/loss", self.val_loss.compute(), sync_dist=True)
        self.log(self.score, self.val_score.compute(), sync_dist=True)
        self.val_loss.reset()
        self.val_score.reset()

    def test_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        """Score, attention metrics and a few samples to look at."""
        with watch(self.model) as seen:
            logits = self.model(pixels(batch["image"]), batch["query"]).float()
        self.test_score.update(logits, batch["label"])
        size = (batch["image"].shape[-2], batch["image"].shape[-1])
        combined = measure.attention_map(seen, size)
        if "mask" in batch:
            mask = batch["mask"].bool()
            self.strength.update(combined, mask)
            self.strength_last.update(measure.attention_map(seen, size, gates="last"), mask)
            self.area.update(torch.ones_like(combined), mask)
            self.pixel_pr.update(combined, mask)
        if "scale" in batch:
            self.by_scale.update(logits.argmax(1) == batch["label"], batch["scale"])
        if batch_idx == 0:
            self._keep(batch, logits, combined, {site: record.values for site, record in seen.items()})

    def _keep(self, batch: dict[str, Tensor], logits: Tensor, combined: Tensor, gates: dict[str, Tensor]) -> None:
        multilabel = self.source.multilabel
        probability = logits.sigmoid() if multilabel else logits.softmax(1)
        kept: dict[str, Tensor] = {k: batch[k] for k in ("image", "query", "label", "mask") if k in batch}
        kept |= {"probability": probability, "map": combined}
        kept["prediction"] = (probability > 0.5).long() if multilabel else probability.argmax(1)
        kept |= {f"gate.{i}": values for i, values in enumerate(gates.values())}
        spread = torch.linspace(0, len(logits) - 1, min(SAMPLES, len(logits)), device=logits.device).long()
        self.sites = list(gates)
        self.samples = {k: v[spread].detach().cpu() for k, v in kept.items()}

    def results(self) -> dict[str, Any]:
        """Everything measured in the test, as plain numbers; fractions throughout."""
        found: dict[str, Any] = {"metrics": {self.score.removeprefix("val/"): float(self.test_score.compute())}}
        if self.area.update_called:
            found["metrics"]["true_positive_strength"] = float(self.strength.compute())
            found["metrics"]["true_positive_strength_last"] = float(self.strength_last.compute())
            found["metrics"]["target_area"] = float(self.area.compute())  # what attention spread evenly would score
            precision, recall = self.pixel_pr.compute()
            found["pixel_pr"] = {"precision": precision.tolist(), "recall": recall.tolist()}
        if self.by_scale.update_called:
            accuracy, count = self.by_scale.compute()
            found["scale_accuracy"] = {
                "edges": list(self.by_scale.edges),
                "accuracy": accuracy.tolist(),
                "count": count.tolist(),
            }
        return found


def pixels(image: Tensor) -> Tensor:
    """Bytes to [0, 1], channels last."""
    image = image.float().div(255) if image.dtype == torch.uint8 else image
    return image.contiguous(memory_format=torch.channels_last)
