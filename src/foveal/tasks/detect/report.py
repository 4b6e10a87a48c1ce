"""The report of task ``detect``: test images with what each model finds and what regions attend to, and recall."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

import torch
from markupsafe import Markup
from torch import Tensor

from foveal.measure import RelationRecall
from foveal.runs import Group
from foveal.runs.folder import Stored
from foveal.see import Found, boxes, relation_recall, relations
from foveal.see.page import Section, charts, figure, figure_cards, picture
from foveal.tasks import attended
from foveal.tasks.detect.samples import Sample, unpacked
from foveal.tasks.report import ReportWords

LIMIT = 6  # images
MOST_MODELS = 8  # beside each other
SIZE = 320  # pixels of a picture
SURE = 0.5  # score of a detection that is drawn
LEAST = 0.01  # weight of a region that is drawn
RECALL = f"{RelationRecall.info.key}@"


def report_words(groups: Sequence[Group]) -> ReportWords:
    """Pictures, and what was asked."""
    stored = next((group.samples for group in groups if group.samples is not None), None)
    asked = "what is where" if stored is None else stored.about.get("asked", "what is where")
    return ReportWords(
        doing=f"were shown pictures and asked for {asked}",
        things="pictures",
        headlines={"box_ap": "{who} reached an AP of {value}."},
    )


def report_sections(groups: Sequence[Group], colours: Mapping[str, int]) -> list[Section]:
    """The same test images through the eyes of all models, what their regions attend to, and relation recall.

    The AP of every class is in the table of parts.
    """
    stored = {group.name: group.samples for group in groups if group.samples is not None}
    curves = _recall_curves(groups, colours)
    if not stored:
        return curves
    first = next(iter(stored.values()))
    same = {name: samples for name, samples in stored.items() if _same(samples, first)}
    left_out = ""
    if others := [name for name in stored if name not in same]:
        left_out += f" Not shown, because other images were recorded: {', '.join(others)}."
    if len(same) > MOST_MODELS:
        left_out += f" The first {MOST_MODELS} of {len(same)} models are shown."
    found = f"The true objects, and those that each model finds with a score of {SURE:.0%} or more.{left_out}"
    first_models = dict(list(same.items())[:MOST_MODELS])
    return [Section("What they find", _cards(first_models, first), found), *_relations(same, first), *curves]


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
        items.append((f"test image {k + 1}", shown))
    return figure_cards(items)


def _relations(models: Mapping[str, Stored], first: Stored) -> list[Section]:
    """A gallery of what one region of each image attends to, the models beside each other."""
    seen = {name: rows for name, stored in models.items() if (rows := attended.unpacked(stored.tensors))}
    seen = dict(list(seen.items())[:MOST_MODELS])
    if not seen:
        return []
    items = []
    for k, sample in enumerate(unpacked(first.tensors)[:LIMIT]):
        shown = [_attended(sample.image, rows[k], f"{name}, test image {k + 1}", name) for name, rows in seen.items()]
        items.append((_relation_title(k, next(iter(seen.values()))[k], first.about["answers"]), shown))
    intro = (
        "Blue is the region of one object, the same for all models. Orange are those that it attends to most, with "
        f"their weights if these are {LEAST} or more. Below is how much of its attention is on regions that show the "
        "objects to which the title says it is related. In an image without relations blue is the region of the "
        "strongest pair."
    )
    return [Section("What regions attend to", figure_cards(items), intro)]


def _attended(image: Tensor, seen: attended.Attended, alt: str, name: str) -> Markup:
    strong = seen.weights >= LEAST
    strong[:1] = True  # the region itself
    drawn = relations(image, seen.boxes[strong], seen.weights[strong], reference=0, size=SIZE)
    share = f": {float(seen.mass):.0%} on related objects" if seen.mass.isfinite() else ""
    return figure(picture(drawn, f"what a region attends to in {alt}", SIZE), f"{name}{share}")


def _relation_title(k: int, seen: attended.Attended, names: Sequence[str]) -> str:
    title = f"test image {k + 1}"
    if not len(seen.labels):
        return title
    subject, *related = (names[label - 1] for label in seen.labels.tolist())
    return f"{title}: {subject}, related to {', '.join(related)}"


def _recall_curves(groups: Sequence[Group], colours: Mapping[str, int]) -> list[Section]:
    """Relation recall by the number of pairs, ours and the paper's; nothing if no model measured it."""
    pairs = dict.fromkeys(key for group in groups for key in group.metrics if key.startswith(RECALL))

    def by_pairs(values: Callable[[Group, str], float | None]) -> dict[str, dict[int, float]]:
        table = {
            g.name: {int(key.removeprefix(RECALL)): v for key in pairs if (v := values(g, key)) is not None}
            for g in groups
        }
        return {name: points for name, points in table.items() if points}

    ours = by_pairs(lambda group, key: statistics.fmean(numbers) if (numbers := group.numbers(key)) else None)
    chart = relation_recall(ours, by_pairs(Group.published), colours=colours)
    return [Section("How many relations they find", charts([chart]))] if chart else []


def _figure(sample: Sample, found: Found, names: Sequence[str], alt: str, caption: str) -> Markup:
    return figure(picture(boxes(sample.image, found, names, size=SIZE), alt, SIZE), caption)


def _sure(found: Found) -> Found:
    assert found.scores is not None
    keep = found.scores >= SURE
    return Found(found.boxes[keep], found.labels[keep], found.scores[keep])
