"""Layout of the pictures that docs/gallery.py composes, and the files that it writes."""

from __future__ import annotations

import io
import math
import shutil
import subprocess
import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from PIL import Image, ImageDraw, ImageFont

Picture = Image.Image | str | Path
"""Pixels, a chart of ``foveal.see`` as an HTML figure, or an HTML page to be photographed."""

# Tiles on a card ----------------------------------------------------------------

CARD, INK, PALE, RIGHT, WRONG = "#12161c", "#f4f6f8", "#a7b0bd", "#4cc38a", "#ff6b57"
GAP, LINE, LETTERS = 20, 36, 27  # pixels; pages show pictures at about half their size
COARSE = 24  # narrower tiles are maps, and show their own positions


def grid(
    rows: Mapping[str, Sequence[Image.Image]],
    *,
    above: Sequence[str] = (),
    below: Mapping[str, Sequence[str]] | None = None,
    width: int = 1640,
) -> Image.Image:
    """Lay tiles out on a dark card, which looks the same on light and dark pages.

    Args:
        rows: title of each row, of which the first line is bold, and its tiles from left to right.
        above: a text above each column.
        below: title of a row to a text below each of its tiles; one that begins with ✗ has its tile framed.
        width: of the picture in pixels.
    """
    below = below or {}
    left = (
        round(max(font(bold=not i).getlength(line) for title in rows for i, line in enumerate(title.split("\n"))))
        + 2 * GAP
    )
    side = (width - left) // max(map(len, rows.values())) - GAP
    columns = [left + k * (side + GAP) for k in range(max(map(len, rows.values())))]
    head = LINE * max((text.count("\n") + 1 for text in above), default=0)
    tops, height = {}, GAP + head + (GAP // 2 if head else 0)
    for title in rows:
        tops[title] = height
        height += side + GAP + (LINE + GAP // 2 if title in below else 0)

    card = Image.new("RGBA", (width, height), (0, 0, 0, 0))
    draw = ImageDraw.Draw(card)
    draw.rounded_rectangle([0, 0, width - 1, height - 1], 24, CARD)
    for x, text in zip(columns, above, strict=bool(above)):
        draw.multiline_text((x + side / 2, GAP), text, INK, font(), "ma", spacing=8, align="center")
    for title, tiles in rows.items():
        y = tops[title]
        name, *remarks = title.split("\n")
        middle = y + side / 2 - LINE * len(remarks) / 2
        draw.text((GAP, middle), name, INK, font(bold=True), "lm")
        for i, remark in enumerate(remarks, 1):
            draw.text((GAP, middle + LINE * i), remark, PALE, font(), "lm")
        for k, tile in enumerate(tiles):
            text = below[title][k] if title in below else ""
            if text.startswith("✗"):
                draw.rectangle([columns[k] - 5, y - 5, columns[k] + side + 4, y + side + 4], WRONG)
            filtering = Image.Resampling.NEAREST if tile.width < COARSE else Image.Resampling.BICUBIC
            card.paste(tile.resize((side, side), filtering), (columns[k], y))
            caption(draw, columns[k] + side / 2, y + side + GAP // 2, text)
    return card


def caption(draw: ImageDraw.ImageDraw, middle: float, top: float, text: str) -> None:
    """Draw one line below a tile; a ✓ or ✗ at its beginning is coloured."""
    mark = text[:1] if text[:1] in ("✓", "✗") else ""
    left = middle - font().getlength(text) / 2
    draw.text((left, top), mark, RIGHT if mark == "✓" else WRONG, font())
    draw.text((left + font().getlength(mark), top), text[len(mark) :], PALE, font())


@cache
def font(*, bold: bool = False) -> ImageFont.FreeTypeFont:
    """DejaVu Sans, which comes with matplotlib."""
    from matplotlib import get_data_path

    name = "DejaVuSans-Bold" if bold else "DejaVuSans"
    return ImageFont.truetype(f"{get_data_path()}/fonts/ttf/{name}.ttf", LETTERS)


def folded(picture: Image.Image, height: int) -> Image.Image:
    """A wide picture as a page can show it, at half its width: of each row, the right half is below the left one.

    Args:
        picture: its rows, below each other, and perhaps a last one that is lower, of which the left half is kept.
        height: of a row.
    """
    half, rows = -(-picture.width // 2), picture.height // height
    folded = Image.new("RGB", (half, picture.height + rows * height), "white")
    for row in range(rows):
        for side in range(2):
            part = picture.crop((side * half, row * height, min(picture.width, (side + 1) * half), (row + 1) * height))
            folded.paste(part, (0, (2 * row + side) * height))
    folded.paste(picture.crop((0, rows * height, half, picture.height)), (0, 2 * rows * height))
    return folded


# Files ----------------------------------------------------------------------------


def save(made: Picture, stem: Path) -> Path | None:
    """Write a picture as ``stem``.svg or .webp; returns the file, or None if there is no browser for an HTML page."""
    if isinstance(made, str):
        file = stem.with_suffix(".svg")
        file.write_text(standalone(made), encoding="utf-8")
        return file
    image = photograph(made) if isinstance(made, Path) else made
    if image is None:
        return None
    options: list[dict[str, Any]] = [{"lossless": True}, {"quality": 90}]
    buffers = [io.BytesIO() for _ in options]
    for buffer, option in zip(buffers, options, strict=True):
        image.save(buffer, "webp", method=6, **option)
    file = stem.with_suffix(".webp")
    file.write_bytes(min((buffer.getvalue() for buffer in buffers), key=len))
    return file


STYLE = """
svg { color: #1c1b1a; font-family: system-ui, sans-serif; }
.card { fill: #ffffff; stroke: #d9d4cb; }
@media (prefers-color-scheme: dark) {
  svg { color: #ece9e4; --m0: #4da6e0; --m1: #ff8340; --m2: #2fc79a; --m3: #e39cc4; }
  .card { fill: #12161c; stroke: #2c333d; }
}
"""


def standalone(figure: str) -> str:
    """A chart of ``foveal.see``, an HTML figure, as an SVG on a card of its own: title above, legend and note below.

    Ink and card change together with the reader's colour scheme, so that it can be read on any page.
    """
    parts = ElementTree.fromstring(figure)
    chart, entries = parts.find("svg"), parts.findall("ul/li")
    assert chart is not None
    chart_width, chart_height = (float(size) for size in chart.attrib["viewBox"].split()[2:])
    note = textwrap.wrap(parts.findtext("p", ""), 64)
    legend_top = chart_height + 50
    note_top = legend_top + 20 * math.ceil(len(entries) / 2) + 16
    width, height = chart_width + 20, note_top + 17 * len(note)

    root = ElementTree.Element("svg", xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {width:g} {height:g}")
    root.attrib |= {"width": "640", "fill": "currentColor", "font-size": "12"}
    add = ElementTree.SubElement
    add(root, "style").text = STYLE
    edge = {"x": ".5", "y": ".5", "width": f"{width - 1:g}", "height": f"{height - 1:g}", "rx": "8"}
    add(root, "rect", {"class": "card"} | edge)
    title = add(root, "text", {"x": "16", "y": "27", "font-size": "14", "font-weight": "600"})
    title.text = parts.findtext("figcaption")
    add(root, "g", transform="translate(6 38)").extend(chart)
    for i, entry in enumerate(entries):
        line = add(root, "g", transform=f"translate({52 + 170 * (i % 2)} {legend_top + 20 * (i // 2):g})")
        line.extend(entry.findall("svg/path"))
        add(line, "text", x="36", y="8").text = entry.findtext("span")
    for i, text in enumerate(note):
        add(root, "text", {"x": "16", "y": f"{note_top + 17 * i:g}", "font-size": "11", "opacity": ".75"}).text = text
    return ElementTree.tostring(root, encoding="unicode") + "\n"


def photograph(page: Path, width: int = 1000, height: int = 1480) -> Image.Image | None:
    """The top of an HTML page as Chromium or Chrome shows it; None if neither is installed."""
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    browser = next((path for name in names if (path := shutil.which(name))), None)
    if browser is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        shot = Path(folder, "page.png")
        options = ["--headless", "--no-sandbox", "--hide-scrollbars", f"--window-size={width},{height}"]
        address = page.resolve().as_uri()
        subprocess.run([browser, *options, f"--screenshot={shot}", address], check=True, capture_output=True)
        return Image.open(shot).convert("RGB")
