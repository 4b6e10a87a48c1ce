"""Where a model looks for each of the classes it thinks of first, model beside model.

As the figures of Wang et al.: "Sharpen Focus: Learning with Attention Separability and Consistency"
(https://arxiv.org/abs/1811.07484): a row a model, its best-scoring classes from left to right, the true class framed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from PIL import Image, ImageDraw
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from foveal.attention.class_maps.cam import Kind, cam
from foveal.attention.class_maps.taps import Grid, Taps
from foveal.errors import UserError
from foveal.see._type import INK, MUTED, PAPER, RULE, font, shortened
from foveal.see.overlay import overlay, plain

GAP, LINE, FRAME = 14, 17, 4
TRUE = "#1a7f4b"
KIND_NAMES: dict[str | None, str] = {"channel": "A_ch", "gradcam": "Grad-CAM"}
TENSORS = ("classes", "probability", "maps", "rank")


@dataclass(frozen=True)
class TopClasses:
    """What a model thinks of first, and where it looks for it.

    Attributes:
        classes: int64 (N, K), best first.
        probability: (N, K).
        maps: (N, K, h, w), not negative.
        rank: int64 (N, C): place of every class, 0 for the best.
        kind: what the maps are, ``channel`` or ``gradcam``; None if unknown.
    """

    classes: Tensor
    probability: Tensor
    maps: Tensor
    rank: Tensor
    kind: str | None = None

    def __len__(self) -> int:
        return len(self.classes)

    def only(self, n: int) -> TopClasses:
        """What it thinks of image ``n``."""
        return replace(self, **{name: getattr(self, name)[n : n + 1] for name in TENSORS})

    def tensors(self) -> dict[str, Tensor]:
        """By the names under which a run keeps them."""
        return {f"top.{name}": getattr(self, name) for name in TENSORS}


def top_classes(
    model: nn.Module,
    x: Tensor,
    at: str = "layer4",
    *,
    top: int = 5,
    kind: Kind = "channel",
    multilabel: bool = False,
    reshape: Grid | None = None,
) -> TopClasses:
    """The ``top`` best-scoring classes of each image and their attention maps; the model runs in eval mode.

    Args:
        model: a classifier, as :func:`foveal.cam` takes it; it is left as it was.
        x: its input (N, C, H, W).
        at: the layer of the maps, see :func:`foveal.cam`.
        top: how many classes; fewer if the model has fewer.
        kind: ``channel`` or ``gradcam``.
        multilabel: whether several classes may hold, so that each has a probability of its own.
        reshape: see :func:`foveal.cam`.
    """
    if top < 1:
        raise UserError(f"top={top}: expected at least 1")
    modes = {module: module.training for module in model.modules()}
    taps = Taps(model, at, reshape)
    try:
        with torch.no_grad():
            model.eval()
            with taps:
                model(x)
            logits = taps.logits.float()
            probability = logits.sigmoid() if multilabel else logits.softmax(1)
            order = logits.argsort(1, descending=True)
            classes = order[:, :top]
            maps = cam(model, x, classes, at, kind, reshape=reshape)
    finally:
        for module, training in modes.items():
            module.training = training
    found = (classes, probability.gather(1, classes), maps, order.argsort(1))
    return TopClasses(**dict(zip(TENSORS, (each.cpu() for each in found), strict=True)), kind=kind)


def read_top_classes(path: Path) -> TopClasses | None:
    """What a run kept beside its samples in ``samples.safetensors``; None if it kept none."""
    try:
        with safe_open(path, "pt") as file:
            if not all(f"top.{name}" in file.keys() for name in TENSORS):  # noqa: SIM118 (not a mapping)
                return None
            return TopClasses(**{name: file.get_tensor(f"top.{name}") for name in TENSORS})
    except (OSError, SafetensorError):
        return None


def class_maps(
    models: Mapping[str, TopClasses],
    image: Tensor,
    label: Tensor | None = None,
    *,
    names: Sequence[str] = (),
    size: int = 136,
    limit: int = 6,
) -> Image.Image:
    """Draw the maps of the best-scoring classes, a row a model and the true class framed.

    Args:
        models: title of each model and what it thought of first, of the same images.
        image: (N, 3, H, W), uint8, or float in [0, 1].
        label: true class (N,), or 0 and 1 for every class (N, C); None if unknown.
        names: names of the classes.
        size: side of a tile in pixels.
        limit: most images.

    Returns:
        An RGB picture on white. Beside each title stands what the maps are, and how much those of the true class and of
        the best-scoring other class overlap, from 0 to 1, if both are shown.

    >>> import timm, foveal
    >>> model = timm.create_model("resnet18", num_classes=10)
    >>> image = torch.rand(2, 3, 64, 64)
    >>> looks = top_classes(model, image)
    >>> picture = class_maps({"baseline": looks, "sharpened": looks}, image, torch.tensor([3, 7]))
    >>> picture.width, picture.height
    (914, 856)
    """
    _check(models, image, label)
    count = min(limit, len(image))
    columns = max(look.classes.shape[1] for look in models.values())
    row = LINE + 6 + size + 2 * LINE + GAP
    block = row * len(models) + GAP
    width = GAP + (1 + columns) * (size + GAP)
    canvas = Image.new("RGB", (width, GAP + count * block - GAP), PAPER)
    panel = _Panel(canvas, size, list(names))
    for n in range(count):
        top, true = GAP + n * block, _true(label, n)
        if n:
            panel.draw.line([(GAP, top - GAP), (width - GAP, top - GAP)], RULE)
        panel.input(image[n], true, top + LINE + 6)
        for i, (title, look) in enumerate(models.items()):
            panel.look(title, look, image[n], n, true, top + i * row)
    return canvas


class _Panel:
    """Draws the cells of :func:`class_maps`."""

    def __init__(self, canvas: Image.Image, size: int, names: list[str]) -> None:
        self.canvas, self.size, self.names = canvas, size, names
        self.draw = ImageDraw.Draw(canvas)

    def text(self, left: float, top: float, text: str, most: float, ink: str = INK, bold: bool = False) -> float:
        """One line, cut where it would run over; how wide it came out."""
        face = font(12, bold)
        cut = shortened(text, face, most)
        self.draw.text((left, top), cut, ink, face)
        return face.getlength(cut)

    def name(self, index: int) -> str:
        return self.names[index] if index < len(self.names) else f"class {index}"

    def tile(self, picture: Image.Image, left: int, top: int) -> None:
        picture = picture.resize((self.size, self.size), Image.Resampling.BICUBIC)
        self.canvas.paste(picture, (left, top))

    def input(self, image: Tensor, true: list[int], top: int) -> None:
        self.tile(plain(image), GAP, top)
        below = top + self.size + 3
        if true:
            shown = ", ".join(self.name(c) for c in true)
            self.text(GAP, below, f"true: {shown}", self.size, TRUE, bold=True)

    def look(self, title: str, look: TopClasses, image: Tensor, n: int, true: list[int], top: int) -> None:
        left = 2 * GAP + self.size
        room = self.canvas.width - left - GAP
        used = self.text(left, top, title, room, bold=True)
        said = ": ".join(filter(None, (KIND_NAMES.get(look.kind), self.remark(look, n, true))))
        self.text(left + used + 12, top, said, room - used - 12, MUTED)
        dim = _dimmed(image)
        for k, c in enumerate(look.classes[n].tolist()):
            x, y = left + k * (self.size + GAP), top + LINE + 6
            is_true = c in true
            if is_true:
                edge = [x - FRAME, y - FRAME, x + self.size + FRAME - 1, y + self.size + FRAME - 1]
                self.draw.rectangle(edge, TRUE)
            self.tile(overlay(dim, look.maps[n, k].nan_to_num(), cmap="inferno", alpha=0.8), x, y)
            ink = TRUE if is_true else INK
            self.text(x, y + self.size + FRAME + 1, f"{k + 1}. {self.name(c)}", self.size, ink, bold=is_true)
            vanished = "" if look.maps[n, k].any() else "  no attention"
            chance = f"{look.probability[n, k]:.0%}{vanished}"
            self.text(x, y + self.size + FRAME + 1 + LINE, chance, self.size, MUTED)

    def remark(self, look: TopClasses, n: int, true: list[int]) -> str:
        """Overlap of the best-scoring true class with the best-scoring other one; or the rank of one not shown."""
        from foveal.measure.attention_overlap import attention_overlap  # brings torchmetrics, and that matplotlib

        if not true:
            return ""
        shown = look.classes[n].tolist()
        best = min(true, key=lambda c: int(look.rank[n, c]))
        others = [c for c in shown if c not in true]
        if best not in shown:
            return f"{self.name(best)} is number {int(look.rank[n, best]) + 1}"
        if not others:
            return ""
        a, b = (look.maps[n, shown.index(c)][None] for c in (best, others[0]))
        shared = attention_overlap(a, b).all
        if shared.isnan():
            return ""
        return f"{self.name(best)} and {self.name(others[0])} overlap by {shared:.2f}"


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
    for title, look in models.items():
        if len(look) != len(image):
            raise UserError(f"{title} was asked about {len(look)} images, here are {len(image)}")
    if label is not None and (label.ndim not in (1, 2) or len(label) != len(image)):
        raise UserError(f"label must be ({len(image)},) or ({len(image)}, classes), got {tuple(label.shape)}")
    for title, look in models.items():
        classes = look.rank.shape[1]
        if label is not None and label.ndim == 2 and label.shape[1] != classes:
            raise UserError(f"label has a column for each of {label.shape[1]} classes, {title} knows {classes}")
        if label is not None and label.ndim == 1 and not 0 <= int(label.min()) <= int(label.max()) < classes:
            given = f"{int(label.min())} to {int(label.max())}"
            raise UserError(f"label must be between 0 and {classes - 1}, the classes of {title}; got {given}")
