"""Weights from files: state dicts, also wrapped as training frameworks do, read without executing any code."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from foveal.attention.insertion.layers import own_modules
from foveal.errors import UserError


def read_weights(checkpoint: str | Path | Mapping[str, Any]) -> dict[str, Tensor]:
    """Read a state dict.

    Args:
        checkpoint: a ``.safetensors`` file, any file ``torch.load(weights_only=True)`` reads, or a state dict. One
            wrapped in ``{"state_dict": ...}`` or ``{"model": ...}`` is unwrapped, and the prefix ``module.`` of
            data-parallel training is removed.

    Returns:
        Tensors by name, on the CPU if they come from a file.

    >>> list(read_weights({"state_dict": {"module.features.0.bias": torch.zeros(64)}}))
    ['features.0.bias']
    """
    weights: Any = _load(Path(checkpoint)) if isinstance(checkpoint, str | Path) else checkpoint
    while isinstance(weights, Mapping) and (inner := [weights[k] for k in ("state_dict", "model") if k in weights]):
        weights = inner[0]
    if not isinstance(weights, Mapping):
        raise UserError(f"a checkpoint must hold a state dict (name → tensor), got {type(weights).__name__}")
    return {name.removeprefix("module."): value for name, value in weights.items() if isinstance(value, Tensor)}


def _load(path: Path) -> Any:
    if not path.is_file():
        raise UserError(f"no checkpoint file {path}; give a .pth or .safetensors file")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise UserError(
            f"the checkpoint {path} is damaged or holds other objects than tensors, which are never unpickled; "
            "download it again, or save its state dict alone with torch.save(model.state_dict(), ...)"
        ) from error
    except (SafetensorError, RuntimeError, EOFError, OSError, ValueError) as error:
        reason = str(error).split("\n")[0] or type(error).__name__
        raise UserError(f"cannot read the checkpoint {path} ({reason}); download it again") from error


def read_about(checkpoint: Path) -> dict[str, Any]:
    """What a run keeps of its data in the header of its weights; empty for any other file."""
    try:
        with safe_open(checkpoint, "pt") as file:
            return {key: json.loads(text) for key, text in (file.metadata() or {}).items()}
    except (OSError, SafetensorError, ValueError):
        return {}


def fit_problems(expected: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> list[str]:
    """Differences of ``weights`` from those that are expected, in names and shapes; empty if they fit.

    >>> fit_problems({"a": torch.zeros(2), "b": torch.zeros(3)}, {"a": torch.zeros(5), "c": torch.zeros(3)})
    ['missing: b', 'of another shape: a (5,) instead of (2,)', 'unexpected: c']
    """

    def shorten(names: list[str]) -> str:
        return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")

    missing = [name for name in expected if name not in weights]
    unexpected = [name for name in weights if name not in expected]
    reshaped = [
        f"{name} {tuple(weights[name].shape)} instead of {tuple(value.shape)}"
        for name, value in expected.items()
        if name in weights and weights[name].shape != value.shape
    ]
    problems = {"missing": missing, "of another shape": reshaped, "unexpected": unexpected}
    return [f"{problem}: {shorten(names)}" for problem, names in problems.items() if names]


def start_from(model: nn.Module, checkpoint: str | Path | Mapping[str, Any]) -> list[str]:
    """Load pretrained weights into a classifier, with or without inserted attention.

    All weights must fit, with three exceptions that keep their values: an inserted mechanism of which the checkpoint
    has no weights, counters of batch norms, and the last layer if the checkpoint's has another number of classes.

    Args:
        model: the classifier.
        checkpoint: as in :func:`read_weights`.

    Returns:
        Names of the tensors that kept their values.

    >>> from foveal.models import create_model
    >>> plain, attended = create_model("cifar_resnet20"), create_model("se_cifar_resnet20", num_classes=7)
    >>> [name for name in start_from(attended, plain.state_dict()) if "attached" not in name]
    ['fc.weight', 'fc.bias']
    """
    weights, state = read_weights(checkpoint), model.state_dict()
    last = [name for name, module in own_modules(model) if isinstance(module, nn.Linear | nn.Conv2d)][-1:]

    def mechanism(name: str) -> str:
        return name.partition(".attached.")[2].partition(".")[0]

    stored = {mechanism(name) for name in state if name in weights} | {""}

    def keeps(name: str) -> bool:
        if name not in weights:
            return mechanism(name) not in stored or name.endswith("num_batches_tracked")
        head = name.rpartition(".")[0] in last and weights[name].shape[1:] == state[name].shape[1:]
        return head and weights[name].shape != state[name].shape

    kept = [name for name in state if keeps(name)]
    loaded = {name: value for name, value in weights.items() if name not in kept}
    if problems := fit_problems({name: value for name, value in state.items() if name not in kept}, loaded):
        source = f"the checkpoint {checkpoint}" if isinstance(checkpoint, str | Path) else "the checkpoint"
        raise UserError(f"{source} does not fit the model ({'; '.join(problems)})")
    model.load_state_dict(loaded, strict=False)
    return kept
