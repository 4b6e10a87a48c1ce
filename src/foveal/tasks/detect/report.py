"""The report of task ``detect``: some test images, and what each model finds in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from markupsafe import Markup

from foveal.runs import Group
from foveal.runs.folder import Stored
from foveal.see import Found, boxes
from foveal.see.page import Section, cards, figure, picture
from foveal.tasks.detect.samples import Sample, unpacked
from foveal.tasks.report import ReportWords

LIMIT = 6  # images
MOST_MODELS = 8  # beside each other
SIZE = 320  # pixels of a picture
SURE = 0.5  # score of a detection that is drawn


def report_words(groups: Sequence[Group]) -> ReportWords:
    """Pictures, and what was asked."""
    stored = next((group.samples for group in groups if group.samples is not None), None)
    asked = "what is where" if stored is None else stored.about.get("asked", "what is where")
    return ReportWords(
        doing=f"were shown pictures and asked for {asked}",
        things="pictures",
        headlines={"box_ap": "{who} reached an AP of {value}."},
    )


def report_sections(groups: Sequence[Group]) -> list[Section]:
    """The same test images through the eyes of all models; the AP of every class is in the table of parts."""
    stored = {group.name: group.samples for group in groups if group.samples is not None}
    if not stored:
        return []
    first = next(iter(stored.values()))
    same = {name: samples for name, samples in stored.items() if _same(samples, first)}
    intro = f"The true objects, and those that each model finds with a score of {SURE:.0%} or more."
    if others := [name for name in stored if name not in same]:
        intro += f" Not shown, because other images were recorded: {', '.join(others)}."
    if len(same) > MOST_MODELS:
        intro += f" The first {MOST_MODELS} of {len(same)} models are shown."
        same = dict(list(same.items())[:MOST_MODELS])
    return [Section("What they find", _cards(same, first), intro)]


def _same(samples: Stored, first: Stored) -> bool:
    """Whether two models were shown the same images and asked for the same classes."""
    alike = samples.about.get("answers") == first.about.get("answers")
    return alike and torch.equal(samples.tensors["image"], first.tensors["image"])


def _cards(models: Mapping[str, Stored], first: Stored) -> Markup:
    names = first.about["answers"]
    samples = {name: unpacked(stored.tensors) for name, stored in models.items()}
    items = []
    for k, sample in enumerate(unpacked(first.tensors)[:LIMIT]):
        shown = [_figure(sample, sample.true, names, f"objects of test image {k + 1}", "truth")]
        for name, others in samples.items():
            found = _sure(others[k].found)
            caption = f"{name}: {len(found.labels)} found"
            shown.append(_figure(sample, found, names, f"what {name} finds in test image {k + 1}", caption))
        items.append((f"test image {k + 1}", Markup("").join(shown)))
    return cards(items)


def _figure(sample: Sample, found: Found, names: Sequence[str], alt: str, caption: str) -> Markup:
    return figure(picture(boxes(sample.image, found, names, size=SIZE), alt, SIZE), caption)


def _sure(found: Found) -> Found:
    assert found.scores is not None
    keep = found.scores >= SURE
    return Found(found.boxes[keep], found.labels[keep], found.scores[keep])
