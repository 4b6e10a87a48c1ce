"""Attention matrices with words on both axes, one or several.

Row m is the word that attends, column n the word it attends to. The pairs of a target are framed, which shows how much
of the attention rests where it should.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from PIL import Image, ImageDraw
from torch import Tensor

from foveal.attention.records.record import AttentionRecord
from foveal.errors import UserError
from foveal.see.draw._inputs import PairWeights, matrix, some_words
from foveal.see.draw._type import FINE, INK, MUTED, PAPER, RULE, font, shade, shortened, turned, width


def pairs(
    words: Sequence[str],
    weights: PairWeights,
    *,
    columns: Sequence[str] | None = None,
    target: Tensor | None = None,
    title: str = "",
    cell: int = 24,
) -> Image.Image:
    """Draw the weights between all words, or from the words of one sentence to those of another.

    Args:
        words: N words.
        weights: (N, K), finite and not negative, row m attending to column n; the greatest is the strongest colour.
            Or a pairwise record of one sample, of which the mean of the heads is drawn.
        columns: K words that are attended to; ``words`` themselves if left out.
        target: bool (N, K), pairs to frame.
        title: a line above the picture.
        cell: side of a square in pixels.

    Returns:
        An RGB picture on white.

    >>> picture = pairs(["fast", "cars"], [[0.1, 0.9], [0.7, 0.3]], cell=30)
    >>> picture.mode
    'RGB'
    """
    sentence = some_words(words)
    others = sentence if columns is None else some_words(columns)
    values = matrix(weights, "weights", len(sentence), len(others))
    if target is not None and (target.dtype != torch.bool or target.shape != values.shape):
        raise UserError(f"target must be bool {tuple(values.shape)}, got {target.dtype} {tuple(target.shape)}")
    if cell < 4:
        raise UserError(f"cell={cell}: squares of at least 4 pixels can be seen")
    side, face = FINE * cell, font(FINE * max(7, min(15, cell * 5 // 9)))
    rows, heads = ([shortened(word, face, FINE * 130) for word in side_words] for side_words in (sentence, others))
    row_room, head_room = (round(max(width(word, face) for word in axis)) + 8 * FINE for axis in (rows, heads))
    head, margin, bold = 30 * FINE if title else 0, 12 * FINE, font(15 * FINE, True)
    left, top, across, down = margin + row_room, margin + head + head_room, side * len(others), side * len(sentence)
    total = max(left + across + margin, 2 * margin + round(width(title, bold)))
    canvas = Image.new("RGB", (total, top + down + margin), PAPER)
    draw = ImageDraw.Draw(canvas)
    if title:
        draw.text((margin, margin), title, INK, bold)
    canvas.paste(_squares(values).resize((across, down), Image.Resampling.NEAREST), (left, top))
    for n in range(len(others) + 1):
        draw.line([left + n * side, top, left + n * side, top + down], RULE, FINE // 2)
    for m in range(len(sentence) + 1):
        draw.line([left, top + m * side, left + across, top + m * side], RULE, FINE // 2)
    if target is not None:
        for m, n in target.nonzero().tolist():
            x, y, inset = left + n * side, top + m * side, max(1, side // 12)
            draw.rectangle([x + inset, y + inset, x + side - inset, y + side - inset], outline=INK, width=FINE)
    for m, word in enumerate(rows):
        draw.text((left - 6 * FINE, top + (m + 0.5) * side), word, INK, face, "rm")
    for n, word in enumerate(heads):
        if word:
            column = turned(word, face, 90, MUTED)
            middle = left + (n + 0.5) * side
            canvas.paste(column, (round(middle - column.width / 2), top - 6 * FINE - column.height), column)
    return canvas.resize((canvas.width // FINE, canvas.height // FINE), Image.Resampling.LANCZOS)


def _squares(values: Tensor) -> Image.Image:
    """A picture with one pixel for each weight."""
    strengths = (values / (float(values.max()) or 1.0)).tolist()
    pixels = [shade(strength) if strength > 0.02 else (255, 253, 250) for row in strengths for strength in row]
    picture = Image.new("RGB", (values.shape[1], values.shape[0]))
    picture.putdata(pixels)
    return picture


def all_pairs(
    words: Sequence[str],
    matrices: Mapping[str, Tensor | AttentionRecord],
    *,
    columns: Sequence[str] | None = None,
    most: int = 1200,
) -> Image.Image:
    """Several matrices between the same words, such as the terms of attention, beside and below each other.

    The longer the sentences, the smaller the squares; words can be read all the same, because rows of pictures hold
    fewer of them.

    Args:
        words: N words.
        matrices: weights (N, K) by title, as in :func:`pairs`.
        columns: K words that are attended to; ``words`` themselves if left out.
        most: width from which on a row of pictures is not made wider; one picture alone may be.

    Returns:
        An RGB picture on white.

    >>> all_pairs(["fast", "cars"], {"all terms": torch.rand(2, 2), "position": torch.rand(2, 2)}).mode
    'RGB'
    """
    if not matrices:
        raise UserError("there is no attention to draw")
    longest = max(len(words), len(words if columns is None else columns))
    cell = max(13, min(24, 480 // max(1, longest)))
    pictures = [pairs(words, values, columns=columns, title=title, cell=cell) for title, values in matrices.items()]
    rows: list[list[Image.Image]] = [[]]
    for picture in pictures:
        if rows[-1] and sum(other.width for other in rows[-1]) + picture.width > most:
            rows.append([])
        rows[-1].append(picture)
    size = max(sum(one.width for one in row) for row in rows), sum(max(one.height for one in row) for row in rows)
    canvas, top = Image.new("RGB", size, PAPER), 0
    for row in rows:
        left = 0
        for picture in row:
            canvas.paste(picture, (left, top))
            left += picture.width
        top += max(one.height for one in row)
    return canvas
