"""Images as people have them, brought to what a model takes: PIL images, NumPy arrays, bytes.

Bytes are scaled to [0, 1] and normalised with the mean and standard deviation that the model itself states, as models
of timm do. A model that states none gets no bytes: nobody can know what it was trained on.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
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
            (N, H, W, C) or (H, W, C), a PIL image, or a list of PIL images or arrays of one size.
        model: not wrapped.

    Raises:
        UserError: the images are bytes and the model does not state how they are normalised, or it is not clear which
            axis holds the channels.
    """
    if isinstance(x, str | os.PathLike):
        raise UserError(f"x is the path {os.fspath(x)!r}; open the image first, such as PIL.Image.open(path)")
    if isinstance(x, Image.Image):
        x = [x]
    if isinstance(x, list) and x and all(isinstance(image, Image.Image) for image in x):
        x = _stacked(x)
    if isinstance(x, list) and x and all(isinstance(image, np.ndarray) for image in x):
        x = _joined(x)
    if isinstance(x, np.ndarray):
        x = _on_the_device(torch.from_numpy(np.ascontiguousarray(_channels_first(x))), model)
    if isinstance(x, Tensor) and x.dtype == torch.uint8 and x.ndim == 4:
        return _normalised(x, model)
    return x


@contextmanager
def explained(x: Any, model: nn.Module) -> Iterator[None]:
    """Say what is wrong with the images ``x`` if ``model`` fails on them and they do not fit its first convolution."""
    try:
        yield
    except (RuntimeError, TypeError, ValueError) as error:
        reason = None if isinstance(error, UserError) else _misfit(x, model)
        if reason is None:
            raise
        raise UserError(reason) from error


def _misfit(x: Any, model: nn.Module) -> str | None:
    """Why the first convolution cannot take ``x``; None if it could, or if the model starts with something else."""
    first = next(
        (module for module in model.modules() if next(module.parameters(recurse=False), None) is not None), None
    )
    if not isinstance(first, nn.Conv2d):
        return None
    if not isinstance(x, Tensor):
        return f"x must be images as a tensor (N, {first.in_channels}, H, W), got {type(x).__name__}"
    if x.ndim != 4:
        return f"x must be a batch of images (N, {first.in_channels}, H, W), got {tuple(x.shape)}; one image is x[None]"
    if x.shape[1] != first.in_channels:
        return f"the model takes images of {first.in_channels} channels, x has {x.shape[1]}: {tuple(x.shape)}"
    if x.dtype != first.weight.dtype:
        return f"x is {x.dtype}, the model {first.weight.dtype}; convert x as the model takes it, or give bytes (uint8)"
    return None


def _joined(images: list[np.ndarray]) -> np.ndarray:
    """A batch of single images."""
    if len({image.shape for image in images}) > 1:
        shapes = ", ".join(sorted({str(image.shape) for image in images}))
        raise UserError(f"the images have different shapes ({shapes}); resize them to one")
    return np.stack(images)


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
