"""The step, losses and metrics of task ``document``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torchmetrics.classification import MulticlassAccuracy

from foveal import measure
from foveal.attention import watch
from foveal.data import Source
from foveal.data.text.documents import DocumentData
from foveal.errors import UserError
from foveal.models.build import build_model
from foveal.models.document import DocumentNet, Reading
from foveal.recipe import MeasureOptions, Recipe
from foveal.supervise import center_mass_loss, word_pairs
from foveal.tasks.answers import ACCURACY, answer_loss, count_classes
from foveal.tasks.base import SAMPLES, Batch, Task
from foveal.tasks.document.options import DocumentLoss, Relation, complete
from foveal.tasks.prediction import Prediction, Trained
from foveal.tasks.registry import register_task
from foveal.tasks.results import Results

if TYPE_CHECKING:
    from foveal.runs import Group
    from foveal.see.page import Section
    from foveal.tasks.report import ReportWords


@register_task("document")
class Document(Task):
    """Train and test a model ``words -> logits``, its attention between words supervised if it asks for that.

    Args:
        recipe: the whole recipe.
        source: the dataset; batches hold words, tags and label.
        model: an already built model to use instead of the recipe's.
    """

    model: DocumentNet
    summary = "a text of several sentences; its class"
    sections: ClassVar[Mapping[str, type]] = {"loss": DocumentLoss, "measure": MeasureOptions}
    usual_weights: ClassVar[Mapping[str, float]] = {"relation": 0.1}

    def __init__(self, recipe: Recipe, source: Source, model: nn.Module | None = None) -> None:
        if not isinstance(source, DocumentData):
            raise UserError(f"task document needs labelled texts; data.name={source.name} has none")
        recipe = complete(recipe)
        classes = count_classes(source)
        if model is None:
            model = _build(recipe, len(source.vocabulary), classes)
            vectors = source.embeddings()
            if vectors is not None:
                model.set_vectors(vectors)
        super().__init__(recipe, source, model, ACCURACY, lambda: MulticlassAccuracy(classes, average="micro"))
        self.relation = recipe.loss.relation or Relation()
        self.documents = source.count("test")
        tagged = source.options.form.tagger != "none" or self.relation.target == "different_word"
        if self.model.supervised and not tagged:
            raise UserError(
                f"loss.relation.target={self.relation.target} needs part-of-speech tags and data.tagger=none gives "
                "none; use another tagger, loss.relation.target=different_word, or model.name=fan_hatt_unsup"
            )
        self.mass = measure.CenterMass(self.relation.over) if self.model.focus is not None and tagged else None

    @classmethod
    def complete(cls, recipe: Recipe) -> Recipe:
        """The paper's supervision where a supervised model leaves it open."""
        return complete(recipe)

    @classmethod
    def rebuild(cls, recipe: Recipe, about: Mapping[str, Any]) -> nn.Module:
        """The recipe's model for as many words and classes as in training."""
        return _build(recipe, len(about["vocabulary"]), len(about["answers"]), trained=True)

    def loss_names(self) -> tuple[str, ...]:
        """The loss of the classes and, if supervised, that of the attention between words."""
        return ("classification", "relation") if self.model.supervised else ("classification",)

    def target(self, batch: Batch, reading: Reading) -> Tensor:
        """The pairs of words that attention should rest on, in the shape of the affinities of ``reading``."""
        tags, words = batch["tags"], batch["words"]
        if reading.place is not None:
            tags, words = (tensor.flatten(0, 1).index_select(0, reading.place) for tensor in (tags, words))
        return word_pairs(tags, words, self.relation.target)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Loss of the classes and, if supervised, that of the attention between words."""
        reading = self.model.read(batch["words"])
        losses = {"classification": answer_loss(reading.logits, batch["label"], self.recipe.loss, multilabel=False)}
        if self.model.supervised:
            assert reading.pairs is not None
            options, target = self.relation, self.target(batch, reading)
            arguments = (reading.mask, options.over, options.shape, options.r)
            losses["relation"] = center_mass_loss(reading.pairs, target, *arguments)
        return losses

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        """Loss of the classes and accuracy of one batch."""
        logits = self.model(batch["words"]).float()
        self.val_loss.update(answer_loss(logits, batch["label"], self.recipe.loss, multilabel=False), len(logits))
        self.val_score.update(logits, batch["label"])

    def on_test_start(self) -> None:
        """Forget the samples of an earlier test."""
        self.samples = {}

    def test_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        """Accuracy, center-mass, and a few documents to look at."""
        reading = self.model.read(batch["words"])
        self.test_score.update(reading.logits.float(), batch["label"])
        if self.mass is not None and reading.pairs is not None and len(reading.pairs):
            self.mass.update(reading.pairs, self.target(batch, reading), reading.mask)
        self._keep(batch)

    def _keep(self, batch: Batch) -> None:
        """Keep those documents of a batch that are among a few spread over all test documents."""
        spread = torch.linspace(0, self.documents - 1, min(SAMPLES, self.documents)).long()
        place = torch.isin(batch["index"].cpu(), spread).nonzero().flatten().to(batch["words"].device)
        if len(place):
            tensors = look(self.model, batch["words"][place]) | {"label": batch["label"][place].cpu()}
            self.samples = {
                key: torch.cat([self.samples[key], tensor]) if key in self.samples else tensor
                for key, tensor in tensors.items()
            }

    def results(self) -> Results:
        """Accuracy and, where there is attention between words, its center-mass."""
        results = super().results()
        if self.mass is not None and self.mass.update_called:
            results.add(measure.CenterMass.info, self.mass.compute())
        return results

    @classmethod
    def predict(cls, runs: Sequence[Trained], inputs: Sequence[str]) -> Prediction:
        """The class of a text or a text file, and which words and sentences counted."""
        from foveal.tasks.document.prediction import predict

        return predict(runs, inputs)

    @classmethod
    def report_words(cls, groups: Sequence[Group]) -> ReportWords:
        """Texts and their classes."""
        from foveal.tasks.document.report import report_words

        return report_words(groups)

    @classmethod
    def report_sections(cls, groups: Sequence[Group], colours: Mapping[str, int]) -> list[Section]:
        """What the models read."""
        from foveal.tasks.document.report import report_sections

        return report_sections(groups, colours)


def _build(recipe: Recipe, vocabulary: int, classes: int, *, trained: bool = False) -> DocumentNet:
    sizes = {"vocabulary": vocabulary, "classes": classes}
    model = build_model(recipe.model, sizes, needs=("vocabulary",), trained=trained)
    assert isinstance(model, DocumentNet)
    return model


def look(model: DocumentNet, words: Tensor) -> dict[str, Tensor]:
    """What a model makes of documents ``words`` (K, S, W): answers and attention by name, on the CPU."""
    with torch.no_grad(), watch(model) as seen:
        probability = model(words).float().softmax(1)
    tensors = {
        "words": words.int(),
        "probability": probability,
        "prediction": probability.argmax(1),
        "word_attention": seen["word_attention"].values.float(),
        "sentence_attention": seen["sentence_attention"].values.float().squeeze(1),
    }
    if "focus" in seen:
        pairs = seen["focus"].values.float()
        tensors["pairs"] = pairs if pairs.ndim == 4 else pairs.mean(2)  # over heads
    return {name: values.detach().cpu() for name, values in tensors.items()}
