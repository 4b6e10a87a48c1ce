"""Documents as a model read them: how much each sentence and each word counted.

A bar before a sentence is its share of the document, colour behind a word its share of the sentence. As Yang et al.,
"Hierarchical attention networks for document classification" (NAACL 2016), draw it, words of sentences that hardly
count are paler.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from PIL import Image, ImageDraw
from torch import Tensor

from foveal.errors import RunError, UserError
from foveal.see.draw._type import FINE, INK, MUTED, PAPER, font, shade, shortened
from foveal.see.draw.ring import Ring, ring, ring_picture
from foveal.see.draw.words import highlight, wrapped

NO_WORD = "There is no word in this text."

Words = list[list[str]]
"""A document: sentences of words."""


@dataclass(frozen=True)
class DocumentSamples:
    """K documents and what one model made of them.

    Attributes:
        texts: the documents as the model saw them.
        word_attention: (K, S, W), each real sentence sums to one.
        sentence_attention: (K, S), sums to one.
        prediction: (K,) index of the answer.
        probability: (K, classes).
        label: (K,) the true answer; None when unknown.
        pairs: (K, S, W, W), attention between the words of each sentence, row to column; None without such.
        answers: names of the classes.
    """

    texts: tuple[Words, ...]
    word_attention: Tensor
    sentence_attention: Tensor
    prediction: Tensor
    probability: Tensor
    label: Tensor | None = None
    pairs: Tensor | None = None
    answers: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.texts)

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> DocumentSamples:
        """Build samples from what a run keeps.

        Args:
            tensors: the attributes by name, and ``words`` (K, S, W), numbers of words, 0 for padding.
            about: ``vocabulary``, the word of every number, and ``answers``.

        Raises:
            RunError: something is missing or does not fit together.
        """
        try:
            return cls(
                texts=tuple(readable_words(document, about["vocabulary"]) for document in tensors["words"]),
                word_attention=tensors["word_attention"],
                sentence_attention=tensors["sentence_attention"],
                prediction=tensors["prediction"],
                probability=tensors["probability"],
                label=tensors.get("label"),
                pairs=tensors.get("pairs"),
                answers=tuple(map(str, about["answers"])),
            )
        except KeyError as error:
            raise RunError(f"the samples hold no {error}; write them again with `foveal test`") from None
        except (ValueError, TypeError, IndexError) as error:
            raise RunError(f"the samples cannot be drawn: {error}; write them again with `foveal test`") from None

    def answer(self, k: int) -> str:
        """The class that the model gives document ``k``."""
        return self._name(int(self.prediction[k]))

    def truth(self, k: int) -> str | None:
        """The true class of document ``k``; None when unknown."""
        return None if self.label is None else self._name(int(self.label[k]))

    def verdict(self, k: int) -> Literal["right", "wrong"] | None:
        """Whether the answer is right; None when unknown."""
        return None if self.label is None else "right" if self.answer(k) == self.truth(k) else "wrong"

    def confidence(self, k: int) -> float:
        """Probability of the answer."""
        return float(self.probability[k, int(self.prediction[k])])

    def importance(self, k: int, s: int) -> list[float]:
        """Importance of the words of sentence ``s``, 1 on average: what they receive from all, or their attention."""
        count = len(self.texts[k][s])
        if self.pairs is not None:
            return self.pairs[k, s, :count, :count].nan_to_num().sum(0).tolist()
        return (count * self.word_attention[k, s, :count]).nan_to_num().tolist()

    def strengths(self, k: int) -> tuple[list[float], list[list[float]]]:
        """Strength in [0, 1] of each sentence, and of each word in it: √share of the sentence · weight of the word.

        A word is strongest if none weighs more and it has three times the average: even attention stays pale.
        """
        count = len(self.texts[k])
        share = self.sentence_attention[k, :count].double()
        share = (share / share.max().clamp_min(1e-12)).nan_to_num() if count else share
        words = []
        for s, sentence in enumerate(self.texts[k]):
            weights = len(sentence) * self.word_attention[k, s, : len(sentence)].double()
            words.append((share[s].sqrt() * weights / weights.max().clamp_min(3)).nan_to_num().tolist())
        return share.tolist(), words

    def ring(self, k: int, s: int) -> Ring:
        """The ring of sentence ``s`` of document ``k``, with the pairs of words where there are such."""
        count = len(self.texts[k][s])
        weights = None if self.pairs is None else self.pairs[k, s, :count, :count].nan_to_num()
        return ring(self.texts[k][s], self.importance(k, s), weights)

    def _name(self, index: int) -> str:
        return self.answers[index] if 0 <= index < len(self.answers) else str(index)


def readable_words(document: Tensor, vocabulary: list[str]) -> Words:
    """Words of a document of numbers (S, W), without padding."""
    sentences = [[str(vocabulary[word]) for word in sentence if word] for sentence in document.tolist()]
    return [sentence for sentence in sentences if sentence]


def shared_documents(models: Mapping[str, DocumentSamples]) -> list[dict[str, int]]:
    """Match the documents of several models by their words: one row per document, title to index, most shared first."""
    if not models:
        raise UserError("no models to show; give at least one title with its samples")
    rows: dict[str, dict[str, int]] = defaultdict(dict)
    for title, samples in models.items():
        for k, text in enumerate(samples.texts):
            rows["\n".join(" ".join(sentence) for sentence in text)].setdefault(title, k)
    return sorted(rows.values(), key=len, reverse=True)


def main_sentence(models: Mapping[str, DocumentSamples], row: Mapping[str, int]) -> int | None:
    """The sentence with most attention among those of two words or more, the mean over models.

    Args:
        models: title of each model and its samples.
        row: title to index of one document, see :func:`shared_documents`.
    """
    title, k = next(iter(row.items()))
    text = models[title].texts[k]
    shares = torch.stack([models[title].sentence_attention[k] for title, k in row.items()]).mean(0)
    candidates = [s for s in range(len(text)) if len(text[s]) > 1]
    return max(candidates, key=lambda s: float(shares[s])) if candidates else None


# One picture -----------------------------------------------------------------


def document(samples: DocumentSamples, k: int = 0, *, title: str = "", size: int = 900) -> Image.Image:
    """Draw document ``k``: its text with the attention to sentences and words, and a ring of its main sentence.

    Args:
        samples: what the model made of it.
        k: which document.
        title: a line above it.
        size: width in pixels.

    Returns:
        An RGB picture on white.
    """
    if not 0 <= k < len(samples):
        raise UserError(f"there is no document {k} among {len(samples)}")
    main = main_sentence({"": samples}, {"": k})
    side = min(360, size // 2 - 20) if main is not None else 0
    text = _text(samples, k, size - side - 16 * bool(side), title)
    canvas = Image.new("RGB", (size, max(text.height, side + 34 if side else 0)), PAPER)
    canvas.paste(text, (0, 0))
    if main is not None:
        picture = ring_picture(samples.ring(k, main), f"sentence {main + 1}, clockwise", side)
        canvas.paste(picture, (size - side, 4))
    return canvas


def _text(samples: DocumentSamples, k: int, size: int, title: str) -> Image.Image:
    face, small, bold = font(14 * FINE), font(12 * FINE), font(16 * FINE, True)
    margin, line, pad, bar = 16 * FINE, 25 * FINE, 3 * FINE, 46 * FINE
    room = FINE * size - 2 * margin - bar - 12 * FINE
    shares, strengths = samples.strengths(k)
    sentences = [wrapped(sentence, face, room, pad) for sentence in samples.texts[k]]
    head = 54 * FINE
    height = 2 * margin + head + sum(line * len(rows) + 6 * FINE for rows in sentences) + (0 if sentences else line)
    canvas = Image.new("RGB", (FINE * size, height), PAPER)
    draw = ImageDraw.Draw(canvas)
    answer = f"{title}: {samples.answer(k)}" if title else samples.answer(k)
    truth = samples.truth(k)
    below = f"{samples.confidence(k):.0%} sure" + ("" if truth is None else f", in truth {truth}")
    draw.text((margin, margin), shortened(answer, bold, FINE * size - 2 * margin), INK, bold)
    draw.text((margin, margin + 24 * FINE), shortened(below, small, FINE * size - 2 * margin), MUTED, small)
    top = margin + head
    if not sentences:
        draw.text((margin, top), NO_WORD, MUTED, face)
    for share, rows, strength in zip(shares, sentences, strengths, strict=True):
        length = round(bar * share)
        if length:
            box = [margin + bar - length, top + 0.28 * line, margin + bar, top + 0.72 * line]
            draw.rounded_rectangle(box, 2 * FINE, shade(0.25 + 0.75 * share))
        highlight(draw, rows, strength, (margin + bar + 12 * FINE, top), line, pad, face)
        top += line * len(rows) + 6 * FINE
    return canvas.resize((size, math.ceil(height / FINE)), Image.Resampling.LANCZOS)
