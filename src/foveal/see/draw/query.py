"""What one position of an image, or the class token, attends to; and the points that deformable convolution samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from PIL import Image, ImageDraw
from torch import Tensor

from foveal.attention.records.placement import token_map
from foveal.attention.records.record import AttentionRecord
from foveal.errors import UserError
from foveal.see.draw._type import FINE, INK, MUTED, PAPER, font, shortened, width
from foveal.see.draw.overlay import overlay, plain

TITLES = {
    "together": "all terms",
    "E1": "query and key content",
    "E2": "query and position",
    "E3": "key content",
    "E4": "position",
}
MARK, DOT = "#19e3ff", "#ffd23f"  # the query, and what it samples
Maps = AttentionRecord | Mapping[str, Tensor]


def query(
    image: Tensor,
    attention: Maps | Mapping[str, Maps],
    at: tuple[float, float] | None = None,
    *,
    sample: int = 0,
    tile: int = 160,
) -> Image.Image:
    """Draw where the position ``at`` of an image looks, or the class token of a transformer.

    Spatial attention has one picture for each of its terms, and one for all of them together.

    Args:
        image: (3, H, W), uint8, or float in [0, 1].
        attention: a record of spatial attention or of a transformer over the whole image, of which all heads' mean is
            drawn; or maps (h, w), not negative, by title; or several of either by the name of a model or site, such as
            what :func:`foveal.watch` returns, drawn below each other.
        at: (x, y) of the query in pixels of the image; None for the first token of a transformer, which is no patch.
        sample: which sample of a record.
        tile: width of each picture in pixels.

    Returns:
        An RGB picture on white: in each row the image with the query marked, and the maps over it.

    >>> picture = query(torch.rand(3, 60, 80), {"E3": torch.rand(4, 5), "E4": torch.rand(4, 5)}, (40, 30))
    >>> picture.mode
    'RGB'
    """
    size = (int(image.shape[-2]), int(image.shape[-1]))
    if at is not None:
        _check_place(at, size)
    rows = _rows(attention, at, size, sample)
    marked = _marked(plain(image), at)
    pictures = {
        model: [
            ("", marked),
            *((TITLES.get(title, title), _marked(overlay(image, m), at)) for title, m in maps.items()),
        ]
        for model, maps in rows.items()
    }
    return _grid(pictures, tile)


def sampling(
    image: Tensor,
    points: Tensor,
    at: tuple[float, float] | None = None,
    *,
    modulation: Tensor | None = None,
) -> Image.Image:
    """Draw where a deformable convolution samples.

    Args:
        image: (3, H, W), uint8, or float in [0, 1].
        points: (..., 2), x and y in pixels of the image, (0, 0) being the centre of the first one. A record holds
            pixels p of the convolution's input: with r the ratio of the sizes, (p + 0.5) · r − 0.5 are those of the
            image.
        at: (x, y) of the position that samples them, which is marked; None for no mark.
        modulation: (...), not negative: the radius of a point grows with its share of the greatest.

    Returns:
        An RGB picture; its size is three times the image's, so that points between pixels can be told apart.

    >>> sampling(torch.rand(3, 20, 30), torch.tensor([[3.5, 4.0], [29.0, 19.0]]), (10, 10)).size
    (90, 60)
    """
    if points.shape[-1:] != (2,):
        raise UserError(f"points {tuple(points.shape)} must be (..., 2), x and y of each")
    if modulation is not None and modulation.shape != points.shape[:-1]:
        raise UserError(f"modulation {tuple(modulation.shape)} must be {tuple(points.shape[:-1])}, one for each point")
    flat = points.detach().cpu().float().reshape(-1, 2)
    shares = torch.ones(len(flat)) if modulation is None else modulation.detach().cpu().float().flatten()
    if not bool(flat.isfinite().all() and (shares >= 0).all()):
        raise UserError("points must be finite, and modulation not negative")
    shares = shares / shares.max().clamp_min(torch.finfo(torch.float32).tiny) if len(shares) else shares
    picture = plain(image)
    canvas = picture.resize((FINE * picture.width, FINE * picture.height), Image.Resampling.BICUBIC)
    draw, largest = ImageDraw.Draw(canvas), max(4.0, canvas.width / 60)
    for (x, y), share in zip(flat.tolist(), shares.tolist(), strict=True):
        _circle(draw, FINE * (x + 0.5), FINE * (y + 0.5), largest * max(0.25, share**0.5), DOT)
    if at is not None:
        _check_place(at, (picture.height, picture.width))
        _circle(draw, FINE * (at[0] + 0.5), FINE * (at[1] + 0.5), largest, None)
    return canvas


def query_maps(
    record: AttentionRecord, at: tuple[float, float] | None, size: tuple[int, int], sample: int = 0
) -> dict[str, Tensor]:
    """Where one position of an image attends to, as the mean of all heads.

    Args:
        record: of spatial attention, or of a transformer whose tokens are the patches of the whole image, row by row,
            and perhaps others before them.
        at: (x, y) in pixels of the image; None for the first token.
        size: (H, W) of the image.
        sample: of the batch.

    Returns:
        Maps (h', w') by ``together`` and the name of each term; of a transformer, one by ``attention``.
    """
    if record.kind != "pairwise":
        raise UserError(f"{record.site} is {record.kind} attention; only pairwise attention has a map for each query")
    if not 0 <= sample < record.shape[0]:
        raise UserError(f"sample={sample}: {record.site} has recorded {record.shape[0]}")
    queries = getattr(record.noted, "query_size", None)
    if queries is None:
        return {"attention": _token_map(record, at, size, sample)}
    if at is None:
        raise UserError(f"{record.site} has no class token; give at=(x, y), the position that attends")
    x, y = _cell(at, size, queries)
    records = {"together": record, **record.parts}
    return {name: part.map_at((x, y))[sample].detach().float().mean(0) for name, part in records.items()}


def _token_map(record: AttentionRecord, at: tuple[float, float] | None, size: tuple[int, int], sample: int) -> Tensor:
    """What a token of a transformer attends to, as a map (h', w')."""
    queries, keys = (token_map(count, size) for count in record.shape[-2:])
    if keys is None or len(record.shape) > 4 or (queries is None and at is not None):
        raise UserError(
            f"{record.site} attends between {record.shape[-2]} and {record.shape[-1]} tokens, which are no map of an "
            f"image of {size[1]}×{size[0]} pixels; use record.rows or record.values"
        )
    if at is None:
        if queries is not None and not queries[0] and record.shape[-2] > 1:
            raise UserError(f"{record.site} has no class token; give at=(x, y), the position that attends")
        row = 0
    else:
        assert queries is not None
        x, y = _cell(at, size, queries[1])
        row = queries[0] + y * queries[1][1] + x
    extra, shape = keys
    weights = record.rows([row])[sample, ..., 0, extra:].detach().float()
    return weights.reshape(-1, *shape).mean(0)


def _cell(at: tuple[float, float], size: tuple[int, int], counts: tuple[int, int]) -> tuple[int, int]:
    """Column and row of the cell, of ``counts`` rows and columns, that a pixel of the image is in."""
    x, y = (min(int(p / side * count), count - 1) for p, side, count in zip(at, size[::-1], counts[::-1], strict=True))
    return x, y


def _rows(
    attention: Maps | Mapping[str, Maps], at: tuple[float, float] | None, size: tuple[int, int], sample: int
) -> dict[str, Mapping[str, Tensor]]:
    """Maps by title, by the name of the model."""
    if isinstance(attention, AttentionRecord):
        return {"": query_maps(attention, at, size, sample)}
    if not attention:
        raise UserError("there is no attention to draw")
    if all(isinstance(value, Tensor) for value in attention.values()):
        return {"": attention}  # type: ignore[dict-item]
    return {name: _rows(maps, at, size, sample)[""] for name, maps in attention.items()}  # type: ignore[arg-type]


def _check_place(at: Sequence[float], size: tuple[int, int]) -> None:
    height, width = size
    if len(at) != 2 or not (0 <= at[0] < width and 0 <= at[1] < height):
        raise UserError(f"at={tuple(at)} must be (x, y) inside the image of {width}×{height} pixels")


def _marked(picture: Image.Image, at: tuple[float, float] | None) -> Image.Image:
    if at is None:
        return picture
    draw, radius = ImageDraw.Draw(picture), max(2.0, picture.width / 40)
    _circle(draw, at[0], at[1], radius, None)
    return picture


def _circle(draw: ImageDraw.ImageDraw, x: float, y: float, radius: float, fill: str | None) -> None:
    """A dot, or without ``fill`` a ring."""
    box = [x - radius, y - radius, x + radius, y + radius]
    stroke = max(1, round(radius / 3))
    draw.ellipse(box, fill, INK if fill else MARK, width=1 if fill else stroke)


def _grid(rows: Mapping[str, Sequence[tuple[str, Image.Image]]], tile: int) -> Image.Image:
    """Pictures with titles, a row for each model."""
    if tile < 32:
        raise UserError(f"tile={tile}: pictures of at least 32 pixels can be seen")
    gap, head, face, bold = 10, 22, font(12), font(13, True)
    first = next(iter(rows.values()))[0][1]
    height = round(tile * first.height / first.width)
    label = max(round(width(name, bold)) for name in rows)
    left = gap + (label + gap if label else 0)
    columns = max(map(len, rows.values()))
    canvas = Image.new("RGB", (left + columns * (tile + gap), gap + len(rows) * (height + head + gap)), PAPER)
    draw = ImageDraw.Draw(canvas)
    for r, (name, pictures) in enumerate(rows.items()):
        top = gap + r * (height + head + gap)
        draw.text((gap, top + head + height / 2), name, INK, bold, "lm")
        for c, (title, picture) in enumerate(pictures):
            x = left + c * (tile + gap)
            draw.text((x, top + head / 2), shortened(title, face, tile), MUTED, face, "lm")
            canvas.paste(picture.resize((tile, height), Image.Resampling.LANCZOS), (x, top + head))
    return canvas
