"""An attention matrix with words on both axes.

Row m is the word that attends, column n the word it attends to. The pairs of a target are framed, which shows how much
of the attention rests where it should.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from PIL import Image, ImageDraw
from torch import Tensor

from foveal.errors import UserError
from foveal.see.draw._inputs import matrix, some_words
from foveal.see.draw._type import FINE, INK, MUTED, PAPER, RULE, font, shade, shortened, turned, width


def pairs(
    words: Sequence[str],
    weights: Sequence[Sequence[float]] | Tensor,
    *,
    target: Tensor | None = None,
    title: str = "",
    cell: int = 24,
) -> Image.Image:
    """Draw the weights between all words.

    Args:
        words: N words.
        weights: (N, N), finite and not negative, row m attending to column n; the greatest is the strongest colour.
        target: bool (N, N), pairs to frame.
        title: a line above the picture.
        cell: side of a square in pixels.

    Returns:
        An RGB picture on white.

    >>> picture = pairs(["fast", "cars"], [[0.1, 0.9], [0.7, 0.3]], cell=30)
    >>> picture.mode
    'RGB'
    """
    sentence = some_words(words)
    values = matrix(weights, "weights", len(sentence))
    if target is not None and (target.dtype != torch.bool or target.shape != values.shape):
        raise UserError(f"target must be bool {tuple(values.shape)}, got {target.dtype} {tuple(target.shape)}")
    if cell < 4:
        raise UserError(f"cell={cell}: squares of at least 4 pixels can be seen")
    side, face = FINE * cell, font(FINE * max(7, min(15, cell * 5 // 9)))
    labels = [shortened(word, face, FINE * 130) for word in sentence]
    label_room = round(max(width(word, face) for word in labels)) + 8 * FINE
    head = 30 * FINE if title else 0
    margin, grid = 12 * FINE, side * len(sentence)
    left, top = margin + label_room, margin + head + label_room
    bold = font(15 * FINE, True)
    total = max(left + grid + margin, 2 * margin + round(width(title, bold)))
    canvas = Image.new("RGB", (total, top + grid + margin), PAPER)
    draw = ImageDraw.Draw(canvas)
    if title:
        draw.text((margin, margin), title, INK, bold)
    greatest = float(values.max()) or 1.0
    for m in range(len(sentence)):
        for n in range(len(sentence)):
            x, y = left + n * side, top + m * side
            strength = float(values[m, n]) / greatest
            draw.rectangle([x, y, x + side - 1, y + side - 1], shade(strength) if strength > 0.02 else (255, 253, 250))
    for i in range(len(sentence) + 1):
        draw.line([left + i * side, top, left + i * side, top + grid], RULE, FINE // 2)
        draw.line([left, top + i * side, left + grid, top + i * side], RULE, FINE // 2)
    if target is not None:
        for m, n in target.nonzero().tolist():
            x, y, inset = left + n * side, top + m * side, max(1, side // 12)
            draw.rectangle([x + inset, y + inset, x + side - inset, y + side - inset], outline=INK, width=FINE)
    for i, word in enumerate(labels):
        middle = (i + 0.5) * side
        draw.text((left - 6 * FINE, top + middle), word, INK, face, "rm")
        if word:
            column = turned(word, face, 90, MUTED)
            canvas.paste(column, (round(left + middle - column.width / 2), top - 6 * FINE - column.height), column)
    return canvas.resize((canvas.width // FINE, canvas.height // FINE), Image.Resampling.LANCZOS)
