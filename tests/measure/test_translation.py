"""BLEU and chrF against sacrebleu itself, over several updates."""

import builtins

import pytest
import sacrebleu
import torch

from foveal.errors import UserError
from foveal.measure import Bleu, Chrf, bleu, chrf

ONES = ["Ein Mann reitet auf einem Pferd.", "Der Hund schläft, tief und fest.", ""]
OTHERS = ["Ein Mann reitet ein Pferd.", "Der Hund schläft tief und fest.", "Ja!"]


def test_numbers_are_those_of_sacrebleu():
    metrics = Bleu(), Chrf()
    for metric in metrics:
        metric.update(ONES[:2], OTHERS[:2])
        metric.update(ONES[2:], OTHERS[2:])
    assert float(metrics[0].compute()) == pytest.approx(sacrebleu.corpus_bleu(ONES, [OTHERS]).score)
    assert float(metrics[1].compute()) == pytest.approx(sacrebleu.corpus_chrf(ONES, [OTHERS]).score)
    assert bleu(ONES, OTHERS) == pytest.approx(float(metrics[0].compute()))
    assert bleu(ONES, OTHERS, "char") != pytest.approx(bleu(ONES, OTHERS))
    assert chrf(OTHERS, OTHERS) == 100
    assert metrics[0].texts() == (ONES, OTHERS)
    assert f"version:{sacrebleu.__version__}" in metrics[0].signature()
    assert "tok:13a" in metrics[0].signature()
    assert "nc:6" in metrics[1].signature()


def test_nothing_and_wrong_things():
    assert torch.isnan(Bleu().compute())
    with pytest.raises(UserError, match="2 translations and 1 references"):
        Bleu().update(["a", "b"], ["a"])
    with pytest.raises(UserError, match="must be a list of texts"):
        chrf("abc", "abc")


def test_without_the_library(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("sacrebleu"):
            raise ModuleNotFoundError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UserError, match=r"install foveal\[translate\]"):
        Bleu().signature()
