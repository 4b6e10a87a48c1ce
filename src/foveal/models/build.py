"""The model of a recipe, for every task: one of foveal, timm or torchvision, with inserted attention and weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import timm
from torch import nn

from foveal.attention import insert
from foveal.attention.insertion.families import pretrained_part
from foveal.attention.insertion.registry import mechanism as look_up
from foveal.errors import UserError, unknown
from foveal.models.registry import accepts, any_model, list_models
from foveal.models.weights import start_from

OURS = ("name", "insert", "checkpoint")  # keys that are no options of the model
PRETRAINED = ("pretrained", "weights")  # options of timm and torchvision for weights that they download
FOREIGN_SIZES = ("num_classes",)  # sizes that models of timm and torchvision take


def build_model(
    section: Mapping[str, Any],
    sizes: Mapping[str, Any],
    *,
    needs: tuple[str, ...] = (),
    root: Path | None = None,
    trained: bool = False,
) -> nn.Module:
    """The model of a recipe's ``model`` section, sized for its data.

    Args:
        section: ``name``, perhaps ``insert`` and ``checkpoint``, and options of the model.
        sizes: what the data says, such as the number of classes; the model gets those that it takes.
        needs: sizes without which the model cannot do the task.
        root: folder of datasets, where ``checkpoint`` is looked for if it is not here.
        trained: trained weights are loaded next, so what training starts from is not needed.

    >>> build_model({"name": "resnet18", "insert": "se"}, {"num_classes": 7}).fc.out_features
    7
    """
    name = section["name"]
    for size in sizes:
        if size in section:
            raise UserError(f"model.{size} comes from the data; leave it out of the recipe")
    own = name in list_models()
    for size in needs:
        if not accepts(name, size):
            known = [other for other in list_models() if all(accepts(other, need) for need in needs)]
            if not own and not timm.is_model(name):
                raise unknown("model", name, known)
            raise UserError(f"model {name} does not take {size} and is not for this task; use {' or '.join(known)}")
    options = {key: value for key, value in section.items() if key not in OURS}
    options |= {size: value for size, value in sizes.items() if (accepts(name, size) if own else size in FOREIGN_SIZES)}
    if trained:
        options = {key: value for key, value in options.items() if key not in PRETRAINED}
    checkpoint = None if trained else section.get("checkpoint")
    if checkpoint is not None:
        checkpoint = find_checkpoint(str(checkpoint), root)
        if accepts(name, "checkpoint"):  # a model that knows which part of it the weights are for
            options["checkpoint"], checkpoint = checkpoint, None
    model = any_model(name, **options)
    insert_all(model, section.get("insert", []))
    if checkpoint is not None:
        try:
            start_from(model, checkpoint)
        except UserError as error:
            raise UserError(f"model.checkpoint: {error}") from error
    return model


def insert_all(model: nn.Module, section: Any) -> None:
    """Insert what a recipe's ``model.insert`` asks for: a mechanism, one with options, or a list of such.

    >>> from foveal.models.registry import any_model
    >>> model = any_model("resnet18")
    >>> insert_all(model, ["se", {"mechanism": "aw", "at": "layer4.*.conv2", "reduction": 8}])
    >>> model.layer4[0].conv2
    Conv2d+aw(...
    """
    for i, entry in enumerate(section if isinstance(section, list) else [section]):
        settings = {"mechanism": entry} if isinstance(entry, str) else entry
        key = f"model.insert[{i}]"
        if not isinstance(settings, Mapping) or not isinstance(settings.get("mechanism"), str):
            raise UserError(f"{key}: expected the name of a mechanism or {{mechanism: NAME, ...}}, got {entry!r}")
        at = settings.get("at")
        if not (at is None or isinstance(at, str) or (isinstance(at, list) and all(isinstance(a, str) for a in at))):
            raise UserError(f"{key}.at: expected a glob on layer names or a list of them, got {at!r}")
        backbone = getattr(model, "backbone", None)
        try:
            # The default sites of a network with heads of its own are those of its backbone; insert knows a detector's.
            usual = at is None and look_up(settings["mechanism"]).in_backbone and not pretrained_part(model)[1]
            insert(backbone if usual and isinstance(backbone, nn.Module) else model, **settings)
        except (UserError, TypeError) as error:
            raise UserError(f"{key}: {error}") from error


def find_checkpoint(name: str, root: Path | None) -> Path:
    """The file that ``model.checkpoint`` means: here, or in the folder of datasets."""
    places = [Path(name).expanduser(), *([] if root is None else [root / name])]
    for place in places:
        if place.is_file():
            return place
    raise UserError(
        f"model.checkpoint: there is no file {' or '.join(map(str, places))}; put the pretrained weights there, or "
        "start from random ones with model.checkpoint=null"
    )
