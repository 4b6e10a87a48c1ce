"""Where a model looks for each of its best-scoring classes, model beside model.

As the figures of Wang et al.: "Sharpen Focus: Learning with Attention Separability and Consistency"
(https://arxiv.org/abs/1811.07484): one row per model, its best-scoring classes from left to right, the true class
framed.

:func:`class_looks` prepares the pictures and words once; :func:`class_maps` pastes them into one picture, and
:func:`foveal.see.page.class_map_cards` puts them on a page.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from PIL import Image, ImageDraw
from torch import Tensor

from foveal.errors import UserError
from foveal.see.draw._type import INK, MUTED, PAPER, RULE, font, shortened
from foveal.see.draw.overlay import overlay, plain
from foveal.see.draw.samples import spread
from foveal.see.draw.top_classes import KIND_NAMES, TopClasses

GAP, LINE, FRAME = 14, 17, 4
TRUE = "#1a7f4b"


@dataclass(frozen=True)
class ClassTile:
    """The map of one class over the image: the class by name, its probability, and whether it is a true one."""

    picture: Image.Image
    name: str
    probability: float
    true: bool
    attention: bool


@dataclass(frozen=True)
class ClassLook:
    """The best-scoring classes of one model for one image.

    Attributes:
        tiles: the classes, best first.
        kind: what the maps are, for people; empty if unknown.
        remark: how much the maps of the true class and of the best-scoring other one overlap, from 0 to 1; or the
            place of a true class that is not shown; may be empty.
    """

    tiles: list[ClassTile]
    kind: str
    remark: str


@dataclass(frozen=True)
class ClassRow:
    """One image: the input, its true classes by name (None if unknown), and the best-scoring classes of each model."""

    picture: Image.Image
    truth: list[str] | None
    looks: dict[str, ClassLook]


def class_looks(
    models: Mapping[str, TopClasses],
    image: Tensor,
    label: Tensor | None = None,
    *,
    names: Sequence[str] = (),
    limit: int = 6,
) -> Iterator[ClassRow]:
    """Prepare images one by one; arguments as in :func:`class_maps`."""
    _check(models, image, label)
    for n in spread(range(len(image)), limit):
        true = _true(label, n)
        background = _dimmed(image[n])
        looks = {}
        for title, top in models.items():
            tiles = [
                ClassTile(
                    picture=overlay(background, top.maps[n, k].nan_to_num(), cmap="inferno", alpha=0.8),
                    name=_name(names, c),
                    probability=float(top.probability[n, k]),
                    true=c in true,
                    attention=bool(top.maps[n, k].any()),
                )
                for k, c in enumerate(top.classes[n].tolist())
            ]
            looks[title] = ClassLook(tiles, KIND_NAMES.get(top.kind, ""), remark(top, n, true, names))
        truth = None if label is None else [_name(names, c) for c in true]
        yield ClassRow(plain(image[n]), truth, looks)


def remark(top: TopClasses, n: int, true: Sequence[int], names: Sequence[str]) -> str:
    """Overlap of the best-scoring true class with the best-scoring other one; or the place of one not shown."""
    from foveal.measure.attention_overlap import attention_overlap  # imports torchmetrics, which imports matplotlib

    if not true:
        return ""
    shown = top.classes[n].tolist()
    best = min(true, key=lambda c: int(top.rank[n, c]))
    others = [c for c in shown if c not in true]
    if best not in shown:
        return f"{_name(names, best)} is number {int(top.rank[n, best]) + 1}"
    if not others:
        return ""
    true_map, other_map = (top.maps[n, shown.index(c)][None] for c in (best, others[0]))
    overlap = attention_overlap(true_map, other_map).all
    if overlap.isnan():
        return ""
    return f"{_name(names, best)} and {_name(names, others[0])} overlap by {overlap:.2f}"


def class_maps(
    models: Mapping[str, TopClasses],
    image: Tensor,
    label: Tensor | None = None,
    *,
    names: Sequence[str] = (),
    size: int = 136,
    limit: int = 6,
) -> Image.Image:
    """Draw the maps of the best-scoring classes, one row per model and the true class framed.

    Args:
        models: title of each model and its best-scoring classes, of the same images.
        image: (N, 3, H, W), uint8, or float in [0, 1].
        label: true class (N,), or 0 and 1 for every class (N, C); None if unknown.
        names: names of the classes.
        size: side of a tile in pixels.
        limit: most images; they are spread over all.

    Returns:
        An RGB picture on white. Beside each title stands what the maps are, and how much those of the true class and of
        the best-scoring other class overlap, from 0 to 1, if both are shown.

    >>> import timm, foveal
    >>> from foveal.see import top_classes
    >>> model = timm.create_model("resnet18", num_classes=10)
    >>> image = torch.rand(2, 3, 64, 64)
    >>> top = top_classes(model, image)
    >>> picture = class_maps({"baseline": top, "sharpened": top}, image, torch.tensor([3, 7]))
    >>> picture.width, picture.height
    (914, 856)
    """
    rows = list(class_looks(models, image, label, names=names, limit=limit))
    columns = max(top.classes.shape[1] for top in models.values())
    row_height = LINE + 6 + size + 2 * LINE + GAP
    block = row_height * len(models) + GAP
    width = GAP + (1 + columns) * (size + GAP)
    canvas = Image.new("RGB", (width, GAP + len(rows) * block - GAP), PAPER)
    panel = _Panel(canvas, size)
    for n, row in enumerate(rows):
        top_edge = GAP + n * block
        if n:
            panel.draw.line([(GAP, top_edge - GAP), (width - GAP, top_edge - GAP)], RULE)
        panel.input(row, top_edge + LINE + 6)
        for i, (title, look) in enumerate(row.looks.items()):
            panel.look(title, look, top_edge + i * row_height)
    return canvas


class _Panel:
    """Draws the cells of :func:`class_maps`."""

    def __init__(self, canvas: Image.Image, size: int) -> None:
        self.canvas, self.size = canvas, size
        self.draw = ImageDraw.Draw(canvas)

    def text(self, left: float, top: float, text: str, most: float, ink: str = INK, bold: bool = False) -> float:
        """Draw one line, cut where it would run over, and return its width."""
        face = font(12, bold)
        cut = shortened(text, face, most)
        self.draw.text((left, top), cut, ink, face)
        return face.getlength(cut)

    def tile(self, picture: Image.Image, left: int, top: int) -> None:
        picture = picture.resize((self.size, self.size), Image.Resampling.BICUBIC)
        self.canvas.paste(picture, (left, top))

    def input(self, row: ClassRow, top: int) -> None:
        self.tile(row.picture, GAP, top)
        if row.truth:
            self.text(GAP, top + self.size + 3, f"true: {', '.join(row.truth)}", self.size, TRUE, bold=True)

    def look(self, title: str, look: ClassLook, top: int) -> None:
        left = 2 * GAP + self.size
        room = self.canvas.width - left - GAP
        used = self.text(left, top, title, room, bold=True)
        note = ": ".join(filter(None, (look.kind, look.remark)))
        self.text(left + used + 12, top, note, room - used - 12, MUTED)
        for k, tile in enumerate(look.tiles):
            x, y = left + k * (self.size + GAP), top + LINE + 6
            if tile.true:
                edge = [x - FRAME, y - FRAME, x + self.size + FRAME - 1, y + self.size + FRAME - 1]
                self.draw.rectangle(edge, TRUE)
            self.tile(tile.picture, x, y)
            ink, below = TRUE if tile.true else INK, y + self.size + FRAME + 1
            self.text(x, below, f"{k + 1}. {tile.name}", self.size, ink, bold=tile.true)
            vanished = "" if tile.attention else "  no attention"
            self.text(x, below + LINE, f"{tile.probability:.0%}{vanished}", self.size, MUTED)


def _name(names: Sequence[str], index: int) -> str:
    return names[index] if index < len(names) else f"class {index}"


def _dimmed(image: Tensor) -> Tensor:
    """The image (3, H, W) without colours and darker, so that all colour and brightness on it is attention."""
    pixels = image.cpu().float() / (255 if image.dtype == torch.uint8 else 1)
    grey = (pixels * torch.tensor([0.299, 0.587, 0.114])[:, None, None]).sum(0, keepdim=True)
    return 0.7 * grey.expand(3, -1, -1)


def _true(label: Tensor | None, n: int) -> list[int]:
    if label is None:
        return []
    return label[n].nonzero().flatten().tolist() if label.ndim == 2 else [int(label[n])]


def _check(models: Mapping[str, TopClasses], image: Tensor, label: Tensor | None) -> None:
    if not models:
        raise UserError("no models to show; give at least one title with its top_classes")
    if image.ndim != 4 or image.shape[1] != 3 or not len(image):
        raise UserError(f"image must be (N, 3, H, W), got shape {tuple(image.shape)}; add a dimension to a single one")
    if label is not None and (label.ndim not in (1, 2) or len(label) != len(image)):
        raise UserError(f"label must be ({len(image)},) or ({len(image)}, classes), got {tuple(label.shape)}")
    for title, top in models.items():
        if len(top) != len(image):
            raise UserError(f"{title} has classes of {len(top)} images, image holds {len(image)}; give the same ones")
        if label is not None:
            _check_classes(title, top.rank.shape[1], label)


def _check_classes(title: str, classes: int, label: Tensor) -> None:
    if label.ndim == 2 and label.shape[1] != classes:
        raise UserError(f"label has a column for each of {label.shape[1]} classes, {title} knows {classes}")
    if label.ndim == 1 and not 0 <= int(label.min()) <= int(label.max()) < classes:
        span = f"{int(label.min())} to {int(label.max())}"
        raise UserError(f"label must be between 0 and {classes - 1}, the classes of {title}; got {span}")
