"""A small line chart as inline SVG: crisp at any size, a few kilobytes, and readable on light and dark pages.

Text and axes take the colour of the page (``currentColor``). Lines take the page's variables ``--m0`` … ``--m7`` where
it defines them, and the Okabe-Ito palette, made for colour-blind readers, where it does not. The dash pattern tells the
lines apart a second time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from foveal.see.draw._inputs import finite
from foveal.see.draw._svg import Element, element, markup

PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#a05a00", "#6f6f6f")
DASHES = ("", "7 4", "7 3 1.5 3", "16 3", "2 3", "4 3", "10 4", "4 2 1 2")
MOST_POINTS = 240  # of a line; more than a screen can show are left out

WIDTH, HEIGHT = 400, 290
LEFT, RIGHT, TOP, BOTTOM = 46, 384, 12, 244  # of the plotting area


@dataclass(frozen=True)
class Line:
    """One line of a chart.

    Attributes:
        name: what the legend says; lines of one name share an entry.
        x: places of the points.
        y: their values; None or NaN leaves a gap.
        slot: colour and dash, see :func:`slots`; -1 for the colour of the text.
        dots: mark the points.
        faint: thinner and paler than the others.
        joined: draw the line; without it the points are dots alone.
        tips: what each point says when the pointer is on it.
        labels: what stands above each point, on its left where there is room; those that would overlap are left out.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float | None]
    slot: int = 0
    dots: bool = False
    faint: bool = False
    joined: bool = True
    tips: Sequence[str] = ()
    labels: Sequence[str] = ()


@dataclass(frozen=True)
class Axis:
    """An axis of a chart.

    Attributes:
        label: what it shows.
        end: its upper end.
        start: its lower end.
        percent: whether values are fractions shown times 100.
        ticks: where to put numbers; round ones if left out.
    """

    label: str
    end: float
    percent: bool = False
    start: float = 0.0
    ticks: Sequence[float] | None = None

    def fraction(self, value: float) -> float:
        """Place of a value between the ends of the axis, 0 to 1."""
        return (value - self.start) / ((self.end - self.start) or 1)


def slots(titles: Iterable[str]) -> dict[str, int]:
    """Give each title a colour by its place; :func:`colour` is the colour of a slot.

    >>> slots(["SOFT", "HARD", "SOFT"])
    {'SOFT': 0, 'HARD': 1}
    """
    return {title: i for i, title in enumerate(dict.fromkeys(titles))}


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


def chart(title: str, lines: Sequence[Line], x: Axis, y: Axis, *, note: str = "") -> str:
    """Draw lines into a ``<figure>`` with title, legend and, under it, a note.

    >>> figure = chart("Loss", [Line("SOFT", [0, 1], [2.0, None])], Axis("epoch", 1), Axis("loss", 2))
    >>> figure.startswith('<figure class="chart">'), "<title>SOFT</title>" in figure
    (True, True)
    """
    svg = element("svg", viewbox=f"0 0 {WIDTH} {HEIGHT}", role="img", font_size=12, fill="currentColor")
    svg.set("aria-label", title)
    for value, text in _numbers(x):
        svg.append(_number(text, _x(value, x), BOTTOM + 18, "middle"))
    for value, text in _numbers(y):
        if value != y.start:
            svg.append(_across(_y(value, y), 0.13))
        svg.append(_number(text, LEFT - 7, _y(value, y) + 4, "end"))
    svg.append(_across(BOTTOM, 0.5))
    svg.append(element("text", x.label, x=(LEFT + RIGHT) / 2, y=HEIGHT - 8, text_anchor="middle"))
    upright = f"translate(11 {(TOP + BOTTOM) / 2}) rotate(-90)"
    svg.append(element("text", y.label, transform=upright, text_anchor="middle"))
    for line in lines:
        svg.extend(_line(line, x, y))
    figure = element("figure", element("figcaption", title), svg, class_="chart")
    figure.append(element("ul", *_legend(lines), class_="legend"))
    if note:
        figure.append(element("p", note))
    return markup(figure)


def _across(height: float, opacity: float) -> Element:
    return element("path", d=f"M{LEFT} {height:.1f}H{RIGHT}", stroke="currentColor", opacity=opacity)


def _numbers(axis: Axis) -> list[tuple[float, str]]:
    """Values with the text beside them, with as many digits as it takes to tell them apart."""
    ticks, scale = _ticks(axis), 100 if axis.percent else 1
    texts = [[in_digits(scale * value, digits) for value in ticks] for digits in range(4, 10)]
    return list(zip(ticks, next((t for t in texts if len(set(t)) == len(ticks)), texts[0]), strict=True))


def in_digits(value: float, digits: int = 4) -> str:
    """A number with so many digits or, if it is greater, as a whole one.

    >>> in_digits(0.12345), in_digits(42331.6)
    ('0.1235', '42,332')
    """
    text = f"{value:.{digits}g}"
    return f"{value:,.0f}" if "e+" in text else text


def _number(text: str, left: float, top: float, anchor: str) -> Element:
    return element("text", text, x=f"{left:.1f}", y=f"{top:.1f}", text_anchor=anchor, opacity=0.7)


def _ticks(axis: Axis) -> Sequence[float]:
    if axis.ticks is not None:
        return axis.ticks
    span = axis.end - axis.start
    if axis.start and span > 0:  # multiples of a round step
        step = next(s for n in range(5, 0, -1) if _leading(s := nice(span / n)) in (1, 2, 2.5, 5))
        first, last = math.ceil(axis.start / step - 1e-9), math.floor(axis.end / step + 1e-9)
        return [round(i * step, 12) for i in range(first, last + 1)]
    count = next((n for n in (5, 4, 3) if _leading(span / n) in (1, 2, 2.5, 5)), 4)
    return [axis.start + span * i / count for i in range(count + 1)]


def _leading(value: float) -> float:
    """The number between 1 and 10 that a positive value begins with."""
    return round(value / 10.0 ** math.floor(math.log10(value)), 6) if value > 0 else 0.0


def _x(value: float, axis: Axis) -> float:
    return LEFT + (RIGHT - LEFT) * axis.fraction(value)


def _y(value: float, axis: Axis) -> float:
    inside = min(max(value, axis.start), axis.end)  # one wild epoch must not leave the chart
    return BOTTOM - (BOTTOM - TOP) * axis.fraction(inside)


def _line(line: Line, x: Axis, y: Axis) -> list[Element]:
    if not line.joined:
        return [_dots(line, x, y)]
    keep = max(1, math.ceil(len(line.x) / MOST_POINTS))
    points = list(zip(line.x, line.y, strict=True))
    points = [point for i, point in enumerate(points) if i % keep == 0 or i == len(points) - 1]
    path, dots, command = "", [], "M"
    for place, value in points:
        if not finite(value):
            command = "M"
            continue
        left, top = f"{_x(place, x):.1f}", f"{_y(value, y):.1f}"
        path += f"{command}{left} {top}"
        dots.append(element("circle", cx=left, cy=top, r=3.2))
        command = "L"
    if not path:
        return []
    drawn = [element("path", element("title", line.name), d=path, **_style(line))]
    if line.dots or len(dots) == 1:
        drawn.append(element("g", *dots, style=f"fill:{colour(line.slot)}"))
    return drawn + _labels(line, x, y)


def _dots(line: Line, x: Axis, y: Axis) -> Element:
    dots = element("g", style=f"fill:{colour(line.slot)}")
    for place, value, tip in zip(line.x, line.y, line.tips or [line.name] * len(line.x), strict=True):
        if value is not None and finite(value):
            dots.append(
                element("circle", element("title", tip), cx=f"{_x(place, x):.1f}", cy=f"{_y(value, y):.1f}", r=4)
            )
    return dots


def _labels(line: Line, x: Axis, y: Axis) -> list[Element]:
    drawn: list[Element] = []
    boxes: list[tuple[float, float, float]] = []  # left, right and foot of the labels
    for label, place, value in zip(line.labels, line.x, line.y, strict=False):
        if value is None or not finite(value):
            continue
        width, middle, foot = 6.5 * len(label), _x(place, x), _y(value, y) - 6
        beside = middle - 5 - width >= LEFT  # room on the left
        left = middle - 5 - width if beside else middle + 5
        if any(left < end and start < left + width and abs(foot - other) < 12 for start, end, other in boxes):
            continue
        boxes.append((left, left + width, foot))
        place_of_text = {"x": f"{middle - 5 if beside else left:.1f}", "y": f"{foot:.1f}"}
        drawn.append(element("text", label, **place_of_text, text_anchor="end" if beside else "start", font_size=11))
    return drawn


def _style(line: Line) -> dict[str, str]:
    width, opacity = ("1.3", "opacity:.4;") if line.faint else ("2.2", "")
    # Where colours repeat, the dashes are shifted, so that no two lines look the same.
    pattern = "" if line.slot < 0 else DASHES[(line.slot + line.slot // len(PALETTE)) % len(DASHES)]
    dash = f"stroke-dasharray:{pattern};" if pattern else ""
    style = f"{dash}{opacity}stroke-width:{width};stroke:{colour(line.slot)}"
    return {"fill": "none", "stroke_linejoin": "round", "style": style}


def _legend(lines: Sequence[Line]) -> list[Element]:
    entries = {line.name: line for line in lines if not line.faint}
    return [element("li", _swatch(line), element("span", name)) for name, line in entries.items()]


def _swatch(line: Line) -> Element:
    sample = element("path", d="M1 4H27", **_style(line))
    if not line.joined:
        sample = element("circle", cx=14, cy=4, r=4, style=f"fill:{colour(line.slot)}")
    return element("svg", sample, viewbox="0 0 28 8", width=28, height=8, aria_hidden="true")
