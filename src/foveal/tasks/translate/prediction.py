"""Translate a text or a text file with a trained model."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from foveal.data.text.parallel_lines import lines
from foveal.data.text.subwords import END, PAD, UNKNOWN, Subwords
from foveal.data.text.token_batches import cuts
from foveal.errors import UserError
from foveal.models.beam_search import beam_search
from foveal.models.transformer import Transformer
from foveal.tasks.prediction import Prediction, Trained, text_file
from foveal.tasks.translate.looking import families, look
from foveal.typed import check_least

SLOW = 500  # tokens from which on a sentence takes long: the time grows with their square
TOKENS = 2048  # of a file that are translated at the same time, with padding
NO_WORD = "There is no word in this text."


def predict(runs: Sequence[Trained], inputs: Sequence[str], beams: int | None, penalty: float | None) -> Prediction:
    """The translation of a text with its alignment, or those of all lines of a text file.

    Args:
        runs: one model.
        inputs: a text, or the name of a text file.
        beams: instead of the recipe's.
        penalty: instead of the recipe's.
    """
    if len(inputs) != 1:
        raise UserError("this model translates one text or one text file; put quotes around a text")
    if len(runs) > 1:
        raise UserError("task translate predicts with one run at a time; leave out --beside")
    run = runs[0]
    file = text_file(inputs[0], f".{run.about['source']}", ".gz")
    options = run.recipe.measure
    translator = Translator(
        run, options.beams if beams is None else beams, options.penalty if penalty is None else penalty
    )
    if file is not None:
        return _file(translator, file, _longest(run))
    _warn_if_slow(translator.subwords.encode(inputs))
    (source, translation), title = translator.tokens(inputs), run.recipe.title
    text = translator.subwords.decode([translation[0].tolist()])[0]
    if len(source[0]) < 2:  # its end alone
        return Prediction(lines={title: [""]}, remark=NO_WORD, data={"translation": ""}, stem="text-translated")
    return Prediction(
        lines={title: [text]},
        picture=_picture(translator, source[0], translation[0]),
        remark=_remark(run, source[0]),
        data={"source": inputs[0], "translation": text},
        stem="text-translated",
    )


class Translator:
    """A trained model with its vocabulary and the settings of its search."""

    def __init__(self, run: Trained, beams: int, penalty: float) -> None:
        assert isinstance(run.model, Transformer)
        self.title, self.model, self.beams, self.penalty = run.recipe.title, run.model, beams, penalty
        check_least(self, "", beams=1, penalty=0)
        self.subwords = Subwords.load(run.about["subwords"], run.about["lowercase"])

    def tokens(self, texts: Sequence[str]) -> tuple[list[Tensor], list[Tensor]]:
        """Tokens of each text, and of its translation, both with their end."""
        sources = [torch.tensor([*row, END]) for row in self.subwords.encode(texts)]
        padded = pad_sequence(sources, batch_first=True, padding_value=PAD)
        best = beam_search(self.model, padded, beams=self.beams, penalty=self.penalty)
        return sources, [row[row != PAD] for row in best]

    def texts(self, sentences: Sequence[str]) -> list[str]:
        """The translation of each; of one without a word, an empty text."""
        some = [n for n, sentence in enumerate(sentences) if sentence.strip()]
        translations = [""] * len(sentences)
        if some:
            rows = self.tokens([sentences[n] for n in some])[1]
            for n, text in zip(some, self.subwords.decode([row.tolist() for row in rows]), strict=True):
                translations[n] = text
        return translations


def _file(translator: Translator, file: Path, longest: int) -> Prediction:
    """Line by line; an empty line stays one. Those with more tokens than ``longest`` are counted."""
    sentences = list(lines(file, advice="save it as UTF-8"))
    if any("\0" in sentence for sentence in sentences):
        raise UserError(f"{file} is no text file: it has null characters; this model reads texts and text files")
    rows = translator.subwords.encode(sentences)
    _warn_if_slow(rows)
    by_length = sorted(range(len(rows)), key=lambda n: len(rows[n]))
    translations = [""] * len(sentences)
    for block in np.split(by_length, cuts(np.array([len(rows[n]) + 1 for n in by_length]), TOKENS)):
        for n, text in zip(block, translator.texts([sentences[n] for n in block]), strict=True):
            translations[n] = text
    first = next((text for text in translations if text), None)
    count = f"{len(sentences):,} line{'' if len(sentences) == 1 else 's'}"
    count += ", without a word" if first is None else f"; the first translation: {first}"
    return Prediction(
        lines={translator.title: [count if sentences else "The file is empty."]},
        text="".join(f"{text}\n" for text in translations),
        remark=_file_remark(rows, longest),
        stem=f"{file.name.removesuffix('.gz').rpartition('.')[0] or file.name}-translated",
    )


def _picture(translator: Translator, source: Tensor, translation: Tensor) -> Image.Image | None:
    """All terms of the attention from the translation to the sentence, and below it the other kinds."""
    pieces = [translator.subwords.pieces(tokens.tolist()) for tokens in (source, translation)]
    if not pieces[1]:
        return None
    pictures = list(families(look(translator.model, source, translation), *pieces).values())
    size = max(picture.width for picture in pictures), sum(picture.height for picture in pictures)
    canvas, top = Image.new("RGB", size, "white"), 0
    for picture in pictures:
        canvas.paste(picture, (0, top))
        top += picture.height
    return canvas


def _warn_if_slow(rows: Sequence[Sequence[int]]) -> None:
    """Say before the search that it will take long."""
    most = max(map(len, rows), default=0)
    if most > SLOW:
        advice = "this takes long; in a text file, give every sentence a line of its own"
        warnings.warn(f"{most:,} tokens are translated as one sentence, and {advice}", stacklevel=2)


def _remark(run: Trained, source: Tensor) -> str:
    """What may be wrong with the sentence."""
    remarks = []
    unknown = int((source == UNKNOWN).sum())
    if unknown:
        characters = "a character" if unknown == 1 else f"{unknown} characters"
        remarks.append(f"The model has never seen {characters} of this text.")
    if len(source) > (longest := _longest(run)) + 1:
        remarks.append(f"The text has {len(source) - 1} tokens, more than any the model was trained on ({longest}).")
    return " ".join(remarks)


def _file_remark(rows: Sequence[Sequence[int]], longest: int) -> str:
    """What may be wrong with some lines of a file, given as tokens."""
    counts = {
        "with characters that the model has never seen": sum(UNKNOWN in row for row in rows),
        f"longer than any that the model was trained on ({longest} tokens)": sum(len(row) > longest for row in rows),
    }
    return " ".join(f"Lines {what}: {count:,}." for what, count in counts.items() if count)


def _longest(run: Trained) -> int:
    """Tokens of the longest sentence in training; of runs that do not know it, the recipe's limit."""
    return run.about.get("longest", run.recipe.data.get("longest", 250))
