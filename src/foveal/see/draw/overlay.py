"""One image and one attention map as a picture.

Every map is scaled to its own maximum: the brightest place is where that map is highest, whatever its value, so
brightness does not compare between pictures. A map that is zero everywhere stays dark.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from foveal.errors import UserError, unknown

Picture = Tensor | NDArray[np.generic] | Image.Image
Map = Tensor | NDArray[np.generic]


def overlay(image: Picture, attention: Map, *, cmap: str = "magma", alpha: float = 0.75) -> Image.Image:
    """Lay attention over an image as colour; where there is none, the image shows through unchanged.

    Args:
        image: (3, H, W), uint8, or float in [0, 1]; an array (H, W, 3) or (H, W); or a PIL image.
        attention: (h, w), not negative, a tensor or an array; resized to H×W bilinearly and scaled to its maximum.
        cmap: name of a matplotlib colour map.
        alpha: opacity of the colour where attention is highest, in [0, 1].

    Returns:
        An RGB picture of W×H pixels.

    >>> import torch
    >>> picture = overlay(torch.zeros(3, 60, 80), torch.eye(4), alpha=1.0)
    >>> picture.size, picture.getpixel((0, 0)), picture.getpixel((79, 0))
    ((80, 60), (252, 253, 191), (0, 0, 0))
    """
    if not 0 <= alpha <= 1:
        raise UserError(f"alpha={alpha} is not an opacity; give a number from 0 (image only) to 1 (colour only)")
    pixels = _pixels(image)
    strength = scaled(attention, pixels.shape[-2:])
    weight = alpha * strength
    return _picture(pixels * (1 - weight) + _coloured(strength, cmap) * weight)


def attended(image: Picture, attention: Map, *, floor: float = 0.12, gamma: float = 0.5) -> Image.Image:
    """Darken an image where attention is low: what the model saw.

    Args:
        image: (3, H, W), uint8, or float in [0, 1]; an array (H, W, 3) or (H, W); or a PIL image.
        attention: (h, w), not negative, a tensor or an array; resized to H×W bilinearly and scaled to its maximum.
        floor: brightness left where attention is zero, in [0, 1].
        gamma: exponent of attention; below 1 it keeps more than the peak visible. The attended image of the HAttNet
            paper has ``floor=0, gamma=1``.

    Returns:
        An RGB picture of W×H pixels.

    >>> import torch
    >>> picture = attended(torch.ones(3, 8, 8), torch.tensor([[0.0, 0.5]]), floor=0.2)
    >>> picture.getpixel((0, 0)), picture.getpixel((7, 7))
    ((51, 51, 51), (255, 255, 255))
    """
    if not 0 <= floor <= 1:
        raise UserError(f"floor={floor} is not a brightness; give a number from 0 (black) to 1 (unchanged)")
    if not gamma > 0:
        raise UserError(f"gamma={gamma} is not an exponent; give a number above 0, 1 for none")
    pixels = _pixels(image)
    return _picture(pixels * (floor + (1 - floor) * scaled(attention, pixels.shape[-2:]) ** gamma))


def heatmap(attention: Map, size: int | tuple[int, int] | None = None, *, cmap: str = "magma") -> Image.Image:
    """Colour an attention map.

    Args:
        attention: (h, w), not negative, a tensor or an array; scaled to its maximum.
        size: (H, W) of the picture, or one number for a square; None keeps one pixel per position.
        cmap: name of a matplotlib colour map.

    Returns:
        An RGB picture.

    >>> import torch
    >>> heatmap(torch.eye(4)).size, heatmap(torch.eye(4), (30, 40)).size
    ((4, 4), (40, 30))
    """
    height_width = (size, size) if isinstance(size, int) else size
    if height_width is not None and not _is_size(height_width):
        shown = size if isinstance(size, int | float | tuple | list) else f"a {type(size).__name__}"
        raise UserError(f"size={shown} is not a picture size; give (height, width) of at least 1")
    return _picture(_coloured(scaled(attention, height_width), cmap))


def _is_size(size: object) -> bool:
    """Whether ``size`` is a height and a width."""
    return isinstance(size, tuple | list) and len(size) == 2 and all(isinstance(s, int) and s > 0 for s in size)


def plain(image: Picture) -> Image.Image:
    """The image (3, H, W), uint8 or float in [0, 1], as a picture without attention."""
    return _picture(_pixels(image))


def scaled(attention: Map, size: tuple[int, int] | torch.Size | None = None) -> Tensor:
    """Check an attention map, resize it to ``size`` bilinearly and scale it to its maximum.

    Args:
        attention: (h, w), finite and not negative.
        size: (H, W), or None for the map's own size.

    Returns:
        (H, W) float32 in [0, 1], on the CPU and off the graph.
    """
    attention = torch.from_numpy(attention) if isinstance(attention, np.ndarray) else attention
    if not isinstance(attention, Tensor) or attention.ndim != 2 or not attention.numel():
        raise UserError(f"attention is {_shape(attention)}; expected one map (h, w): take one sample of a batch")
    values = attention.detach().cpu().float()
    if not torch.isfinite(values).all():
        raise UserError("attention holds NaN or infinity; look for a diverged model or a division by zero")
    if values.min() < 0:
        raise UserError(
            f"attention goes down to {values.min():.3g}; expected values >= 0: apply a sigmoid or softmax first"
        )
    if size is not None and tuple(size) != tuple(values.shape):
        values = F.interpolate(values[None, None], list(size), mode="bilinear", antialias=True)[0, 0].clamp_min(0)
    return values / values.max().clamp_min(torch.finfo(torch.float32).tiny)


def _pixels(image: Picture) -> Tensor:
    """An image, uint8 or float in [0, 1], as float32 (3, H, W) in [0, 1] on the CPU."""
    if isinstance(image, Image.Image):
        image = np.array(image.convert("RGB"))
    if isinstance(image, np.ndarray):  # in the layout of PIL and matplotlib, unless only the other one is possible
        image = np.repeat(image[..., None], 3, 2) if image.ndim == 2 else image
        channels_last = image.ndim == 3 and image.shape[2] == 3
        image = torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1) if channels_last else image))
    if not isinstance(image, Tensor) or image.ndim != 3 or image.shape[0] != 3 or not image.numel():
        raise UserError(f"image is {_shape(image)}; expected one RGB image (3, H, W)")
    if image.dtype == torch.uint8:
        return image.cpu().float() / 255
    if not image.is_floating_point():
        raise UserError(f"image is {image.dtype}; expected uint8, or float in [0, 1]")
    pixels = image.detach().cpu().float()
    low, high = float(pixels.min()), float(pixels.max())
    if not (low >= -1e-3 and high <= 1 + 1e-3):  # NaN fails both comparisons
        raise UserError(f"image runs from {low:.3g} to {high:.3g}; expected [0, 1]: undo its normalisation first")
    return pixels.clamp(0, 1)


def _coloured(strength: Tensor, cmap: str) -> Tensor:
    """(H, W) in [0, 1] as colours (3, H, W) in [0, 1]."""
    from matplotlib import colormaps  # slow to import, and only colouring needs it

    if cmap not in colormaps:
        raise unknown("colour map", cmap, colormaps)
    return torch.from_numpy(colormaps[cmap](strength.numpy())[..., :3]).float().permute(2, 0, 1)


def _picture(pixels: Tensor) -> Image.Image:
    """(3, H, W) in [0, 1] as an RGB picture."""
    return Image.fromarray((pixels * 255).round().byte().permute(1, 2, 0).contiguous().numpy(), "RGB")


def _shape(value: object) -> str:
    return f"of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
