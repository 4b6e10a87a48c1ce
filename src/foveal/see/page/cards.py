"""Cards: the same samples as several models saw them, laid out for any width of screen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from markupsafe import Markup
from torch import Tensor

from foveal.see.draw.chart import colour, slots
from foveal.see.draw.class_maps import class_looks
from foveal.see.draw.curves import Epochs, training
from foveal.see.draw.document import DocumentSamples, main_sentence, shared_documents
from foveal.see.draw.gates import MARKS, GateMap, looks
from foveal.see.draw.ring import ring_svg
from foveal.see.draw.samples import Samples, spread
from foveal.see.draw.top_classes import TopClasses
from foveal.see.page.page import fill
from foveal.see.page.picture import picture

if TYPE_CHECKING:
    from foveal.measure.info import MetricInfo

MOST_CELLS = 6  # of a card beside each other
MOST_ROWS = 36  # of class maps in all
TILE = 160  # pixels of the map of one class
SPOKEN = {"right": "right:", "wrong": "wrong:", "partly": "partly right:"}
STROKES = {
    verdict: "".join(f"M{' '.join(f'{x} {y}' for x, y in stroke)}" for stroke in strokes)
    for verdict, strokes in MARKS.items()
}


def sample_cards(
    models: Mapping[str, Samples],
    *,
    limit: int = 6,
    most_gates: int = 12,
    colours: Mapping[str, int] | None = None,
) -> Markup:
    """One card per sample: the input, then for each model what it saw, the maps of its gates, and its answer.

    Models without attention have their answers in one cell below.

    Args:
        models: title of each model and what it did; samples are matched by image and query.
        limit: most samples; they are spread over those recorded.
        most_gates: most maps per model; where it has more gates, the card says so.
        colours: slot of each title, see :func:`foveal.see.draw.chart.slots`.

    >>> import torch
    >>> samples = Samples(
    ...     image=torch.zeros(1, 3, 8, 8, dtype=torch.uint8), query=torch.tensor([7]), prediction=torch.tensor([0]),
    ...     gates=(torch.rand(1, 4, 4),), map=torch.rand(1, 8, 8), question="What colour is the {query}?",
    ... )
    >>> "What colour is the 7?" in sample_cards({"SOFT": samples})
    True
    """
    seen = [title for title, samples in models.items() if samples.map is not None]
    cells = min(1 + (len(seen) or 1), MOST_CELLS)
    rows = looks(models, limit=limit, most_gates=most_gates)
    return fill(
        "samples.html.j2", rows=rows, seen=seen, cells=cells, gate_label=_gate_label, **_shared(models, colours)
    )


def document_cards(
    models: Mapping[str, DocumentSamples], *, limit: int = 4, colours: Mapping[str, int] | None = None
) -> Markup:
    """One card per document: for each model its answer, the ring of the main sentence, and the text with its attention.

    Args:
        models: title of each model and what it did; documents are matched by their words.
        limit: most documents; they are spread over those recorded.
        colours: slot of each title, see :func:`foveal.see.draw.chart.slots`.
    """
    rows = [row for row in shared_documents(models) if all(models[title].texts[k] for title, k in row.items())]
    shared = _shared(models, colours)
    cards = []
    for row in spread(rows, limit):
        first, k = next(iter(row.items()))
        main = main_sentence(models, row)
        rings = {
            title: Markup(ring_svg(models[title].ring(k, main), shared["inks"][title]))
            for title, k in row.items()
            if main is not None
        }
        cards.append((models[first].truth(k), row, rings))
    return fill("documents.html.j2", cards=cards, models=models, **shared)


def class_map_cards(
    models: Mapping[str, TopClasses],
    image: Tensor,
    label: Tensor | None = None,
    *,
    names: Sequence[str] = (),
    limit: int = 6,
    colours: Mapping[str, int] | None = None,
) -> Markup:
    """One card per image: for each model the maps of its best-scoring classes, the true class framed.

    Args:
        models: title of each model and its best-scoring classes, of the same images.
        image: (N, 3, H, W), uint8, or float in [0, 1].
        label: true class (N,), or 0 and 1 for every class (N, C); None if unknown.
        names: names of the classes.
        limit: most images; fewer the more models there are, at least two.
        colours: slot of each title, see :func:`foveal.see.draw.chart.slots`.
    """
    limit = min(limit, max(2, MOST_ROWS // max(1, len(models))))
    rows = class_looks(models, image, label, names=names, limit=limit)
    return fill("classes.html.j2", rows=rows, tile=TILE, **_shared(models, colours))


def training_charts(
    epochs: Epochs, info: Callable[[str], MetricInfo] | None = None, *, colours: Mapping[str, int] | None = None
) -> Markup:
    """The curves of :func:`foveal.see.training`, side by side; empty when there is nothing to draw."""
    return charts(training(epochs, info=info, colours=colours))


def charts(figures: Iterable[str]) -> Markup:
    """Figures side by side, as the functions of :mod:`foveal.see.draw.curves` return them; empty ones are left out."""
    return fill("charts.html.j2", figures=[Markup(figure) for figure in figures if figure])


def cards(items: Iterable[tuple[str, Markup]]) -> Markup:
    """A card for each title and content, side by side.

    >>> cards([("a < b", Markup("<p>text</p>"))]).count("a &lt; b")
    1
    """
    return fill("cards.html.j2", items=list(items), n=2)


def figure_cards(items: Iterable[tuple[str, Sequence[Markup]]]) -> Markup:
    """A card for each title, its figures beside each other where there is room; the more there are, the wider it is.

    >>> figure_cards([("both", [figure(Markup("<br>"), "one"), figure(Markup("<br>"), "two")])]).count("<figure")
    2
    """
    rows = [
        (title, Markup('<div class="figures">{}</div>').format(Markup("").join(shown)), len(shown))
        for title, shown in items
    ]
    most = max((count for *_, count in rows), default=1)
    return fill("cards.html.j2", items=[row[:2] for row in rows], n=1.6 * most)


def colour_key(names: Sequence[str], colours: Sequence[str]) -> Markup:
    """What the colours of pictures mean.

    >>> colour_key(["sky", "sea"], ["#0000ff", "#00ffff"]).count("chip")
    2
    """
    entry = Markup('<span><i class="chip" style="background:{}"></i>{}</span>')
    return Markup('<p class="key">{}</p>').format(
        Markup(" ").join(entry.format(colour, name) for name, colour in zip(names, colours, strict=True))
    )


def figure(content: Markup, caption: str) -> Markup:
    """A picture or chart with a line of text below it."""
    return Markup('<figure class="shown">{}<figcaption>{}</figcaption></figure>').format(content, caption)


def _shared(models: Mapping[str, object], colours: Mapping[str, int] | None) -> dict[str, Any]:
    """What every template of cards uses."""
    slot = colours or slots(models)
    inks = {title: colour(slot.get(title, -1)) for title in models}
    return {"inks": inks, "picture": picture, "strokes": STROKES, "spoken": SPOKEN}


def _gate_label(gate: GateMap) -> str:
    highest = "not finite: the model diverged" if gate.picture is None else f"highest {gate.highest:.3g}"
    return f"{gate.site}, {gate.size[0]}×{gate.size[1]}, {highest}"
