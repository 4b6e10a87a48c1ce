"""BLEU and chrF of translations, by sacrebleu.

Papineni et al.: "BLEU: a method for automatic evaluation of machine translation" (ACL 2002); Popović: "chrF: character
n-gram F-score for automatic MT evaluation" (WMT 2015). Post: "A call for clarity in reporting BLEU scores"
(https://arxiv.org/abs/1804.08771) is why the numbers are sacrebleu's own, and carry its signature.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torchmetrics import Metric

from foveal.errors import UserError, unknown
from foveal.measure.info import MetricInfo, register_metric

EXACT_MATCH = register_metric(
    MetricInfo("exact_match", "Exact", about="Exact is the share of translations that are the reference to the letter.")
)


def _library() -> Any:
    try:
        import sacrebleu.metrics
    except ModuleNotFoundError as error:
        raise UserError("BLEU and chrF are computed by the library sacrebleu: install foveal[translate]") from error
    return sacrebleu.metrics


def _check(translations: Sequence[str], references: Sequence[str]) -> None:
    for name, texts in (("translations", translations), ("references", references)):
        if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
            raise UserError(f"{name} must be a list of texts, one for each sentence")
    if len(translations) != len(references):
        raise UserError(f"{len(translations)} translations and {len(references)} references: expected as many of both")


def bleu(translations: Sequence[str], references: Sequence[str], tokenize: str = "13a") -> float:
    """BLEU of a whole test set, from 0 to 100.

    Args:
        translations: texts, not cut into tokens.
        references: one for each.
        tokenize: how sacrebleu cuts them: ``13a``, ``intl``, ``char``, ``none`` ….

    >>> round(bleu(["a man rides a big horse"], ["a man rides a horse"]), 1)
    53.7
    """
    _check(translations, references)
    return _bleu(tokenize).corpus_score(list(translations), [list(references)]).score


def _bleu(tokenize: str) -> Any:
    library = _library()
    if tokenize not in library.BLEU.TOKENIZERS:
        raise unknown("tokenize", tokenize, library.BLEU.TOKENIZERS)
    return library.BLEU(tokenize=tokenize)


def chrf(translations: Sequence[str], references: Sequence[str]) -> float:
    """chrF2 of a whole test set, from 0 to 100; arguments as for :func:`bleu`.

    >>> round(chrf(["a man rides a big horse"], ["a man rides a horse"]), 1)
    74.2
    """
    _check(translations, references)
    return _library().CHRF().corpus_score(list(translations), [list(references)]).score


class _Texts(Metric):
    """Keeps translations and references, as bytes in tensors, so that processes can exchange them."""

    is_differentiable = False
    higher_is_better = True
    full_state_update = False

    translations: list[Tensor]
    references: list[Tensor]

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        for name in ("translations", "references"):
            self.add_state(name, [], dist_reduce_fx="cat")

    def update(self, translations: Sequence[str], references: Sequence[str]) -> None:
        """Add sentences: texts, not cut into tokens, one reference for each."""
        _check(translations, references)
        for state, texts in ((self.translations, translations), (self.references, references)):
            raw = "".join(f"{' '.join(text.split())}\n" for text in texts).encode()
            state.append(torch.tensor(list(raw), dtype=torch.uint8, device=self.device))

    def texts(self) -> tuple[list[str], list[str]]:
        """All translations and references so far."""
        translations, references = (
            [] if isinstance(state, list) and not state else _lines(state)
            for state in (self.translations, self.references)
        )
        return translations, references


def _lines(state: list[Tensor] | Tensor) -> list[str]:
    whole = torch.cat(state) if isinstance(state, list) else state
    return bytes(whole.tolist()).decode().split("\n")[:-1]


class Bleu(_Texts):
    """:func:`bleu` over a whole test set.

    Args:
        tokenize: how sacrebleu cuts the texts.
        **kwargs: of :class:`torchmetrics.Metric`.

    >>> metric = Bleu()
    >>> metric.update(["a man rides a horse"], ["a man rides a horse"])
    >>> metric.compute()
    tensor(100.)
    >>> metric.signature().split("|")[:2]
    ['nrefs:1', 'case:mixed']
    """

    info: ClassVar[MetricInfo] = register_metric(
        MetricInfo("bleu", "BLEU", unit="", about="BLEU counts groups of up to four words that a reference has too.")
    )

    def __init__(self, tokenize: str = "13a", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.tokenize = tokenize

    def compute(self) -> Tensor:
        """BLEU of all sentences so far, a scalar; nan if there is none."""
        translations, references = self.texts()
        return torch.tensor(bleu(translations, references, self.tokenize) if translations else torch.nan)

    def signature(self) -> str:
        """How sacrebleu computed it."""
        metric = _bleu(self.tokenize)
        metric.corpus_score(["a"], [["a"]])  # says how many references there are
        return str(metric.get_signature())


class Chrf(_Texts):
    """:func:`chrf` over a whole test set; see :class:`Bleu`.

    >>> metric = Chrf()
    >>> metric.update(["ein Pferd"], ["ein Pferd"])
    >>> metric.compute()
    tensor(100.)
    """

    info: ClassVar[MetricInfo] = register_metric(
        MetricInfo("chrf", "chrF", unit="", about="chrF counts groups of up to six letters that a reference has too.")
    )

    def compute(self) -> Tensor:
        """chrF2 of all sentences so far, a scalar; nan if there is none."""
        translations, references = self.texts()
        return torch.tensor(chrf(translations, references) if translations else torch.nan)

    def signature(self) -> str:
        """How sacrebleu computed it."""
        metric = _library().CHRF()
        metric.corpus_score(["a"], [["a"]])
        return str(metric.get_signature())
