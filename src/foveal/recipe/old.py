"""Recipes of format version 1, as old run folders and files hold them, in the keys of version 2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from foveal.recipe.choice import keys
from foveal.recipe.optim import optimisers

STAIRS = ("after", "every", "factor")  # keys of that schedule, which stood directly below ``optim``
OPTIMISER_KEYS = {"sgd": {"momentum", "nesterov"}, "rmsprop": {"alpha", "eps"}, "adam": {"eps"}, "adamw": {"eps"}}
SHARPEN_LOSSES = ("separability_inner", "separability_last", "consistency_inner")
MAP_KEYS = ("layers", "kind", "sigma", "omega")  # of the class attention that is measured
RENAMED = {"mean_average_precision": "label_map"}


def upgraded(raw: dict[str, Any], base: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A mapping of version 1 in the keys of version 2; any other is returned as it is.

    Args:
        raw: the mapping.
        base: what the mapping is merged into, in version 2, if it extends a recipe.
    """
    if raw.get("version") != 1:
        return raw
    base = base or {}
    new = {key: dict(value) if isinstance(value, Mapping) else value for key, value in raw.items()}
    new["version"] = 2
    if "task" not in base:
        new.setdefault("task", "refer")  # the default of version 1
    _published(new)
    if isinstance(optim := new.get("optim"), dict):
        _optim(optim, _section(base, "optim"))
    if isinstance(loss := new.get("loss"), dict):
        _relation(loss)
        if "sharpen" in loss:
            _sharpen(new, loss, base)
    return new


def _section(raw: Mapping[str, Any], *path: str) -> Mapping[str, Any]:
    """A section of a mapping by its path of keys; empty if it is missing or null."""
    section: Any = raw
    for key in path:
        section = section.get(key) if isinstance(section, Mapping) else None
    return section if isinstance(section, Mapping) else {}


def _published(new: dict[str, Any]) -> None:
    published = new.get("published")
    if published is None:
        new.pop("published", None)
    elif isinstance(published, dict):
        place = {key: published.pop(key) for key in ("table", "row", "column") if key in published}
        if place.get("table"):
            new["cell"] = {key: value for key, value in place.items() if value is not None}
        new["published"] = {RENAMED.get(key, key): value for key, value in published.items()}


def _optim(optim: dict[str, Any], base: Mapping[str, Any]) -> None:
    steps = {key: optim.pop(key) for key in STAIRS if key in optim}
    schedule = optim.get("schedule", base.get("schedule"))
    name = schedule.get("name") if isinstance(schedule, Mapping) else schedule
    if name == "stairs" and ("schedule" in optim or steps):
        optim["schedule"] = {"name": name, **steps}
    optimiser = optim.get("name", base.get("name", "adamw"))
    if optimiser not in OPTIMISER_KEYS:
        return
    for key in set().union(*OPTIMISER_KEYS.values()) - OPTIMISER_KEYS[optimiser]:
        optim.pop(key, None)  # version 1 wrote and ignored the keys of other optimisers
    for key in set(base) - {"name", *keys(optimisers.kinds[optimiser])}:
        optim[key] = None


def _relation(loss: dict[str, Any]) -> None:
    relation = loss.get("relation")
    if isinstance(relation, dict) and "weight" in relation:
        loss["relation"] = {key: value for key, value in relation.items() if key != "weight"}
        loss["weights"] = {"relation": relation["weight"]}


def _sharpen(new: dict[str, Any], loss: dict[str, Any], base: Mapping[str, Any]) -> None:
    """``loss.sharpen`` asked for losses on class attention and for its measures; now each has a section."""
    sharpen = loss["sharpen"]
    if sharpen is not None and not isinstance(sharpen, dict):
        return  # an error, which is named when the section is parsed
    inherited = _section(base, "loss", "weights")
    options = dict(sharpen or {})
    weights = options.pop("weight_dict", None) or {}
    options["layers"] = _layers(options, base)
    trained = SHARPEN_LOSSES if len(options["layers"]) > 1 else SHARPEN_LOSSES[1:2]
    maps = {key: options[key] for key in MAP_KEYS if key in options}
    new["measure"] = {"class_attention": None if sharpen is None else maps}
    if sharpen is not None and any({**inherited, **weights}.get(name, 1) for name in trained):
        loss["sharpen"] = options
    else:  # plain training; null takes away what is inherited
        loss["sharpen"] = None
        weights = {name: weight for name, weight in weights.items() if name not in SHARPEN_LOSSES}
        weights |= {name: None for name in SHARPEN_LOSSES if name in inherited}
    if weights:
        loss["weights"] = weights


def _layers(options: dict[str, Any], base: Mapping[str, Any]) -> list[str]:
    """The layers of class attention from ``inner`` and ``last``; what is left out is inherited."""
    sections = (_section(base, "loss", "sharpen"), _section(base, "measure", "class_attention"))
    inherited = next((section["layers"] for section in sections if section.get("layers")), ["layer3", "layer4"])
    inner, last = ([None] if len(inherited) == 1 else []) + inherited
    layers = options.pop("inner", inner), options.pop("last", last)
    return [layer for layer in layers if layer is not None]
