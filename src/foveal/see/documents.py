"""Documents as a model read them: how much each sentence and each word counted, as a picture and for a page.

A bar before a sentence is its share of the document, colour behind a word its share of the sentence. As Yang et al.,
"Hierarchical attention networks for document classification" (NAACL 2016), draw it, words of sentences that hardly
count are paler.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path

import torch
from PIL import Image, ImageDraw
from safetensors import SafetensorError, safe_open
from torch import Tensor

from foveal.errors import RunError, UserError
from foveal.see._type import FINE, INK, MUTED, PAPER, font, shade, shortened
from foveal.see.cards import mark
from foveal.see.svg import colour, slots
from foveal.see.words import highlight, ring_svg, text_html, wrapped
from foveal.see.words import words as draw_words

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
    def load(cls, path: str | Path) -> DocumentSamples:
        """Read ``samples.safetensors`` of a run of task ``document``; a RunError says what is wrong with it."""
        try:
            with safe_open(path, "pt") as file:
                found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
                about = {name: json.loads(text) for name, text in (file.metadata() or {}).items()}
            vocabulary = about["vocabulary"]
            texts = tuple(readable_words(document, vocabulary) for document in found["words"])
            names = ("word_attention", "sentence_attention", "prediction", "probability")
            required = {name: found[name] for name in names}
            optional = {name: found.get(name) for name in ("label", "pairs")}
            return cls(texts, **required, **optional, answers=tuple(map(str, about["answers"])))  # type: ignore[arg-type]
        except KeyError as error:
            raise RunError(f"{path} holds no {error}; write it again with `foveal test`") from None
        except (OSError, SafetensorError, ValueError, TypeError, IndexError) as error:
            raise RunError(f"{path} cannot be read: {error}") from None

    def answer(self, k: int) -> str:
        """The class that the model gives document ``k``."""
        return self._name(int(self.prediction[k]))

    def truth(self, k: int) -> str | None:
        """The true class of document ``k``; None when unknown."""
        return None if self.label is None else self._name(int(self.label[k]))

    def verdict(self, k: int) -> str | None:
        """``right`` or ``wrong``; None when nobody knows."""
        return None if self.label is None else "right" if self.answer(k) == self.truth(k) else "wrong"

    def confidence(self, k: int) -> float:
        """Probability of the answer."""
        return float(self.probability[k, int(self.prediction[k])])

    def importance(self, k: int, s: int) -> list[float]:
        """Importance of the words of sentence ``s``, 1 on average: what they receive from all, or their attention."""
        count = len(self.texts[k][s])
        if self.pairs is not None:
            return self.pairs[k, s, :count, :count].sum(0).tolist()
        return (count * self.word_attention[k, s, :count]).tolist()

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

    def _name(self, index: int) -> str:
        return self.answers[index] if index < len(self.answers) else str(index)


def holds_documents(path: str | Path) -> bool:
    """Whether a file of samples is of a run on texts; one that cannot be read is not."""
    try:
        with safe_open(path, "pt") as file:
            return "words" in file.keys()  # noqa: SIM118 (not a mapping)
    except (OSError, SafetensorError):
        return False


def readable_words(document: Tensor, vocabulary: list[str]) -> Words:
    """Words of a document of numbers (S, W), without padding."""
    sentences = [[vocabulary[word] for word in sentence if word] for sentence in document.tolist()]
    return [sentence for sentence in sentences if sentence]


def main_sentence(models: Mapping[str, DocumentSamples], row: Mapping[str, int]) -> int | None:
    """The sentence that most attention goes to, among those of two words or more, the mean over models."""
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
    ring = min(360, size // 2 - 20) if main is not None else 0
    text = _text(samples, k, size - ring - 16 * bool(ring), title)
    canvas = Image.new("RGB", (size, max(text.height, ring + 34 if ring else 0)), PAPER)
    canvas.paste(text, (0, 0))
    if main is not None:
        weights = None if samples.pairs is None else samples.pairs[k, main]
        count = len(samples.texts[k][main])
        drawn = draw_words(
            samples.texts[k][main],
            samples.importance(k, main),
            weights=None if weights is None else weights[:count, :count],
            title=f"sentence {main + 1}, clockwise",
            size=ring,
        )
        canvas.paste(drawn, (size - ring, 4))
    return canvas


def _text(samples: DocumentSamples, k: int, size: int, title: str) -> Image.Image:
    face, small, bold = font(14 * FINE), font(12 * FINE), font(16 * FINE, True)
    margin, line, pad, bar = 16 * FINE, 25 * FINE, 3 * FINE, 46 * FINE
    room = FINE * size - 2 * margin - bar - 12 * FINE
    shares, strengths = samples.strengths(k)
    rows = [wrapped(sentence, face, room, pad) for sentence in samples.texts[k]]
    head = 54 * FINE
    height = 2 * margin + head + sum(line * len(row) + 6 * FINE for row in rows) + (0 if rows else line)
    canvas = Image.new("RGB", (FINE * size, height), PAPER)
    draw = ImageDraw.Draw(canvas)
    said = f"{title}: {samples.answer(k)}" if title else samples.answer(k)
    truth = samples.truth(k)
    below = f"{samples.confidence(k):.0%} sure" + ("" if truth is None else f", in truth {truth}")
    draw.text((margin, margin), shortened(said, bold, FINE * size - 2 * margin), INK, bold)
    draw.text((margin, margin + 24 * FINE), shortened(below, small, FINE * size - 2 * margin), MUTED, small)
    top = margin + head
    if not rows:
        draw.text((margin, top), NO_WORD, MUTED, face)
    for share, row, strength in zip(shares, rows, strengths, strict=True):
        long = round(bar * share)
        if long:
            box = [margin + bar - long, top + 0.28 * line, margin + bar, top + 0.72 * line]
            draw.rounded_rectangle(box, 2 * FINE, shade(0.25 + 0.75 * share))
        highlight(draw, row, strength, (margin + bar + 12 * FINE, top), line, pad, face)
        top += line * len(row) + 6 * FINE
    return canvas.resize((size, math.ceil(height / FINE)), Image.Resampling.LANCZOS)


# For a page ------------------------------------------------------------------


def shared_documents(models: Mapping[str, DocumentSamples]) -> list[dict[str, int]]:
    """Match the documents of several models by their words: one row a document, title to index, most shared first."""
    if not models:
        raise UserError("no models to show; give at least one title with its samples")
    rows: dict[str, dict[str, int]] = defaultdict(dict)
    for title, samples in models.items():
        for k, text in enumerate(samples.texts):
            rows["\n".join(" ".join(sentence) for sentence in text)].setdefault(title, k)
    return sorted(rows.values(), key=len, reverse=True)


def documents_html(
    models: Mapping[str, DocumentSamples], *, limit: int = 4, colours: Mapping[str, int] | None = None
) -> str:
    """The same documents through the eyes of several models, side by side, as an HTML fragment.

    Args:
        models: title of each model and what it did; documents are matched by their words.
        limit: most documents.
        colours: slot of each title, see :func:`foveal.see.svg.slots`.
    """
    slot, cards = colours or slots(models), []
    rows = [row for row in shared_documents(models) if _has_words(models, row)]
    for row in rows[:: max(1, len(rows) // limit)][:limit]:  # spread over the classes
        title, k = next(iter(row.items()))
        truth, main = models[title].truth(k), main_sentence(models, row)
        ask = f'<p class="ask">{escape(truth)}<span>is the true class</span></p>' if truth is not None else ""
        cells = []
        for title, samples in models.items():
            ink = colour(slot[title])
            who = f'<p class="who" style="--is:{ink}" title="{escape(title)}">{escape(title)}</p>'
            if title in row:
                verdict = samples.verdict(row[title]) or "unknown"
                cells.append(f'<div class="look {verdict}">{who}{_look(samples, row[title], main, ink)}</div>')
            else:
                cells.append(f'<div class="look">{who}<p class="none">not recorded for this document</p></div>')
        cards.append(f'<article class="sample document">{ask}<div class="cells">{"".join(cells)}</div></article>')
    return f'<div class="documents">{"".join(cards)}</div>'


def _has_words(models: Mapping[str, DocumentSamples], row: Mapping[str, int]) -> bool:
    title, k = next(iter(row.items()))
    return bool(models[title].texts[k])


def _look(samples: DocumentSamples, k: int, main: int | None, ink: str) -> str:
    verdict = samples.verdict(k)
    said = f"{escape(samples.answer(k))} <small>{100 * samples.confidence(k):.0f} %</small>"
    answer = f'<p class="answer">{mark(verdict)}{said}</p>'
    ring = ""
    if main is not None:
        count, pairs = len(samples.texts[k][main]), None
        if samples.pairs is not None:
            pairs = samples.pairs[k, main, :count, :count]
        ring = ring_svg(samples.texts[k][main], samples.importance(k, main), weights=pairs, ink=ink)
    shares, strengths = samples.strengths(k)
    lines = []
    for share, sentence, strength in zip(shares, samples.texts[k], strengths, strict=True):
        bar = f'<i style="width:{100 * share:.0f}%;background:{ink}"></i>'
        lines.append(f'<p><span class="share">{bar}</span>{text_html(sentence, strength, 1.0)}</p>')
    return f'{answer}{ring}<div class="text" style="--is:{ink}">{"".join(lines)}</div>'
