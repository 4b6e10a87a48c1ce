"""The recipe sections of task ``translate``."""

from __future__ import annotations

from dataclasses import dataclass

from foveal.errors import UserError
from foveal.recipe import LossOptions, MeasureOptions
from foveal.typed import check_least


@dataclass
class TranslateLoss(LossOptions):
    """What is minimised: ``translation``, the cross entropy of the next token.

    Attributes:
        label_smoothing: of the cross entropy.
    """

    label_smoothing: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, "loss", label_smoothing=0)
        if self.label_smoothing >= 1:
            raise UserError(f"loss.label_smoothing: expected less than 1, got {self.label_smoothing:g}")


@dataclass
class TranslateMeasure(MeasureOptions):
    """How sentences are translated in the test and by ``foveal predict``, and how translations are compared.

    Attributes:
        beams: number of beams of the beam search; 1 is greedy search.
        penalty: exponent of the length penalty; with a larger one translations are longer.
        tokenize: how sacrebleu tokenizes texts for BLEU: ``13a``, ``intl``, ``char``, ``none`` ….
    """

    beams: int = 4
    penalty: float = 0.6
    tokenize: str = "13a"

    def __post_init__(self) -> None:
        check_least(self, "measure", beams=1, penalty=0)
