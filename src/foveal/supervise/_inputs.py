"""Checks of the tensors that losses, targets and measures take."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from foveal.errors import UserError


def check_tensors(**values: object) -> None:
    """Raise for an argument that is no tensor, such as an array of NumPy.

    >>> check_tensors(mask=[True])
    Traceback (most recent call last):
    ...
    foveal.errors.UserError: mask must be a torch.Tensor, got list; convert it with torch.as_tensor(mask)
    """
    for name, value in values.items():
        if not isinstance(value, Tensor):
            kind = type(value).__name__
            raise UserError(f"{name} must be a torch.Tensor, got {kind}; convert it with torch.as_tensor({name})")


def may_look(tensor: Tensor) -> bool:
    """Whether values can be looked at without cost: a GPU would have to wait, and a compiled graph would break."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def warn_not_finite(stacklevel: int = 3, **maps: Tensor) -> None:
    """Warn about maps with NaN, whose samples losses skip."""
    for name, values in maps.items():
        if may_look(values) and not bool(values.isfinite().all()):
            warnings.warn(
                f"{name} is not finite for some samples, which are skipped; is the input?", stacklevel=stacklevel + 1
            )


def check_boxes(proposals: Tensor, boxes: Tensor) -> None:
    """Raise for coordinates that are no numbers; warn if one side is in fractions and the other in pixels."""
    for name, tensor in (("proposals", proposals), ("boxes", boxes)):
        if not bool(tensor.isfinite().all()):
            raise UserError(f"{name} hold NaN or infinite coordinates; leave out objects whose place is not known")
    if not (proposals.numel() and boxes.numel()):
        return
    largest = {"proposals": float(proposals.max()), "boxes": float(boxes.max())}
    fractions, pixels = sorted(largest, key=lambda name: largest[name])
    if 0 < largest[fractions] <= 1 and largest[pixels] > 2:
        warnings.warn(
            f"all {fractions} lie between 0 and 1, but {pixels} do not, so that they hardly overlap: multiply "
            "fractions by the width and height",
            stacklevel=4,
        )
