"""Pictures beside each other."""

from __future__ import annotations

from collections.abc import Mapping

from PIL import Image, ImageDraw

from foveal.see.draw._type import INK, PAPER, font, lines

GAP, LETTERS = 10, 12  # pixels


def side_by_side(pictures: Mapping[str, Image.Image], size: int) -> Image.Image:
    """Pictures beside each other with their titles above; the longest side of all becomes ``size``."""
    face = font(LETTERS, bold=True)
    largest = max(max(picture.size) for picture in pictures.values())
    shown = {
        title: picture.resize(
            (max(1, round(picture.width * size / largest)), max(1, round(picture.height * size / largest)))
        )
        for title, picture in pictures.items()
    }
    titles = {title: lines(title, face, picture.width) for title, picture in shown.items()}
    head = GAP + (LETTERS + 4) * max(map(len, titles.values()))
    across = GAP + sum(picture.width + GAP for picture in shown.values())
    row = Image.new("RGB", (across, head + max(picture.height for picture in shown.values()) + GAP), PAPER)
    draw, left = ImageDraw.Draw(row), GAP
    for title, picture in shown.items():
        for number, line in enumerate(titles[title]):
            draw.text((left, GAP // 2 + number * (LETTERS + 4)), line, INK, face)
        row.paste(picture, (left, head))
        left += picture.width + GAP
    return row
