"""Files of run format 1 in the form of today."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

RENAMED = {"mean_average_precision": "label_map"}
CURVES = ("pixel_pr", "scale_accuracy")


def upgraded_result(result: dict[str, Any]) -> dict[str, Any]:
    """``result.json`` of any format in that of today."""
    if result.get("format", 1) >= 2:
        return result
    new = {key: value for key, value in result.items() if key not in (*CURVES, "class_attention", "average_precision")}
    new["metrics"] = _renamed(result["metrics"])
    new["published"] = _renamed(result.get("published") or {})
    parts: dict[str, Any] = {}
    if isinstance(each := result.get("average_precision"), dict):
        parts["average_precision"] = each
    for name, split in (result.get("class_attention") or {}).items():
        parts[name] = {part: value for part, value in split.items() if part != "all"}
    new["parts"] = parts
    new["curves"] = {name: result[name] for name in CURVES if isinstance(result.get(name), dict)}
    return {"format": 2, "cell": None, "infos": {}, **new}


def upgraded_epoch(row: dict[str, Any]) -> dict[str, Any]:
    """A row of ``metrics.jsonl`` with the names of today."""
    names = {f"val/{old}": f"val/{new}" for old, new in RENAMED.items()}
    return {names.get(key, key): value for key, value in row.items()}


def upgraded_checkpoint(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """A checkpoint whose callbacks are found under the names of today; theirs hold that of the validation score."""

    def new_name(key: str) -> str:
        for old, new in RENAMED.items():
            key = key.replace(f"'val/{old}'", f"'val/{new}'")
        return key

    callbacks = checkpoint.get("callbacks")
    if not isinstance(callbacks, dict):
        return checkpoint
    return {**checkpoint, "callbacks": {new_name(key): state for key, state in callbacks.items()}}


def _renamed(metrics: Mapping[str, Any]) -> dict[str, Any]:
    return {RENAMED.get(key, key): value for key, value in metrics.items()}


def upgraded_about(about: dict[str, Any], recipe: Path) -> dict[str, Any]:
    """Header of a safetensors file; format 1 did not say how large the images of a ``refer`` run are."""
    if "size" in about or "queries" not in about:
        return about
    try:
        data = yaml.safe_load(recipe.read_text(encoding="utf-8")).get("data") or {}
    except (OSError, yaml.YAMLError, UnicodeDecodeError, AttributeError):
        data = {}
    usual = 224 if about.get("multilabel") else 100
    return {**about, "size": data.get("canvas") or data.get("image_size") or usual}
