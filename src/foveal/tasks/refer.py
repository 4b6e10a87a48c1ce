"""Task ``refer``: an image and a query that names one object in it; predict something about that object."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torchmetrics.classification import MulticlassAccuracy

from foveal import measure
from foveal.attention.records.record import watch
from foveal.data import Source
from foveal.errors import UserError
from foveal.models import create_model
from foveal.models.registry import accepts
from foveal.recipe import Recipe
from foveal.tasks.task import Task, answer_loss, count_classes, find_checkpoint, pixels


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
        options["checkpoint"] = find_checkpoint(options["checkpoint"], root)
    name = recipe.model["name"]
    sizes = {"queries": queries, "classes": classes, "image_size": recipe.data.get("canvas", 100)}
    if given := sorted(sizes.keys() & options.keys()):
        raise UserError(f"model.{given[0]} comes from the data; leave it out of the recipe")
    return create_model(name, **{k: v for k, v in sizes.items() if accepts(name, k)} | options)


class Refer(Task):
    """Train and test a model ``(images in [0, 1], query) -> logits``.

    Args:
        recipe: the whole recipe.
        source: the dataset; batches hold image, query, label and, for test, mask and scale.
        model: an already built model to use instead of the recipe's, with the prior it has.
    """

    def __init__(self, recipe: Recipe, source: Source, model: nn.Module | None = None) -> None:
        if not source.queries:
            raise UserError(
                f"task refer asks about one object of an image; for data.name={source.name} use task=classify"
            )
        classes = count_classes(source)
        if model is None:
            model = build_model(recipe, len(source.queries), classes, root=getattr(source, "root", None))
            if getattr(model, "prior", None) is not None and hasattr(source, "prior"):
                model.set_prior(source.prior())  # type: ignore[operator]
        if source.multilabel:
            super().__init__(recipe, source, model, "weighted_average_precision", measure.WeightedAveragePrecision)
        else:
            super().__init__(recipe, source, model, "accuracy", lambda: MulticlassAccuracy(classes, average="micro"))
        self.strength, self.strength_last, self.strength_resized, self.area = (
            measure.TruePositiveStrength() for _ in range(4)
        )
        self.pixel_pr = measure.AttentionPrecisionRecall(thresholds=101)
        self.by_scale = measure.ScaleAccuracy(edges=getattr(source, "scale_edges", (0.0, 1.0)))

    @classmethod
    def rebuild(cls, recipe: Recipe, about: Mapping[str, Any]) -> nn.Module:
        """The recipe's model for as many queries and answers as in training."""
        return build_model(recipe, len(about["queries"]), len(about["answers"]), trained=True)

    def about(self) -> dict[str, Any]:
        """Names of queries and answers, and whether several answers may hold."""
        return {"queries": self.source.queries, "answers": self.source.answers, "multilabel": self.source.multilabel}

    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        """Loss of one batch."""
        logits = self.model(pixels(batch["image"]), batch["query"])
        return answer_loss(logits, batch["label"], self.recipe.loss, self.source.multilabel)

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        """Loss and score of one batch."""
        logits = self.model(pixels(batch["image"]), batch["query"]).float()
        self.val_loss.update(answer_loss(logits, batch["label"], self.recipe.loss, self.source.multilabel), len(logits))
        self.val_score.update(logits, batch["label"])

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
            self.strength_resized.update(measure.attention_map(seen, size, placed=False), mask)
            self.area.update(torch.ones_like(combined), mask)
            self.pixel_pr.update(combined, mask)
        if "scale" in batch:
            self.by_scale.update(logits.argmax(1) == batch["label"], batch["scale"])
        if batch_idx == 0:
            self.keep(batch, logits, {site: record.values for site, record in seen.items()}, combined)

    def results(self) -> dict[str, Any]:
        """Everything measured in the test, as plain numbers; fractions throughout."""
        found: dict[str, Any] = {"metrics": {self.score.removeprefix("val/"): float(self.test_score.compute())}}
        if self.area.update_called:
            found["metrics"]["true_positive_strength"] = float(self.strength.compute())
            found["metrics"]["true_positive_strength_last"] = float(self.strength_last.compute())
            found["metrics"]["true_positive_strength_resized"] = float(self.strength_resized.compute())
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
