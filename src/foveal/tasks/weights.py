"""The weights of a run: which epoch's are kept, writing them again, and the trained model made of them."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from foveal.attention.insertion.describe import inserted
from foveal.errors import RunError
from foveal.models import list_models
from foveal.recipe import Recipe, complete
from foveal.runs import RunFolder, Stored, find_run
from foveal.runs.checkpoints import SafeCheckpointIO
from foveal.runs.folder import quoted
from foveal.tasks.base import Task, find_task


def chosen(recipe: Recipe, folder: RunFolder) -> dict[str, Any]:
    """Checkpoint of the epoch to be tested."""
    return SafeCheckpointIO().load_checkpoint(folder.file(f"{recipe.train.select}.ckpt"), "cpu")


def export(task: Task, folder: RunFolder) -> None:
    """Write the model of the epoch to be tested alone, with what it needs to be used without its data."""
    checkpoint = chosen(task.recipe, folder)
    task.on_load_checkpoint(checkpoint)
    state: dict[str, Tensor] = checkpoint["state_dict"]
    weights = {name.removeprefix("model."): tensor for name, tensor in state.items() if name.startswith("model.")}
    folder.write_tensors("weights.safetensors", Stored(weights, task.about() | {"inserted": inserted(task.model)}))


def read_weights(folder: RunFolder) -> Stored:
    """What :func:`export` wrote."""
    stored = folder.tensors("weights.safetensors")
    for name, tensor in stored.tensors.items():
        if tensor.isnan().any():
            again = f"`foveal train {quoted(folder.path)}` writes it again"
            raise RunError(f"{folder.file('weights.safetensors')} is damaged ({name} is not a number); {again}")
    return stored


def load_model(out: str | Path) -> tuple[nn.Module, dict[str, Any]]:
    """The trained model of a run in eval mode, and what its task keeps of the data: ``answers``, ``size``, …."""
    folder = find_run(out)
    recipe = complete(folder.recipe())
    stored = read_weights(folder)
    about = {key: value for key, value in stored.about.items() if key != "inserted"}
    model = find_task(recipe.task).rebuild(at_the_same_sites(recipe, stored.about), about)
    try:
        model.load_state_dict(stored.tensors)
    except RuntimeError as error:
        file, problem = folder.file("weights.safetensors"), textwrap.shorten(str(error), 300)
        raise RunError(f"{file} does not fit the model of recipe.yaml: {problem}") from error
    return model.eval(), about


def at_the_same_sites(recipe: Recipe, about: Mapping[str, Any]) -> Recipe:
    """The recipe with the sites at which attention was inserted in training, whatever is usual today."""
    entries = recipe.model.get("insert", [])
    names = [entry if isinstance(entry, str) else entry["mechanism"] for entry in _listed(entries)]
    sites = {description["mechanism"]: description["at"] for description in about.get("inserted", [])}
    if recipe.model["name"] in list_models() or len(names) != len(sites):  # with attention of its own, or of old
        return recipe
    same = [
        {**({} if isinstance(entry, str) else entry), "mechanism": name, "at": sites[name]}
        for name, entry in zip(names, _listed(entries), strict=True)
    ]
    return replace(recipe, model={**recipe.model, "insert": same}) if same else recipe


def _listed(entries: Any) -> list[Any]:
    return entries if isinstance(entries, list) else [entries]
