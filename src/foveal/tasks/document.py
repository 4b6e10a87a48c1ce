"""Task ``document``: a text of several sentences; predict its class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torchmetrics.classification import MulticlassAccuracy

from foveal import measure
from foveal.attention.records.record import watch
from foveal.data import Source
from foveal.data.documents import DocumentData
from foveal.data.encode import Form, numbered, prepare
from foveal.errors import UserError
from foveal.models import create_model, list_models
from foveal.models.document import DocumentNet, Reading
from foveal.models.registry import accepts
from foveal.recipe import Recipe, Relation
from foveal.see.documents import DocumentSamples
from foveal.supervise import center_mass_loss, word_pairs
from foveal.tasks.task import SAMPLES, Task, answer_loss, count_classes


def build_document_net(recipe: Recipe, vocabulary: int, classes: int) -> DocumentNet:
    """The recipe's model, sized for its data."""
    options = {k: v for k, v in recipe.model.items() if k != "name"}
    for given in ("vocabulary", "classes"):
        if given in options:
            raise UserError(f"model.{given} comes from the data; leave it out of the recipe")
    name = recipe.model["name"]
    if name in list_models() and not accepts(name, "vocabulary"):
        raise UserError(f"model {name} does not read documents; use hatt, fan_hatt_unsup or fan_hatt_sup")
    model = create_model(name, vocabulary=vocabulary, classes=classes, **options)
    assert isinstance(model, DocumentNet)
    return model


class Document(Task):
    """Train and test a model ``words -> logits``, its attention between words supervised if it asks for that.

    Args:
        recipe: the whole recipe.
        source: the dataset; batches hold words, tags and label.
        model: an already built model to use instead of the recipe's.
    """

    model: DocumentNet

    def __init__(self, recipe: Recipe, source: Source, model: nn.Module | None = None) -> None:
        if not isinstance(source, DocumentData):
            raise UserError(f"task document needs labelled texts; data.name={source.name} has none")
        classes = count_classes(source)
        if model is None:
            model = build_document_net(recipe, len(source.vocabulary), classes)
            vectors = source.embeddings()
            if vectors is not None:
                model.set_vectors(vectors)
        super().__init__(recipe, source, model, "accuracy", lambda: MulticlassAccuracy(classes, average="micro"))
        if self.model.supervised and recipe.loss.relation is None:  # the run folder shall have it
            self.recipe = recipe = replace(recipe, loss=replace(recipe.loss, relation=Relation()))
        self.relation = recipe.loss.relation or Relation()
        self.form = source.options.form
        tagged = self.form.tagger != "none" or self.relation.target == "different_word"
        if self.model.supervised and not tagged:
            raise UserError(
                f"loss.relation.target={self.relation.target} needs part-of-speech tags and data.tagger=none gives "
                "none; use another tagger, loss.relation.target=different_word, or model.name=fan_hatt_unsup"
            )
        if recipe.loss.relation is not None and not self.model.supervised:
            raise UserError(
                f"loss.relation has no meaning for model {recipe.model['name']}; use fan_hatt_sup or leave it out"
            )
        self.mass = measure.CenterMass(self.relation.over) if self.model.focus is not None and tagged else None

    @classmethod
    def rebuild(cls, recipe: Recipe, about: Mapping[str, Any]) -> nn.Module:
        """The recipe's model for as many words and classes as in training."""
        return build_document_net(recipe, len(about["vocabulary"]), len(about["answers"]))

    def about(self) -> dict[str, Any]:
        """Names of the classes, the vocabulary, and how a text is cut."""
        assert isinstance(self.source, DocumentData)
        return {
            "answers": self.source.answers,
            "multilabel": False,
            "vocabulary": self.source.vocabulary,
            "form": vars(self.form),
        }

    def target(self, batch: Mapping[str, Tensor], reading: Reading) -> Tensor:
        """The pairs of words that attention should rest on, in the shape of the affinities of ``reading``."""
        tags, words = batch["tags"], batch["words"]
        if reading.place is not None:
            tags, words = (given.flatten(0, 1).index_select(0, reading.place) for given in (tags, words))
        return word_pairs(tags, words, self.relation.target)

    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        """Loss of one batch: that of the classes and, if supervised, that of the attention between words."""
        reading = self.model.read(batch["words"])
        loss = answer_loss(reading.logits, batch["label"], self.recipe.loss, multilabel=False)
        if not self.model.supervised:
            return loss
        how = self.relation
        assert reading.pairs is not None
        target = self.target(batch, reading)
        return loss + how.weight * center_mass_loss(reading.pairs, target, reading.mask, how.over, how.shape, how.r)

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        """Loss of the classes and accuracy of one batch."""
        logits = self.model(batch["words"]).float()
        self.val_loss.update(answer_loss(logits, batch["label"], self.recipe.loss, multilabel=False), len(logits))
        self.val_score.update(logits, batch["label"])

    def test_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        """Accuracy, center-mass, and a few documents to look at."""
        reading = self.model.read(batch["words"])
        self.test_score.update(reading.logits.float(), batch["label"])
        if self.mass is not None and reading.pairs is not None and len(reading.pairs):
            self.mass.update(reading.pairs, self.target(batch, reading), reading.mask)
        self._keep(batch)

    def _keep(self, batch: Mapping[str, Tensor]) -> None:
        """Keep those documents of a batch that are among a few spread over all test documents."""
        assert isinstance(self.source, DocumentData)
        count = self.source.count("test")
        spread = torch.linspace(0, count - 1, min(SAMPLES, count)).long()
        place = torch.isin(batch["index"].cpu(), spread).nonzero().flatten().to(batch["words"].device)
        if len(place):
            seen = look(self.model, batch["words"][place]) | {"label": batch["label"][place].cpu()}
            self.samples = {k: torch.cat([self.samples[k], v]) if k in self.samples else v for k, v in seen.items()}

    def on_test_start(self) -> None:
        """Forget what an earlier test kept."""
        self.samples = {}

    def results(self) -> dict[str, Any]:
        """Accuracy and, where there is attention between words, its center-mass."""
        found = {"accuracy": float(self.test_score.compute())}
        if self.mass is not None and self.mass.update_called:
            found["center_mass"] = float(self.mass.compute())
        return {"metrics": found}


def look(model: DocumentNet, words: Tensor) -> dict[str, Tensor]:
    """What a model makes of documents ``words`` (K, S, W): answers and attention by name, on the CPU."""
    with torch.no_grad(), watch(model) as seen:
        probability = model(words).float().softmax(1)
    found = {
        "words": words.int(),
        "probability": probability,
        "prediction": probability.argmax(1),
        "word_attention": seen["word_attention"].values.float(),
        "sentence_attention": seen["sentence_attention"].values.float().squeeze(1),
    }
    if "focus" in seen:
        pairs = seen["focus"].values.float()
        found["pairs"] = pairs if pairs.ndim == 4 else pairs.mean(2)  # over heads
    return {name: values.detach().cpu() for name, values in found.items()}


def read_text(model: DocumentNet, about: Mapping[str, Any], text: str) -> DocumentSamples:
    """What a trained model makes of a text."""
    form = Form(**about["form"] | {"tagger": "none"})  # tags are for training
    prepared = prepare(text, form)
    found = look(model, torch.from_numpy(numbered([prepared], about["vocabulary"], form)[0]))
    del found["words"]  # the text as it was given also has the words that the model does not know
    return DocumentSamples(([words for words, _ in prepared],), **found, answers=tuple(about["answers"]))
