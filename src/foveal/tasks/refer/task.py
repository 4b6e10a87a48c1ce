"""The step, losses and metrics of task ``refer``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torchmetrics.classification import MulticlassAccuracy

from foveal import measure
from foveal.attention import watch
from foveal.data import Source
from foveal.errors import UserError
from foveal.measure.true_positive_strength import LAST, STRETCHED, TARGET_AREA
from foveal.models.build import build_model
from foveal.recipe import MeasureOptions, Recipe
from foveal.tasks.answers import ACCURACY, AnswerLoss, answer_loss, count_classes, pixels, sample_tensors, try_model
from foveal.tasks.base import Batch, Task
from foveal.tasks.prediction import Prediction, Trained
from foveal.tasks.registry import register_task
from foveal.tasks.results import Results

if TYPE_CHECKING:
    from foveal.runs import Group
    from foveal.see.page import Section
    from foveal.tasks.report import ReportWords

STRENGTH = measure.TruePositiveStrength.info


@runtime_checkable
class ReferSource(Protocol):
    """A dataset of images with queries."""

    queries: list[str]
    answers: list[str]
    multilabel: bool


@register_task("refer")
class Refer(Task):
    """Train and test a model ``(images in [0, 1], query) -> logits``.

    Args:
        recipe: the whole recipe.
        source: the dataset; batches hold image, query, label and, for test, mask and scale.
        model: an already built model to use instead of the recipe's, with the prior it has.
    """

    summary = "an image and a query that names one object; answer about that object"
    sections: ClassVar[Mapping[str, type]] = {"loss": AnswerLoss, "measure": MeasureOptions}

    def __init__(self, recipe: Recipe, source: Source, model: nn.Module | None = None) -> None:
        if not isinstance(source, ReferSource) or not source.queries:
            raise UserError(
                f"task refer asks about one object of an image; for data.name={source.name} use another task, such as "
                "task=classify"
            )
        classes = count_classes(source)
        if model is None:
            about = source.about()
            model = build_model(recipe.model, _sizes(about), root=getattr(source, "root", None))
            try_model(model, recipe.model["name"], classes, about["size"], torch.tensor([0]))
            if getattr(model, "prior", None) is not None and hasattr(source, "prior"):
                model.set_prior(source.prior())  # type: ignore[operator]
        if source.multilabel:
            metric = measure.WeightedAveragePrecision
            super().__init__(recipe, source, model, metric.info, metric)
        else:
            super().__init__(recipe, source, model, ACCURACY, lambda: MulticlassAccuracy(classes, average="micro"))
        self.multilabel = source.multilabel
        self.strength, self.strength_last, self.strength_resized, self.area = (
            measure.TruePositiveStrength() for _ in range(4)
        )
        self.pixel_pr = measure.AttentionPrecisionRecall(thresholds=101)
        self.by_scale = measure.ScaleAccuracy(edges=getattr(source, "scale_edges", (0.0, 1.0)))

    @classmethod
    def rebuild(cls, recipe: Recipe, about: Mapping[str, Any]) -> nn.Module:
        """The recipe's model for as many queries and answers as in training."""
        return build_model(recipe.model, _sizes(about), trained=True)

    def loss_names(self) -> tuple[str, ...]:
        """One loss."""
        return ("answer",)

    def masks(self, split: str) -> bool:
        """Masks are for measuring, unless a loss on attention asks for them."""
        return split != "train" or super().masks(split)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Loss of the answers."""
        logits = self.model(pixels(batch["image"]), batch["query"])
        return {"answer": answer_loss(logits, batch["label"], self.recipe.loss, self.multilabel)}

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        """Loss and score of one batch."""
        logits = self.model(pixels(batch["image"]), batch["query"]).float()
        self.val_loss.update(answer_loss(logits, batch["label"], self.recipe.loss, self.multilabel), len(logits))
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
            gates = {site: record.values for site, record in seen.items()}
            self.sites = list(gates)
            self.samples = sample_tensors(batch, logits, self.multilabel, gates, combined)

    def results(self) -> Results:
        """Score, attention on the target, and curves over thresholds and scales."""
        results = super().results()
        if self.area.update_called:
            results.add(STRENGTH, self.strength.compute())
            results.add(LAST, self.strength_last.compute())
            results.add(STRETCHED, self.strength_resized.compute())
            results.add(TARGET_AREA, self.area.compute())
            precision, recall = self.pixel_pr.compute()
            results.curves["pixel_pr"] = {"precision": precision.tolist(), "recall": recall.tolist()}
        if self.by_scale.update_called:
            accuracy, count = self.by_scale.compute()
            edges = list(self.by_scale.edges)
            results.curves["scale_accuracy"] = {
                "edges": edges,
                "accuracy": accuracy.tolist(),
                "count": count.tolist(),
            }
        return results

    @classmethod
    def predict(cls, runs: Sequence[Trained], inputs: Sequence[str], *, label: Sequence[str] = ()) -> Prediction:
        """What models answer about the asked-for object of an image; ``label`` is the true answer."""
        from foveal.tasks.refer.prediction import predict

        return predict(runs, inputs, label)

    @classmethod
    def report_words(cls, groups: Sequence[Group]) -> ReportWords:
        """Pictures, and what was asked about them."""
        from foveal.tasks.refer.report import report_words

        return report_words(groups)

    @classmethod
    def report_sections(cls, groups: Sequence[Group], colours: Mapping[str, int]) -> list[Section]:
        """What the models saw, and their curves."""
        from foveal.tasks.refer.report import report_sections

        return report_sections(groups, colours)


def _sizes(about: Mapping[str, Any]) -> dict[str, Any]:
    """What a model takes from the data."""
    queries, classes = len(about["queries"]), len(about["answers"])
    return {"queries": queries, "classes": classes, "image_size": about["size"]}
