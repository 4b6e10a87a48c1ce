"""How the features of a layer become maps over the image: feature maps in two layouts, and grids of tokens."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from torch import Tensor, nn

from foveal.errors import UserError

Reshape = Callable[[Tensor], Tensor]
"""Brings the output of a layer to (N, C, H, W)."""
MOST_PREFIX_TOKENS = 16


def prefix_tokens(model: nn.Module) -> int | None:
    """Number of class and register tokens before the patches; None if the model does not tell."""
    count = getattr(model, "num_prefix_tokens", None)  # timm
    if count is None and isinstance(getattr(model, "class_token", None), Tensor):  # torchvision
        return 1
    return count if isinstance(count, int) else None


def rerolled(model: nn.Module, name: str) -> Reshape:
    """Tokens that the model has reordered, back in the order of the image."""
    block = re.fullmatch(r"blocks\.(\d+)", name)
    if block is None:
        raise UserError(f"the tokens at {name} are not in the order of the image; name a whole block, as in blocks.1")
    return lambda t: model.get_submodule("reroll")(t, int(block[1])).movedim(-1, 1)


def is_nhwc(model: nn.Module) -> bool:
    """Whether the model's features are (N, h, w, C)."""
    torchvision = any(kind.__module__ == "torchvision.models.swin_transformer" for kind in type(model).__mro__)
    return torchvision or str(getattr(model, "output_fmt", "")).endswith("NHWC")  # timm


def layout(
    shape: Sequence[int], samples: int, size: tuple[int, int] | None, prefix: int | None = None, nhwc: bool = False
) -> Reshape | None:
    """The function that brings features of this shape to (N, C, h, w); None if they hold no map of an image.

    Feature maps (N, C, h, w) and (N, h, w, C) are told apart by which two sides have the proportions of the image; if
    the former fits within rounding, it is chosen. Tokens (N, L, C) or (L, N, C) become the grid with these proportions.
    The class and register tokens before it are skipped: as many as the model says (or none, as before these are
    added), or as few as leave such a grid.

    Args:
        shape: of the features.
        samples: N.
        size: height and width of the image; None for a square.
        prefix: tokens before the patches, if known.
        nhwc: the model says that its features are (N, h, w, C); chosen if both fit equally well.

    >>> import torch
    >>> layout((2, 512, 7, 7), 2, (224, 224))(torch.zeros(2, 512, 7, 7)).shape
    torch.Size([2, 512, 7, 7])
    >>> layout((2, 197, 768), 2, (224, 224))(torch.zeros(2, 197, 768)).shape
    torch.Size([2, 768, 14, 14])
    >>> layout((2, 10), 2, (224, 224)) is None
    True
    """
    ratio = 1.0 if size is None else size[0] / size[1]
    if len(shape) == 4:
        errors = [abs(h / w / ratio - 1) if h and w else 1e9 for h, w in (shape[2:], shape[1:3])]
        fits = abs(shape[2] - shape[3] * ratio) < max(1, ratio)  # within rounding
        last = errors[1] <= errors[0] if nhwc else errors[1] < errors[0] and not fits
        if shape[0] != samples or max(shape[1:3] if last else shape[2:]) < 2:
            return None
        return (lambda t: t.movedim(-1, 1)) if last else (lambda t: t)
    if len(shape) != 3 or samples not in shape[:2]:
        return None
    swap = shape[0] != samples
    tokens = shape[0] if swap else shape[1]
    for skip in range(MOST_PREFIX_TOKENS + 1) if prefix is None else (prefix, 0):
        for h, w in _grids(tokens - skip):
            if max(h, w) > 1 and abs(h - w * ratio) < 1:
                return _tokens(skip, h, w, swap)
    return None


def _grids(positions: int) -> Iterator[tuple[int, int]]:
    """Every h×w with this number of positions."""
    return ((h, positions // h) for h in range(1, positions + 1) if positions % h == 0)


def _tokens(skip: int, h: int, w: int, swap: bool) -> Reshape:
    def grid(t: Tensor) -> Tensor:
        t = t.transpose(0, 1) if swap else t
        return t[:, skip:].unflatten(1, (h, w)).movedim(-1, 1)

    return grid
