"""Sections that explain their pictures: what a task hands to the report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from foveal.see.draw.document import DocumentSamples
from foveal.see.draw.samples import Samples
from foveal.see.draw.top_classes import TopClasses
from foveal.see.page.cards import charts, class_map_cards, document_cards, sample_cards
from foveal.see.page.page import Section


def samples_section(
    models: Mapping[str, Samples], *, limit: int = 6, colours: Mapping[str, int] | None = None
) -> Section:
    """What each model saw in the same images, see :func:`~foveal.see.page.sample_cards`."""
    attended = any(samples.map is not None for samples in models.values())
    intro = []
    if attended:
        intro.append(
            "The large picture is the input, darkened where attention is low; the small ones are the maps of the "
            "gates, first to last, one square per position. Each is scaled to its own maximum."
        )
    if any(samples.mask is not None for samples in models.values()):
        intro.append("A white frame marks the target for you; no model sees it.")
    intro.append(f"{'A red frame' if attended else 'Red'} is a wrong answer; the percentage is how sure the model was.")
    title = f"What {_who(models)} saw"
    return Section(title, sample_cards(models, limit=limit, colours=colours), " ".join(intro))


def documents_section(
    models: Mapping[str, DocumentSamples], *, limit: int = 4, colours: Mapping[str, int] | None = None
) -> Section:
    """What each model read in the same texts, see :func:`~foveal.see.page.document_cards`."""
    intro = (
        "The ring is the sentence that counted most, clockwise from the top: the longer a word's bar, the more "
        "important it is, and lines across join words that attend to each other. Below it is the whole text as the "
        "models saw it: a bar for the share of each sentence, colour for that of each word. The percentage is how sure "
        "the model was."
    )
    return Section(f"What {_who(models)} read", document_cards(models, limit=limit, colours=colours), intro)


def class_maps_section(
    models: Mapping[str, tuple[Samples, TopClasses]], *, limit: int = 6, colours: Mapping[str, int] | None = None
) -> Section:
    """Where each model looks for its best-scoring classes, see :func:`~foveal.see.page.class_map_cards`.

    Models whose images or classes differ from those of the first are left out; the introduction says so.
    """
    first = next(iter(models.values()))[0]
    same = {
        title: top
        for title, (samples, top) in models.items()
        if torch.equal(samples.image, first.image) and samples.answers == first.answers
    }
    intro = (
        "For each of a model's best-scoring classes, from left to right, where it looks for it; the true class is "
        "framed. The less the maps of two classes overlap, the less they are confused. A_ch or Grad-CAM below a "
        "model's name is what its maps are."
    )
    if others := [title for title in models if title not in same]:
        intro += f" Not shown, because other images were recorded: {', '.join(others)}."
    body = class_map_cards(same, first.image, first.label, names=first.answers, limit=limit, colours=colours)
    return Section(f"Where {_who(same)} look{'s' if len(same) == 1 else ''} for each class", body, intro)


def curves_section(figures: Iterable[str]) -> Section | None:
    """Charts side by side; None when there is nothing to draw."""
    body = charts(figures)
    return Section("In curves", body) if body else None


def _who(models: Mapping[str, object]) -> str:
    return "they" if len(models) > 1 else "it"
