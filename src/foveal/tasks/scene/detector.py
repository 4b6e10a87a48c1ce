"""The detector of a scene network: from a run or a saved folder, or built with weights from a file.

A finished scene run holds all weights itself. What it keeps of its detector is only how to build it again, as plain
values, so that the folder of the detector is not needed any more.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from foveal.attention.insertion.describe import reinsert
from foveal.errors import UserError
from foveal.models.build import build_model
from foveal.models.registry import any_model
from foveal.recipe import complete, load
from foveal.runs import find_run
from foveal.tasks.base import find_task
from foveal.tasks.saved import DESCRIPTION
from foveal.tasks.saved import load as load_saved
from foveal.tasks.weights import at_the_same_sites, load_model

FOLDER = "folder"
Section = Mapping[str, Any]


def load_detector(section: Section, root: Path | None) -> tuple[nn.Module, dict[str, Any]]:
    """The detector that ``model.detector`` of a recipe means, and how to build it again.

    Args:
        section: ``folder``, a run or what :func:`foveal.save` wrote; or what :func:`~foveal.models.build.build_model`
            takes: ``name``, options, ``insert`` and ``checkpoint``.
        root: folder of datasets, where ``checkpoint`` is looked for if it is not here.
    """
    if FOLDER not in section:
        if "name" not in section:
            raise UserError("model.detector: expected folder, a trained detector, or name and checkpoint")
        return build_model(section, {}, root=root), {"section": dict(section)}
    if len(section) > 1:
        others = ", ".join(sorted(set(section) - {FOLDER}))
        raise UserError(f"model.detector: with folder, which says everything, leave {others} out")
    folder = Path(section[FOLDER])
    if (folder / DESCRIPTION).is_file():
        saved = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
        if saved.get("name") is None:
            raise UserError(f"model.detector.folder: {folder} does not say which network it is; save it with its name")
        return load_saved(folder), {"saved": {key: saved[key] for key in ("name", "options", "inserted")}}
    model, about = load_model(folder)
    run = find_run(folder)
    stored = run.tensors("weights.safetensors").about
    recipe = at_the_same_sites(complete(run.recipe()), stored)
    return model, {"recipe": recipe.dump(), "about": about}


def rebuild_detector(how: Mapping[str, Any]) -> nn.Module:
    """The detector that :func:`load_detector` described, ready to take its weights."""
    if "section" in how:
        return build_model(how["section"], {}, trained=True)
    if "saved" in how:
        model = any_model(how["saved"]["name"], **how["saved"]["options"])
        reinsert(model, how["saved"]["inserted"])
        return model
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "recipe.yaml"
        file.write_text(how["recipe"], encoding="utf-8")
        recipe = load(file)
    return find_task(recipe.task).rebuild(recipe, how["about"])
