"""The report of task ``segment``: some test images, and what each model says of their pixels."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

import torch
from markupsafe import Markup
from PIL import Image
from torch import Tensor

from foveal.measure.costs import MFLOPS, PEAK_MEMORY
from foveal.measure.mean_iou import IGNORED
from foveal.recipe.grids import conclusions
from foveal.runs import Group
from foveal.runs.folder import Stored
from foveal.see import Tradeoff, painted, pareto
from foveal.see.page import Section, charts, colour_key, figure, figure_cards, picture
from foveal.tasks.report import ReportWords

LIMIT = 6  # images
MOST_MODELS = 8  # beside each other
FEWEST = 3  # models of a chart of costs
LONGEST = 320  # pixels of a picture


def report_words(groups: Sequence[Group]) -> ReportWords:
    """Pictures, and what was asked."""
    stored = next((group.samples for group in groups if group.samples is not None), None)
    asked = "what every pixel shows" if stored is None else stored.about.get("asked", "what every pixel shows")
    return ReportWords(
        doing=f"were shown pictures and asked for {asked}",
        things="pictures",
        headlines={"mean_iou": "{who} reached a mean IoU of {value}."},
    )


def report_sections(groups: Sequence[Group], colours: Mapping[str, int]) -> list[Section]:
    """The same test images through the eyes of all models; the IoU of every class is in the table of parts."""
    stored = {group.name: group.samples for group in groups if group.samples is not None}
    costs = _costs(groups)
    if not stored:
        return costs
    first = next(iter(stored.values()))
    same = {name: samples for name, samples in stored.items() if _same(samples, first)}
    intro = "The image, its true classes, and those that each model gives to its pixels; what does not count is bare."
    if others := [name for name in stored if name not in same]:
        intro += f" Not shown, because other images were recorded: {', '.join(others)}."
    if len(same) > MOST_MODELS:
        intro += f" The first {MOST_MODELS} of {len(same)} models are shown."
        same = dict(list(same.items())[:MOST_MODELS])
    return [Section("What they paint", _cards(same, first), intro), *costs]


def _costs(groups: Sequence[Group]) -> list[Section]:
    """What accuracy costs, of several models: arithmetic, memory and time; and what a paper concludes."""
    figures = []
    for costs_of, cost in (
        (lambda group: group.numbers(MFLOPS.key), "MFLOPs of a crop"),
        (lambda group: group.numbers(PEAK_MEMORY.key), "MiB in training"),
        (lambda group: [1e3 * s for s in group.values("step_seconds")], "milliseconds of a training step"),
    ):
        points = [
            Tradeoff(_row(group), _column(group), statistics.fmean(values), statistics.median(costs))
            for group in groups
            if (values := group.numbers("mean_iou")) and (costs := costs_of(group))
        ]
        if len(points) >= FEWEST:
            figures.append(pareto(points, value="mean IoU, %", cost=cost))
    if not figures:
        return []
    tables = dict.fromkeys(filter(None, (_cell(group).get("table") for group in groups)))
    found = [sentence for table in tables for sentence in conclusions(table)]
    beside = Markup("<h4>What the paper concludes from its own experiments</h4><ul>{}</ul>").format(
        Markup("").join(Markup("<li>{}</li>").format(sentence) for sentence in found)
    )
    return [Section("What it costs", charts(figures) + (beside if found else Markup("")))]


def _cell(group: Group) -> dict[str, str]:
    """The place of a model in a table."""
    return (group.finished[0].result.get("cell") if group.finished else None) or {}


def _row(group: Group) -> str:
    """The name of a model without that of its column, which is told by colour."""
    return group.name.removesuffix(f" · {_column(group)}")


def _column(group: Group) -> str:
    """The column of a table that a model is in; an atlas has one for each kind of convolution."""
    return _cell(group).get("column") or "models"


def _same(samples: Stored, first: Stored) -> bool:
    """Whether two models were shown the same images and asked for the same classes."""
    alike = samples.about.get("answers") == first.about.get("answers")
    return alike and torch.equal(samples.tensors["image"], first.tensors["image"])


def _cards(models: Mapping[str, Stored], first: Stored) -> Markup:
    names, palette, tensors = first.about["answers"], first.about["palette"], first.tensors
    items = []
    count = len(tensors["image"])
    for k in torch.linspace(0, count - 1, min(LIMIT, count)).long().tolist():  # sizes come in order
        inside = _inside(tensors["label"][k])
        image, truth = tensors["image"][k][:, *inside], tensors["label"][k][inside]
        paintings = {name: samples.tensors["prediction"][k][inside] for name, samples in models.items()}
        paintings = {"truth": truth, **paintings}
        shown = [figure(_picture(image, None, palette, f"test image {k + 1}"), "image")]
        for title, labels in paintings.items():
            counted = labels.masked_fill(truth == IGNORED, IGNORED)
            content = _picture(image, counted, palette, f"classes of test image {k + 1}: {title}")
            shown.append(figure(content, title if title == "truth" else f"{title}, {_right(labels, truth)} right"))
        items.append((f"test image {k + 1}", shown))
    return colour_key(names, palette) + figure_cards(items)


def _inside(label: Tensor) -> tuple[slice, slice]:
    """The rows and columns of a canvas (H, W) up to the last pixel that counts: without what was padded."""
    counted = label != IGNORED
    if not bool(counted.any()):
        return slice(None), slice(None)
    height, width = (int(counted.any(other).nonzero().max()) + 1 for other in (1, 0))
    return slice(height), slice(width)


def _picture(image: Tensor, labels: Tensor | None, palette: Sequence[str], alt: str) -> Markup:
    bare = torch.full(tuple(image.shape[1:]), IGNORED)
    drawn = painted(image, bare if labels is None else labels, palette)
    larger = max(1, LONGEST // max(drawn.size))
    drawn = drawn.resize((larger * drawn.width, larger * drawn.height), Image.Resampling.NEAREST)
    return picture(drawn, alt, LONGEST)


def _right(labels: Tensor, truth: Tensor) -> str:
    counted = truth != IGNORED
    return f"{(labels == truth)[counted].float().mean():.0%}" if bool(counted.any()) else "nothing to be"
