"""Ask trained segmentation networks about an image file."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw
from torch import Tensor, nn
from torchvision.transforms.functional import pil_to_tensor

from foveal.attention import AttentionRecord, watch
from foveal.attention.deform import SamplingPoints
from foveal.attention.records.placement import token_map
from foveal.data.images.masked import resized_to
from foveal.data.images.reading import read_image
from foveal.errors import UserError
from foveal.see import overlay, sampling, segmentation
from foveal.tasks.answers import check_same_answers, normalised
from foveal.tasks.prediction import Prediction, Trained, point_in, titles
from foveal.tasks.segment.inference import segment

MOST_MAPS = 4  # of attention, from the last on


def predict(
    runs: Sequence[Trained], inputs: Sequence[str], at: str | None, short: int | None, window: int | None
) -> Prediction:
    """The classes of an image file, painted over it; see :meth:`~foveal.tasks.segment.task.Segment.predict`."""
    if len(inputs) != 1:
        extra = f"; leave {' '.join(inputs[1:])!r} out" if inputs else ""
        raise UserError(f"this model segments whole images{extra}")
    if short is not None and short < 1:
        raise UserError(f"--short {short}: expected the short side in pixels, at least 1")
    check_same_answers(runs)
    about, photo = runs[0].about, pil_to_tensor(read_image(Path(inputs[0])))
    height, width = photo.shape[1:]
    point = None if at is None else point_in(at, photo)
    query = None if point is None else (point[0] / width, point[1] / height)
    labels, lines, data = {}, {}, {}
    panels: dict[str, Image.Image] = {}
    undrawn: AttentionRecord | None = None
    for title, run in zip(titles(runs), runs, strict=True):
        looked = look(run, photo, short, window, query is not None)
        classes = labels[title] = looked.classes
        shares = classes.flatten().bincount(minlength=len(about["answers"])) / classes.numel()
        order = [number for number in shares.argsort(descending=True).tolist() if shares[number] > 0]
        named = [(about["answers"][number], float(shares[number])) for number in order]
        lines[title] = [f"{name:16} {share:6.1%} {'█' * round(30 * share)}".rstrip() for name, share in named[:8]]
        data[title] = {"shares": dict(named), "runs": run_lengths(classes)}
        if query is not None:
            panels |= _attention(title if len(runs) > 1 else "", photo, looked, query)
            undrawn = next(reversed(looked.seen.values()), undrawn)
    picture = segmentation(photo, labels, about["answers"], about["palette"], panels=panels)
    return Prediction(
        picture=picture,
        caption="The classes and where it looked" if panels else "The classes",
        lines=lines,
        remark=_remark(query, panels, undrawn),
        data={"image": inputs[0], "size": list(photo.shape[1:]), "classes": about["answers"], "models": data},
        stem=f"{Path(inputs[0]).stem}-segmented",
    )


@dataclass(frozen=True)
class Look:
    """What a model makes of a photograph.

    Attributes:
        classes: of each pixel, int64 (H, W).
        seen: its attention between positions, by layer.
        size: height and width at which the model saw the photograph.
    """

    classes: Tensor
    seen: dict[str, AttentionRecord]
    size: tuple[int, int]


def look(run: Trained, photo: Tensor, short: int | None, window: int | None, watched: bool) -> Look:
    """Segment a photograph uint8 (3, H, W); also watch the model, if asked to."""
    view = run.about["view"]
    height, width = photo.shape[1:]
    across, down = resized_to((width, height), short or view["short"])
    image = photo[None].float() / 255
    if (down, across) != (height, width):
        image = F.interpolate(image, (down, across), mode="bilinear", antialias=True)
    options = run.recipe.measure if window is None else replace(run.recipe.measure, window=(window, window))
    x = normalised(image, torch.tensor(view["mean"]), torch.tensor(view["std"]))
    with torch.no_grad():
        logits = segment(run.model, x, options)
        seen = attention_from_positions(run.model, x) if watched else {}  # of the whole image, whatever the window
    classes = F.interpolate(logits, (height, width), mode="bilinear").argmax(1)[0]
    return Look(classes, seen, (down, across))


def attention_from_positions(model: nn.Module, images: Tensor) -> dict[str, AttentionRecord]:
    """The attention between positions and the sampling points of a forward pass, by layer; none if there are none.

    Attention is foveal's, or that of a transformer in the model.
    """
    try:
        records = watch(model)
    except UserError:  # no module that could attend
        return {}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "nothing to watch")
        with records:
            model(images)
    return {site: record for site, record in records.items() if record.kind in ("pairwise", "points")}


def run_lengths(classes: Tensor) -> list[list[int]]:
    """Classes int (H, W) as pairs of class and length, row by row.

    >>> run_lengths(torch.tensor([[0, 0, 1], [1, 1, 2]]))
    [[0, 2], [1, 3], [2, 1]]
    """
    values, counts = classes.flatten().unique_consecutive(return_counts=True)
    return torch.stack([values, counts], 1).tolist()


# Attention of one position -----------------------------------------------------------


def _attention(title: str, photo: Tensor, looked: Look, query: tuple[float, float]) -> dict[str, Image.Image]:
    """Where a position looks, by title: sampling points, attention of the last layers, and each term of the last."""
    panels: dict[str, Image.Image] = {}
    points = {site: record for site, record in looked.seen.items() if isinstance(record.noted, SamplingPoints)}
    between = {site: record for site, record in looked.seen.items() if record.kind == "pairwise"}
    for site, record in list(points.items())[-1:]:
        panels[_panel_name(title, site)] = _sampled(photo, record, query)
    maps: dict[str, Tensor] = {}
    for site, record in reversed(between.items()):
        if len(maps) == MOST_MAPS:
            break
        if (weights := attention_of(record, query, looked.size)) is not None:
            maps[_panel_name(title, site)] = weights
    drawn = dict(reversed(maps.items()))
    for site, record in list(between.items())[-1:]:
        parts = record.parts if len(record.parts) > 1 else {}
        found = {name: attention_of(part, query, looked.size) for name, part in parts.items()}
        drawn |= {f"{_panel_name(title, site)} {name}": part for name, part in found.items() if part is not None}
    return panels | {name: _marked(overlay(photo, weights), query) for name, weights in drawn.items()}


def _panel_name(title: str, site: str) -> str:
    return f"{title} {site.removeprefix('backbone.').replace('.attached.', ' ')}".strip()


def _sampled(photo: Tensor, record: AttentionRecord, query: tuple[float, float]) -> Image.Image:
    """The points that a deformable convolution samples from a position of its map, with their modulation."""
    assert isinstance(record.noted, SamplingPoints)
    points, sides = record.values[0], photo.shape[:0:-1]  # (G, K, h, w, 2); width and height
    counts = points.shape[3], points.shape[2]
    column, row = (min(int(part * count), count - 1) for part, count in zip(query, counts, strict=True))
    seen = record.noted.input_size[::-1]  # the points are in pixels of the convolution's input
    ratio = torch.tensor([side / count for side, count in zip(sides, seen, strict=True)])
    chosen = (points[:, :, row, column].float().cpu() + 0.5) * ratio - 0.5
    modulation = record.noted.modulation
    shares = None if modulation is None else modulation[0, :, :, row, column]
    place = (query[0] * sides[0], query[1] * sides[1])
    drawn = sampling(photo, chosen, place, modulation=shares)
    return drawn.resize((int(sides[0]), int(sides[1])), Image.Resampling.LANCZOS)


def attention_of(record: AttentionRecord, query: tuple[float, float], size: Sequence[int]) -> Tensor | None:
    """The map (h, w) that a position looks at, the mean over heads; None if the record is of no map of the image.

    Args:
        record: pairwise attention of one image between the positions of its maps, or of a transformer between its
            patches and perhaps other tokens before them.
        query: column and row, as fractions of the image's sides.
        size: height and width of the image that the model saw.
    """
    queries, keys = (_tokens(count, size) for count in record.shape[-2:])
    if queries is None or keys is None or record.shape[0] > 1 or len(record.shape) > 4:  # windows are many samples
        return None
    (before, (height, width)), (others, shape) = queries, keys  # such as a class token before those of the map
    column, row = (min(int(part * side), side - 1) for part, side in zip(query, (width, height), strict=True))
    rows = record.rows([before + row * width + column])[0]
    return rows.float()[..., others:].reshape(-1, *shape).mean(0)


def _tokens(count: int, size: Sequence[int]) -> tuple[int, tuple[int, int]] | None:
    """As :func:`~foveal.attention.records.placement.token_map`; with tokens before the map, only of whole patches.

    Otherwise nearly every number, such as that of a padded window, could be some map and a few tokens.
    """
    tokens = token_map(count, size)
    if tokens is not None and tokens[0] and any(side % cells for side, cells in zip(size, tokens[1], strict=True)):
        return None
    return tokens


def _marked(picture: Image.Image, query: tuple[float, float]) -> Image.Image:
    """A ring around the position that looks."""
    draw, radius = ImageDraw.Draw(picture), max(3, min(picture.size) // 40)
    x, y = query[0] * picture.width, query[1] * picture.height
    for colour, grow in (("black", 1), ("white", 0)):
        draw.ellipse(
            (x - radius - grow, y - radius - grow, x + radius + grow, y + radius + grow), outline=colour, width=2
        )
    return picture


def _remark(query: tuple[float, float] | None, panels: dict[str, Any], undrawn: AttentionRecord | None) -> str:
    if query is None or panels:
        return ""
    if undrawn is not None:
        return (
            f"No attention is shown: that of {undrawn.site}, {' × '.join(map(str, undrawn.shape))}, is not between "
            "positions of the whole image, as in a transformer that attends within windows."
        )
    return (
        "No attention is shown: --at needs a model with attention between positions, such as one trained with "
        "model.insert={mechanism: spatial}."
    )
