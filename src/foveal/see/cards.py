"""The panel of :mod:`foveal.see.gates` for a page: one card a sample, whose cells wrap to the width of the screen."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from html import escape

from PIL import Image

from foveal.see.gates import MARKS, drawable, shared
from foveal.see.overlay import attended, heatmap, plain
from foveal.see.question import COLOURS, question
from foveal.see.samples import Samples
from foveal.see.svg import colour, slots

SPOKEN = {"right": "right:", "wrong": "wrong:", "partly": "partly right:"}


def gates_html(models: Mapping[str, Samples], *, limit: int = 6, colours: Mapping[str, int] | None = None) -> str:
    """Lay out the panel of :func:`foveal.see.gates.gates` as an HTML fragment; the report's style sheet dresses it.

    Args:
        models: title of each model and what it did; samples are matched by image and query.
        limit: most samples.
        colours: slot of each title, see :func:`foveal.see.svg.slots`.

    >>> import torch
    >>> seen = Samples(
    ...     image=torch.zeros(1, 3, 8, 8, dtype=torch.uint8), query=torch.tensor([7]), prediction=torch.tensor([0]),
    ...     gates=(torch.rand(1, 4, 4),), map=torch.rand(1, 8, 8), answers=("red", "blue"),
    ... )
    >>> "What colour is the 7?" in gates_html({"SOFT": seen})
    True
    """
    slot, cards = colours or slots(models), []
    for row in shared(models)[:limit]:
        title, k = next(iter(row.items()))
        ask, cells = _question(models[title], k), [_input(models[title], k)]
        for title, samples in models.items():
            who = _who(title, colour(slot[title]))
            if title in row:
                verdict = samples.verdict(row[title]) or "unknown"
                cells.append(f'<div class="look {verdict}">{who}{_look(samples, row[title])}</div>')
            else:
                cells.append(f'<div class="look">{who}<p class="none">not recorded for this sample</p></div>')
        cards.append(f'<article class="sample">{ask}<div class="cells">{"".join(cells)}</div></article>')
    return f'<div class="samples" style="--n:{min(len(models) + 1, 6)}">{"".join(cards)}</div>'


def data_uri(picture: Image.Image, longest: int = 256) -> str:
    """A picture inside the page: PNG while small, else WebP where that is smaller; shrunk to ``longest`` pixels."""
    if max(picture.size) > longest:
        picture = picture.copy()
        picture.thumbnail((longest, longest))
    kinds: dict[str, dict[str, int | bool]] = {"png": {"optimize": True}, "webp": {"quality": 88}}
    encoded = {}
    for kind, settings in kinds.items():
        buffer = io.BytesIO()
        picture.save(buffer, kind, **settings)
        encoded[kind] = buffer.getvalue()
    kind = "webp" if len(encoded["png"]) > max(6000, len(encoded["webp"])) else "png"
    return f"data:image/{kind};base64,{base64.b64encode(encoded[kind]).decode()}"


def _who(title: str, ink: str) -> str:
    name = escape(title)
    return f'<p class="who" style="--is:{ink}" title="{name}">{name}</p>'


def _question(samples: Samples, k: int) -> str:
    truth = samples.truth(k)
    answer = "" if truth is None else f"<span>{_chip(samples, truth)}{escape(samples.names(truth))}</span>"
    return f'<p class="ask">{escape(question(samples.asked(k), samples.answers))}{answer}</p>'


def _input(samples: Samples, k: int) -> str:
    frame = ""
    if box := samples.box(k):
        left, top, right, bottom = (100 * edge for edge in box)
        place = f"left:{left:.1f}%;top:{top:.1f}%;width:{right - left:.1f}%;height:{bottom - top:.1f}%"
        frame = f'<span class="box" style="{place}"></span>'
    picture = _image(plain(samples.image[k]), "the input")
    return f'<div class="input"><p class="who">Input</p><div class="shot">{picture}{frame}</div></div>'


def _look(samples: Samples, k: int) -> str:
    if samples.map is None:
        return _answer(samples, k)
    shot = _image(attended(samples.image[k], samples.map[k]), "the attended image") if drawable(samples.map[k]) else ""
    maps = []
    for i, gate in enumerate(samples.gates):
        height, width = gate.shape[1:]
        highest = f"highest {gate[k].max():.3g}" if drawable(gate[k]) else "not finite: the model diverged"
        label = f"{samples.site(i)}, gate {i + 1} of {len(samples.gates)}, {width}×{height}, {highest}"
        map_ = _image(heatmap(gate[k]), label) if drawable(gate[k]) else '<span class="none"></span>'
        maps.append(f"<span>{map_}<small>{width}×{height}</small></span>")
    return f'<div class="shot">{shot}</div><div class="maps">{"".join(maps)}</div>{_answer(samples, k)}'


def _answer(samples: Samples, k: int) -> str:
    guess, verdict, confidence = samples.guess(k), samples.verdict(k), samples.confidence(k)
    sure = "" if confidence is None else f" <small>{100 * confidence:.0f} %</small>"
    return f'<p class="answer">{mark(verdict)}{_chip(samples, guess)}{escape(samples.names(guess))}{sure}</p>'


def mark(verdict: str | None) -> str:
    """A tick, a cross or a dash, spoken as a word."""
    if verdict is None:
        return ""
    strokes = "".join(f"M{' '.join(f'{x} {y}' for x, y in stroke)}" for stroke in MARKS[verdict])
    return (
        f'<svg class="mark" viewBox="0 0 16 16" role="img" aria-label="{SPOKEN[verdict]}"><path d="{strokes}"/></svg>'
    )


def _chip(samples: Samples, classes: list[int]) -> str:
    """A dot in the colour that the answer names, if it names one."""
    named = COLOURS.get(samples.names(classes))
    return f'<i class="chip" style="background:{named}"></i>' if named else ""


def _image(picture: Image.Image, label: str) -> str:
    width, height = picture.size
    text = escape(label)
    return f'<img src="{data_uri(picture)}" width="{width}" height="{height}" alt="{text}" title="{text}">'
