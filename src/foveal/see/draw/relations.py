"""Relations between regions over an image: one region, and those that it attends to most.

The picture is that of Figure 1 in Wang et al.: "FAN: Focused Attention Networks" (https://arxiv.org/abs/1905.11498).
A detector has many proposals for each object. Of those that overlap each other or the reference, only the one of the
greatest weight is drawn, with its own weight: the weights in a picture do not sum to one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from PIL import Image, ImageDraw
from torch import Tensor

from foveal.attention.records.record import AttentionRecord
from foveal.errors import UserError
from foveal.see.draw._inputs import of_record
from foveal.see.draw._type import FINE, INK, PAPER, font, readable, shade, width
from foveal.see.draw.overlay import Picture, plain
from foveal.see.draw.segmentation import _side_by_side

Weights = Tensor | AttentionRecord

REFERENCE = (20, 110, 215)  # colour of the region that attends
Rectangle = tuple[float, float, float, float]


def relations(
    image: Picture,
    boxes: Tensor | Mapping[str, Tensor],
    weights: Weights | Mapping[str, Weights],
    reference: int | Tensor | Sequence[float] | None = None,
    *,
    names: Sequence[str] | None = None,
    top: int = 5,
    overlap: float = 0.5,
    size: int = 480,
) -> Image.Image:
    """Draw a region in blue, and the regions that it attends to most in orange, with their weights.

    Args:
        image: (3, H, W), uint8, or float in [0, 1]; an array (H, W, 3); or a PIL image.
        boxes: (N, 4) as x1, y1, x2, y2 in pixels of the image; or those of several models by title, which are drawn
            beside each other.
        weights: of the same models: (N, N), finite and not negative, row m attending to column n; or a
            pairwise record of one sample; or the row of the
            reference alone, (N,).
        reference: the region that attends: its row, or a box (4,), of which the nearest region is taken, so that
            several models have the same one. None for the row with the greatest weight for another region; with one
            row of weights it is needed.
        names: of the regions, (N,), written before the weights.
        top: most regions to draw.
        overlap: a region whose IoU with a stronger one, or with the reference, is above it is left out.
        size: longest side of a picture.

    Returns:
        An RGB picture on white.

    >>> boxes = torch.tensor([[2.0, 2, 30, 30], [40, 5, 75, 50], [5, 35, 30, 55]])
    >>> weights = torch.tensor([[0.1, 0.7, 0.2], [0.5, 0.2, 0.3], [0.3, 0.3, 0.4]])
    >>> relations(torch.rand(3, 60, 80), boxes, weights, reference=0).mode
    'RGB'
    """
    if top < 1 or size < 64:
        raise UserError(f"top={top}, size={size}: expected at least one region, and a picture of 64 pixels")
    picture, models = plain(image), _models(boxes, weights)
    panels = {
        title: _panel(picture, *_checked(*values), reference, names, top, overlap, size)
        for title, values in models.items()
    }
    return _side_by_side(panels, size) if isinstance(boxes, Mapping) else panels[""]


def _models(
    boxes: Tensor | Mapping[str, Tensor], weights: Weights | Mapping[str, Weights]
) -> dict[str, tuple[Tensor, Weights]]:
    """Boxes and weights of each model by title."""
    if isinstance(boxes, Mapping) and isinstance(weights, Mapping):
        if not boxes or set(boxes) != set(weights):
            raise UserError(f"boxes are of {', '.join(boxes) or 'no model'}, weights of {', '.join(weights) or 'none'}")
        return {title: (boxes[title], weights[title]) for title in boxes}
    if isinstance(boxes, Mapping) or isinstance(weights, Mapping):
        raise UserError("boxes and weights must both be of one model, or both of several by title")
    return {"": (boxes, weights)}


def _checked(boxes: Tensor, weights: Weights) -> tuple[Tensor, Tensor]:
    weights = of_record(weights) if isinstance(weights, AttentionRecord) else weights
    boxes, weights = (torch.as_tensor(values).detach().cpu().float() for values in (boxes, weights))
    if boxes.ndim != 2 or boxes.shape[1] != 4:
        raise UserError(f"boxes must be (N, 4) as x1, y1, x2, y2, got {tuple(boxes.shape)}")
    if weights.shape not in ((len(boxes),), (len(boxes), len(boxes))):
        raise UserError(f"weights must be ({len(boxes)}, {len(boxes)}) or ({len(boxes)},), got {tuple(weights.shape)}")
    if not bool(boxes.isfinite().all()):
        raise UserError("boxes hold NaN or infinite coordinates")
    if not bool(((weights >= 0) & weights.isfinite()).all()):
        raise UserError("weights must be finite and not negative; give weights after the softmax")
    return boxes, weights


def related(boxes: Tensor, row: Tensor, reference: int, top: int, overlap: float) -> list[int]:
    """The regions of greatest weight that overlap neither the reference nor each other much, strongest first.

    Args:
        boxes: (N, 4).
        row: weights of the reference, (N,).
        reference: its row.
        top: most regions.
        overlap: greatest IoU.
    """
    from torchvision.ops import box_iou, nms  # imports the compiler, which takes seconds

    apart = ~(box_iou(boxes[reference][None], boxes)[0] > overlap)  # NaN, of two boxes without area, is apart
    apart[reference] = False
    apart &= (boxes[:, 2:] > boxes[:, :2]).all(1) & (row > 0)
    places = apart.nonzero()[:, 0]
    return places[nms(boxes[places], row[places], overlap)[:top]].tolist()


def _reference(boxes: Tensor, weights: Tensor, reference: int | Tensor | Sequence[float] | None) -> int:
    """The row of the region that attends."""
    if reference is None:
        if weights.ndim == 1:
            raise UserError("one row of weights belongs to a region; give its number: reference=0")
        others = weights.masked_fill(torch.eye(len(weights), dtype=torch.bool), -1)
        return int(others.max(1).values.argmax())
    if isinstance(reference, int):
        if not 0 <= reference < len(boxes):
            raise UserError(f"reference={reference}: expected from 0 to {len(boxes) - 1}")
        return reference
    from torchvision.ops import box_iou

    box = torch.as_tensor(reference).detach().cpu().float()
    if box.shape != (4,):
        raise UserError(f"reference must be the number of a region or a box (4,), got {tuple(box.shape)}")
    # Of regions that do not overlap the box at all, the one whose corners are nearest.
    overlaps, distance = box_iou(box[None], boxes)[0].nan_to_num(0), (boxes - box).abs().sum(1)
    return int((overlaps - 1e-6 * distance / distance.max().clamp_min(1)).argmax())


def _panel(
    picture: Image.Image,
    boxes: Tensor,
    weights: Tensor,
    reference: int | Tensor | Sequence[float] | None,
    names: Sequence[str] | None,
    top: int,
    overlap: float,
    size: int,
) -> Image.Image:
    """The image with the boxes of one model."""
    if names is not None and len(names) != len(boxes):
        raise UserError(f"there are {len(names)} names for {len(boxes)} regions; give one for each")
    scale = FINE * size / max(picture.size)
    canvas = picture.resize([max(1, round(scale * side)) for side in picture.size], Image.Resampling.BICUBIC)
    if len(boxes):
        chosen = _reference(boxes, weights, reference)
        row = weights if weights.ndim == 1 else weights[chosen]
        strongest = related(boxes, row, chosen, top, overlap)
        _draw(canvas, scale * boxes, row, chosen, strongest, names)
    return canvas.resize([max(1, side // FINE) for side in canvas.size], Image.Resampling.LANCZOS)


def _draw(
    canvas: Image.Image, boxes: Tensor, row: Tensor, chosen: int, strongest: list[int], names: Sequence[str] | None
) -> None:
    draw, greatest = ImageDraw.Draw(canvas), float(row[strongest[0]]) if strongest else 1.0
    colours = {n: shade(0.25 + 0.75 * float(row[n]) / greatest) for n in strongest} | {chosen: REFERENCE}
    digits = 2 if greatest >= 0.1 else 3
    texts = {n: f"{row[n]:.{digits}f}" for n in strongest}
    if names is not None:
        texts = {n: f"{names[n]} {texts.get(n, '')}".strip() for n in (*strongest, chosen)}
    order = [*reversed(strongest), chosen]  # the strongest above the others
    stroke = 3 * FINE
    for n in order:
        left, up, right, down = _inside(boxes[n].tolist(), canvas.size, stroke)
        draw.rectangle([left, up, right, down], outline=PAPER, width=stroke + 2 * FINE)
        draw.rectangle([left + FINE, up + FINE, right - FINE, down - FINE], outline=colours[n], width=stroke)
    taken: list[Rectangle] = []
    for n in reversed(order):
        if n in texts:
            _label(draw, _inside(boxes[n].tolist(), canvas.size, stroke), texts[n], colours[n], canvas.size, taken)


def _inside(box: Sequence[float], size: tuple[int, int], least: int) -> Rectangle:
    """The part of a box that is inside the picture, at least a few strokes wide."""
    left, up = (min(max(0.0, low), side - 4.0 * least) for low, side in zip(box[:2], size, strict=True))
    right, down = (
        min(side - 1.0, max(high, low + 3.0 * least)) for high, low, side in zip(box[2:], (left, up), size, strict=True)
    )
    return left, up, right, down


def _label(
    draw: ImageDraw.ImageDraw,
    box: Rectangle,
    text: str,
    colour: tuple[int, int, int],
    size: tuple[int, int],
    taken: list[Rectangle],
) -> None:
    """Write in or at a box, where no other text is."""
    face, inset = font(12 * FINE, True), 3 * FINE
    wide, high = width(text, face) + 2 * inset, 16.0 * FINE
    left, up, right, down = box
    inside = [(left, up), (right - wide, down - high), (right - wide, up)]
    outside = [(left, up - high), (left, down), (right, up), (left - wide, up)]
    small = wide > 0.8 * (right - left) or high > 0.4 * (down - up)  # the text would cover what it names
    corners = outside + inside if small else inside + outside
    corners += [(left, up + k * high) for k in range(1, 6)]
    places = [(min(max(0.0, x), size[0] - wide), min(max(0.0, y), size[1] - high), wide, high) for x, y in corners]
    free = [place for place in places if not any(_overlap(place, other) for other in taken)]
    x, y, _, _ = place = (free or places)[0]
    taken.append(place)
    draw.rectangle([x, y, x + wide, y + high], colour, PAPER, width=FINE // 2)
    draw.text((x + inset, y + high / 2), text, PAPER if readable(colour) == PAPER else INK, face, "lm")


def _overlap(a: Rectangle, b: Rectangle) -> bool:
    """Whether two rectangles (x, y, width, height) share an area."""
    return a[0] < b[0] + b[2] and b[0] < a[0] + a[2] and a[1] < b[1] + b[3] and b[1] < a[1] + a[3]
