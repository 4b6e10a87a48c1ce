"""A dry run of an insertion: which layers would get it, and what it would cost."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from foveal.attention.insertion.insert import At, check_model, insert
from foveal.attention.insertion.registry import Gate, Start
from foveal.errors import UserError


@dataclass(frozen=True)
class Site:
    """One layer that would receive attention.

    Attributes:
        name: of the layer in the model.
        layer: its class.
        shape: (C, H, W) of what it attends to or computes for the example input, or None if the model could not run.
        parameters: number of parameters that it would gain.
        flops: FLOPs that it would gain for one sample (a multiplication and an addition count two), or None if
            the model could not run.
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
    """Where :func:`foveal.insert` would put a mechanism; ``model`` itself does not change.

    Args:
        model: any module.
        mechanism: as in :func:`foveal.insert`, like ``at``, ``start`` and the options.
        at: which layers.
        start: which initialisation; ``identity`` has one more parameter per site.
        example: an input that shapes and FLOPs are measured with; by default one image of the size in a timm model's
            configuration, or 224×224.
        **options: of the mechanism.

    Returns:
        One row per site.

    >>> import timm, foveal
    >>> rows = foveal.sites(timm.create_model("resnet18"), "se")
    >>> rows[0]
    Site(name='layer1.0.bn2', layer='BatchNorm2d', shape=(64, 56, 56), parameters=580, flops=1024)
    """
    check_model(model)
    try:
        trial = copy.deepcopy(model).eval()
    except Exception as error:  # third-party modules may raise anything
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
    """Output shape and attention's FLOPs of every site; empty if the model does not accept such an input."""
    shapes: dict[str, tuple[int, ...]] = {}

    def keep(name: str) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            if isinstance(output, Tensor):
                shapes[name] = tuple(output.shape[1:])

        return hook

    layers = dict(model.named_modules())
    gates = {name: layers[f"{name}.attached.{key}"] for name, key in keys.items()}
    handles = [
        (gate if isinstance(gate, Gate) else layers[name]).register_forward_hook(keep(name))
        for name, gate in gates.items()
    ]
    if example is None:
        config = getattr(model, "default_cfg", None) or {}
        parameter = next(model.parameters(), torch.zeros(()))
        size = config.get("input_size", (3, 224, 224))
        example = torch.zeros(1, *size, device=parameter.device, dtype=parameter.dtype)
    try:
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model(example)
    except Exception:  # a third-party model that does not accept such an input
        return {}, {}
    finally:
        for handle in handles:
            handle.remove()
    counts = {path.split(".", 1)[-1]: sum(c.values()) // len(example) for path, c in counter.get_flop_counts().items()}
    return shapes, {name: _attached_flops(counts, f"{name}.attached.{key}") for name, key in keys.items()}


def _attached_flops(counts: dict[str, int], path: str) -> int:
    """FLOPs of the mechanism at ``path``; of a mechanism that replaces a convolution only the children are called."""
    if path in counts:
        return counts[path]
    inside = (p for p in counts if p.startswith(f"{path}."))
    return sum(counts[p] for p in inside if "." not in p.removeprefix(f"{path}."))
