"""A trained model in a folder of its own: its weights, and what was inserted where.

``model.json`` has the name and options of the network and every insertion with its exact sites, ``weights.safetensors``
its weights. A run folder loads as well.
"""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from foveal.attention.insertion.describe import inserted, reinsert
from foveal.errors import RunError, UserError
from foveal.files import write_text, writing
from foveal.models.registry import any_model
from foveal.tasks.weights import load_model

DESCRIPTION, WEIGHTS = "model.json", "weights.safetensors"


def save(model: nn.Module, folder: str | Path, name: str | None = None, **options: Any) -> None:
    """Write a model, perhaps with inserted attention, to ``folder``; :func:`load` reads it again.

    Args:
        model: any module.
        folder: made if it is not there.
        name: of the network, one of foveal, timm or torchvision; without it :func:`load` needs the plain network.
        **options: that the network was built with, such as ``num_classes``.
    """
    if not isinstance(model, nn.Module):
        raise UserError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    place = Path(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {place}: {error.strerror}") from error
    description = {"format": 1, "name": name, "options": options, "inserted": inserted(model)}
    try:
        text = json.dumps(description, indent=1) + "\n"
    except TypeError as error:
        raise UserError(f"options must be plain values that fit into JSON: {error}") from error
    with writing(place / WEIGHTS) as partial:
        save_file({key: tensor.detach().cpu().contiguous() for key, tensor in model.state_dict().items()}, partial)
    write_text(place / DESCRIPTION, text)


def load(folder: str | Path, model: nn.Module | None = None) -> nn.Module:
    """A trained model in eval mode, with the attention that it was trained with.

    Args:
        folder: what :func:`save` wrote, a run folder, or the name of a model that comes with foveal, such as
            ``hattnet_ctx`` (``foveal list zoo``).
        model: the plain network, for a model that was saved without a name; it is changed in place.

    >>> import tempfile, timm, torch, foveal
    >>> network = timm.create_model("resnet18", num_classes=3).eval()
    >>> done = foveal.insert(network, "se", at="layer4.*.bn2")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     foveal.save(network, folder, "resnet18", num_classes=3)
    ...     again = foveal.load(folder)
    >>> x = torch.rand(1, 3, 64, 64)
    >>> torch.equal(again(x), network(x))
    True
    """
    if not isinstance(folder, str | Path):
        raise UserError(f"load needs a run folder or one that foveal.save wrote, got {folder!r}")
    place = Path(folder)
    if not (place / DESCRIPTION).is_file():
        return load_model(place)[0]
    try:
        description = json.loads((place / DESCRIPTION).read_text(encoding="utf-8"))
        name, options, insertions = (description[key] for key in ("name", "options", "inserted"))
        weights = load_file(place / WEIGHTS)
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise RunError(f"{place} is damaged ({error}); save the model again with foveal.save") from error
    if model is None and name is None:
        raise UserError(
            f"{place} does not say which network it is; give the plain one, foveal.load(folder, model), or save it "
            "with its name: foveal.save(model, folder, name)"
        )
    model = any_model(name, **options) if model is None else model
    reinsert(model, insertions)
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise RunError(f"{place / WEIGHTS} does not fit the model: {textwrap.shorten(str(error), 300)}") from error
    return model.eval()
