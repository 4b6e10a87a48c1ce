"""Images as people have them, brought to what a model takes: PIL images, NumPy arrays, bytes.

Bytes are scaled to [0, 1] and normalised with the mean and standard deviation that the model itself states, as models
of timm do. A model that states none gets no bytes: nobody can know what it was trained on.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from foveal.errors import UserError


def model_input(x: Any, model: nn.Module) -> Any:
    """The images ``x`` as a batch for ``model``; what is no image is returned as it is.

    Args:
        x: a tensor or an array (N, C, H, W), floating point as the model takes it or bytes; bytes also as an array
            (N, H, W, C) or (H, W, C), a PIL image, or a list of PIL images of one size.
        model: not wrapped.

    Raises:
        UserError: the images are bytes and the model does not state how they are normalised, or it is not clear which
            axis holds the channels.
    """
    if isinstance(x, Image.Image):
        x = [x]
    if isinstance(x, list) and x and all(isinstance(image, Image.Image) for image in x):
        x = _stacked(x)
    if isinstance(x, np.ndarray):
        x = _on_the_device(torch.from_numpy(np.ascontiguousarray(_channels_first(x))), model)
    if isinstance(x, Tensor) and x.dtype == torch.uint8 and x.ndim == 4:
        return _normalised(x, model)
    return x


def _stacked(images: list[Image.Image]) -> np.ndarray:
    """(N, H, W, 3)."""
    if len({image.size for image in images}) > 1:
        sizes = ", ".join(sorted({f"{image.width}×{image.height}" for image in images}))
        raise UserError(f"the images have different sizes ({sizes}); resize them to one")
    return np.stack([np.asarray(image.convert("RGB")) for image in images])


def _channels_first(array: np.ndarray) -> np.ndarray:
    """(N, C, H, W) of an array in either order; one image of bytes may be (H, W, C)."""
    if array.ndim == 3 and array.dtype == np.uint8:
        array = array[None]
    if array.ndim != 4:
        raise UserError(f"x must be images (N, C, H, W), got an array {array.shape}")
    first, last = (array.shape[axis] in (1, 3) for axis in (1, 3))
    if first and last:
        raise UserError(f"x {array.shape}: either axis could be the channels; give a tensor (N, C, H, W)")
    return array.transpose(0, 3, 1, 2) if last else array


def _on_the_device(x: Tensor, model: nn.Module) -> Tensor:
    """Where the model's parameters are, and floating point in their type."""
    like = next(model.parameters(), None)
    if like is None:
        return x
    return x.to(like.device, like.dtype if x.is_floating_point() else None)


def _normalised(x: Tensor, model: nn.Module) -> Tensor:
    """Bytes (N, C, H, W) as the model's own statement of mean and standard deviation wants them."""
    stated = getattr(model, "pretrained_cfg", None)
    mean, std = (stated.get(key) if isinstance(stated, dict) else None for key in ("mean", "std"))
    if not mean or not std or len(mean) != x.shape[1] or len(std) != x.shape[1]:
        raise UserError(
            "x holds bytes, and the model does not state how they are normalised; "
            "give what it was trained on, such as (x / 255 - mean) / std"
        )
    like = next(model.parameters(), torch.empty(0))
    mean, std = (torch.tensor(value, device=x.device).view(1, -1, 1, 1) for value in (mean, std))
    return ((x / 255 - mean) / std).to(like.device, like.dtype)
