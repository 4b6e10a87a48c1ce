"""A dry run of an insertion: where it would go and what it would cost."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from foveal.attention.insertion.inserting import At, insert
from foveal.attention.insertion.registry import Start
from foveal.errors import UserError


@dataclass(frozen=True)
class Site:
    """One layer that would receive attention.

    Attributes:
        name: of the layer in the model.
        layer: what it is.
        shape: (C, H, W) that it puts out for the example input, or None if the model could not be run.
        parameters: how many it would gain.
        flops: how many it would gain for one sample (a multiplication and an addition count two), or None likewise.
    """

    name: str
    layer: str
    shape: tuple[int, ...] | None
    parameters: int
    flops: int | None


def sites(
    model: nn.Module,
    mechanism: str,
    at: At = None,
    *,
    start: Start = "paper",
    example: Tensor | None = None,
    **options: Any,
) -> list[Site]:
    """Where :func:`foveal.insert` would put a mechanism; ``model`` itself is left alone.

    Args:
        model: any module.
        mechanism: as in :func:`foveal.insert`, like ``at``, ``start`` and the options.
        at: where.
        start: which initialisation; ``identity`` has one parameter more a site.
        example: an input to find shapes and FLOPs with; by default one image of the size in a timm model's
            configuration, or 224×224.
        **options: of the mechanism.

    Returns:
        One row a site.

    >>> import timm, foveal
    >>> rows = foveal.sites(timm.create_model("resnet18"), "se")
    >>> rows[0]
    Site(name='layer1.0.bn2', layer='BatchNorm2d', shape=(64, 56, 56), parameters=580, flops=1024)
    """
    try:
        trial = copy.deepcopy(model).eval()
    except Exception as error:  # of someone else's modules
        raise UserError(f"the model cannot be copied for a dry run: {' '.join(str(error).split())}") from error
    done = insert(trial, mechanism, at, start=start, **options)
    shapes, flops = _measure(trial, done.keys, example)
    layers = dict(trial.named_modules())
    rows = []
    for name, key in done.keys.items():
        layer = layers[name]
        parameters = sum(p.numel() for p in layer.attached[key].parameters())
        rows.append(Site(name, layer._plain.__name__, shapes.get(name), parameters, flops.get(name)))
    return rows


def _measure(
    model: nn.Module, keys: dict[str, str], example: Tensor | None
) -> tuple[dict[str, tuple[int, ...]], dict[str, int]]:
    """Output shape and attention's FLOPs of every site; empty if the model does not take such an input."""
    shapes: dict[str, tuple[int, ...]] = {}

    def keep(name: str) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            if isinstance(output, Tensor):
                shapes[name] = tuple(output.shape[1:])

        return hook

    layers = dict(model.named_modules())
    handles = [layers[name].register_forward_hook(keep(name)) for name in keys]
    if example is None:
        size = getattr(model, "default_cfg", None) or {}
        where = next(model.parameters(), torch.zeros(()))
        example = torch.zeros(1, *size.get("input_size", (3, 224, 224)), device=where.device, dtype=where.dtype)
    try:
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model(example)
    except Exception:  # someone else's model: whatever it says, it does not take such an input
        return {}, {}
    finally:
        for handle in handles:
            handle.remove()
    counts = {path.split(".", 1)[-1]: sum(c.values()) // len(example) for path, c in counter.get_flop_counts().items()}
    return shapes, {name: _attached_flops(counts, f"{name}.attached.{key}") for name, key in keys.items()}


def _attached_flops(counts: dict[str, int], path: str) -> int:
    """FLOPs of the mechanism at ``path``; one that replaces a convolution is never called itself, only its children."""
    if path in counts:
        return counts[path]
    inside = (p for p in counts if p.startswith(f"{path}."))
    return sum(counts[p] for p in inside if "." not in p.removeprefix(f"{path}."))
