"""Weights from files: state dicts of any framework's usual wrapping, read without executing anything."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from foveal.attention.insertion.layers import own_modules
from foveal.errors import UserError


def read_weights(checkpoint: str | Path | Mapping[str, Any]) -> dict[str, Tensor]:
    """Read a state dict.

    Args:
        checkpoint: a ``.safetensors`` file, any file ``torch.load(weights_only=True)`` reads, or a state dict. One
            wrapped in ``{"state_dict": ...}`` or ``{"model": ...}`` is unwrapped, and the ``module.`` that
            data-parallel training puts before every name is dropped.

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
            f"the checkpoint {path} is damaged or holds more than tensors, and what is not a tensor is never executed; "
            "download it again, or save its state dict alone with torch.save(model.state_dict(), ...)"
        ) from error
    except (SafetensorError, RuntimeError, EOFError, OSError, ValueError) as error:
        reason = str(error).split("\n")[0] or type(error).__name__
        raise UserError(f"cannot read the checkpoint {path} ({reason}); download it again") from error


def fit_problems(expected: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> list[str]:
    """Say how the weights ``given`` differ from those ``expected``, in names and shapes; empty when they fit.

    >>> fit_problems({"a": torch.zeros(2), "b": torch.zeros(3)}, {"a": torch.zeros(5), "c": torch.zeros(3)})
    ['missing: b', 'of another shape: a (5,) instead of (2,)', 'unexpected: c']
    """

    def first(names: list[str]) -> str:
        return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")

    missing = [name for name in expected if name not in given]
    extra = [name for name in given if name not in expected]
    wrong = [
        f"{name} {tuple(given[name].shape)} instead of {tuple(value.shape)}"
        for name, value in expected.items()
        if name in given and given[name].shape != value.shape
    ]
    named = {"missing": missing, "of another shape": wrong, "unexpected": extra}
    return [f"{problem}: {first(names)}" for problem, names in named.items() if names]


def start_from(model: nn.Module, checkpoint: str | Path | Mapping[str, Any]) -> list[str]:
    """Load pretrained weights into a classifier, whether attention was inserted into it or not.

    Everything must fit but three things, which stay as they are: an inserted mechanism that the checkpoint has nothing
    of, counters of batch norms, and the last layer if the checkpoint's is for another number of classes.

    Args:
        model: the classifier.
        checkpoint: as in :func:`read_weights`.

    Returns:
        Names of the tensors that stayed as they were.

    >>> from foveal.models import create_model
    >>> plain, attended = create_model("cifar_resnet20"), create_model("se_cifar_resnet20", num_classes=7)
    >>> [name for name in start_from(attended, plain.state_dict()) if "attached" not in name]
    ['fc.weight', 'fc.bias']
    """
    given, own = read_weights(checkpoint), model.state_dict()
    last = [name for name, module in own_modules(model) if isinstance(module, nn.Linear | nn.Conv2d)][-1:]

    def mechanism(name: str) -> str:
        return name.partition(".attached.")[2].partition(".")[0]

    there = {mechanism(name) for name in own if name in given} | {""}

    def stays(name: str) -> bool:
        if name not in given:
            return mechanism(name) not in there or name.endswith("num_batches_tracked")
        head = name.rpartition(".")[0] in last and given[name].shape[1:] == own[name].shape[1:]
        return head and given[name].shape != own[name].shape

    kept = [name for name in own if stays(name)]
    fitting = {name: value for name, value in given.items() if name not in kept}
    if problems := fit_problems({name: value for name, value in own.items() if name not in kept}, fitting):
        where = f"the checkpoint {checkpoint}" if isinstance(checkpoint, str | Path) else "the checkpoint"
        raise UserError(f"{where} does not fit the model ({'; '.join(problems)})")
    model.load_state_dict(fitting, strict=False)
    return kept
