"""A small line chart as inline SVG: crisp at any size, a few kilobytes, and at home in light and dark pages.

Text and axes take the colour of the page (``currentColor``). Lines take the page's variables ``--m0`` … ``--m7`` where
it defines them, and the Okabe-Ito palette, made for colour-blind readers, where it does not. The dash pattern tells the
lines apart a second time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TypeGuard

ORDER = ("STN", "SOFT", "HARD", "HAttNet", "HAttNet-CTX")
DOCUMENT_ORDER = ("Hatt", "FAN-hatt-unsup", "FAN-hatt-sup")
PALETTE = ("#6f6f6f", "#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#a05a00")
DASHES = ("2 3", "7 4", "7 3 1.5 3", "16 3", "", "4 3", "10 4", "4 2 1 2")

WIDTH, HEIGHT = 400, 290
LEFT, RIGHT, TOP, BOTTOM = 46, 384, 12, 244  # of the plotting area


@dataclass(frozen=True)
class Line:
    """One line of a chart.

    Attributes:
        name: what the legend says; lines of one name share an entry.
        x, y: the points; None or NaN in ``y`` leaves a gap.
        slot: colour and dash, see :func:`slots`; -1 for the colour of the text.
        dots: mark the points.
        faint: thinner and paler than the others.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float | None]
    slot: int = 0
    dots: bool = False
    faint: bool = False


@dataclass(frozen=True)
class Axis:
    """Label, upper end, and whether values are fractions shown in percent; an axis starts at ``start``."""

    label: str
    end: float
    percent: bool = False
    start: float = 0.0
    ticks: Sequence[float] | None = None


def in_order(titles: Iterable[str]) -> list[str]:
    """Titles without repeats: reference and document networks first, in their papers' order, then by alphabet.

    >>> in_order(["b", "HAttNet", "A", "STN", "b"])
    ['STN', 'HAttNet', 'A', 'b']
    """
    known = {title: i for i, title in enumerate((*ORDER, *DOCUMENT_ORDER))}
    return sorted(set(titles), key=lambda title: (known.get(title, len(known)), title.casefold(), title))


def slots(titles: Iterable[str]) -> dict[str, int]:
    """Give each title a colour; the five reference networks always have the same ones.

    >>> slots(["mine", "SOFT", "yours"])
    {'SOFT': 1, 'mine': 5, 'yours': 6}
    """
    ordered = in_order(titles)
    others = [title for title in ordered if title not in ORDER]
    return {title: ORDER.index(title) if title in ORDER else len(ORDER) + others.index(title) for title in ordered}


def colour(slot: int) -> str:
    """The colour of a slot in CSS."""
    return "currentColor" if slot < 0 else f"var(--m{slot % len(PALETTE)},{PALETTE[slot % len(PALETTE)]})"


def nice(value: float) -> float:
    """The next round number.

    >>> nice(0.93), nice(0.22), nice(1.7), nice(87)
    (1.0, 0.25, 2.0, 100.0)
    """
    if not (math.isfinite(value) and value > 0):
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(
        round(step * power, 12) for step in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10) if value <= step * power * 1.0001
    )


def finite(value: object) -> TypeGuard[float]:
    """Whether ``value`` is a number, and neither NaN nor infinite."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def chart(title: str, lines: Sequence[Line], x: Axis, y: Axis, *, note: str = "") -> str:
    """Draw lines into a ``<figure>`` with title, legend and, under it, a note.

    >>> drawn = chart("Loss", [Line("SOFT", [0, 1], [2.0, None])], Axis("epoch", 1), Axis("loss", 2))
    >>> drawn.startswith('<figure class="chart">'), "<title>SOFT</title>" in drawn
    (True, True)
    """
    grid = "".join(_tick(value, x, along=True) for value in _ticks(x)) + "".join(
        _tick(value, y, along=False) for value in _ticks(y)
    )
    turned = f'transform="translate(11 {(TOP + BOTTOM) / 2}) rotate(-90)"'
    labels = (
        f'<text x="{(LEFT + RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">{escape(x.label)}</text>'
        f'<text text-anchor="middle" {turned}>{escape(y.label)}</text>'
    )
    drawn = "".join(_line(line, x, y) for line in lines)
    entries = {line.name: line for line in lines if not line.faint}
    legend = "".join(f"<li>{_swatch(line)}{escape(name)}</li>" for name, line in entries.items())
    return (
        f'<figure class="chart"><figcaption>{escape(title)}</figcaption>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}" font-size="12" '
        f'fill="currentColor">'
        f"{grid}{labels}{drawn}</svg>"
        f'<ul class="legend">{legend}</ul>{f"<p>{escape(note)}</p>" if note else ""}</figure>'
    )


def _ticks(axis: Axis) -> Sequence[float]:
    if axis.ticks is not None:
        return axis.ticks
    span = axis.end - axis.start
    count = next((n for n in (5, 4, 3) if _leading(span / n) in (1, 2, 2.5, 5)), 4)
    return [axis.start + span * i / count for i in range(count + 1)]


def _leading(value: float) -> float:
    """The number between 1 and 10 that a positive value begins with."""
    return round(value / 10.0 ** math.floor(math.log10(value)), 6) if value > 0 else 0.0


def _x(value: float, axis: Axis) -> float:
    return LEFT + (RIGHT - LEFT) * (value - axis.start) / ((axis.end - axis.start) or 1)


def _y(value: float, axis: Axis) -> float:
    inside = min(max(value, axis.start), axis.end)  # one wild epoch must not leave the chart
    return BOTTOM - (BOTTOM - TOP) * (inside - axis.start) / ((axis.end - axis.start) or 1)


def _tick(value: float, axis: Axis, *, along: bool) -> str:
    shown = f"{100 * value:g}" if axis.percent else f"{value:.4g}"
    if along:
        return f'<text x="{_x(value, axis):.1f}" y="{BOTTOM + 18}" text-anchor="middle" opacity=".7">{shown}</text>'
    at = _y(value, axis)
    rule = (
        f'<path d="M{LEFT} {at:.1f}H{RIGHT}" stroke="currentColor" opacity="{0.5 if value == axis.start else 0.13}"/>'
    )
    return f'{rule}<text x="{LEFT - 7}" y="{at + 4:.1f}" text-anchor="end" opacity=".7">{shown}</text>'


def _line(line: Line, x: Axis, y: Axis) -> str:
    keep = max(1, math.ceil(len(line.x) / 240))  # more points than a screen can show are left out
    pairs = list(zip(line.x, line.y, strict=True))
    pairs = [pair for i, pair in enumerate(pairs) if i % keep == 0 or i == len(pairs) - 1]
    path, dots, move = [], [], "M"
    for at, value in pairs:
        if not finite(value):
            move = "M"
            continue
        point = f"{_x(at, x):.1f} {_y(value, y):.1f}"
        path.append(f"{move}{point}")
        dots.append(point)
        move = "L"
    if not path:
        return ""
    style = _style(line)
    drawn = f'<path d="{"".join(path)}" {style}><title>{escape(line.name)}</title></path>'
    if line.dots or len(dots) == 1:
        circles = (f'<circle cx="{cx}" cy="{cy}" r="3.2"/>' for cx, cy in (dot.split() for dot in dots))
        drawn += f'<g style="fill:{colour(line.slot)}">{"".join(circles)}</g>'
    return drawn


def _style(line: Line) -> str:
    width, opacity = ("1.3", "opacity:.4;") if line.faint else ("2.2", "")
    pattern = "" if line.slot < 0 else DASHES[(line.slot + line.slot // len(PALETTE)) % len(DASHES)]
    dash = f"stroke-dasharray:{pattern};" if pattern else ""
    stroke = f"{dash}{opacity}stroke-width:{width};stroke:{colour(line.slot)}"
    return f'fill="none" stroke-linejoin="round" style="{stroke}"'


def _swatch(line: Line) -> str:
    return f'<svg viewBox="0 0 28 8" width="28" height="8" aria-hidden="true"><path d="M1 4H27" {_style(line)}/></svg>'
