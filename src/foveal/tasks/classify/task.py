"""The step, losses and metrics of task ``classify``."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torchmetrics.classification import MulticlassAccuracy

from foveal import measure
from foveal.attention import AttentionRecord, cam
from foveal.data import Source
from foveal.errors import UserError
from foveal.measure.info import MetricInfo, register_metric
from foveal.models.build import build_model
from foveal.recipe import Recipe
from foveal.see import top_classes
from foveal.tasks.answers import ACCURACY, answer_loss, count_classes, normalised, sample_tensors, try_model
from foveal.tasks.base import SAMPLES, Batch, Task
from foveal.tasks.classify.attention import ClassAttentionMetrics, looking, spatial_maps, try_maps
from foveal.tasks.classify.options import ClassifyLoss, ClassifyMeasure, complete
from foveal.tasks.classify.sharpening import SharpenLosses
from foveal.tasks.prediction import Prediction, Trained
from foveal.tasks.registry import register_task
from foveal.tasks.results import Results

if TYPE_CHECKING:
    from foveal.runs import Group
    from foveal.see.page import Section
    from foveal.tasks.report import ReportWords

TOP5 = register_metric(MetricInfo("top5_accuracy", "Top-5 accuracy"))
SHARPEN = ("separability_inner", "separability_last", "consistency_inner")


@runtime_checkable
class ClassifySource(Protocol):
    """A dataset of labelled images."""

    answers: list[str]
    multilabel: bool
    size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


@register_task("classify")
class Classify(Task):
    """Train and test a classifier ``normalised images -> logits``.

    Args:
        recipe: the whole recipe.
        source: the dataset; batches hold image, label and perhaps valid.
        model: an already built model to use instead of the recipe's.
    """

    mean: Tensor
    std: Tensor
    summary = "an image; its class, or all of its classes"
    needs: ClassVar[str] = "labelled images, such as data.name=digits"
    sections: ClassVar[Mapping[str, type]] = {"loss": ClassifyLoss, "measure": ClassifyMeasure}

    def __init__(self, recipe: Recipe, source: Source, model: nn.Module | None = None) -> None:
        if not isinstance(source, ClassifySource):
            raise UserError(f"task {self.name} needs {self.needs}; data.name={source.name} has none")
        recipe = complete(recipe)
        classes = count_classes(source)
        if model is None:
            model = build_model(recipe.model, {"num_classes": classes}, root=getattr(source, "root", None))
            try_model(model, recipe.model["name"], classes, source.size)
        if source.multilabel:
            super().__init__(recipe, source, model, measure.LabelMAP.info, measure.LabelMAP)
        else:
            super().__init__(recipe, source, model, ACCURACY, lambda: MulticlassAccuracy(classes, average="micro"))
        self.multilabel = source.multilabel
        for name in ("mean", "std"):  # buffers, so that they lie on the device before the first step
            self.register_buffer(name, torch.tensor(getattr(source, name)), persistent=False)
        self.sharpen, self.class_attention = self._attention(source, classes)
        self.each_class = measure.AveragePrecision() if source.multilabel else None
        self.total_gates = 0  # maps of attention that the model has; some of many are kept
        self.top5 = None
        if classes > 5 and not source.multilabel:
            self.top5 = MulticlassAccuracy(classes, top_k=5, average="micro")

    def _attention(
        self, source: ClassifySource, classes: int
    ) -> tuple[SharpenLosses | None, ClassAttentionMetrics | None]:
        """The losses on class attention and its measures, tried on two images."""
        sharpen = attention = None
        if (options := self.recipe.loss.sharpen) is not None:
            sharpen = SharpenLosses(self.model, options, {name: self.weight(name) for name in self.loss_names()[1:]})
            sharpen.try_maps(classes, source.size, source.multilabel)
        if (measured := self.recipe.measure.class_attention) is not None:
            boxes = source.boxes() if hasattr(source, "boxes") else None
            attention = ClassAttentionMetrics(measured, boxes)
            try_maps(self.model, attention.layers, attention.kind, source.size, "measure.class_attention")
        for name, option in self.recipe.loss.attention.items():
            if option.on == "class_maps":
                try_maps(self.model, [option.at], option.kind, source.size, f"loss.attention.{name}")
        return sharpen, attention

    @classmethod
    def complete(cls, recipe: Recipe) -> Recipe:
        """Layers and kinds of maps that either section leaves to the other."""
        return complete(recipe)

    @classmethod
    def rebuild(cls, recipe: Recipe, about: Mapping[str, Any]) -> nn.Module:
        """The recipe's model for as many classes as in training."""
        return build_model(recipe.model, {"num_classes": len(about["answers"])}, trained=True)

    def about(self) -> dict[str, Any]:
        """Names of the classes, whether several may hold, and how an image becomes the model's input."""
        return self.source.about() | ({"total_gates": self.total_gates} if self.total_gates else {})

    def loss_names(self) -> tuple[str, ...]:
        """The loss of the classes, and those on class attention if the recipe has them."""
        if (options := self.recipe.loss.sharpen) is None:
            return ("classification",)
        return ("classification", *(SHARPEN if len(options.layers) == 2 else ("separability_last",)))

    def inputs(self, batch: Batch) -> Any:
        """What the model takes."""
        return normalised(batch["image"], self.mean, self.std)

    def on_fit_start(self) -> None:
        """Compile if asked to; with losses on attention the model alone, for they take gradients within the step."""
        if self.sharpen is None:
            super().on_fit_start()
        elif self.recipe.train.compile:
            self.sharpen.compile()

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Loss of the classes and, if the recipe has them, losses on class attention."""
        x = self.inputs(batch)
        if self.sharpen is None:
            return {"classification": self._answer_loss(batch, self.model(x))}
        attend = self.current_epoch >= self.sharpen.options.warmup
        return self.sharpen(x, lambda y: self._answer_loss(batch, y), batch["label"], batch.get("valid"), attend)

    def _answer_loss(self, batch: Batch, logits: Any) -> Tensor:
        if not isinstance(logits, Tensor):
            raise UserError(
                f"model {self.recipe.model['name']} has several outputs in training; try model.aux_logits=false"
            )
        return answer_loss(logits, batch["label"], self.recipe.loss, self.multilabel, batch.get("valid"))

    def class_maps(self, batch: Batch, at: str, kind: Any) -> AttentionRecord:
        """Maps of the true class; of an image with several classes the best-scoring true one."""
        x, label = self.inputs(batch), batch["label"]
        if label.ndim == 2:
            with torch.no_grad():
                logits = self.model(x)
            label = logits.masked_fill(label <= 0, -torch.inf).argmax(1)
        return AttentionRecord(at, "spatial", cam(self.model, x, label, at, kind), False)

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        """Loss and score of one batch."""
        logits = self.model(self.inputs(batch)).float()
        self.val_loss.update(self._answer_loss(batch, logits), len(logits))
        self.val_score.update(logits, batch["label"], **_valid(batch))

    def test_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        """Scores, and a few samples to look at."""
        x = self.inputs(batch)
        batches = int(self.trainer.num_test_batches[0])
        looked_at = torch.linspace(0, batches - 1, min(SAMPLES, batches)).long().tolist()  # classes come in order
        with looking(self.model) if batch_idx in looked_at else contextlib.nullcontext({}) as seen:
            logits = self.model(x).float()
        self.test_score.update(logits, batch["label"], **_valid(batch))
        if self.top5 is not None:
            self.top5.update(logits, batch["label"])
        if self.each_class is not None:
            self.each_class.update(logits, batch["label"], **_valid(batch))
        if self.class_attention is not None:
            self.class_attention.update(self.model, x, logits, batch)
        if batch_idx in looked_at:
            gates, combined = spatial_maps(seen, (batch["image"].shape[-2], batch["image"].shape[-1]))
            self.sites, self.total_gates = list(gates), len(seen)
            kept = sample_tensors(batch, logits, self.multilabel, gates, combined, SAMPLES // len(looked_at))
            earlier = self.samples if batch_idx else {}
            self.samples = {key: torch.cat([earlier[key], kept[key]]) if earlier else kept[key] for key in kept}

    def on_test_epoch_end(self) -> None:
        """Beside the samples: the classes the model thinks of first, and where it looks for them."""
        if (options := self.recipe.measure.class_attention) is not None:
            x = normalised(self.samples["image"].to(self.device), self.mean, self.std)
            arguments: dict[str, Any] = {"kind": options.kind, "multilabel": self.multilabel}
            self.samples |= top_classes(self.model, x, options.layers[-1], **arguments).tensors()

    def results(self) -> Results:
        """Top-1 and top-5 accuracy, or average precision; and measures of class attention."""
        results = super().results()
        if self.top5 is not None:
            results.add(TOP5, self.top5.compute())
        if self.each_class is not None:
            values = self.each_class.compute().tolist()
            by_class = dict(zip(self.about()["answers"], values, strict=True))
            results.parts["average_precision"] = {k: None if v != v else v for k, v in by_class.items()}
        if self.class_attention is not None:
            self.class_attention.add_to(results)
        return results

    @classmethod
    def predict(cls, runs: Sequence[Trained], inputs: Sequence[str], *, label: Sequence[str] = ()) -> Prediction:
        """The classes of an image and where the models look for them; ``label`` is the true class, which is framed."""
        from foveal.tasks.classify.prediction import predict

        return predict(runs, inputs, label)

    @classmethod
    def report_words(cls, groups: Sequence[Group]) -> ReportWords:
        """Pictures, and what they show."""
        from foveal.tasks.classify.report import report_words

        return report_words(groups)

    @classmethod
    def report_sections(cls, groups: Sequence[Group], colours: Mapping[str, int]) -> list[Section]:
        """What the models saw, and where they look for each class."""
        from foveal.tasks.classify.report import report_sections

        return report_sections(groups, colours)


def _valid(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Which labels of a batch count, where the dataset says so."""
    return {"valid": batch["valid"]} if "valid" in batch else {}
