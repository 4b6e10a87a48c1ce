"""Recipes of format version 1, as old run folders hold them, in the keys of today."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SCHEDULES = {"stairs": ("after", "every", "factor")}  # keys that stood flat below ``optim``
OPTIMISERS = {"momentum": ("sgd",), "nesterov": ("sgd",), "alpha": ("rmsprop",), "eps": ("rmsprop", "adam", "adamw")}
ATTENTION = ("separability_inner", "separability_last", "consistency_inner")
RENAMED = {"mean_average_precision": "label_map"}


def upgraded(raw: dict[str, Any], name: str) -> dict[str, Any]:
    """A mapping of version 1 in the keys of version 2; any other is left as it is."""
    if raw.get("version") != 1:
        return raw
    new = {key: dict(value) if isinstance(value, Mapping) else value for key, value in raw.items()}
    new["version"] = 2
    new.setdefault("task", "refer")  # what version 1 took where nothing was said
    _published(new)
    _optim(new)
    _loss(new)
    return new


def _published(new: dict[str, Any]) -> None:
    published = new.pop("published", None)
    if not isinstance(published, dict):
        return
    place = {key: published.pop(key) for key in ("table", "row", "column") if key in published}
    if place.get("table"):
        new["cell"] = place
    new["published"] = {RENAMED.get(key, key): value for key, value in published.items() if value is not None}


def _optim(new: dict[str, Any]) -> None:
    optim = new.get("optim")
    if not isinstance(optim, dict):
        return
    options = {key: optim.pop(key) for key in SCHEDULES["stairs"] if key in optim}
    schedule = optim.get("schedule")
    if isinstance(schedule, str):
        known = {key: options[key] for key in SCHEDULES.get(schedule, ()) if key in options}
        optim["schedule"] = {"name": schedule, **known}
    elif schedule is None and options:  # the recipe that this one extends names the schedule
        optim["schedule"] = options
    for key, owners in OPTIMISERS.items():  # version 1 wrote and ignored those of other optimisers
        if "name" in optim and optim["name"] not in owners:
            optim.pop(key, None)


def _loss(new: dict[str, Any]) -> None:
    loss = new.get("loss")
    if not isinstance(loss, dict):
        return
    weights: dict[str, Any] = dict(loss.get("weights") or {})
    relation, sharpen = loss.get("relation"), loss.pop("sharpen", None)
    if isinstance(relation, dict) and "weight" in relation:
        loss["relation"] = {key: value for key, value in relation.items() if key != "weight"}
        weights["relation"] = relation["weight"]
    if isinstance(sharpen, dict):
        options = dict(sharpen)
        weights |= options.pop("weight_dict", None) or {}
        options["layers"] = [
            layer for layer in (options.pop("inner", "layer3"), options.pop("last", "layer4")) if layer is not None
        ]
        kept = ("layers", "kind", "sigma", "omega")
        new["measure"] = {"class_attention": {key: options[key] for key in kept if key in options}}
        if any(weights.get(name, 1) for name in ATTENTION):
            loss["sharpen"] = options
        else:  # a baseline whose maps were measured
            weights = {name: weight for name, weight in weights.items() if name not in ATTENTION}
    if weights:
        loss["weights"] = weights
