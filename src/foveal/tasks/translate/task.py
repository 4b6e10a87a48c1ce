"""The step, loss and metrics of task ``translate``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchmetrics import MeanMetric
from torchmetrics.text import Perplexity

from foveal.data import Source
from foveal.data.text.parallel import ParallelData
from foveal.data.text.subwords import PAD, Subwords
from foveal.errors import UserError
from foveal.measure import Bleu, Chrf, MetricInfo, register_metric
from foveal.measure.translation import EXACT_MATCH
from foveal.models.beam_search import beam_search
from foveal.models.build import build_model
from foveal.models.transformer import Transformer
from foveal.recipe import Recipe
from foveal.tasks.base import Batch, Task
from foveal.tasks.prediction import Prediction, Trained
from foveal.tasks.registry import register_task
from foveal.tasks.results import Results
from foveal.tasks.translate.looking import look
from foveal.tasks.translate.options import TranslateLoss, TranslateMeasure

if TYPE_CHECKING:
    from foveal.runs import Group
    from foveal.see.page import Section
    from foveal.tasks.report import ReportWords

KEPT = 6  # test sentences for pictures
PERPLEXITY = register_metric(
    MetricInfo(
        "perplexity",
        "Perplexity",
        unit="",
        better="lower",
        about="Perplexity is how many tokens the model hesitates between, given the reference so far.",
    )
)


@register_task("translate")
class Translate(Task):
    """Train and test a model ``(source, target so far) -> logits of the next token``.

    Args:
        recipe: the whole recipe.
        source: the dataset; batches hold source and target.
        model: an already built :class:`~foveal.models.transformer.Transformer` to use instead of the recipe's.
    """

    model: Transformer
    source: ParallelData
    summary = "a sentence; its translation"
    sections: ClassVar[Mapping[str, type]] = {"loss": TranslateLoss, "measure": TranslateMeasure}

    def __init__(self, recipe: Recipe, source: Source, model: nn.Module | None = None) -> None:
        if not isinstance(source, ParallelData):
            raise UserError(
                f"task translate needs parallel text, such as data.name=number-words; data.name={source.name} has none"
            )
        model = _build(recipe, len(source.subwords)) if model is None else _checked(model, len(source.subwords))
        super().__init__(recipe, source, model, PERPLEXITY, lambda: Perplexity(ignore_index=PAD))
        options = recipe.measure
        self.bleu, self.chrf, self.exact = Bleu(options.tokenize), Chrf(), MeanMetric()
        self.bleu.signature()  # a missing library or an unknown way to cut is found before training
        count = source.count("test")
        self.kept = torch.linspace(0, count - 1, min(KEPT, count)).long()

    @classmethod
    def rebuild(cls, recipe: Recipe, about: Mapping[str, Any]) -> nn.Module:
        """The recipe's model for as many subwords as in training."""
        subwords = Subwords.load(about["subwords"], about["lowercase"])
        return _build(recipe, len(subwords), trained=True)

    def loss_names(self) -> tuple[str, ...]:
        """The loss of the next token."""
        return ("translation",)

    def _logits(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Logits float32 (N, T, V) of the tokens that follow, and these tokens (N, T)."""
        target = batch["target"]
        return self.model(batch["source"], target[:, :-1]).float(), target[:, 1:]

    def _loss(self, logits: Tensor, following: Tensor) -> Tensor:
        return F.cross_entropy(
            logits.flatten(0, 1),
            following.flatten(),
            ignore_index=PAD,
            label_smoothing=self.recipe.loss.label_smoothing,
        )

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Cross entropy of the next token, as the mean over all tokens of the batch."""
        return {"translation": self._loss(*self._logits(batch))}

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        """Loss and perplexity of one batch."""
        logits, following = self._logits(batch)
        self.val_loss.update(self._loss(logits, following), (following != PAD).sum())
        self.val_score.update(logits, following)

    def on_test_start(self) -> None:
        """Forget the samples of an earlier test."""
        self.samples = {}

    def test_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        """Perplexity, the best translations, and a few sentences to look at."""
        self.test_score.update(*self._logits(batch))
        options = self.recipe.measure
        best = beam_search(self.model, batch["source"], beams=options.beams, penalty=options.penalty)
        texts = self.source.references("test")
        references = [texts[n] for n in batch["index"].tolist()]
        translations = self.source.subwords.decode(best.tolist())
        self.bleu.update(translations, references)
        self.chrf.update(translations, references)
        same = [one == other for one, other in zip(translations, references, strict=True)]
        self.exact.update(torch.tensor(same, dtype=torch.float32, device=best.device))
        self._keep(batch, best)

    def _keep(self, batch: Batch, best: Tensor) -> None:
        """Keep what the model attends to in those sentences that are among a few spread over the test."""
        index = batch["index"].cpu()
        for row in torch.isin(index, self.kept).nonzero().flatten().tolist():
            sides = {"source": batch["source"][row], "reference": batch["target"][row, 1:], "translation": best[row]}
            real = {name: tokens[tokens != PAD] for name, tokens in sides.items()}
            matrices = look(self.model, real["source"], real["translation"])
            kept = {**real, **matrices}
            self.samples |= {f"{int(index[row])}/{name}": values.cpu() for name, values in kept.items()}

    def results(self) -> Results:
        """BLEU and chrF with sacrebleu's signatures, the share of exact translations, and perplexity."""
        results = Results()
        for metric in (self.bleu, self.chrf):
            info = replace(metric.info, about=f"{metric.info.about} sacrebleu: {metric.signature()}.")
            results.add(info, metric.compute())
        results.add(EXACT_MATCH, self.exact.compute())
        results.add(self.score, self.test_score.compute())
        return results

    @classmethod
    def predict(
        cls, runs: Sequence[Trained], inputs: Sequence[str], *, beams: int | None = None, penalty: float | None = None
    ) -> Prediction:
        """The translation of a text with its alignment, or those of all lines of a text file.

        Args:
            runs: one model.
            inputs: a text, or the name of a text file.
            beams: instead of the recipe's ``measure.beams``.
            penalty: instead of the recipe's ``measure.penalty``.
        """
        from foveal.tasks.translate.prediction import predict

        return predict(runs, inputs, beams, penalty)

    @classmethod
    def report_words(cls, groups: Sequence[Group]) -> ReportWords:
        """Sentences and their translations."""
        from foveal.tasks.translate.report import report_words

        return report_words(groups)

    @classmethod
    def report_sections(cls, groups: Sequence[Group], colours: Mapping[str, int]) -> list[Section]:
        """Some translations, and what the models attended to."""
        from foveal.tasks.translate.report import report_sections

        return report_sections(groups)


def _build(recipe: Recipe, subwords: int, *, trained: bool = False) -> Transformer:
    return _checked(build_model(recipe.model, {"subwords": subwords}, needs=("subwords",), trained=trained), subwords)


def _checked(model: nn.Module, subwords: int) -> Transformer:
    """``model`` if it is a translator with so many subwords."""
    if not isinstance(model, Transformer):
        raise UserError(
            f"task translate needs a translator, such as model.name=transformer, not {type(model).__name__}"
        )
    known = model.embedding.num_embeddings
    if known != subwords:
        raise UserError(f"the model knows {known:,} subwords and the data has {subwords:,}; they must be the same ones")
    return model
