"""The layer that class maps are made from if none is named: the last one with a map of the image."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from foveal.attention.class_maps.layout import is_nhwc, layout, prefix_tokens
from foveal.attention.insertion.families import pretrained_part
from foveal.attention.insertion.family_rules import family_of
from foveal.compat import plain_name
from foveal.errors import UserError


def last_map(model: nn.Module, inputs: tuple[Any, ...]) -> str:
    """Name of the last layer in a forward pass whose output is a map of features over the image.

    Of tokens with a class token it is the first norm of the last block: after it only the class token is used. The
    model runs once more, in eval mode and without gradients.

    Args:
        model: not wrapped.
        inputs: what it takes; the first is the images (N, C, H, W).
    """
    image = inputs[0] if inputs else None
    samples, size = 0, None
    if isinstance(image, Tensor) and image.ndim == 4:
        samples, size = len(image), (image.shape[2], image.shape[3])
    # The heads of a detector see regions or make boxes: the last layer of its backbone is the last with features.
    backbone = pretrained_part(model)[1] if family_of(model).startswith("torchvision.detection") else ""
    prefix, nhwc, maps = prefix_tokens(model), is_nhwc(model), list[tuple[str, int]]()

    def note(name: str) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            if isinstance(output, Tensor) and layout(tuple(output.shape), samples, size, prefix, nhwc) is not None:
                maps.append((name, output.ndim))

        return hook

    modes = {module: module.training for module in model.modules()}
    handles = [
        module.register_forward_hook(note(plain_name(name)))
        for name, module in model.named_modules()
        if name and name.startswith(backbone)
    ]
    try:
        with torch.no_grad():
            model.eval()(*inputs)
    finally:
        for handle in handles:
            handle.remove()
        for module, training in modes.items():
            module.training = training
    if not maps and size is None:
        given = f"a tensor {tuple(image.shape)}" if isinstance(image, Tensor) else f"a {type(image).__name__}"
        raise UserError(f"x is {given}; give images as one tensor (N, C, H, W), or name the layer with at=")
    if not maps:
        raise UserError("no layer puts out a map of features over the image; name one with at=, and perhaps reshape=")
    name, dimensions = maps[-1]
    norms = [name for name, _ in maps if name.endswith(("norm1", "ln_1"))]  # timm, torchvision
    return norms[-1] if dimensions == 3 and prefix and norms else name
